"""Answers that the checks ask for: a strict type each, from which the schema that is sent is made, and the values that are right.

What a type rejects is the fault of the server's parser or grammar. Other values are the model's.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

OTHER_RELEASE: Final = "Try another vLLM release (docs/upgrade-vllm.md)."
CODE: Final = "heron"
EDIT_QUESTION: Final = 'Call the tool edit_file: in the file README, replace "<b>draft</b>" by "<i>final</i>" in the mode exact, with the limit 2.'
OTHER_VALUE: Final = "the types are right, but not the values: the model, or a template that hides the question."
_QUOTED: Final = re.compile(r"\"(\\\"|')((?:(?!\1).)*)\1\"")
"""A text with quotation marks inside its own, in JSON."""
_POPULATIONS: Final = range(1_000_000, 20_000_000)
"""Of Paris: the city has 2 million people, its area 13 million."""


class Expected(BaseModel):
    """Base of the answers. The docstring of a tool's is its description."""

    model_config = ConfigDict(strict=True, extra="forbid")
    tool: ClassVar[str] = ""
    """Name of the function whose arguments it is; empty for structured output."""

    def is_right(self) -> bool:
        """Return whether the values are those that the question asks for."""
        raise NotImplementedError


class Weather(Expected):
    """Get the current weather for a location."""

    tool = "get_weather"
    location: str = Field(description="City name")

    def is_right(self) -> bool:
        """Return whether it is Tokyo, also as `Tokyo, Japan`."""
        return _first_word(self.location) == "tokyo"


class Edit(Expected):
    """One replacement."""

    old_text: str = Field(description="Text to replace")
    new_text: str = Field(description="New text")


class EditFile(Expected):
    """Replace texts in a file."""

    tool = "edit_file"
    path: str = Field(description="Path of the file")
    edits: list[Edit] = Field(min_length=1)
    mode: Literal["exact", "regex"] = Field(description="How old_text is found")
    limit: int = Field(description="Maximum number of replacements")

    def is_right(self) -> bool:
        """Return whether it is the edit of EDIT_QUESTION."""
        edit = Edit(old_text="<b>draft</b>", new_text="<i>final</i>")
        return (self.path.removeprefix("./"), self.edits, self.mode, self.limit) == ("README", [edit], "exact", 2)


class City(Expected):
    """A city as structured output."""

    city: str
    country: str
    population: int

    def is_right(self) -> bool:
        """Return whether it is Paris in France."""
        names = (_first_word(self.city), _first_word(self.country))
        return names == ("paris", "france") and self.population in _POPULATIONS


class Code(Expected):
    """The code in the system message, as structured output."""

    code: str

    def is_right(self) -> bool:
        """Return whether it is that code."""
        return self.code == CODE


def with_ending(expected: type[Expected], ending: str) -> type[Expected]:
    """Return an answer whose keys have an ending, so schemas differ."""
    config = ConfigDict(alias_generator=lambda name: f"{name}{ending}")
    return type(expected.__name__, (expected,), {"__module__": __name__, "model_config": config})


def tool_of(expected: type[Expected]) -> Mapping[str, Any]:
    """Return the tool whose arguments an answer is."""
    function = {"name": expected.tool, "description": expected.__doc__, "parameters": schema_of(expected)}
    return {"type": "function", "function": function}


def schema_of(expected: type[Expected]) -> dict[str, Any]:
    """Return the JSON schema of an answer, with each type in place: behind `$ref` a parser does not read it (vllm#47906)."""
    whole = expected.model_json_schema()
    found = _in_place(whole, whole.pop("$defs", {}))
    return {key: found[key] for key in ("type", "properties", "required", "additionalProperties")}


def _in_place(part: Any, defined: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(part, list):
        return [_in_place(item, defined) for item in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    found = cast("dict[str, Any]", part)
    found = defined[found["$ref"].rpartition("/")[2]] if "$ref" in found else found
    return {key: _in_place(item, defined) for key, item in found.items() if key != "title"}


def fault_of(expected: type[Expected], text: str, by: str) -> str:
    """Return what is wrong with an answer in JSON, as sentences; empty if it is right. `by`: the part of the server that makes the JSON."""
    fault = _judged(expected, text, by)
    if fault and not _judged(expected, _QUOTED.sub(r'"\2"', text), by):
        return f"{by} kept extra quotes inside a text. {OTHER_RELEASE}"
    return fault


def _judged(expected: type[Expected], text: str, by: str) -> str:
    try:
        return "" if expected.model_validate_json(text).is_right() else OTHER_VALUE
    except ValidationError as error:
        first = error.errors()[0]
    if first["type"] == "literal_error":
        return OTHER_VALUE
    what = "a wrong type" if first["type"].endswith("_type") else "JSON that does not match the schema"
    why = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    return f"{by} returned {what} ({why}). {OTHER_RELEASE}"


def _first_word(text: str) -> str:
    return re.split(r"\W", text.casefold(), maxsplit=1)[0]
