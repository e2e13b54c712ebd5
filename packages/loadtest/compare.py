"""Comparison of two sweeps: the change of each metric, its confidence interval, and regressions.

Intervals are for the logarithm of the ratio. With three or more repeats in both sweeps, a point's interval is Student's t over the
repeats, with the larger of the metric's variance over all points and the point's own variance. With fewer repeats, it is a
block bootstrap over the requests in time order (H. R. Kuensch, Annals of Statistics 17, 1989). A bootstrap shows the noise within a
run but not the variation between runs, so its verdict is at most "unclear". Intervals are widened for the number
of comparisons (Bonferroni), so a grid of a hundred points does not raise an alarm by chance.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from loadtest.errors import SweepError
from loadtest.foreign import Groups, aligned, read_foreign
from loadtest.measure import SCHEMA_VERSION, load_text
from loadtest.steady import judged
from loadtest.store import RESULTS, read_results, read_run
from loadtest.student import student_t

RESAMPLES: Final = 400
REPEATS_WANTED: Final = 3
FEWEST_REQUESTS: Final = 8
SEED: Final = 20_240_229
"""Seed of the resampling, so the same folders produce the same report."""

Columns = dict[str, Any]
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
    Metric(name="p99 TTFT", field="p99_ttft_ms", unit="ms", higher_is_better=False),
    Metric(name="mean TPOT", field="mean_tpot_ms", unit="ms", higher_is_better=False),
)


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
    verdict: str
    """worse, better, same, or unclear."""
    basis: str
    """Source of the interval: requests or repeats."""


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
    differences: tuple[str, ...]
    """Settings that differ between the sweeps."""
    simulated: bool

    @property
    def worse(self) -> bool:
        """True if a metric got worse beyond the threshold."""
        return bool(self.failures) or any(change.verdict == "worse" for change in self.changes)


def point_name(result: dict[str, Any]) -> str:
    """Return the identity of a point: load and lengths, without the repeat."""
    point = result["point"]
    asked = point["requested_input_tokens"] or point["input_tokens"]
    return f"{'concurrency' if point['mode'] == 'closed' else 'rate'} {load_text(result)}, {asked} in, {point['output_tokens']} out{_traffic_name(point)}"


def _traffic_name(point: dict[str, Any]) -> str:
    return f", {point['traffic']}" if point.get("traffic") else ""


def results_of(path: Path) -> list[dict[str, Any]]:
    """Return the results in a sweep's folder, or in a file or folder of `vllm bench serve`."""
    foreign = [] if (path / RESULTS).exists() else read_foreign(path)
    return foreign or read_results(path)


def _grouped(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for result in results_of(folder):
        found.setdefault(point_name(result), []).append(result)
    if not found:
        raise SweepError(f"{folder} has no results to compare.")
    return found


def _figures(first: Groups, second: Groups) -> tuple[Groups, Groups]:
    """Return the figures to compare: those of the steady windows, or of the whole points if one side is of another tool."""
    if any("tool" in result for groups in (first, second) for group in groups.values() for result in group):
        return first, second

    def steady(groups: Groups) -> Groups:
        return {name: [judged(result) for result in group] for name, group in groups.items()}

    return steady(first), steady(second)


def compare_folders(before: Path, after: Path, *, threshold: float, confidence: float) -> Comparison:
    """Compare the points that both folders have.

    `threshold` is the share by which a metric may get worse, `confidence` the joint confidence of all intervals. Raises SweepError if a
    folder has no results or the folders have no common point.
    """
    first, second = _figures(*aligned(_grouped(before), _grouped(after), point_name))
    _same_definitions(before, after, [*first.values(), *second.values()])
    common = [name for name in first if name in second]
    if not common:
        raise SweepError(f"{before} and {after} have no common point. Measure the same loads and lengths.")
    left_out = [f"{name}: only in {before}" for name in first if name not in second]
    left_out += [f"{name}: only in {after}" for name in second if name not in first]
    left_out += [f"{name}: invalid" for name in common if not _all_valid(first[name] + second[name])]
    usable = [name for name in common if _all_valid(first[name] + second[name])]
    error = (1 - confidence) / max(1, len(usable) * len(METRICS))
    changes = [
        change
        for metric in METRICS
        for spread in [_pooled(metric, [group[name] for name in usable for group in (first, second)])]
        for name in usable
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
    return [math.log(r[metric.field]) for r in results if r[metric.field] and r["completed"]]


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
    verdict = _verdict(metric, ratio, low, high, judge.threshold)
    return FigureChange(
        point=name,
        metric=metric.name,
        unit=metric.unit,
        before=before,
        after=after,
        ratio=ratio,
        low=low,
        high=high,
        verdict=verdict if by_repeats or verdict == "same" else "unclear",
        basis="repeats" if by_repeats else "requests",
    )


def _half_of_repeats(logs: Sequence[Sequence[float]], judge: _Judge) -> float:
    """Return half the width of the interval. A point that varies more than the others keeps its own spread."""
    if judge.spread is None:
        return math.inf
    own = max(statistics.stdev(found) for found in logs)
    error_s = max(judge.spread.deviation, own) * math.sqrt(sum(1 / len(found) for found in logs))
    return student_t(judge.error, judge.spread.freedom) * error_s


def _verdict(metric: Metric, ratio: float, low: float, high: float, threshold: float) -> str:
    """Return the verdict. A change beyond the threshold counts only if its interval excludes zero change."""
    gain = ratio if metric.higher_is_better else 1 / ratio
    certain = low > 1 or high < 1
    if gain < 1 - threshold:
        return "worse" if certain else "unclear"
    if gain > 1 + threshold:
        return "better" if certain else "unclear"
    return "same"


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
    "p99_ttft_ms": _ttft_percentile(99),
    "mean_tpot_ms": _mean_tpot,
}


def verdict_counts(comparison: Comparison) -> tuple[str, str]:
    """Return the number of metrics that got worse, and the rest of the verdict."""
    worse = sum(change.verdict == "worse" for change in comparison.changes) + len(comparison.failures)
    better = sum(change.verdict == "better" for change in comparison.changes)
    rest = (
        f"{better} better, {len(comparison.changes)} compared; threshold {comparison.threshold:.0%},"
        f" intervals of {comparison.confidence:.0%} over all comparisons together."
    )
    return f"{worse} worse", rest


def basis_note(comparison: Comparison) -> str:
    """Return why the verdicts are at most unclear, or an empty string."""
    if all(change.basis != "requests" for change in comparison.changes):
        return ""
    return (
        f"Points with fewer than {REPEATS_WANTED} repeats are at most unclear, because one run cannot show the variation between runs."
        f" Measure with --repeats {REPEATS_WANTED} or more."
    )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON types. An infinite bound becomes null."""
    changes = [
        {
            key: (value if not isinstance(value, float) or math.isfinite(value) else None)
            for key, value in asdict(change).items()
        }
        for change in comparison.changes
    ]
    return asdict(comparison) | {"schema_version": 1, "changes": changes, "worse": comparison.worse}
