"""docs/authors/documents.md: the figures of the five documents that the project started from, with planned values and values measured elsewhere."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from authors.tables import csv_text, table
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.types import VllmOptions
from gemma_serving.planning.settings.deployment import NO_SERVICE, Deployment
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.serving import server_of, workload_plan
from tests.planning.corpus.measured import KINDS, load, subject_of

FILE: Final = Path(__file__).with_name("documents.json")
"""`rows`: document, figure, reported, elsewhere (measured in other sources), why they differ, and the question for the planner: `deployment`, a boot of the
corpus or fields of a deployment, and `read`: a kind of figure, a name of _READ, or "rate IN OUT USERS", "requests IN OUT USERS" and "ttft IN OUT USERS".
`over` is a second deployment, whose figure divides the first one's."""
_READ: Final[Mapping[str, Callable[[Subject], float]]] = {
    **{name: kind.read for name, kind in KINDS.items()},
    "usd_hour": lambda s: s.cost.usd_per_hour,
    "usd_million": lambda s: s.cost.usd_per_hour / s.throughput.decode_tok_per_s / 3_600 * 1e6,
    "ttft": lambda s: s.throughput.ttft_s,
    "needs": lambda s: s.memory.load_peak_device_gib,
    "fits": lambda s: float(plan_of(s).fits),
}
_LONG: Final = 100


def page() -> str:
    """Return the page: the rows that have a remark."""
    rows = _rows()
    shown = [row for row in rows if row[-1]]
    counted = _data()["head"].replace("ROWS", str(len(rows))).replace("SHOWN", str(len(shown)))
    return counted + table("document | figure | reported: | plan: | measured elsewhere: | why they differ", shown)


def rows_file() -> str:
    """Return every row as CSV."""
    return csv_text(("document", "figure", "reported", "plan", "elsewhere", "why"), _rows())


@cache
def _data() -> Mapping[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


@cache
def _rows() -> list[tuple[str, ...]]:
    return [
        (*(row[key] for key in ("document", "figure", "reported")), _planned(row), row["elsewhere"], row["why"])
        for row in _data()["rows"]
    ]


def _planned(row: Mapping[str, Any]) -> str:
    if "deployment" not in row:
        return row.get("plan", "")
    value = figure(row)
    if row["read"] == "fits":
        return "fits" if value else "does not fit"
    return f"{value:,.0f}" if value >= _LONG else f"{value:.3g}"


def figure(row: Mapping[str, Any]) -> float:
    """Return the planner's value of a row."""
    value = _read(row["deployment"], row["read"])
    return value / _read(row["over"], row["read"]) if "over" in row else value


def _read(stated: str | Mapping[str, Any], name: str) -> float:
    if isinstance(stated, str):
        subject = subject_of(load().boot(stated))
    else:
        fields: dict[str, Any] = {**stated, "vllm": VllmOptions(**stated.get("vllm", {}))}
        fields["cloud_run"] = replace(NO_SERVICE, **stated.get("cloud_run", {}))
        subject = examine(Deployment(**fields))
    figure_name, *lengths = name.split()
    if not lengths:
        return _READ[figure_name](subject)
    tokens, output, users = map(int, lengths)
    workload = Workload(input_tokens=tokens, output_tokens=output, users=users)
    found = workload_plan(server_of(subject.resolved, subject.memory, workload), subject.cost.usd_per_hour)
    bands = {"rate": found.output_tok_per_s, "requests": found.requests_per_s, "ttft": found.ttft_s}
    return bands[figure_name].typical
