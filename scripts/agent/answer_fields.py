"""The fields of each answer, for docs/agent-responses.md. The tool list omits them to save context."""

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel

from engine.changes import ResourceChange
from engine.steps import ShownChange
from scripts.agent.context import CommandAnswer
from scripts.agent.server import TOOLS
from scripts.agent.untrusted import UntrustedText

_PARTS: Final[Mapping[str, type[BaseModel]]] = {
    "each of `changes`": ResourceChange,
    "each `changes` of it": ShownChange,
    "every other tool": CommandAnswer,
    "text from outside": UntrustedText,
}


def answers_table() -> str:
    """Return the table in Markdown."""
    kinds = dict.fromkeys(tool.answers for tool in TOOLS if hasattr(tool.answers, "model_fields"))
    named = {", ".join(f"`{tool.name}`" for tool in TOOLS if tool.answers is kind): kind for kind in kinds}
    rows = ["| answer of | field | meaning |", "| --- | --- | --- |"]
    for first, kind in [*((name, kind) for name, kind in named.items() if kind is not CommandAnswer), *_PARTS.items()]:
        fields = [f"| `{name}` | {field.description} |" for name, field in kind.model_fields.items()]
        rows += [f"| {first if index == 0 else ''} {row}" for index, row in enumerate(fields)]
    return "\n".join(rows) + "\n"
