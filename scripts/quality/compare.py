"""Comparison of several runs on the questions that all of them answered. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from contracts.errors import CommandRefusedError
from planning.cost.costs import per_million
from scripts.quality.chance import SIGNIFICANT, RightShare, corrected, paired_p
from scripts.quality.items import KINDS, Kind
from scripts.quality.results import JudgedAnswer, QualityResult, share_of

ChangeVerdict = Literal["better", "worse", "unclear"]
"""`unclear`: the difference can be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """Best output rate of a benchmark of the same deployment."""

    output_tok_per_s: float
    load: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """One run, on the common questions."""

    result: QualityResult
    total: RightShare
    by_kind: Mapping[Kind, RightShare]
    lost: int = 0
    """Questions that the first run answered right and this one wrong."""
    won: int = 0
    """Questions that the first run answered wrong and this one right."""
    p: float | None = None
    """Chance of such a difference to the first run; None for the first."""
    speed: MeasuredSpeed | None = None

    @property
    def verdict(self) -> ChangeVerdict | None:
        """The difference to the first run; None for the first."""
        if self.p is None:
            return None
        if self.p >= SIGNIFICANT:
            return "unclear"
        return "worse" if self.lost > self.won else "better"

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Price per million output tokens at the measured rate; None if either is unknown."""
        usd = self.result.header.served.usd_per_hour
        if usd is None or self.speed is None or not self.speed.output_tok_per_s:
            return None
        return per_million(usd, self.speed.output_tok_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityComparison:
    """Several runs; the first is the baseline."""

    rows: tuple[QualityRow, ...]
    common: int
    """Questions that every run answered."""
    kinds: tuple[Kind, ...]

    @property
    def is_simulated(self) -> bool:
        """True if simulated servers answered."""
        return any(row.result.header.served.simulated for row in self.rows)

    @property
    def is_worse(self) -> bool:
        """True if a run is worse than the first by more than chance."""
        return any(row.verdict == "worse" for row in self.rows)


def compare(results: Sequence[QualityResult], speeds: Sequence[MeasuredSpeed | None]) -> QualityComparison:
    """Return the comparison. Raises CommandRefusedError for runs that do not compare."""
    _require_comparable(results)
    judged = [{one.id: one for one in result.answers if one.verdict != "unknown"} for result in results]
    common = [name for name in judged[0] if all(name in each for each in judged)]
    if not common:
        raise CommandRefusedError("The runs have no answered question in common, so they do not compare.")
    kinds: tuple[Kind, ...] = tuple(kind for kind in KINDS if any(judged[0][name].kind == kind for name in common))
    splits = [_split(judged[0], each, common) for each in judged]
    values = corrected([paired_p(*split) for split in splits[1:]])
    rows = tuple(
        _row(
            result,
            [each[name] for name in common],
            kinds,
            split=split,
            p=None if number == 0 else values[number - 1],
            speed=speed,
        )
        for number, (result, each, split, speed) in enumerate(zip(results, judged, splits, speeds, strict=True))
    )
    return QualityComparison(rows=rows, common=len(common), kinds=kinds)


def _row(
    result: QualityResult,
    answers: Sequence[JudgedAnswer],
    kinds: Sequence[Kind],
    *,
    split: tuple[int, int],
    p: float | None,
    speed: MeasuredSpeed | None,
) -> QualityRow:
    by_kind: dict[Kind, RightShare] = {kind: share_of([one for one in answers if one.kind == kind]) for kind in kinds}
    lost, won = split
    return QualityRow(result=result, total=share_of(answers), by_kind=by_kind, lost=lost, won=won, p=p, speed=speed)


def _split(
    first: Mapping[str, JudgedAnswer], other: Mapping[str, JudgedAnswer], common: Sequence[str]
) -> tuple[int, int]:
    """Return the questions that only the first, and that only the other answered right."""
    pairs = [(first[name].verdict == "right", other[name].verdict == "right") for name in common]
    return sum(one and not two for one, two in pairs), sum(two and not one for one, two in pairs)


def _require_comparable(results: Sequence[QualityResult]) -> None:
    if len(results) < 2:  # noqa: PLR2004 - a comparison has two sides
        raise CommandRefusedError("One run named. Pass two or more folders or stacks; the first is the baseline.")
    if len({result.folder for result in results}) < len(results):
        raise CommandRefusedError("A run is named twice. Pass each folder or stack once.")
    first = results[0]
    for other in results[1:]:
        if other.header.set_sha256 != first.header.set_sha256:
            raise CommandRefusedError(
                f"{other.folder} was asked other questions than {first.folder}. Run scripts.quality again on the older one."
            )
    made_up = [result.folder for result in results if result.header.served.simulated]
    if made_up and len(made_up) < len(results):
        raise CommandRefusedError(
            f"{', '.join(made_up)}: answers of a SIMULATED server. They mean nothing, and never compare with those of a real one."
        )
