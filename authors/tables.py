"""Markdown tables of the generated pages."""

from collections.abc import Iterable, Sequence


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a table. `head` has the names of the columns between bars; a colon after a name aligns its column to the right."""
    names = head.split(" | ")
    lines = ["---:" if name.endswith(":") else "---" for name in names]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in ([name.rstrip(":") for name in names], lines, *rows))
