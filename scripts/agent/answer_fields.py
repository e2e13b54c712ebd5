"""The fields of each answer, for docs/agent-responses.md. The tool list omits them to save context."""

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel

from engine.changes import ResourceChange
from engine.steps import ShownChange
from scripts.agent.context import CommandAnswer
from scripts.agent.gated import GatedAnswer
from scripts.agent.read_tools import CauseAnswer, FindingAnswer, LogAnswer
from scripts.agent.server_tools import EndpointAnswer, MetricsAnswer, ModelAnswer, WeightsAnswer
from scripts.agent.staging import StagingAnswer
from scripts.agent.untrusted import UntrustedText
from scripts.agent.update_tools import PreviewAnswer, UpAnswer

_ANSWERS: Final[Mapping[str, type[BaseModel]]] = {
    "`preview`": PreviewAnswer,
    "each of `changes`": ResourceChange,
    "each `changes` of it": ShownChange,
    "`up`": UpAnswer,
    "`rollout`, `restart`, `recover`": GatedAnswer,
    "`stage_weights`": StagingAnswer,
    "`logs`": LogAnswer,
    "`recognise_failure`": CauseAnswer,
    "`explain_finding`": FindingAnswer,
    "`endpoint`": EndpointAnswer,
    "`metrics`": MetricsAnswer,
    "`ask`": ModelAnswer,
    "`list_weights`": WeightsAnswer,
    "every other tool": CommandAnswer,
    "text from outside": UntrustedText,
}


def answers_table() -> str:
    """Return the table in Markdown."""
    rows = ["| answer of | field | meaning |", "| --- | --- | --- |"]
    for tool, kind in _ANSWERS.items():
        first = tool
        for name, field in kind.model_fields.items():
            rows.append(f"| {first} | `{name}` | {field.description} |")
            first = ""
    return "\n".join(rows) + "\n"
