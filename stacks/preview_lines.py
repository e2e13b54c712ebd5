"""What the program says about the plan in a preview: fits or not, starts in, costs; then notes that a user may act on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from planning.data.prices import is_in_catalog
from planning.question.types import Plan
from planning.rules.platforms.places import assumed_prices, old_prices, whole_bill
from planning.rules.registry import id_of
from planning.solve.wording import Wording
from stacks.planned import finding_text, headline

_BILL: Final = id_of(whole_bill)
_PRICE_NOTES: Final = frozenset({id_of(old_prices), id_of(assumed_prices)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewLine:
    """One message of the program."""

    text: str
    severity: Literal["info", "warn"] = "info"


def preview_lines(plan: Plan, stack: str, wording: Wording, *, today: str) -> Iterator[PreviewLine]:
    """Yield the plan's three lines, then one about its prices, one for each finding, and one for all accepted findings.

    A blocking finding that was not accepted is part of the error that stops the program.
    """
    for line in headline(plan).splitlines():
        yield PreviewLine(text=line)
    accepted = [finding.id for finding in plan.findings if finding.id in plan.accepted]
    shown = [finding for finding in plan.findings if finding.id not in accepted]
    for finding in plan.findings:
        if finding.id == _BILL:
            yield PreviewLine(text=f"Costs {finding_text(finding, wording).removeprefix(f'{_BILL}: ')}")
    if any(finding.id in _PRICE_NOTES for finding in shown):
        yield PreviewLine(text=_price_note(plan, stack, today))
    for finding in shown:
        if finding.severity != "block" and finding.id not in {_BILL, *_PRICE_NOTES}:
            yield PreviewLine(text=finding_text(finding, wording), severity=finding.severity)
    if accepted:
        yield PreviewLine(
            text=f"Accepted findings: {', '.join(accepted)}. To see them, run `python -m scripts.plan --stack {stack}`."
        )


def _price_note(plan: Plan, stack: str, today: str) -> str:
    """Return the number of prices that are out of date or unknown, and the command that refreshes them, or that lists them if it cannot."""
    prices = dict.fromkeys(price for place in plan.cost.places for price in place.prices)
    unknown = [price for price in prices if price.is_assumed or price.missed_on]
    old = [price for price in prices if price not in unknown and price.is_old(today)]
    counted = [f"{len(old)} out of date"] if old else []
    counted += [f"{len(unknown)} unknown"] if unknown else []
    can_refresh = any(is_in_catalog(one.key) and not (one.is_own or one.missed_on) for one in (*old, *unknown))
    what, options = ("refresh", f"prices --stack {stack}") if can_refresh else ("see", f"--stack {stack} --costs")
    return f"Prices: {' and '.join(counted)}, of {len(prices)}. To {what} them, run `python -m scripts.plan {options}`."
