"""Comparison of two sweeps: the metrics of each common point before and after, with their ratio.

A metric is the mean of a point's repeats. A single run does not show how much runs vary, so the threshold has to be above that.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from loadtest.errors import SweepError
from loadtest.measure import failed_share, point_text, points_text
from loadtest.steady import judged
from loadtest.store import read_results, read_run

Change: TypeAlias = Literal["worse", "better", "same"]
CANNOT_TELL: Final = "cannot tell"
"""The verdict if a point of BEFORE was not compared."""
_Results: TypeAlias = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric to compare."""

    name: str
    field: str
    unit: str
    higher_is_better: bool


METRICS: Final = (
    Metric(name="output throughput", field="output_throughput", unit="tok/s", higher_is_better=True),
    Metric(name="median TTFT", field="median_ttft_ms", unit="ms", higher_is_better=False),
    Metric(name="mean TPOT", field="mean_tpot_ms", unit="ms", higher_is_better=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    """One metric of one point, before and after."""

    point: str
    metric: str
    unit: str
    before: float
    after: float
    ratio: float
    """After divided by before."""
    verdict: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepComparison:
    """Changes between two sweeps."""

    before: str
    after: str
    threshold: float
    changes: tuple[FigureChange, ...]
    failures: tuple[str, ...]
    """Common points whose failure rate grew by more than the threshold."""
    missing: tuple[str, ...]
    """Points of BEFORE that AFTER does not have."""
    invalid: tuple[str, ...]
    """Common points that are invalid in one of the sweeps."""
    differences: tuple[str, ...]
    """Settings that differ between the sweeps."""
    simulated: bool

    @property
    def worse(self) -> bool:
        """True if a metric or a failure rate got worse beyond the threshold."""
        return bool(self.failures) or any(change.verdict == "worse" for change in self.changes)

    @property
    def compared_nothing(self) -> bool:
        """True if no metric and no failure rate was compared."""
        return not self.changes and not self.failures

    @property
    def verdict(self) -> Change | Literal["cannot tell"]:
        """Verdict on the whole comparison. A point of BEFORE without a valid counterpart leaves it open, unless another is worse."""
        if self.worse:
            return "worse"
        if not self.changes or self.missing or self.invalid:
            return CANNOT_TELL
        return "better" if any(change.verdict == "better" for change in self.changes) else "same"

    @property
    def sentence(self) -> str:
        """The verdict as one sentence."""
        if self.compared_nothing:
            return f"Nothing was compared: {self.before} and {self.after} have no common point that is valid in both."
        worse = sum(change.verdict == "worse" for change in self.changes) + len(self.failures)
        better = sum(change.verdict == "better" for change in self.changes)
        left_out = ((self.invalid, "invalid"), (self.missing, "missing"))
        open_points = "".join(f", {points_text(len(points))} {what}" for points, what in left_out if points)
        return f"{worse} worse, {better} better, {len(self.changes)} compared{open_points}; threshold {self.threshold:.0%}."


def compare_folders(before: Path, after: Path, *, threshold: float) -> SweepComparison:
    """Compare the points that both folders have. `threshold` is the share by which a metric may get worse.

    Raises SweepError if a folder has no results.
    """
    first, second = _grouped(before), _grouped(after)
    common = {name: (first[name], second[name]) for name in first if name in second}
    invalid = [name for name, sides in common.items() if not all(result["valid"] for side in sides for result in side)]
    shares = {name: tuple(failed_share(*side) for side in sides) for name, sides in common.items()}
    return SweepComparison(
        before=str(before),
        after=str(after),
        threshold=threshold,
        changes=tuple(
            change
            for name, sides in common.items()
            if name not in invalid
            for change in _changes(name, *sides, threshold=threshold)
        ),
        failures=tuple(
            f"{name}: {after_share:.1%} of the requests failed, up from {before_share:.1%}"
            for name, (before_share, after_share) in shares.items()
            if after_share > before_share + threshold
        ),
        missing=tuple(name for name in first if name not in second),
        invalid=tuple(invalid),
        differences=tuple(_differences(read_run(before), read_run(after))),
        simulated=any(result["simulated"] for group in (*first.values(), *second.values()) for result in group),
    )


def _grouped(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the repeats of each point by its load, lengths and traffic. Latencies are those of the steady windows."""
    found: dict[str, list[dict[str, Any]]] = {}
    for result in read_results(folder):
        point = result["point"]
        name = ", ".join(part for part in (point_text(point | {"repeat": 0}), point.get("traffic")) if part)
        found.setdefault(name, []).append(judged(result))
    if not found:
        raise SweepError(f"{folder} has no results to compare.")
    return found


def _changes(name: str, before: _Results, after: _Results, *, threshold: float) -> Iterator[FigureChange]:
    """Yield the change of each metric that both sides have."""
    for metric in METRICS:
        values = [[result[metric.field] for result in side if result.get(metric.field)] for side in (before, after)]
        if not all(values):
            continue
        old, new = map(statistics.fmean, values)
        yield FigureChange(
            point=name,
            metric=metric.name,
            unit=metric.unit,
            before=old,
            after=new,
            ratio=new / old,
            verdict=_verdict(new / old if metric.higher_is_better else old / new, threshold),
        )


def _verdict(gain: float, threshold: float) -> Change:
    """Return the verdict on a change. `gain` is above 1 for an improvement."""
    if gain < 1 - threshold:
        return "worse"
    return "better" if gain > 1 + threshold else "same"


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name in ("model", "endpoint", "extra_body", "poisson"):
        if name in before and name in after and before[name] != after[name]:
            yield f"{name} was {before[name]} before and is {after[name]} after"


def comparison_json(comparison: SweepComparison) -> dict[str, Any]:
    """Return the comparison as JSON types."""
    return asdict(comparison) | {
        "schema_version": 1,
        "worse": comparison.worse,
        "verdict": comparison.verdict,
        "compared": len(comparison.changes),
        "sentence": comparison.sentence,
    }
