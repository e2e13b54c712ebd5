"""Compare two running servers: measure both in turns until the difference is known, or until the most rounds are over."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from contracts.errors import ScriptError
from scripts.bench.compare import METRICS, Comparison, FigureChange, Metric, grown_failures, point_name
from scripts.bench.errors import SweepError
from scripts.bench.progress import Reporter
from scripts.bench.run import open_target
from scripts.bench.sequential import FIRST_LOOK, SequentialTest
from scripts.bench.settings import SweepSettings
from scripts.bench.store import read_results
from scripts.bench.sweep import run_sweep
from scripts.bench.traffic.points import Sweep
from scripts.client.access import ServerAccess

ORDERS: Final = ("abba", "baab")
"""Order of the measurements in odd and even rounds. Each side is measured twice, so that a drift cancels."""
RUNS: Final = 2
"""Measurements of each side in a round."""

Results = Mapping[str, Sequence[dict[str, Any]]]
Measure = Callable[[str, int], list[dict[str, Any]]]
"""Measures the side `a` or `b` for the n-th time, and returns a result for each point."""


class LiveError(ScriptError):
    """A live comparison ended before it knew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    """What to compare, and how certain to be."""

    before: str
    after: str
    """URL or stack of each side."""
    model: str | None
    sweep: Sweep
    folder: Path
    threshold: float
    confidence: float
    most_rounds: int


def compare_live(plan: LivePlan, reporter: Reporter) -> Comparison:
    """Measure both servers in turns. Raises SweepError if one cannot be measured, and LiveError if one stops answering."""
    with contextlib.ExitStack() as stack:
        sides: dict[str, tuple[ServerAccess, SweepSettings]] = {}
        for side, name in (("a", plan.before), ("b", plan.after)):
            is_url = name.startswith(("http://", "https://"))
            settings = SweepSettings(
                url=name if is_url else "",
                stack=None if is_url else name,
                model=plan.model,
                out=plan.folder / side,
            )
            sides[side] = stack.enter_context(open_target(settings, None))
        return run_rounds(plan, _measurer(plan, sides, reporter), reporter.line)


def _measurer(plan: LivePlan, sides: Mapping[str, tuple[ServerAccess, SweepSettings]], reporter: Reporter) -> Measure:
    def measure(side: str, number: int) -> list[dict[str, Any]]:
        access, settings = sides[side]
        # Other prompts on each side: both may be one server, whose cache would know those of the first.
        sweep = replace(plan.sweep, repeats=number + 1, seed=plan.sweep.seed + (side == "b"))
        outcome = run_sweep(replace(settings, resume=number > 0), sweep, access, reporter)
        if outcome.ending == "interrupted":
            raise KeyboardInterrupt
        if outcome.ending != "done":
            raise LiveError(f"compare --live: {settings.url or settings.stack}: {outcome.detail}.")
        return [result for result in read_results(settings.out) if result["point"]["repeat"] == number]

    return measure


def run_rounds(plan: LivePlan, measure: Measure, say: Callable[[str], None]) -> Comparison:
    """Measure round after round until every figure has a verdict, at most `most_rounds`."""
    rounds: list[dict[str, Results]] = []
    judged: list[FigureChange] = []
    counts = dict.fromkeys("ab", 0)
    for number in range(plan.most_rounds):
        found: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
        for side in ORDERS[number % 2]:
            found[side] += measure(side, counts[side])
            counts[side] += 1
        rounds.append({side: _by_point(results) for side, results in found.items()})
        judged = _judged(plan, rounds)
        known = sum(change.verdict != "unclear" for change in judged)
        say(f"round {number + 1} of at most {plan.most_rounds}: {known} of {len(judged)} figures are decided.")
        if judged and known == len(judged) and number + 1 >= FIRST_LOOK:
            break
    return _comparison(plan, rounds, judged)


def _by_point(results: Sequence[dict[str, Any]]) -> Results:
    found: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        found.setdefault(point_name(result), []).append(result)
    return found


def _usable(found: Mapping[str, Results], name: str) -> bool:
    """Whether all measurements of a point in a round are valid."""
    return all(
        len(found[side].get(name, ())) == RUNS and all(r["valid"] and r["completed"] for r in found[side][name])
        for side in "ab"
    )


def _judged(plan: LivePlan, rounds: Sequence[Mapping[str, Results]]) -> list[FigureChange]:
    names = list(rounds[0]["a"])
    test = SequentialTest(
        threshold=plan.threshold,
        confidence=plan.confidence,
        most_rounds=plan.most_rounds,
        figures=len(names) * len(METRICS),
    )
    return [
        change
        for name in names
        for metric in METRICS
        if (change := _change(name, metric, [r for r in rounds if _usable(r, name)], test)) is not None
    ]


def _change(
    name: str, metric: Metric, rounds: Sequence[Mapping[str, Results]], test: SequentialTest
) -> FigureChange | None:
    logs: dict[str, list[float]] = {"a": [], "b": []}
    for found in rounds:
        values = {side: [float(r[metric.field] or 0.0) for r in found[side][name]] for side in "ab"}
        if all(value > 0 for side in "ab" for value in values[side]):
            for side in "ab":
                logs[side].append(math.fsum(map(math.log, values[side])) / RUNS)
    if not logs["a"]:
        return None
    look = test.look(
        [b - a for a, b in zip(logs["a"], logs["b"], strict=True)], higher_is_better=metric.higher_is_better
    )
    before, after = (math.exp(math.fsum(logs[side]) / len(logs[side])) for side in "ab")
    return FigureChange(
        point=name,
        metric=metric.name,
        unit=metric.unit,
        before=before,
        after=after,
        ratio=look.ratio,
        low=look.low,
        high=look.high,
        verdict=look.verdict,
        basis="rounds",
    )


def _comparison(plan: LivePlan, rounds: Sequence[Mapping[str, Results]], judged: Sequence[FigureChange]) -> Comparison:
    names = list(rounds[0]["a"])
    grouped = {
        side: {name: [r for found in rounds for r in found[side].get(name, ())] for name in names} for side in "ab"
    }
    left_out = [
        f"{name}, round {number}: a measurement is not valid"
        for number, found in enumerate(rounds, start=1)
        for name in names
        if not _usable(found, name)
    ]
    open_figures = sum(change.verdict == "unclear" for change in judged)
    ending = f"{len(rounds)} rounds of four measurements (A, B, B, A), at most {plan.most_rounds}; " + (
        f"stopped at the limit with {open_figures} figures undecided."
        if open_figures or not judged
        else "stopped because every figure was decided."
    )
    return Comparison(
        before=plan.before,
        after=plan.after,
        threshold=plan.threshold,
        confidence=plan.confidence,
        changes=tuple(judged),
        failures=tuple(grown_failures(names, grouped["a"], grouped["b"], plan.threshold)),
        left_out=tuple(left_out),
        differences=(),
        simulated=any(r["simulated"] for side in "ab" for group in grouped[side].values() for r in group),
        ending=ending,
    )


def check_folder(folder: Path | None) -> Path:
    """Return the folder of a live comparison. Raises SweepError if none is given or it has results."""
    if folder is None:
        raise SweepError("compare --live: give --folder DIR, the folder for the results of both servers.")
    if any((folder / side).exists() for side in "ab"):
        raise SweepError(f"compare --live: --folder {folder} has results already; give another folder.")
    return folder
