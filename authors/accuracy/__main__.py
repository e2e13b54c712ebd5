"""Predictions against measurements: `python -m authors.accuracy` writes docs/authors/accuracy.md; `--check` reports whether it is up to date.

Exit codes: 0 written or up to date; 1 out of date, an error in a file, or a value that a constant was fitted to and that is outside its
tolerance.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from authors.accuracy.corpus.errors import compared
from authors.accuracy.corpus.measured import MeasurementError, Measurements, load, read_off
from authors.accuracy.evidence import EvidenceError
from authors.accuracy.page import page
from authors.accuracy.sweeps import SweepFileError, all_points

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "authors" / "accuracy.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the page. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m authors.accuracy", description="Predicted against measured.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if docs/authors/accuracy.md is out of date"
    )
    args = parser.parse_args(argv)
    try:
        return _run(check=args.check)
    except (EvidenceError, MeasurementError, SweepFileError, OSError) as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 1


def _run(*, check: bool) -> int:
    measurements = load()
    text = page(measurements, all_points())
    if check:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("accuracy: docs/authors/accuracy.md is out of date. Run `python -m authors.accuracy`.", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    wrong = misses(measurements)
    for line in wrong:
        print(f"accuracy: {line}", file=sys.stderr)
    return 1 if wrong else 0


def misses(measurements: Measurements) -> list[str]:
    """Return the values that a constant was fitted to and that are outside their tolerance, one sentence each."""
    fitted = {
        (boot.id, figure.key)
        for constant in measurements.constants
        for boot, figure in read_off(constant, measurements)
    }
    return [
        f"{row.boot.title}: {row.figure.kind.name} predicted {row.predicted:.4g}, measured {row.figure.measured:.4g}, "
        f"off by {row.error:+.1%}"
        for row in compared(measurements.boots)
        if not row.is_within and (row.boot.id, row.figure.key) in fitted
    ]


if __name__ == "__main__":
    sys.exit(main())
