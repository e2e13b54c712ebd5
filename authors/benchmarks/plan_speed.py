"""Speed of planning: the command and the function, as multiples of an empty interpreter (`python -c pass`).

    python -m authors.benchmarks.plan_speed [RUNS]

Measures CPU seconds, which a busy machine affects less than elapsed time, as ratios, which are comparable between machines. Each
value is the best of its runs. The runs of the command and of the empty interpreter alternate, so a busy period affects both.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from authors.benchmarks.process_tree import children_s
from planning import Deployment, plan

ROOT: Final = Path(__file__).resolve().parents[2]
EMPTY: Final = "python -c pass"
QUESTIONS: Final = {
    "fits (E2B on v6e-4)": Deployment(model="google/gemma-4-E2B-it", accelerator="v6e-4"),
    "fits (31B on H100)": Deployment(model="google/gemma-4-31B-it", accelerator="H100"),
    "out of memory, with alternatives (31B on L4)": Deployment(model="google/gemma-4-31B-it", accelerator="L4"),
}
SEARCHES: Final = {
    "all models for a workload": "--workload in=4000,out=500,users=32",
    "all models for a rate": "--workload in=4000,out=500,rate=2",
    "all models for a day": "--workload in=4000,out=500,users=32 --hours-per-day 8 --traffic burst=10",
    "all models, full servers": "--workload in=4000,out=500 --throughput-first",
}
"""Widest searches: no limit, all models. A rate tries the most settings."""
DEFAULT_RUNS: Final = 15
_CALLS_A_RUN: Final = 100
_LIMIT_S: Final = 60


def measure(runs: int) -> Mapping[str, float]:
    """Return the least CPU seconds of the empty interpreter, the command for each case, and the function for each case."""
    commands = {EMPTY: ["-c", "pass"]}
    for what, asked in QUESTIONS.items():
        words = f"-m scripts.plan --model {asked.model} --accelerator {asked.accelerator} --json"
        commands[f"scripts.plan --json, {what}"] = words.split()
    for what, words in SEARCHES.items():
        commands[f"scripts.plan --json --solve, {what}"] = f"-m scripts.plan --solve {words} --json".split()
    best: dict[str, float] = {}
    for run in range(runs):
        print(f"plan_speed: run {run + 1} of {runs}", file=sys.stderr)
        for what, words in commands.items():
            before_s = children_s()
            subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL, check=False, timeout=_LIMIT_S)
            best[what] = min(best.get(what, float("inf")), children_s() - before_s)
    calls = {f"plan(), {what}": min(_call_s(asked) for _ in range(runs)) for what, asked in QUESTIONS.items()}
    return best | calls


def _call_s(deployment: Deployment) -> float:
    plan(deployment)  # the first call imports and fills caches
    began = time.process_time()
    for _ in range(_CALLS_A_RUN):
        plan(deployment)
    return (time.process_time() - began) / _CALLS_A_RUN


def main(runs: int) -> None:
    """Measure and print."""
    seconds = measure(runs)
    for what, best_s in seconds.items():
        print(f"{what:<64} {best_s * 1000:>9.3f} ms {best_s / seconds[EMPTY]:>9.3f} x")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else DEFAULT_RUNS)
