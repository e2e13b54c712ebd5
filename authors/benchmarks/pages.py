"""Generated tables of benchmarks, between markers in a page of docs/authors."""

from pathlib import Path
from typing import Final

END: Final = "<!-- end -->"


def mark_of(benchmark: str) -> str:
    """Return the marker line before the tables of a benchmark such as `cold-starts`."""
    return f"<!-- benchmark: {benchmark} -->"


def write_tables(page: Path, benchmark: str, tables: str) -> None:
    """Replace the tables of a benchmark and keep the rest of the page."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(mark_of(benchmark))
    _, end, after = rest.partition(END)
    page.write_text(f"{before}{mark}\n\n{tables}\n\n{end}{after}", encoding="utf-8")
