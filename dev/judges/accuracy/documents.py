"""dev/docs/documents.md: the figures of the five documents that the project started from, with planned values and values measured elsewhere."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from dev.authors.tables import csv_text, table
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import vllm_arguments
from tests.planning.corpus.documents import asked, documents, figure, planned_rows, read_off
from tests.planning.corpus.measured import load

_LONG: Final = 100
_OF_SERVER: Final = re.compile(r"^[^,]+, [^,:]+[,:] ")
"""Model and accelerator before a figure."""
_OF_EVERY_SERVER: Final = ("--host=", "--port=", "--allowed-media-domains=", "--allowed-origins=")
"""Flags that this project adds."""


def page() -> str:
    """Return the page: the rows that have a remark, and the servers that the documents started."""
    rows = _rows()
    shown = [row for row in rows if row[-1]]
    counted = documents()["head"].replace("ROWS", str(len(rows))).replace("SHOWN", str(len(shown)))
    counted = counted.replace(
        "APART", str(sum(not row.get("held", True) or bool(read_off(row)) for row in planned_rows()))
    )
    figures = table("document | figure | reported: | plan: | measured elsewhere: | why they differ", shown)
    servers = table("document | command | on | vLLM | outcome", _servers())
    return f"{counted}{figures}\n## What the documents ran\n\n{servers}"


def rows_file() -> str:
    """Return every row as CSV."""
    return csv_text(("document", "figure", "reported", "plan", "elsewhere", "why"), _rows())


def far_file() -> str:
    """Return the figures that no plan is near, by model and accelerator, for `gemma plan --explain`."""
    rows = [
        {
            "model": (server := asked(row["deployment"]).resolved).model_id,
            "accelerator": server.accelerator.name,
            "document": row["document"],
            "figure": _OF_SERVER.sub("", row["figure"]),
            "reported": row["reported"],
        }
        for row in planned_rows()
        if not row.get("held", True) and "over" not in row
    ]
    return "".join(("[\n", ",\n".join(f"  {json.dumps(row)}" for row in rows), "\n]\n"))


@cache
def _rows() -> list[tuple[str, ...]]:
    return [
        (*(row[key] for key in ("document", "figure", "reported")), _planned(row), row["elsewhere"], _why(row))
        for row in documents()["rows"]
    ]


def _servers() -> list[tuple[str, ...]]:
    """Return the servers that the documents started, as the planner's corpus has them."""
    stated = {
        (row["document"], row["deployment"]) for row in documents()["rows"] if isinstance(row.get("deployment"), str)
    }
    boots = [(document, load().boot(name)) for document, name in sorted(stated)]
    return [
        (
            document,
            _command(boot.deployment),
            boot.deployment.accelerator_name,
            boot.deployment.image_version or "unknown",
            boot.outcome,
        )
        for document, boot in boots
        if any(source.citation == f"field report {document}" for source in boot.sources)
    ]


def _command(question: Question) -> str:
    arguments = vllm_arguments(question.settings.vllm, model_or_path=question.settings.model)
    return f"vllm serve {' '.join(one for one in arguments if not one.startswith(_OF_EVERY_SERVER))}"


def _why(row: Mapping[str, Any]) -> str:
    if constant := read_off(row):
        return f"{constant} is read off this row{row['why'] and ': '}{row['why']}"
    return row["why"] if row.get("held", True) else f"not held: {row['why']}"


def _planned(row: Mapping[str, Any]) -> str:
    if "deployment" not in row:
        return row.get("plan", "")
    value = figure(row)
    if row["read"] == "fits":
        return "fits" if value else "does not fit"
    return f"{value:,.0f}" if value >= _LONG else f"{value:.3g}"
