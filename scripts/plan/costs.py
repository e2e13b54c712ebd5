"""Costs of a plan as text: prices by location, the bill, a cold start, and when always-on is cheaper."""

import math
import sys
from collections.abc import Iterator
from typing import Final

from rich.console import Console

from gemma_serving.planning.data.prices import UNDATED
from gemma_serving.planning.question.types import BillPart, Plan, usd_per
from gemma_serving.planning.units import duration
from gemma_serving.scripts.cli.tables import FittedTable, console, paragraph

_DAY_H: Final = 24
_PER: Final = {"start": "cold start"}
_ASSUMED: Final = "* price of this location unknown; the highest known price is used"


def show_costs(plan: Plan) -> None:
    """Print the costs on stdout. `today` (YYYY-MM-DD) determines which prices are out of date."""
    out = console(sys.stdout)
    if not plan.cost.is_known:
        paragraph(out, f"{plan.model} on {plan.accelerator} ({plan.platform}): the price is unknown.")
        return
    paragraph(out, f"{plan.model} on {plan.accelerator} ({plan.platform}): ${plan.cost.usd_per_hour:.2f}/h")
    out.print()
    for line in _places(plan):
        paragraph(out, line)
    out.print()
    _bill(out, plan)
    out.print()
    for line in _starts(plan):
        paragraph(out, line)
    out.print()
    _windows(out, plan)
    for line in _break_even(plan):
        paragraph(out, line)


def _places(plan: Plan) -> Iterator[str]:
    places = plan.cost.places
    if len(places) == 1:
        only = places[0].place
        yield f"Prices of {only}." if only else "No location set: prices of the United States."
        return
    yield "Price per hour by zone; until a zone grants capacity, the highest price counts"
    for one in places:
        yield f"  {one.place:<22} ${one.usd_per_hour:,.2f}{'*' if one.is_assumed else ''}"
    if any(one.is_assumed for one in places):
        yield _ASSUMED


def _bill(out: Console, plan: Plan) -> None:
    prices = [part.price for part in plan.running.bill if part.price]
    urls = list(dict.fromkeys(price.url for price in prices if price.kind != "own"))
    bill = FittedTable(
        "Full bill",
        ("part", "amount", "unit price", "USD", "per", "date", "source"),
        whole=("date", "source"),
        numbers=("amount", "unit price", "USD"),
        least=("date", "unit price"),
    )
    for part in plan.running.bill:
        bill.add_row(*_row(part, urls))
    out.print(bill)
    reported = {price.url for price in prices if price.kind == "reported"}
    for number, url in enumerate(urls, 1):
        out.print(f"({number}) {'reported by ' if url in reported else ''}{url}", soft_wrap=True, markup=False)
    if any(price.is_assumed for price in prices):
        paragraph(out, _ASSUMED)
    paragraph(out, "A busy hour streams output at the saturated rate.")


def _row(part: BillPart, urls: list[str]) -> tuple[str, ...]:
    price, per = part.price, _PER.get(part.basis, part.basis)
    if price is None:
        return (part.name, "", "", f"{part.usd:.4f}", per, "", "")
    source = "price file" if price.kind == "own" else f"({urls.index(price.url) + 1})"
    return (
        part.name,
        f"{part.amount:,.2f} {part.unit}",
        f"{price.usd:.7f}".rstrip("0").rstrip("."),
        f"{part.usd:.2f}",
        per,
        price.as_of or UNDATED,
        f"{source} *" if price.is_assumed else source,
    )


def _starts(plan: Plan) -> Iterator[str]:
    running = plan.running
    most = "up to " if plan.platform == "cloud-run" else ""
    if running.cold_start_s is None or running.cold_start_usd is None:
        yield f"The cost of a cold start is unknown: no start on {plan.accelerator} was measured."
    else:
        traffic_usd = usd_per("start", running.bill)
        traffic = f", ${traffic_usd:.2f} of it for traffic" if traffic_usd else ""
        after = "" if plan.startup.cached_total_s is None else " after the first one"
        yield f"A cold start takes {_wait(plan)}{after} and costs {most}${running.cold_start_usd:.2f} until the first response{traffic}."
    if plan.cost.idle_usd_per_hour or not running.idle_billing_s:
        yield f"An idle hour costs ${running.idle_usd_per_hour:.2f}."
        return
    stays = usd_per("month", running.bill)
    yield (
        f"Cloud Run stops an idle instance after up to {duration(running.idle_billing_s)}. Without requests the service "
        f"then costs ${stays:.2f} per month (bucket, images, alerts)."
    )


def _wait(plan: Plan) -> str:
    """Return the time of a cold start: each but the first reads the compiled graphs."""
    cached_s = plan.startup.cached_total_s
    return plan.startup.ready_words if cached_s is None else duration(cached_s)


def _windows(out: Console, plan: Plan) -> None:
    running = plan.running
    title = "Hours of traffic each day" if running.idle_billing_s else "A run of N hours each day"
    numbers = ("hours", "USD per month")
    rows = FittedTable(title, (*numbers, "USD per hour of output"), numbers=numbers)
    for window in running.windows:
        usd = window.usd_per_served_hour
        served = "no output before the run expires" if math.isinf(usd) else f"${usd:.2f}"
        rows.add_row(f"{window.hours_per_day:g} h", f"${window.usd_per_month:,.2f}", served)
    for what, usd in ((running.always_on, running.always_on_usd_per_month), *running.commitments):
        rows.add_row("always", f"${usd:,.2f}", what)
    out.print(rows)


def _break_even(plan: Plan) -> Iterator[str]:
    running = plan.running
    if running.even_hours_per_day is None:
        return
    if running.even_requests_per_day is not None:
        yield (
            f"minInstances 1 is cheaper above {running.even_requests_per_day:.0f} single requests per day, or above "
            f"{running.even_hours_per_day:.1f} h of continuous traffic per day."
        )
        yield f"With minInstances 0, the first caller after an idle period waits {_wait(plan)}."
        return
    if running.even_hours_per_day < _DAY_H:
        yield f"{running.always_on} for the whole month is cheaper above {running.even_hours_per_day:.1f} h per day."
    elif running.shortest_window_h is not None:
        yield f"Runs of any length cost less than {running.always_on} for the whole month."
