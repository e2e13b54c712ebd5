"""Comparison of two sweeps: the change of each metric, its confidence interval, and regressions.

Intervals are for the logarithm of the ratio. With three or more repeats in both sweeps, a point's interval is Student's t over the
repeats, with the larger of the metric's variance over all points and the point's own variance. Fewer repeats
do not show the variation between runs, so the interval is unknown, and the verdict is "cannot tell". Intervals are widened for the
number of comparisons (Bonferroni), so a grid of a hundred points does not raise an alarm by chance.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from loadtest.errors import SweepError
from loadtest.measure import REPEATS_WANTED, point_text, points_text, requests_for, student_t
from loadtest.steady import judged
from loadtest.store import read_results, read_run

MOST_NAMED: Final = 12
"""Points of a sweep that a sentence names."""

ChangeVerdict: TypeAlias = Literal["worse", "better", "same", "cannot tell"]
CANNOT_TELL: Final = "cannot tell"
"""The verdict without enough evidence for another one."""
Groups = dict[str, list[dict[str, Any]]]


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
TAILS: Final = {
    share: Metric(name=f"p{share} TTFT", field=f"p{share}_ttft_ms", unit="ms", higher_is_better=False)
    for share in (99, 95, 90)
}
"""Percentiles by share, the highest first. A point is compared by the first that every measurement has enough requests for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    """One metric of one point, before and after. Ratios are after divided by before."""

    point: str
    metric: str
    unit: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    verdict: ChangeVerdict
    basis: Literal["repeats", "none"]
    """Source of the interval."""
    requests: int
    """Complete responses of the smaller side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepComparison:
    """Changes between two sweeps."""

    before: str
    after: str
    threshold: float
    confidence: float
    changes: tuple[FigureChange, ...]
    failures: tuple[str, ...]
    """Points whose failure rate grew beyond the threshold, or that no longer have a complete response."""
    left_out: tuple[str, ...]
    """Points in only one sweep, and invalid points."""
    missing: tuple[str, ...]
    """Points of BEFORE that AFTER does not have."""
    invalid: tuple[str, ...]
    """Common points that are invalid in one of the sweeps."""
    points_before: tuple[str, ...]
    points_after: tuple[str, ...]
    differences: tuple[str, ...]
    """Settings that differ between the sweeps."""
    simulated: bool

    @property
    def worse(self) -> bool:
        """True if a metric got worse beyond the threshold."""
        return bool(self.failures) or any(change.verdict == "worse" for change in self.changes)

    @property
    def compared_nothing(self) -> bool:
        """True if no metric and no failure rate was compared."""
        return not self.changes and not self.failures

    @property
    def verdict(self) -> ChangeVerdict:
        """Verdict on the whole comparison. A point of BEFORE without a valid counterpart leaves it open, unless another is worse."""
        if self.worse:
            return "worse"
        verdicts = {change.verdict for change in self.changes}
        if not verdicts or CANNOT_TELL in verdicts or self.missing or self.invalid:
            return CANNOT_TELL
        return "better" if "better" in verdicts else "same"


def point_name(result: dict[str, Any]) -> str:
    """Return the identity of a point: load, lengths and traffic, without the repeat."""
    point = result["point"]
    name = point_text(point | {"repeat": 0})
    return f"{name}, {point['traffic']}" if point.get("traffic") else name


def _grouped(folder: Path) -> Groups:
    """Return the figures of the steady windows to compare, by the name of their point."""
    found: Groups = {}
    for result in read_results(folder):
        found.setdefault(point_name(result), []).append(judged(result))
    if not found:
        raise SweepError(f"{folder} has no results to compare.")
    return found


def compare_folders(before: Path, after: Path, *, threshold: float, confidence: float) -> SweepComparison:
    """Compare the points that both folders have.

    `threshold` is the share by which a metric may get worse, `confidence` the joint confidence of all intervals. Raises SweepError if a
    folder has no results.
    """
    first, second = _grouped(before), _grouped(after)
    common = [name for name in first if name in second]
    missing = [name for name in first if name not in second]
    left_out = [f"{name}: only in {before}" for name in missing]
    left_out += [f"{name}: only in {after}" for name in second if name not in first]
    invalid = [name for name in common if not all(result["valid"] for result in first[name] + second[name])]
    left_out += [f"{name}: invalid" for name in invalid]
    usable = [name for name in common if name not in invalid]
    error = (1 - confidence) / max(1, len(usable) * (len(METRICS) + 1))
    of_tail = {name: _tail([*first[name], *second[name]]) for name in usable}
    changes: list[FigureChange] = []
    for metric in (*METRICS, *TAILS.values()):
        names = [name for name in usable if metric in METRICS or of_tail[name] is metric]
        spread = _pooled(metric, [group[name] for name in names for group in (first, second)])
        for name in names:
            change = _change(name, metric, (first[name], second[name]), (threshold, error), spread)
            if change is not None:
                changes.append(change)
    return SweepComparison(
        before=str(before),
        after=str(after),
        threshold=threshold,
        confidence=confidence,
        changes=tuple(changes),
        failures=tuple(_grown_failures(common, first, second, threshold)),
        left_out=tuple(left_out),
        missing=tuple(missing),
        invalid=tuple(invalid),
        points_before=tuple(first),
        points_after=tuple(second),
        differences=tuple(_differences(before, after)),
        simulated=any(result["simulated"] for group in (*first.values(), *second.values()) for result in group),
    )


def _differences(before: Path, after: Path) -> list[str]:
    first, second = read_run(before), read_run(after)
    names = ("model", "endpoint", "extra_body", "poisson")
    return [
        f"{name} was {first.get(name)} before and is {second.get(name)} after"
        for name in names
        if name in first and name in second and first[name] != second[name]
    ]


def _tail(results: Sequence[dict[str, Any]]) -> Metric | None:
    """Return the highest percentile that every measurement has enough requests for; None without one."""
    fewest = min(result["completed"] for result in results)
    return next(
        (
            metric
            for share, metric in TAILS.items()
            if fewest >= requests_for(share) and all(result.get(metric.field) is not None for result in results)
        ),
        None,
    )


def _grown_failures(
    names: Sequence[str],
    first: dict[str, list[dict[str, Any]]],
    second: dict[str, list[dict[str, Any]]],
    threshold: float,
) -> list[str]:
    """Return the points whose failure rate grew by more than the threshold."""
    found: list[str] = []
    for name in names:
        shares = [
            sum(r["failed"] for r in group) / max(1, sum(r["failed"] + r["completed"] for r in group))
            for group in (first[name], second[name])
        ]
        if shares[1] > shares[0] + threshold:
            found.append(f"{name}: {shares[1]:.1%} of the requests failed, up from {shares[0]:.1%}")
    return found


def _logs(metric: Metric, results: Sequence[dict[str, Any]]) -> list[float]:
    return [math.log(r[metric.field]) for r in results if r.get(metric.field) and r["completed"]]


def _pooled(metric: Metric, groups: Sequence[Sequence[dict[str, Any]]]) -> tuple[float, int]:
    """Return a metric's deviation between repeats over all points with enough repeats, and its degrees of freedom."""
    logs = [found for group in groups if len(found := _logs(metric, group)) >= REPEATS_WANTED]
    freedom = sum(len(found) - 1 for found in logs)
    squares = math.fsum(statistics.variance(found) * (len(found) - 1) for found in logs)
    return math.sqrt(squares / max(1, freedom)), freedom


def _change(
    name: str,
    metric: Metric,
    groups: Sequence[Sequence[dict[str, Any]]],
    limits: tuple[float, float],
    spread: tuple[float, int],
) -> FigureChange | None:
    """Return the change of a metric of a point; None without values.

    `limits`: the share by which it may get worse, and the error probability of its interval. `spread`: as `_pooled` returns it.
    """
    logs = [_logs(metric, group) for group in groups]
    if not logs[0] or not logs[1]:
        return None
    before = statistics.fmean(math.exp(value) for value in logs[0])
    after = statistics.fmean(math.exp(value) for value in logs[1])
    ratio = after / before
    low, high = 0.0, math.inf
    verdict = CANNOT_TELL
    requests = min(sum(result["completed"] for result in group) for group in groups)
    by_repeats = spread[1] > 0 and min(len(found) for found in logs) >= REPEATS_WANTED
    if by_repeats:
        low, high, verdict = _judged_interval(metric, ratio, logs, limits, spread)
    return FigureChange(
        point=name,
        metric=metric.name,
        unit=metric.unit,
        before=before,
        after=after,
        ratio=ratio,
        low=low,
        high=high,
        verdict=verdict,
        basis="repeats" if by_repeats else "none",
        requests=requests,
    )


def _judged_interval(
    metric: Metric,
    ratio: float,
    logs: Sequence[Sequence[float]],
    limits: tuple[float, float],
    spread: tuple[float, int],
) -> tuple[float, float, ChangeVerdict]:
    """Return the ends of a ratio's confidence interval and its verdict. `limits` and `spread` as for `_change`."""
    threshold, risk = limits
    pooled, freedom = spread
    # A point that varies more than the others keeps its own spread.
    deviation = max(pooled, *(statistics.stdev(found) for found in logs))
    error = deviation * math.sqrt(sum(1 / len(found) for found in logs))
    half = student_t(risk, freedom) * error
    low = ratio * math.exp(-half)
    high = ratio * math.exp(half)
    gain = (ratio, low, high) if metric.higher_is_better else (1 / ratio, 1 / high, 1 / low)
    return low, high, change_verdict(*gain, threshold=threshold)


def change_verdict(gain: float, low: float, high: float, *, threshold: float) -> ChangeVerdict:
    """Return the verdict on a change from its interval. `gain` is above 1 for an improvement.

    A change beyond the threshold counts only if its interval excludes no change. "same" needs evidence: the whole interval is
    within the threshold.
    """
    if 1 - threshold <= low and high <= 1 + threshold:
        return "same"
    if gain < 1 - threshold and high < 1:
        return "worse"
    if gain > 1 + threshold and low > 1:
        return "better"
    return CANNOT_TELL


def verdict_counts(comparison: SweepComparison) -> tuple[str, str]:
    """Return the number of metrics that got worse, and the rest of the verdict. If nothing was compared, both are about that."""
    if comparison.compared_nothing:
        return "NOT COMPARED", f"because {_why_nothing(comparison)}."
    counts = {verdict: sum(change.verdict == verdict for change in comparison.changes) for verdict in _SAID}
    worse = f"{counts['worse'] + len(comparison.failures)} worse"
    points = ((comparison.invalid, "invalid"), (comparison.missing, "missing"))
    open_ones = f", {counts[CANNOT_TELL]} {CANNOT_TELL}" if counts[CANNOT_TELL] else ""
    open_ones += "".join(f", {points_text(len(named))} {what}" for named, what in points if named)
    rest = (
        f"{counts['better']} better, {len(comparison.changes)} compared; threshold {comparison.threshold:.0%},"
        f" intervals of {comparison.confidence:.0%} over all comparisons together."
    )
    return f"{worse}{open_ones}", rest


_SAID: Final[tuple[ChangeVerdict, ...]] = ("worse", "better", CANNOT_TELL)


def _why_nothing(comparison: SweepComparison) -> str:
    """Return why nothing was compared, with the points of both sweeps."""
    common = len(comparison.points_before) - len(comparison.missing)
    if common and len(comparison.invalid) == common:
        return f"every common point is invalid in one of the sweeps, so measure again: {_named(comparison.invalid)}"
    why = (
        "no common point is valid in both sweeps or has metrics"
        if common
        else "the sweeps have no common point, so measure the same loads and lengths"
    )
    sides = ((comparison.before, comparison.points_before), (comparison.after, comparison.points_after))
    return "; ".join([why, *(f"{side} has {_named(points)}" for side, points in sides)])


def _named(points: Sequence[str]) -> str:
    more = len(points) - MOST_NAMED
    named = " | ".join(points[:MOST_NAMED])
    return f"{named} | {more} more" if more > 0 else named


def missing_note(comparison: SweepComparison) -> str:
    """Return the sentence about points of BEFORE that AFTER does not have; empty if it has all."""
    if not comparison.missing:
        return ""
    return f"Missing in {comparison.after}: {_named(comparison.missing)}."


def basis_note(comparison: SweepComparison) -> str:
    """Return why metrics have no verdict, and the option that helps, or an empty string."""
    opened = [change for change in comparison.changes if change.verdict == CANNOT_TELL]
    if not opened:
        return ""
    if any(change.basis == "none" for change in opened):
        return (
            f"Points with fewer than {REPEATS_WANTED} repeats have no verdict, because one run cannot show the variation between runs:"
            f" measure with --repeats {REPEATS_WANTED} or more."
        )
    return f"{len(opened)} of {len(comparison.changes)} intervals are too wide for a verdict: measure with more --repeats or --requests."


def comparison_json(comparison: SweepComparison) -> dict[str, Any]:
    """Return the comparison as JSON types. An infinite bound becomes null."""
    changes = [
        {
            key: (value if not isinstance(value, float) or math.isfinite(value) else None)
            for key, value in asdict(change).items()
        }
        for change in comparison.changes
    ]
    return asdict(comparison) | {
        "schema_version": 1,
        "changes": changes,
        "worse": comparison.worse,
        "verdict": comparison.verdict,
        "compared": len(comparison.changes),
        "sentence": comparison_sentence(comparison),
    }


def comparison_sentence(comparison: SweepComparison) -> str:
    """Return the verdict as one sentence."""
    first, rest = verdict_counts(comparison)
    return f"{first}, {rest}"
