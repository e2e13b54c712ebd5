"""Answers of tools in their final form, as a summary that fits into a context or complete with `full: true`."""

from collections.abc import Mapping
from typing import Any, Final

from contracts.fields import as_mapping, as_sequence
from scripts.agent.fitting import MOST_CHARACTERS, compact, fitted
from scripts.agent.summaries import LIMITED, SUMMARIES, summary_of

FULL: Final = "full"
LIMIT: Final = "limit"
MOST_ROWS: Final = 100
WITH_FULL: Final = frozenset({*SUMMARIES, "ask", "compare_benchmarks", "list_weights", "logs", "preview"})
"""Tools that take `full`; the answers of the others are always short."""
_MORE: Final = "This is a summary; full: true returns everything."
_LEFT_OUT: Final = "This was cut; full: true returns more."
_ERROR_CHARACTERS: Final = 4_000
_SAID_CHARACTERS: Final = 2_000
"""Limit for the progress of a failed command that has a document."""


def own_parameters(tool: str) -> Mapping[str, Mapping[str, object]]:
    """Return the parameters of a tool that concern only its answer, as JSON schemas."""
    found: dict[str, Mapping[str, object]] = {}
    if tool in WITH_FULL:
        found[FULL] = {"type": "boolean", "default": False, "description": "Return the whole answer, not its summary."}
    if tool in LIMITED:
        about = {"capacity": "Locations per accelerator."}.get(tool, "Number of rows, best first. Default: 5.")
        found[LIMIT] = {"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "description": about}
    return found


def presented(tool: str, arguments: Mapping[str, object], result: Mapping[str, object]) -> dict[str, Any]:
    """Return the result of a tool, without secrets, as sent to the client."""
    if "content" not in result:
        return dict(result)
    if "structuredContent" not in result:
        return {**result, "content": [_short(item) for item in as_sequence(result["content"])]}
    answer = as_mapping(result["structuredContent"])
    if arguments.get(FULL) is not True:
        answer = _fitted(tool, _summary(tool, arguments, answer))
    return {**result, "content": [{"type": "text", "text": compact(answer)}], "structuredContent": answer}


def _summary(tool: str, arguments: Mapping[str, object], answer: Mapping[str, object]) -> Mapping[str, object]:
    """Return an answer with a summary of its document, without tables and progress that repeat it."""
    document = as_mapping(answer.get("document"))
    if not document:
        return answer
    summary = summary_of(tool, document, arguments)
    found = {**answer, "document": summary}
    said = as_mapping(found.pop("said", None))
    if answer.get("ok") is False and said:
        text = str(said.get("text") or "")
        found["said"] = {**said, "text": text[-_SAID_CHARACTERS:], "cut": len(text) > _SAID_CHARACTERS}
    return {**found, "more": _MORE} if summary != document else found


def _fitted(tool: str, answer: Mapping[str, object]) -> Mapping[str, object]:
    if len(compact(answer)) <= MOST_CHARACTERS:
        return answer
    more = {"more": _LEFT_OUT} if tool in WITH_FULL else {}
    return fitted({**answer, **more})


def _short(item: object) -> object:
    """Return a part of an error, at most as long as a reader needs."""
    found = as_mapping(item)
    text = str(found.get("text") or "")
    return {**found, "text": f"{text[:_ERROR_CHARACTERS]}…"} if len(text) > _ERROR_CHARACTERS else item
