"""Comparison of two sweeps: the change of each metric, its confidence interval, and regressions.

Intervals are for the logarithm of the ratio. With three or more repeats in both sweeps, a point's interval is Student's t over the
repeats, with the larger of the metric's variance over all points and the point's own variance. With fewer repeats, it is a
block bootstrap over the requests in time order (H. R. Kuensch, Annals of Statistics 17, 1989). A bootstrap shows the noise within a
run but not the variation between runs, so its verdict is always "cannot tell". Intervals are widened for the number
of comparisons (Bonferroni), so a grid of a hundred points does not raise an alarm by chance.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from loadtest.errors import SweepError
from loadtest.measure import SCHEMA_VERSION, point_text, points_text, requests_for
from loadtest.steady import judged
from loadtest.store import read_results, read_run
from loadtest.student import student_t

RESAMPLES: Final = 400
REPEATS_WANTED: Final = 3
FEWEST_REQUESTS: Final = 8
SEED: Final = 20_240_229
"""Seed of the resampling, so the same folders produce the same report."""

MOST_NEEDED: Final = 1_000_000
"""Requests above which no number is named: the change is too close to the threshold."""
MOST_NAMED: Final = 12
"""Points of a sweep that a sentence names."""

ChangeVerdict: TypeAlias = Literal["worse", "better", "same", "cannot tell"]
Columns = dict[str, Any]
Groups = dict[str, list[dict[str, Any]]]
Statistic = Callable[[Columns, Any], Any]


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
    basis: str
    """Source of the interval: requests or repeats."""
    requests: int
    """Complete responses of the smaller side."""
    requests_needed: int | None
    """Complete responses per side that probably allow a verdict; None if it has one, or if the number is unknown or too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
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
        if not verdicts or "cannot tell" in verdicts or self.missing or self.invalid:
            return "cannot tell"
        return "better" if "better" in verdicts else "same"


def point_name(result: dict[str, Any]) -> str:
    """Return the identity of a point: load, lengths and traffic, without the repeat."""
    point = result["point"]
    name = point_text(point | {"repeat": 0})
    return f"{name}, {point['traffic']}" if point.get("traffic") else name


def _grouped(folder: Path) -> Groups:
    """Return the figures to compare, those of the steady windows, by the name of their point."""
    found: Groups = {}
    for result in read_results(folder):
        found.setdefault(point_name(result), []).append(judged(result))
    if not found:
        raise SweepError(f"{folder} has no results to compare.")
    return found


def compare_folders(before: Path, after: Path, *, threshold: float, confidence: float) -> Comparison:
    """Compare the points that both folders have.

    `threshold` is the share by which a metric may get worse, `confidence` the joint confidence of all intervals. Raises SweepError if a
    folder has no results.
    """
    first, second = _grouped(before), _grouped(after)
    _same_definitions(before, after, [*first.values(), *second.values()])
    common = [name for name in first if name in second]
    missing = [name for name in first if name not in second]
    left_out = [f"{name}: only in {before}" for name in missing]
    left_out += [f"{name}: only in {after}" for name in second if name not in first]
    invalid = [name for name in common if not _all_valid(first[name] + second[name])]
    left_out += [f"{name}: invalid" for name in invalid]
    usable = [name for name in common if name not in invalid]
    error = (1 - confidence) / max(1, len(usable) * (len(METRICS) + 1))
    of_tail = {name: _tail([*first[name], *second[name]]) for name in usable}
    changes = [
        change
        for metric in (*METRICS, *TAILS.values())
        for names in [[name for name in usable if metric in METRICS or of_tail[name] is metric]]
        for spread in [_pooled(metric, [group[name] for name in names for group in (first, second)])]
        for name in names
        if (change := _change(name, metric, first[name], second[name], _Judge(threshold, error, spread))) is not None
    ]
    return Comparison(
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


def _all_valid(results: Sequence[dict[str, Any]]) -> bool:
    return all(result["valid"] for result in results)


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


@dataclass(frozen=True, slots=True)
class _Spread:
    """Standard deviation of a metric's logarithm between repeats, over all points, and its degrees of freedom."""

    deviation: float
    freedom: int


@dataclass(frozen=True, slots=True)
class _Judge:
    """Parameters for the verdict on one metric of one point."""

    threshold: float
    error: float
    """Error probability of one interval."""
    spread: _Spread | None


def _same_definitions(before: Path, after: Path, groups: Sequence[Sequence[dict[str, Any]]]) -> None:
    versions = {result.get("schema_version", SCHEMA_VERSION) for group in groups for result in group}
    if len(versions) > 1:
        raise SweepError(
            f"{before} and {after} were measured by versions of this tool that define metrics differently. Measure the older one again."
        )


def _logs(metric: Metric, results: Sequence[dict[str, Any]]) -> list[float]:
    return [math.log(r[metric.field]) for r in results if r.get(metric.field) and r["completed"]]


def _pooled(metric: Metric, groups: Sequence[Sequence[dict[str, Any]]]) -> _Spread | None:
    """Return the spread of a metric between repeats, over all points with enough repeats; None without any."""
    logs = [found for group in groups if len(found := _logs(metric, group)) >= REPEATS_WANTED]
    freedom = sum(len(found) - 1 for found in logs)
    if not freedom:
        return None
    squares = math.fsum(statistics.variance(found) * (len(found) - 1) for found in logs)
    return _Spread(math.sqrt(squares / freedom), freedom)


def _change(
    name: str, metric: Metric, first: list[dict[str, Any]], second: list[dict[str, Any]], judge: _Judge
) -> FigureChange | None:
    logs = [_logs(metric, group) for group in (first, second)]
    if not logs[0] or not logs[1]:
        return None
    before, after = (statistics.fmean(math.exp(value) for value in found) for found in logs)
    ratio = after / before
    by_repeats = judge.spread is not None and min(len(logs[0]), len(logs[1])) >= REPEATS_WANTED
    half = (
        _half_of_repeats(logs, judge)
        if by_repeats
        else NormalDist().inv_cdf(1 - judge.error / 2)
        * math.hypot(*(_spread_of_requests(group, metric.field) for group in (first, second)))
    )
    known = math.isfinite(half)
    low, high = (ratio * math.exp(-half), ratio * math.exp(half)) if known else (0.0, math.inf)
    gain = (
        (ratio, low, high)
        if metric.higher_is_better
        else (1 / ratio, 1 / high if known else 0.0, 1 / low if known else math.inf)
    )
    verdict = change_verdict(*gain, threshold=judge.threshold) if by_repeats else "cannot tell"
    requests = min(sum(result["completed"] for result in group) for group in (first, second))
    needed = requests_needed(gain[0], half, requests, threshold=judge.threshold) if verdict == "cannot tell" else None
    if needed is not None and not by_repeats:
        needed = max(needed, math.ceil(requests * REPEATS_WANTED / min(len(found) for found in logs)))
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
        basis="repeats" if by_repeats else "requests",
        requests=requests,
        requests_needed=needed,
    )


def _half_of_repeats(logs: Sequence[Sequence[float]], judge: _Judge) -> float:
    """Return half the width of the interval. A point that varies more than the others keeps its own spread."""
    if judge.spread is None:
        return math.inf
    own = max(statistics.stdev(found) for found in logs)
    error_s = max(judge.spread.deviation, own) * math.sqrt(sum(1 / len(found) for found in logs))
    return student_t(judge.error, judge.spread.freedom) * error_s


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
    return "cannot tell"


def requests_needed(gain: float, half: float, requests: int, *, threshold: float) -> int | None:
    """Return the requests per side that would make an interval of half width `half` (of the logarithm) narrow enough for a verdict.

    An interval becomes narrower with the square root of the requests. None if the number is unknown or above MOST_NEEDED.
    """
    change = math.log(gain)
    lowest = math.log(1 - threshold) if threshold < 1 else -math.inf
    is_within = lowest <= change <= math.log(1 + threshold)
    wanted = min(change - lowest, math.log(1 + threshold) - change) if is_within else abs(change)
    if not math.isfinite(half) or wanted <= half / math.sqrt(MOST_NEEDED / max(1, requests)):
        return None
    return math.ceil(requests * max(1.0, (half / wanted) ** 2))


def _spread_of_requests(results: Sequence[dict[str, Any]], field: str) -> float:
    """Return the standard error of a metric's logarithm, from resampled blocks of adjacent requests of the point."""
    names = ("ttfts", "e2els", "output_lens")
    columns: Columns = {name: np.concatenate([_by_time(r, name) for r in results]) for name in names}
    count = len(columns["ttfts"])
    if count < FEWEST_REQUESTS:
        return math.inf
    random = np.random.default_rng(SEED)
    length = max(2, round(count ** (1 / 3)))
    starts = random.integers(0, count, size=(RESAMPLES, -(-count // length)), dtype=np.int32)
    picks = ((starts[:, :, None] + np.arange(length)) % count).reshape(RESAMPLES, -1)[:, :count]
    found = _STATISTICS[field](columns, picks)
    positive = found[found > 0]
    return float(np.std(np.log(positive))) if len(positive) > RESAMPLES // 2 else math.inf


def _by_time(result: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - a numpy array
    order = np.argsort(np.asarray(result["start_times"], dtype=float), kind="stable")
    return np.asarray(result[name], dtype=float)[order]


def _throughput(columns: Columns, picks: Any) -> Any:  # noqa: ANN401 - numpy arrays
    # At a fixed load, throughput is proportional to tokens per residence time (Little's law).
    return columns["output_lens"][picks].sum(axis=1) / columns["e2els"][picks].sum(axis=1)


def _ttft_percentile(share: float) -> Statistic:
    return lambda columns, picks: np.percentile(columns["ttfts"][picks], share, axis=1)


def _mean_tpot(columns: Columns, picks: Any) -> Any:  # noqa: ANN401 - numpy arrays
    steps = np.maximum(columns["output_lens"] - 1, 1)
    return ((columns["e2els"] - columns["ttfts"]) / steps)[picks].mean(axis=1)


_STATISTICS: Final[dict[str, Statistic]] = {
    "output_throughput": _throughput,
    "median_ttft_ms": _ttft_percentile(50),
    **{metric.field: _ttft_percentile(share) for share, metric in TAILS.items()},
    "mean_tpot_ms": _mean_tpot,
}


def verdict_counts(comparison: Comparison) -> tuple[str, str]:
    """Return the number of metrics that got worse, and the rest of the verdict. If nothing was compared, both are about that."""
    if comparison.compared_nothing:
        return "NOT COMPARED", f"because {_why_nothing(comparison)}."
    counts = {verdict: sum(change.verdict == verdict for change in comparison.changes) for verdict in _SAID}
    worse = f"{counts['worse'] + len(comparison.failures)} worse"
    points = ((comparison.invalid, "invalid"), (comparison.missing, "missing"))
    open_ones = f", {counts['cannot tell']} cannot tell" if counts["cannot tell"] else ""
    open_ones += "".join(f", {points_text(len(named))} {what}" for named, what in points if named)
    rest = (
        f"{counts['better']} better, {len(comparison.changes)} compared; threshold {comparison.threshold:.0%},"
        f" intervals of {comparison.confidence:.0%} over all comparisons together."
    )
    return f"{worse}{open_ones}", rest


_SAID: Final[tuple[ChangeVerdict, ...]] = ("worse", "better", "cannot tell")


def _why_nothing(comparison: Comparison) -> str:
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


def missing_note(comparison: Comparison) -> str:
    """Return the sentence about points of BEFORE that AFTER does not have; empty if it has all."""
    if not comparison.missing:
        return ""
    return f"Missing in {comparison.after}: {_named(comparison.missing)}."


def basis_note(comparison: Comparison) -> str:
    """Return why metrics have no verdict and how many requests would allow one, or an empty string."""
    opened = [change for change in comparison.changes if change.verdict == "cannot tell"]
    if not opened:
        return ""
    reasons: list[str] = []
    if any(change.basis == "requests" for change in opened):
        reasons.append(
            f"Points with fewer than {REPEATS_WANTED} repeats cannot tell, because one run cannot show the variation between runs:"
            f" measure with --repeats {REPEATS_WANTED} or more."
        )
    else:
        reasons.append(f"{len(opened)} of {len(comparison.changes)} intervals are too wide for a verdict.")
    known = [change for change in opened if change.requests_needed is not None]
    if known:
        hardest = max(known, key=lambda change: change.requests_needed or 0)
        reasons.append(
            f"About {hardest.requests_needed:,} requests per side would decide {hardest.metric} of {hardest.point}, which has {hardest.requests:,}"
            + (f"; the other {len(known) - 1} need no more." if len(known) > 1 else ".")
        )
    if len(known) < len(opened):
        reasons.append(
            f"{len(opened) - len(known)} are too close to the threshold or have too few requests to say how many more would decide."
        )
    return " ".join(reasons)


def comparison_json(comparison: Comparison) -> dict[str, Any]:
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


def comparison_sentence(comparison: Comparison) -> str:
    """Return the verdict as one sentence."""
    first, rest = verdict_counts(comparison)
    return f"{first}, {rest}"
