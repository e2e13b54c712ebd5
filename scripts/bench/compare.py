"""Compare two sweeps: the change of each figure, its confidence interval, and what got worse.

Intervals are for the logarithm of the ratio, from a bootstrap over the requests of a point (over repeats where a point has three or
more in both sweeps, which also sees what varies from run to run). They are widened for the number of comparisons (Bonferroni), so
that a grid of a hundred points does not raise an alarm by chance.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from scripts.bench.points import SweepError
from scripts.bench.store import read_results, read_run
from scripts.bench.table import load_text

RESAMPLES: Final = 400
REPEATS_WANTED: Final = 3
FEWEST_REQUESTS: Final = 8
SEED: Final = 20_240_229
"""Seed of the resampling: the same folders give the same report."""

Columns = dict[str, Any]
Statistic = Callable[[Columns, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure to compare."""

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
    """One figure of one point, before and after. Ratios are after over before."""

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
    """All changes between two sweeps."""

    before: str
    after: str
    threshold: float
    confidence: float
    changes: tuple[FigureChange, ...]
    failures: tuple[str, ...]
    """Points whose share of failed requests grew beyond the threshold, or that no longer have a complete answer."""
    left_out: tuple[str, ...]
    """Points that only one sweep has, and invalid points."""
    differences: tuple[str, ...]
    """Settings in which the two sweeps differ."""
    simulated: bool

    @property
    def worse(self) -> bool:
        """Whether a figure got worse beyond the threshold."""
        return bool(self.failures) or any(change.verdict == "worse" for change in self.changes)


def _point_name(result: dict[str, Any]) -> str:
    """Return what makes two points the same: load and lengths, without the repeat."""
    point = result["point"]
    asked = point["requested_input_tokens"] or point["input_tokens"]
    return f"{'concurrency' if point['mode'] == 'closed' else 'rate'} {load_text(result)}, {asked} in, {point['output_tokens']} out"


def _grouped(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for result in read_results(folder):
        found.setdefault(_point_name(result), []).append(result)
    if not found:
        raise SweepError(f"{folder} has no results to compare.")
    return found


def compare_folders(before: Path, after: Path, *, threshold: float, confidence: float) -> Comparison:
    """Compare the points that both folders have.

    `threshold` is the share by which a figure may get worse; `confidence` that of all intervals together. Raises SweepError when a
    folder has no results or the two have no point in common.
    """
    first, second = _grouped(before), _grouped(after)
    common = [name for name in first if name in second]
    if not common:
        raise SweepError(f"{before} and {after} have no point in common; measure the same loads and lengths.")
    left_out = [f"{name}: only in {before}" for name in first if name not in second]
    left_out += [f"{name}: only in {after}" for name in second if name not in first]
    left_out += [f"{name}: invalid" for name in common if not _all_valid(first[name] + second[name])]
    usable = [name for name in common if _all_valid(first[name] + second[name])]
    level = NormalDist().inv_cdf(1 - (1 - confidence) / (2 * max(1, len(usable) * len(METRICS))))
    changes = [
        change
        for name in usable
        for metric in METRICS
        if (change := _change(name, metric, first[name], second[name], threshold, level)) is not None
    ]
    return Comparison(
        before=str(before),
        after=str(after),
        threshold=threshold,
        confidence=confidence,
        changes=tuple(changes),
        failures=tuple(_failures(common, first, second, threshold)),
        left_out=tuple(left_out),
        differences=tuple(_differences(before, after)),
        simulated=any(result["simulated"] for group in (*first.values(), *second.values()) for result in group),
    )


def _differences(before: Path, after: Path) -> list[str]:
    first, second = read_run(before), read_run(after)
    names = ("model", "endpoint", "extra_body", "poisson")
    return [
        f"{name} is {first.get(name)} before and {second.get(name)} after"
        for name in names
        if first.get(name) != second.get(name)
    ]


def _all_valid(results: Sequence[dict[str, Any]]) -> bool:
    return all(result["valid"] for result in results)


def _failures(
    names: Sequence[str],
    first: dict[str, list[dict[str, Any]]],
    second: dict[str, list[dict[str, Any]]],
    threshold: float,
) -> list[str]:
    found: list[str] = []
    for name in names:
        shares = [
            sum(r["failed"] for r in group) / max(1, sum(r["failed"] + r["completed"] for r in group))
            for group in (first[name], second[name])
        ]
        if shares[1] > shares[0] + threshold:
            found.append(f"{name}: {shares[1]:.1%} of the requests failed, {shares[0]:.1%} before")
    return found


def _change(  # noqa: PLR0917 - the two sides and how to judge them
    name: str, metric: Metric, first: list[dict[str, Any]], second: list[dict[str, Any]], threshold: float, level: float
) -> FigureChange | None:
    values = [
        [float(r[metric.field]) for r in group if r[metric.field] and r["completed"]] for group in (first, second)
    ]
    if not values[0] or not values[1]:
        return None
    before, after = statistics.fmean(values[0]), statistics.fmean(values[1])
    ratio = after / before
    by_repeats = min(len(values[0]), len(values[1])) >= REPEATS_WANTED
    spread = (
        math.hypot(*(_spread_of_repeats(found) for found in values))
        if by_repeats
        else math.hypot(*(_spread_of_requests(group, metric.field) for group in (first, second)))
    )
    known = math.isfinite(spread)
    low, high = (ratio * math.exp(-level * spread), ratio * math.exp(level * spread)) if known else (0.0, math.inf)
    return FigureChange(
        point=name,
        metric=metric.name,
        unit=metric.unit,
        before=before,
        after=after,
        ratio=ratio,
        low=low,
        high=high,
        verdict=_verdict(metric, ratio, low, high, threshold),
        basis="repeats" if by_repeats else "requests",
    )


def _verdict(metric: Metric, ratio: float, low: float, high: float, threshold: float) -> str:
    """Return the verdict. A change beyond the threshold counts only if its interval excludes no change at all."""
    gain = ratio if metric.higher_is_better else 1 / ratio
    certain = low > 1 or high < 1
    if gain < 1 - threshold:
        return "worse" if certain else "unclear"
    if gain > 1 + threshold:
        return "better" if certain else "unclear"
    return "same"


def _spread_of_repeats(values: Sequence[float]) -> float:
    logs = [math.log(value) for value in values]
    return statistics.stdev(logs) / math.sqrt(len(logs))


def _spread_of_requests(results: Sequence[dict[str, Any]], field: str) -> float:
    """Return the standard error of a figure's logarithm, from resampled requests of the point."""
    columns: Columns = {
        name: np.concatenate([np.asarray(r[name], dtype=float) for r in results])
        for name in ("ttfts", "e2els", "output_lens")
    }
    count = len(columns["ttfts"])
    if count < FEWEST_REQUESTS:
        return math.inf
    random = np.random.default_rng(SEED)
    picks = random.integers(0, count, size=(RESAMPLES, count), dtype=np.int32)
    found = _STATISTICS[field](columns, picks)
    positive = found[found > 0]
    return float(np.std(np.log(positive))) if len(positive) > RESAMPLES // 2 else math.inf


def _throughput(columns: Columns, picks: Any) -> Any:  # noqa: ANN401 - numpy and matplotlib objects
    # At a given load, throughput is proportional to tokens per residence time (Little's law).
    return columns["output_lens"][picks].sum(axis=1) / columns["e2els"][picks].sum(axis=1)


def _ttft_percentile(share: float) -> Statistic:
    return lambda columns, picks: np.percentile(columns["ttfts"][picks], share, axis=1)


def _mean_tpot(columns: Columns, picks: Any) -> Any:  # noqa: ANN401 - numpy and matplotlib objects
    steps = np.maximum(columns["output_lens"] - 1, 1)
    return ((columns["e2els"] - columns["ttfts"]) / steps)[picks].mean(axis=1)


_STATISTICS: Final[dict[str, Statistic]] = {
    "output_throughput": _throughput,
    "median_ttft_ms": _ttft_percentile(50),
    "p99_ttft_ms": _ttft_percentile(99),
    "mean_tpot_ms": _mean_tpot,
}


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}" if math.isfinite(ratio) else "?"


def comparison_markdown(comparison: Comparison) -> str:
    """Return Markdown for a pull request: the verdict first, then the table."""
    worse = [change for change in comparison.changes if change.verdict == "worse"]
    better = sum(change.verdict == "better" for change in comparison.changes)
    head = f"**{len(worse) + len(comparison.failures)} worse**, {better} better, {len(comparison.changes)} compared"
    lines = [
        "### Benchmark comparison",
        "",
        f"{head}; threshold {comparison.threshold:.0%}, intervals of {comparison.confidence:.0%} over all comparisons together.",
        "",
    ]
    if comparison.simulated:
        lines += ["> Simulated server: these figures show the tool, not any hardware.", ""]
    lines += [f"> Not the same load: {text}." for text in comparison.differences] + (
        [""] if comparison.differences else []
    )
    lines += [f"- **{failure}**" for failure in comparison.failures] + ([""] if comparison.failures else [])
    lines += [
        "| point | figure | before | after | change | interval | verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    order = {"worse": 0, "better": 1, "unclear": 2, "same": 3}
    for change in sorted(comparison.changes, key=lambda c: order[c.verdict]):
        mark = "**worse**" if change.verdict == "worse" else change.verdict
        lines.append(
            f"| {change.point} | {change.metric} | {change.before:,.4g} {change.unit} | {change.after:,.4g} {change.unit} |"
            f" {_percent(change.ratio)} | {_percent(change.low)} to {_percent(change.high)} | {mark} |"
        )
    if comparison.left_out:
        lines += ["", "Left out:", "", *(f"- {text}" for text in comparison.left_out)]
    return "\n".join([*lines, ""])


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON types; an interval without a bound is null."""
    changes = [
        {
            key: (value if not isinstance(value, float) or math.isfinite(value) else None)
            for key, value in asdict(change).items()
        }
        for change in comparison.changes
    ]
    return asdict(comparison) | {"schema_version": 1, "changes": changes, "worse": comparison.worse}
