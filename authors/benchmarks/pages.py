"""Where a benchmark writes what it measured: between its marks in a page of docs/authors."""

from pathlib import Path
from typing import Final

END: Final = "<!-- end -->"


def mark_of(benchmark: str) -> str:
    """Return the line before the tables of a benchmark such as `cold-starts`."""
    return f"<!-- benchmark: {benchmark} -->"


def write_tables(page: Path, benchmark: str, tables: str) -> None:
    """Write the tables of a benchmark anew; what stands around its marks stays."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(mark_of(benchmark))
    _, end, after = rest.partition(END)
    page.write_text(f"{before}{mark}\n\n{tables}\n\n{end}{after}", encoding="utf-8")
