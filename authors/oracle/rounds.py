"""Measure a point in rounds, alternating the tools, and once more behind the injected fault."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from authors.oracle.environment import OracleError, OracleSay
from authors.oracle.judge import (
    FigureComparison,
    OracleRun,
    compare_point,
    count_faults,
    faults_of,
    in_terms_of_the_server,
)
from authors.oracle.measure import Bench, OraclePoint

MOST_ROUNDS: Final = 2
"""Maximum attempts as a multiple of the rounds. A round is repeated if our benchmark reports an invalid result."""

Pair = tuple[OracleRun, OracleRun]
OurTool = Callable[[OraclePoint, str], OracleRun]
TheirTool = Callable[[OraclePoint, str, str], OracleRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOutcome:
    """All rounds of a point and their evaluation."""

    point: OraclePoint
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]
    """Reasons for excluded rounds, reported by our benchmark about its own result."""
    compared: tuple[FigureComparison, ...]
    faults: tuple[str, ...]


def check_command(point: OraclePoint, bench: Bench, say: OracleSay) -> list[str]:
    """Run vLLM's benchmark with the program `vllm` itself. Return the faults if it sent something else than ours."""
    mine = bench.ours(point, f"{point.name}-command")
    say(f"running the command: {mine.command}")
    other = replace(bench, copies=None).theirs(point, f"{point.name}-command", mine.command)
    return count_faults(f"{point.name}, command", point.asked, [(mine, other)])


def measure_point(point: OraclePoint, rounds: int, ours: OurTool, theirs: TheirTool, say: OracleSay) -> PointOutcome:
    """Measure a point until the given number of rounds is valid. Our first run warms up the server and is not counted.

    Each command is run once, because its seed determines the prompts, and the server keeps them in its prefix cache.
    """
    command = ours(point, f"{point.name}-0").command
    pairs: list[Pair] = []
    left_out: list[str] = []
    for number in range(1, MOST_ROUNDS * rounds + 1):
        label = f"{point.name}-{number}"
        if number % 2:
            mine = ours(point, label)
            other = theirs(point, label, command)
        else:
            other = theirs(point, label, command)
            mine = ours(point, label)
        command = mine.command
        ours_of, theirs_of = in_terms_of_the_server(mine), in_terms_of_the_server(other)
        say(
            f"{point.name}, round {number}: TPOT {mine.figures['tpot']:.2f} and {other.figures['tpot']:.2f} ms"
            f" ({ours_of['tpot']:.3f} and {theirs_of['tpot']:.3f} of the server's),"
            f" TTFT {mine.figures['ttft']:.1f} and {other.figures['ttft']:.1f} ms ({ours_of['ttft']:.3f} and {theirs_of['ttft']:.3f})"
            + (", excluded" if mine.invalid_reasons else "")
        )
        if mine.invalid_reasons:
            left_out.append(f"round {number}: {mine.invalid_reasons[0]}")
        else:
            pairs.append((mine, other))
        if len(pairs) == rounds:
            break
    return judged_point(point, pairs, left_out)


def judged_point(point: OraclePoint, pairs: Sequence[Pair], left_out: Sequence[str]) -> PointOutcome:
    """Return the evaluation of a point's rounds."""
    if not pairs:
        faults = [f"{point.name}: our benchmark reports no valid round: {left_out[0] if left_out else 'none was run'}"]
        return PointOutcome(point=point, pairs=(), left_out=tuple(left_out), compared=(), faults=tuple(faults))
    compared = compare_point(point.name, pairs)
    faults = [*count_faults(point.name, point.asked, pairs), *faults_of(compared)]
    return PointOutcome(
        point=point, pairs=tuple(pairs), left_out=tuple(left_out), compared=tuple(compared), faults=tuple(faults)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedOutcome:
    """Result of the injected fault."""

    compared: tuple[FigureComparison, ...]
    differing: tuple[str, ...]
    """Metrics that the comparison reports as different."""
    noticed: int
    """Runs that our benchmark reported as invalid."""
    runs: int

    @property
    def faults(self) -> tuple[str, ...]:
        """Return why the oracle is unreliable, or an empty list."""
        faults = [
            f"the injected fault changed the {name}, but the comparison did not report it"
            for name in ("ttft", "tpot")
            if name not in self.differing
        ]
        if self.noticed < self.runs:
            faults.append(
                f"the injected fault was in {self.runs} runs, but scripts.bench reported only {self.noticed} as invalid"
            )
        return tuple(faults)


def measure_planted(clean: PointOutcome, ours: OurTool, say: OracleSay) -> PlantedOutcome:
    """Measure a point behind the fault, and compare with the rounds of vLLM's tool without the fault. Raises OracleError."""
    if not clean.pairs:
        raise OracleError(f"The injected fault cannot be compared because no round of {clean.point.name} is valid.")
    runs: list[OracleRun] = []
    for number in range(1, len(clean.pairs) + 1):
        runs.append(ours(clean.point, f"planted-{number}"))
        say(
            f"injected fault, run {number}: TPOT {runs[-1].figures['tpot']:.2f} ms, TTFT {runs[-1].figures['ttft']:.1f} ms"
        )
    pairs = [(run, other) for run, (_, other) in zip(runs, clean.pairs, strict=True)]
    compared = compare_point(f"{clean.point.name}, held back", pairs)
    return PlantedOutcome(
        compared=tuple(compared),
        differing=tuple(row.figure for row in compared if row.relative.verdict == "differs"),
        noticed=sum(bool(run.invalid_reasons) for run in runs),
        runs=len(runs),
    )


def processor_name() -> str:
    """Return the name of this machine's processor, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
