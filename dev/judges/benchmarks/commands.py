"""CPU until a command's first line, and of a plan, as multiples of an empty interpreter (`python -c pass`).

    python -m dev.judges.benchmarks.commands [RUNS]

Prints the tables of dev/docs/measurements.md. CPU seconds of the process and its children, which a busy machine affects less than
elapsed time; each value is the least of its runs, and runs of all commands alternate. The backend is an empty folder, so every stack
is unknown to the engine.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dev.authors.tables import table
from dev.judges.benchmarks.process_tree import children_s
from gemma_serving.scripts.gemma.catalog import ENTRIES

ROOT: Final = Path(__file__).resolve().parents[3]
EMPTY: Final = "python -c pass"
FIRST_LINES: Final = {
    "`--help`": ("--help",),
    "an unknown option": ("--nope",),
    "an unknown stack": ("--stack", "nope"),
}
PLANS: Final = {
    "`gemma plan --model google/gemma-4-E4B-it --accelerator v6e-1`": "--model google/gemma-4-E4B-it --accelerator v6e-1",
    "`gemma plan --model google/gemma-4-31B-it --accelerator L4` (out of memory)": "--model google/gemma-4-31B-it --accelerator L4",
    "`gemma plan l4-qat`": "--stack l4-qat",
    "`gemma plan --solve --workload in=4000,out=500,users=32`": "--solve --workload in=4000,out=500,users=32",
}
DEFAULT_RUNS: Final = 9
_LIMIT_S: Final = 120


def commands() -> Mapping[str, Sequence[str]]:
    """Return the arguments of Python by name of the measurement."""
    found: dict[str, Sequence[str]] = {EMPTY: ["-c", "pass"]}
    for name in ENTRIES:
        found |= {f"{name} {what}": ["-m", "scripts.gemma", name, *words] for what, words in FIRST_LINES.items()}
    return found | {what: ["-m", "scripts.plan", *words.split()] for what, words in PLANS.items()}


def measure(runs: int) -> Mapping[str, float]:
    """Return the least CPU seconds of each."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PULUMI_BACKEND_URL": f"file://{folder}", "PULUMI_CONFIG_PASSPHRASE": "none"}
        for run in range(runs):
            print(f"commands: run {run + 1} of {runs}", file=sys.stderr)
            for what, words in commands().items():
                before_s = children_s()
                call = [sys.executable, *words]
                subprocess.run(
                    call,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                    timeout=_LIMIT_S,
                )
                best[what] = min(best.get(what, float("inf")), children_s() - before_s)
    return best


def tables(seconds: Mapping[str, float]) -> str:
    """Return the figures as two Markdown tables."""
    times = {what: f"{best_s / seconds[EMPTY]:.1f}" for what, best_s in seconds.items()}
    rows = [(name, *(times[f"{name} {what}"] for what in FIRST_LINES)) for name in ENTRIES]
    return f"{table(' | '.join(('command', *FIRST_LINES)), rows)}\n{table('plan | times', [(what, times[what]) for what in PLANS])}"


if __name__ == "__main__":
    print(tables(measure(int(sys.argv[1]) if sys.argv[1:] else DEFAULT_RUNS)))
