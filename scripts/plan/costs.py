"""The costs of a plan for people: where an hour costs what, the whole bill, a cold start, and when running all the time is cheaper."""

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from planning.question.types import BillPart, Plan, RunningCosts
from planning.units import HOUR_S, duration
from scripts.cli.tables import console, table

if TYPE_CHECKING:
    from planning.data.prices import Price

_BAR: Final = 40
_DAY_H: Final = 24
_PER: Final = {"hour": "hour", "busy hour": "busy hour", "month": "month", "start": "cold start", "renewal": "renewal"}
_NOTES: Final = (
    "* the region's own price is not known; this is the dearest known one",
    "A busy hour streams answers at the rate of saturation.",
)


def show_costs(plan: Plan) -> None:
    """Print the costs on stdout."""
    out = console(sys.stdout)
    out.print(
        f"{plan.model} on {plan.accelerator} ({plan.platform}): ${plan.cost.usd_per_hour:.2f}/h\n", soft_wrap=True
    )
    for line in (*_places(plan), ""):
        out.print(line, soft_wrap=True)
    sources = _Sources()
    headings = ("part", "amount", "unit price", "USD", "per", "date", "source")
    bill = table("The whole bill", headings, whole=headings, numbers=("amount", "unit price", "USD"))
    for part in plan.running.bill:
        bill.add_row(*_row(part, sources))
    out.print(bill)
    for line in (*sources.lines(), *_NOTES, "", *_starts(plan), "", *_chart(plan.running), *_break_even(plan)):
        out.print(line, soft_wrap=True, markup=False)


class _Sources:
    """URLs by number, so that a row of the table stays short."""

    def __init__(self) -> None:
        self._urls: list[str] = []

    def mark(self, price: "Price") -> str:
        """Return where a price is from: the number of its URL, or the price file."""
        if price.is_own:
            return "price file"
        if price.url not in self._urls:
            self._urls.append(price.url)
        number = self._urls.index(price.url) + 1
        return f"({number}) *" if price.is_assumed else f"({number})"

    def lines(self) -> Iterator[str]:
        """Yield the URLs with their numbers."""
        return (f"({number}) {url}" for number, url in enumerate(self._urls, 1))


def _places(plan: Plan) -> Iterator[str]:
    places = plan.cost.places
    if len(places) == 1:
        yield f"Prices of {places[0].place}." if places[0].place else "No place is named: prices of the United States."
        return
    yield "An hour by zone; until one is granted, the dearest counts"
    for one in places:
        note = "  dearest known price, its own is not known" if one.is_assumed else ""
        bar = _bar(one.usd_per_hour, plan.cost.usd_per_hour)
        yield f"  {one.place:<22} {_usd(one.usd_per_hour):>8} {bar}{note}"


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
        price.as_of or "no date",
        sources.mark(price),
    )


def _starts(plan: Plan) -> Iterator[str]:
    running = plan.running
    most = "at most " if plan.platform == "cloud-run" else ""
    yield f"A cold start takes {most}{duration(running.cold_start_s)} and costs {most}${running.cold_start_usd:.2f} until the first answer."
    linger = (
        f" An instance stays for {duration(running.idle_billing_s)} after its last request."
        if running.idle_billing_s
        else ""
    )
    yield f"An idle hour costs ${running.idle_usd_per_hour:.2f}.{linger}"


def _chart(running: RunningCosts) -> Iterator[str]:
    hours = "Hours of traffic" if running.idle_billing_s else "A run of N hours"
    yield f"{hours} a day, USD a month, and USD for an hour of answers"
    most = max(running.always_on_usd_per_month, *(window.usd_per_month for window in running.windows))
    for window in running.windows:
        served = window.usd_per_served_hour
        answer = "no answer before its end" if math.isinf(served) else f"${served:.2f}"
        bar = _bar(window.usd_per_month, most)
        yield f"  {window.hours_per_day:>4g} h   {_usd(window.usd_per_month):>12} {bar} {answer}"
    always = running.always_on_usd_per_month
    yield f"  always   {_usd(always):>12} {_bar(always, most)} {running.always_on}"
    for what, usd_per_month in running.commitments:
        yield f"  always   {_usd(usd_per_month):>12} {_bar(usd_per_month, most)} {what}"


def _break_even(plan: Plan) -> Iterator[str]:
    running = plan.running
    if running.even_requests_per_day is not None:
        yield (
            f"minInstances 1 is cheaper from {running.even_requests_per_day:.0f} single requests a day on, or from "
            f"{running.even_hours_per_day:.1f} h of traffic a day in one piece."
        )
        yield f"With minInstances 0 the first caller after a pause waits at most {duration(plan.startup.ready_s)}."
        return
    if running.even_hours_per_day < _DAY_H:
        yield f"{running.always_on} for the whole month is cheaper from {running.even_hours_per_day:.1f} h a day on."
    elif running.shortest_window_h is not None:
        yield f"Runs cost less than {running.always_on} for the whole month at any length."
    if running.shortest_window_h is not None:
        shortest = duration(running.shortest_window_h * HOUR_S)
        yield f"A run shorter than {shortest} costs more for an hour of answers than {running.always_on}, because of its cold start."


def _usd(amount: float) -> str:
    return f"${amount:,.2f}"


def _bar(value: float, most: float) -> str:
    return f"{'█' * max(round(value / most * _BAR), 1):<{_BAR}}"
