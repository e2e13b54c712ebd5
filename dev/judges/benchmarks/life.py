"""CPU seconds of the demo, which is a whole life of both baseline stacks, by process: `python -m dev.judges.benchmarks.life [ROOT]`.

Prints a column of the table in dev/docs/measurements.md for the checkout at ROOT, by default this one. Linux only.
"""

import os
import re
import sys
from pathlib import Path
from typing import Final

from dev.authors.tables import table
from dev.judges.benchmarks import preview_cost
from dev.judges.benchmarks.process_tree import OTHERS, UNSEEN, measure_process_tree

ROOT: Final = Path(__file__).resolve().parents[3]
PARTS: Final = {
    **preview_cost.PARTS,
    "engine": r"^\S*pulumi ",
    "commands": r"-m scripts\.",
    "model servers": r"localcloud\.vllm|vllm serve",
    "machines": r"vm_agent|shims",
    "local cloud": r"localcloud",
}
"""Patterns of command lines by part."""


def main() -> None:
    """Measure and print."""
    root = Path(sys.argv[1] if sys.argv[1:] else ROOT).resolve()
    cost = measure_process_tree(
        [str(root / ".venv/bin/python"), "-m", "dev.authors.demo"], folder=root, environment=os.environ, parts=PARTS
    )
    if cost.code != 0:
        sys.exit(cost.output[-3000:])
    names = [*PARTS, OTHERS, UNSEEN]
    print(table("process | CPU seconds", [(name, f"{cost.by_part.get(name, 0.0):.1f}") for name in names]))
    print(f"{cost.cpu_s:.1f} CPU seconds. {re.findall(r'.* in total', cost.output)}")


if __name__ == "__main__":
    main()
