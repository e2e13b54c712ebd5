"""Speed of planning: the command and the function, as multiples of an empty interpreter (`python -c pass`).

    python -m authors.benchmarks.plan_speed [--runs N] [--json]

Measures CPU seconds, which a busy machine affects less than elapsed time, as ratios, which are comparable between machines. Each
value is the best of its runs. The runs of the command and of the empty interpreter alternate, so a busy period affects both.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from authors.benchmarks.process_tree import children_s
from planning import Deployment, plan

ROOT: Final = Path(__file__).resolve().parents[2]
EMPTY: Final = (sys.executable, "-c", "pass")
QUESTIONS: Final = {
    "fits (E2B on v6e-4)": Deployment(model="google/gemma-4-E2B-it", accelerator="v6e-4"),
    "fits (31B on H100)": Deployment(model="google/gemma-4-31B-it", accelerator="H100"),
    "out of memory, with alternatives (31B on L4)": Deployment(model="google/gemma-4-31B-it", accelerator="L4"),
}
SEARCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "all models for a workload (--solve)": ("--workload", "in=4000,out=500,users=32"),
    "all models for a rate (--solve)": ("--workload", "in=4000,out=500,rate=2"),
    "all models for a day (--solve --hours-per-day)": (
        *("--workload", "in=4000,out=500,users=32"),
        *("--hours-per-day", "8", "--traffic", "burst=10"),
    ),
    "all models, full servers (--solve --throughput-first)": ("--workload", "in=4000,out=500", "--throughput-first"),
}
"""Widest searches: no limit, all models. A rate tries the most settings."""
DEFAULT_RUNS: Final = 15
_CALLS_A_RUN: Final = 100
_LIMIT_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A timed operation."""

    what: str
    seconds: float
    ratio: float
    """Multiple of the empty interpreter."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m authors.benchmarks.plan_speed", description="Measure the speed of planning."
    )
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS, help="runs of each; the best one counts")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args(argv)
    if args.runs < 1:
        parser.error("--runs must be 1 or more")
    timings = measure(args.runs)
    if args.json:
        print(json.dumps({"runs": args.runs, "timings": [asdict(t) for t in timings]}, indent=2))
        return 0
    for t in timings:
        print(f"{t.what:<64} {t.seconds * 1000:>9.3f} ms {t.ratio:>9.3f} x")
    return 0


def measure(runs: int) -> list[Timing]:
    """Time the empty interpreter, the command for each case, and the function for each case."""
    commands: dict[str, tuple[str, ...]] = {
        what: (sys.executable, "-m", "scripts.plan", "--model", d.model, "--accelerator", d.accelerator, "--json")
        for what, d in QUESTIONS.items()
    }
    commands |= {
        what: (sys.executable, "-m", "scripts.plan", "--solve", *asked, "--json") for what, asked in SEARCHES.items()
    }
    best = dict.fromkeys(("python -c pass", *commands), float("inf"))
    for run in range(runs):
        print(f"plan_speed: run {run + 1} of {runs}", file=sys.stderr)
        best["python -c pass"] = min(best["python -c pass"], _process_s(EMPTY))
        for what, command in commands.items():
            best[what] = min(best[what], _process_s(command))
    empty_s = best["python -c pass"]
    timings = [Timing(what="python -c pass", seconds=empty_s, ratio=1.0)]
    timings += [
        Timing(what=f"scripts.plan --json, {what}", seconds=best[what], ratio=best[what] / empty_s) for what in commands
    ]
    for what, deployment in QUESTIONS.items():
        seconds = min(_call_s(deployment) for _ in range(runs))
        timings.append(Timing(what=f"plan(), {what}", seconds=seconds, ratio=seconds / empty_s))
    return timings


def _process_s(command: Sequence[str]) -> float:
    before_s = children_s()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False, timeout=_LIMIT_S)
    return children_s() - before_s


def _call_s(deployment: Deployment) -> float:
    plan(deployment)  # the first call imports and fills caches
    began = time.process_time()
    for _ in range(_CALLS_A_RUN):
        plan(deployment)
    return (time.process_time() - began) / _CALLS_A_RUN


if __name__ == "__main__":
    sys.exit(main())
