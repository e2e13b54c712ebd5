"""Tables of the generated pages, in Markdown and as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a table. `head` has the names of the columns between bars; a colon after a name aligns its column to the right."""
    names = head.split(" | ")
    lines = ["---:" if name.endswith(":") else "---" for name in names]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in ([name.rstrip(":") for name in names], lines, *rows))


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a file of comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([head, *rows])
    return text.getvalue()
