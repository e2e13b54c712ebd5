"""Comparison of the other checks' measurements with the planned bands."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from planning.numbers import as_number
from planning.question.types import Band
from planning.speed.residuals import Residual, kv_band, residual, usual_causes
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, Verdict, skipped

_NOT_PLANNED: Final = (
    "TTFT and burst were not compared with the plan: the stack's settings file is missing or newer than the deployment. "
    "Restore the file or run `pulumi up`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One metric. With `is_excused`, it meets a threshold of the stack, so a value outside the band is a warning, not a failure."""

    figure: str
    shown: str
    unit: str
    digits: int
    planned: Band
    measured: float | None
    is_excused: bool = False

    @property
    def found(self) -> Residual:
        return residual(self.planned, self.measured)

    @property
    def is_too_slow(self) -> bool:
        slow = "above" if self.figure == "ttft_s" else "below"
        return self.found == slow and not self.figure.startswith("kv") and not self.is_excused

    @property
    def sentence(self) -> str:
        """Planned and measured values, with the usual causes of the difference."""
        measured = "nothing" if self.measured is None else self._number(self.measured)
        band = f"{self._number(self.planned.low)} to {self._number(self.planned.high)}"
        causes = usual_causes(self.figure, self.found)
        planned = (
            f"{self.shown}: planned {self._number(self.planned.typical)} {self.unit} ({band}), measured {measured}"
        )
        return f"{planned}; {causes}" if causes else planned

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


async def plan(context: CheckContext) -> Outcome:
    """Compare the measurements with the planned bands. A slower one fails unless it meets a threshold of the stack; other deviations warn."""
    compared = tuple(_compared(context))
    if not compared:
        return skipped("no plan to compare with")
    outside = [one for one in compared if one.found != "within"]
    notes = [one.sentence for one in outside]
    if context.target.planned is not None and context.target.planned.ttft_s is None:
        notes.append(_NOT_PLANNED)
    verdict: Verdict = "passed"
    if notes:
        verdict = "failed" if any(one.is_too_slow for one in outside) else "warned"
    return Outcome(
        verdict=verdict,
        measured=f"{len(compared) - len(outside)} of {len(compared)} metrics within their bands",
        wanted="every metric within its band",
        detail=". ".join(notes),
        values={one.figure: one.found for one in compared},
    )


def _compared(context: CheckContext) -> Iterator[_Compared]:
    planned, memory, thresholds = context.target.planned, context.target.memory, context.target.thresholds
    if planned is None:
        return
    single, burst = context.values.get("single stream", {}), context.values.get("burst", {})
    rate, ttft_s, together = (
        as_number(single.get("decode_tok_per_s")),
        as_number(single.get("ttft_s")),
        as_number(burst.get("burst_tok_per_s")),
    )
    yield _Compared(
        figure="decode_tok_per_s",
        shown="one stream",
        unit="tok/s",
        digits=1,
        planned=planned.decode_tok_per_s,
        measured=rate,
        is_excused=_reaches(rate, thresholds.min_decode_tok_per_s),
    )
    if planned.ttft_s is not None:
        yield _Compared(
            figure="ttft_s",
            shown="first token",
            unit="s",
            digits=3,
            planned=planned.ttft_s,
            measured=ttft_s,
            is_excused=_reaches(thresholds.max_ttft_s, ttft_s),
        )
    if planned.burst_tok_per_s is not None:
        yield _Compared(
            figure="burst_tok_per_s",
            shown="burst",
            unit="tok/s",
            digits=1,
            planned=planned.burst_tok_per_s,
            measured=together,
            is_excused=_reaches(together, thresholds.min_burst_tok_per_s),
        )
    if memory is not None:
        yield _Compared(
            figure="kv_blocks",
            shown="KV cache",
            unit="blocks",
            digits=0,
            planned=kv_band(memory.kv_blocks),
            measured=as_number(context.values.get("options in effect", {}).get("num_gpu_blocks")),
        )


def _reaches(value: float | None, least: float | None) -> bool:
    """Return whether both values are known and the first is at least the second."""
    return value is not None and least is not None and value >= least
