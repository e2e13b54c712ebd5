"""The tables of SECURITY.md as data."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "SECURITY.md"


def rows(heading, level=2):
    """Return the cells of the table below a heading of the page, row by row."""
    section = PAGE.read_text().partition(f"\n{'#' * level} {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert lines, heading
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
