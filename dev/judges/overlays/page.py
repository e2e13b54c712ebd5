"""dev/docs/overlays.md, from the last run of `python -m dev.judges.overlays`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dev.authors.tables import table

ROWS: Final = Path(__file__).with_name("rows.json")


def page() -> str:
    """Return the page."""
    return "\n".join(_lines(json.loads(ROWS.read_text(encoding="utf-8")))) + "\n"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    rows = found["rows"]
    read = [row for row in rows if row["verdict"]]
    yield "# Google's manifests of Gemma 4, planned"
    yield ""
    yield "This page is generated: `make docs` writes it from the last run of `make -C dev/judges overlays GIT=DIR REVISION=COMMIT`."
    yield f"It read accelerated-platforms {found['commit'][:12]} of {found['dated']} on {found['read']}: {len(rows)} overlays, {len(read)} of them planned."
    yield "Each overlay is rendered by `kubectl kustomize`, then planned from that file (`--from`)."
    yield "Of an overlay of llm-d, only what Google's folder adds is read: its base is in another repository, and moves."
    yield "A blocking finding is in bold. The last column has the flags that the plan passes on without judging them, or leaves out."
    yield ""
    yield table("overlay | planned as | verdict | findings | not planned", map(_row, read))
    unread = [row for row in rows if not row["verdict"]]
    if unread:
        yield ""
        yield "Not planned:"
        yield ""
        yield from (f"- `{row['overlay']}`: {row['reason']}" for row in unread)


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    left = ", ".join(f"`{word}`" for word in row["left"])
    findings = ", ".join([*(f"**{one}**" for one in row["block"]), *row["warn"]])
    return f"`{row['overlay']}`", row["planned"], row["verdict"], findings, left
