"""Costs of a plan as text, with the price per hour by location, the full bill, a cold start, and the break-even for always-on."""

import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console

from planning.question.types import BillPart, Plan, RunningCosts
from planning.units import HOUR_S, duration
from scripts.cli.tables import console, paragraph, table

if TYPE_CHECKING:
    from planning.data.prices import Price

_BAR: Final = 40
"""Characters of the longest bar, where the terminal has room for it."""
_DAY_H: Final = 24
_PER: Final = {"hour": "hour", "busy hour": "busy hour", "month": "month", "start": "cold start", "renewal": "renewal"}
_ASSUMED: Final = "* price of this location unknown; the highest known price is used"
_BUSY: Final = "A busy hour streams output at the saturated rate."


def show_costs(plan: Plan, today: str) -> None:
    """Print the costs on stdout. `today` (YYYY-MM-DD) determines which prices are out of date."""
    out = console(sys.stdout)
    paragraph(out, f"{plan.model} on {plan.accelerator} ({plan.platform}): ${plan.cost.usd_per_hour:.2f}/h")
    out.print()
    _places(out, plan)
    out.print()
    _bill(out, plan)
    for line in _to_check(plan, today):
        paragraph(out, line)
    out.print()
    for line in _starts(plan):
        paragraph(out, line)
    out.print()
    _chart(out, plan.running)
    for line in _break_even(plan):
        paragraph(out, line)


def _bill(out: Console, plan: Plan) -> None:
    sources = _Sources()
    headings = ("part", "amount", "unit price", "USD", "per", "date", "source")
    bill = table(
        "Full bill",
        headings,
        whole=("date", "source"),
        numbers=("amount", "unit price", "USD"),
        least=("date", "unit price"),
    )
    for part in plan.running.bill:
        bill.add_row(*_row(part, sources))
    out.print(bill)
    for line in sources.lines():
        out.print(line, soft_wrap=True, markup=False)
    if any(part.price is not None and part.price.is_assumed for part in plan.running.bill):
        paragraph(out, _ASSUMED)
    paragraph(out, _BUSY)


class _Sources:
    """URLs by number, so that a row of the table stays short."""

    def __init__(self) -> None:
        self._urls: list[str] = []

    def mark(self, price: "Price") -> str:
        """Return the source of a price (the number of its URL, or the price file)."""
        if price.is_own:
            return "price file"
        if price.url not in self._urls:
            self._urls.append(price.url)
        number = self._urls.index(price.url) + 1
        return f"({number}) *" if price.is_assumed else f"({number})"

    def lines(self) -> Iterator[str]:
        """Yield the URLs with their numbers."""
        return (f"({number}) {url}" for number, url in enumerate(self._urls, 1))


def _places(out: Console, plan: Plan) -> None:
    places = plan.cost.places
    if len(places) == 1:
        only = places[0].place
        paragraph(out, f"Prices of {only}." if only else "No location set: prices of the United States.")
        return
    paragraph(out, "Price per hour by zone; until a zone grants capacity, the highest price counts")
    starts = [f"  {one.place:<22} {_usd(one.usd_per_hour):>8}{'*' if one.is_assumed else ' '} " for one in places]
    most = _room(out, starts)
    for start, one in zip(starts, places, strict=True):
        paragraph(out, f"{start}{_bar(one.usd_per_hour, plan.cost.usd_per_hour, most)}")
    if any(one.is_assumed for one in places):
        paragraph(out, _ASSUMED)


def _to_check(plan: Plan, today: str) -> Iterator[str]:
    """Yield each price by the hour, of any location, that is out of date or unknown."""
    for price in dict.fromkeys(price for place in plan.cost.places for price in place.prices):
        age_days = price.age_days(today)
        if price.missed_on:
            found = "several prices" if price.is_unclear else "no price"
            problem = f"{found} in Google's catalog of {price.missed_on}"
        elif price.is_assumed:
            problem = "unknown, so the highest known price"
        elif age_days is None:
            problem = f"undated ({price.url})" if price.url else "undated"
        elif price.is_old(today):
            problem = f"{age_days} days old, limit {price.max_age_days}"
        else:
            continue
        yield f"Check {price.key} in {price.region or 'every region'}: ${price.usd:g}, {problem}."


def _row(part: BillPart, sources: _Sources) -> tuple[str, ...]:
    price = part.price
    if price is None:
        return (part.name, "", "", f"{part.usd:.4f}", _PER[part.basis], "", "")
    return (
        part.name,
        f"{part.amount:,.2f} {part.unit}",
        f"{price.usd:.7f}".rstrip("0").rstrip("."),
        f"{part.usd:.2f}",
        _PER[part.basis],
        price.as_of or "undated",
        sources.mark(price),
    )


def _starts(plan: Plan) -> Iterator[str]:
    running = plan.running
    most = "up to " if plan.platform == "cloud-run" else ""
    yield f"A cold start takes {most}{duration(running.cold_start_s)} and costs {most}${running.cold_start_usd:.2f} until the first response."
    linger = (
        f" An instance stays for {duration(running.idle_billing_s)} after its last request."
        if running.idle_billing_s
        else ""
    )
    yield f"An idle hour costs ${running.idle_usd_per_hour:.2f}.{linger}"


def _chart(out: Console, running: RunningCosts) -> None:
    hours = "Hours of traffic" if running.idle_billing_s else "A run of N hours"
    paragraph(out, f"{hours} per day, USD per month, and USD per hour of output")
    rows = [
        (f"{window.hours_per_day:>4g} h  ", window.usd_per_month, _served(window.usd_per_served_hour))
        for window in running.windows
    ]
    rows += [("always  ", running.always_on_usd_per_month, running.always_on)]
    rows += [("always  ", usd_per_month, what) for what, usd_per_month in running.commitments]
    highest = max(usd_per_month for _, usd_per_month, _ in rows)
    starts = [f"  {when} {_usd(usd_per_month):>12} " for when, usd_per_month, _ in rows]
    most = _room(out, [f"{start} {note}" for start, (_, _, note) in zip(starts, rows, strict=True)])
    for start, (_, usd_per_month, note) in zip(starts, rows, strict=True):
        paragraph(out, note, prefix=f"{start}{_bar(usd_per_month, highest, most):<{most}} ")


def _served(usd_per_hour: float) -> str:
    return "no output before the run expires" if math.isinf(usd_per_hour) else f"${usd_per_hour:.2f}"


def _break_even(plan: Plan) -> Iterator[str]:
    running = plan.running
    if running.even_requests_per_day is not None:
        yield (
            f"minInstances 1 is cheaper above {running.even_requests_per_day:.0f} single requests per day, or above "
            f"{running.even_hours_per_day:.1f} h of continuous traffic per day."
        )
        yield f"With minInstances 0, the first caller after an idle period waits up to {duration(plan.startup.ready_s)}."
        return
    if running.even_hours_per_day < _DAY_H:
        yield f"{running.always_on} for the whole month is cheaper above {running.even_hours_per_day:.1f} h per day."
    elif running.shortest_window_h is not None:
        yield f"Runs of any length cost less than {running.always_on} for the whole month."
    if running.shortest_window_h is not None:
        shortest = duration(running.shortest_window_h * HOUR_S)
        yield f"A run shorter than {shortest} costs more per hour of output than {running.always_on}, because of its cold start."


def _usd(amount: float) -> str:
    return f"${amount:,.2f}"


def _room(out: Console, beside: Sequence[str]) -> int:
    """Return the characters of the longest bar, so that no line with the texts beside the bars is wider than the terminal."""
    return max(min(_BAR, out.width - max(map(len, beside))), 1)


def _bar(value: float, highest: float, most: int) -> str:
    return "█" * max(round(value / highest * most), 1)
