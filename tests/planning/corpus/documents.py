"""The figures of the five documents that the project started from, and the planner's value of each."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final

from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.types import VllmOptions
from gemma_serving.planning.settings.question import NO_SERVICE, Question
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.serving import server_of, workload_plan
from tests.planning.corpus.measured import KINDS, load, subject_of

FILE: Final = Path(__file__).parents[3] / "dev" / "judges" / "accuracy" / "documents.json"
"""`rows`: document, figure, reported, elsewhere (measured in other sources), why they differ, and the question for the planner: `deployment`, a boot of the
corpus or fields of a deployment, and `read`: a kind of figure, a name of _READ, or "rate IN OUT USERS", "requests IN OUT USERS" and "ttft IN OUT USERS".
`over` is a second deployment, whose figure divides the first one's. `held` is false if the plan differs by more than 1.5 times, or a ratio by more than 1.4.
`read_off` is the constant that was set from a row without a boot."""
_READ: Final[Mapping[str, Callable[[Subject], float]]] = {
    **{name: kind.read for name, kind in KINDS.items()},
    "usd_hour": lambda s: s.cost.usd_per_hour,
    "usd_million": lambda s: s.cost.usd_per_hour / s.throughput.decode_tok_per_s / 3_600 * 1e6,
    "ttft": lambda s: s.throughput.ttft_s,
    "needs": lambda s: s.memory.load_peak_device_gib,
    "fits": lambda s: float(plan_of(s).fits),
}
_WORDS: Final = {"runs": (1.0, 1.0), "does not fit": (0.0, 0.0)}


@cache
def documents() -> Mapping[str, Any]:
    """Return the content of the file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def planned_rows() -> Sequence[Mapping[str, Any]]:
    """Return the rows that ask the planner."""
    return [row for row in documents()["rows"] if "deployment" in row]


def read_off(row: Mapping[str, Any]) -> str:
    """Return the constant that was set from a row; empty if none was."""
    stated = row.get("deployment")
    of_boot = load().fitted.get((stated, row["read"]), "") if isinstance(stated, str) else ""
    return row.get("read_off", of_boot)


def reported_range(text: str) -> tuple[float, float]:
    """Return the ends of a reported figure, such as 50 to 70, 30 and more, or under 10."""
    if text in _WORDS:
        return _WORDS[text]
    numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]
    return (0.0 if text.startswith("under") else numbers[0], inf if text.endswith("more") else numbers[-1])


def times_off(row: Mapping[str, Any]) -> float:
    """Return how many times the planner's value is below or above the reported range; 1 within it."""
    (low, high), planned = reported_range(row["reported"]), figure(row)
    if low <= planned <= high:
        return 1.0
    return max(low / planned if planned else inf, planned / high if high else inf)


def figure(row: Mapping[str, Any]) -> float:
    """Return the planner's value of a row."""
    value = _read(row["deployment"], row["read"])
    return value / _read(row["over"], row["read"]) if "over" in row else value


def asked(stated: str | Mapping[str, Any]) -> Subject:
    """Return the deployment of a row: a boot of the corpus, or its fields."""
    if isinstance(stated, str):
        return subject_of(load().boot(stated))
    fields: dict[str, Any] = {**stated, "vllm": VllmOptions(**stated.get("vllm", {}))}
    fields["cloud_run"] = replace(NO_SERVICE, **stated.get("cloud_run", {}))
    return examine(Question().changed(**fields))


def _read(stated: str | Mapping[str, Any], name: str) -> float:
    subject = asked(stated)
    figure_name, *lengths = name.split()
    if not lengths:
        return _READ[figure_name](subject)
    tokens, output, users = map(int, lengths)
    workload = Workload(input_tokens=tokens, output_tokens=output, users=users)
    found = workload_plan(server_of(subject.resolved, subject.memory, workload), subject.cost.usd_per_hour)
    bands = {"rate": found.output_tok_per_s, "requests": found.requests_per_s, "ttft": found.ttft_s}
    return bands[figure_name].typical
