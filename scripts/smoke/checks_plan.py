"""Comparison of the other checks' measurements with the planned bands."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from planning.numbers import as_number
from planning.question.types import Band
from planning.speed.residuals import Residual, residual, usual_causes
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, failed, passed, skipped, warned

_NOT_PLANNED: Final = (
    "TTFT and burst were not compared with the plan: the stack's settings file is missing or newer than the deployment. "
    "Restore the file or run `pulumi up`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One metric: its key, its name, unit and digits for users, its band and its value."""

    figure: str
    shown: str
    unit: str
    digits: int
    planned: Band
    measured: float | None
    is_met: bool
    """True if it meets a threshold of the stack, so a value outside the band is a warning, not a failure."""

    @property
    def found(self) -> Residual:
        return residual(self.planned, self.measured)

    @property
    def sentence(self) -> str:
        """Planned and measured values, with the usual causes of the difference."""
        typical = self._text(self.planned.typical)
        low = self._text(self.planned.low)
        high = self._text(self.planned.high)
        shown = "nothing" if self.measured is None else self._text(self.measured)
        causes = usual_causes(self.figure, self.found)
        planned = f"{self.shown}: planned {typical} {self.unit} ({low} to {high}), measured {shown}"
        return f"{planned}; {causes}" if causes else planned

    def _text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


async def plan(context: CheckContext) -> Outcome:
    """Compare the measurements with the planned bands. A slower one fails unless it meets a threshold of the stack; other deviations warn."""
    context.wanted = "every metric within its band"
    compared = list(_compared(context))
    if not compared:
        return skipped("no plan to compare with")
    outside = [one for one in compared if one.found != "within"]
    notes = [one.sentence for one in outside]
    if context.target.planned is not None and context.target.planned.ttft_s is None:
        notes.append(_NOT_PLANNED)
    slow = [one for one in outside if not one.is_met and one.found == ("above" if one.unit == "s" else "below")]
    measured = f"{len(compared) - len(outside)} of {len(compared)} metrics within their bands"
    values = {one.figure: one.found for one in compared}
    if not notes:
        return passed(measured, values)
    return (failed if slow else warned)(measured, ". ".join(notes), values)


def _compared(context: CheckContext) -> Iterator[_Compared]:
    planned = context.target.planned
    limits = context.target.thresholds
    if planned is None:
        return
    single = context.values.get("single stream", {})
    rate = as_number(single.get("decode_tok_per_s"))
    yield _Compared(
        figure="decode_tok_per_s",
        shown="one stream",
        unit="tok/s",
        digits=1,
        planned=planned.decode_tok_per_s,
        measured=rate,
        is_met=_reaches(rate, limits.min_decode_tok_per_s),
    )
    if planned.ttft_s is not None:
        ttft_s = as_number(single.get("ttft_s"))
        yield _Compared(
            figure="ttft_s",
            shown="first token",
            unit="s",
            digits=3,
            planned=planned.ttft_s,
            measured=ttft_s,
            is_met=_reaches(limits.max_ttft_s, ttft_s),
        )
    if planned.burst_tok_per_s is not None:
        together = as_number(context.values.get("burst", {}).get("burst_tok_per_s"))
        yield _Compared(
            figure="burst_tok_per_s",
            shown="burst",
            unit="tok/s",
            digits=1,
            planned=planned.burst_tok_per_s,
            measured=together,
            is_met=_reaches(together, limits.min_burst_tok_per_s),
        )


def _reaches(value: float | None, least: float | None) -> bool:
    """Return whether both values are known and the first is at least the second."""
    return value is not None and least is not None and value >= least
