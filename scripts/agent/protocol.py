"""The SDK's server with short tool lists, and plain sentences instead of validation errors."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import INVALID_PARAMS, CallToolResult, GetPromptResult, InputRequiredResult, Tool
from pydantic import ValidationError

from contracts.fields import as_mapping, as_sequence
from scripts.agent.presenting import own_parameters

_VALUE_CHARACTERS: Final = 60
_SHOULD: Final = re.compile(r"^\w+ should\b")
"""Prefix of pydantic's messages: `Input should be at least ...`."""
_DROPPED: Final = frozenset({"title"})
"""Schema keys that repeat the parameter's name."""


def project_version() -> str:
    """Return the version of this project."""
    found = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    return str(as_mapping(found.get("project")).get("version") or "unknown")


class AgentServer(MCPServer[Any]):
    """The server. It rejects an invalid argument with a sentence that states the allowed values."""

    async def list_tools(self) -> list[Tool]:
        """Return the tools with short schemas.

        Answer schemas are omitted: docs/agent-responses.md describes each field, and most clients pass everything listed to the model.
        """
        return [_listed(tool) for tool in await super().list_tools()]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. Raises ToolError with a plain sentence."""
        tools = {tool.name: tool for tool in await super().list_tools()}
        if name not in tools:
            raise ToolError(
                f"This server has no tool {name[:_VALUE_CHARACTERS]!r}. Tools: {', '.join(tools)}. "
                "Other tools were not allowed by the user who started the server."
            )
        schema = _listed(tools[name]).input_schema
        _require_allowed(name, schema, arguments)
        own = own_parameters(name)
        given = {key: value for key, value in arguments.items() if key not in own}
        try:
            return await super().call_tool(name, given, context)
        except UnexpectedToolError as error:
            raise UnexpectedToolError(
                f"{name} failed because of a bug in this server. Its standard error has the traceback; report it."
            ) from error.__cause__
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                raise ToolError(_errors(name, schema, cause)) from None
            text = str(cause or error)
            if text.startswith("Resolver "):  # the SDK's message about an invalid answer to a question
                text = "The user's answer does not have the required fields. Nothing was done. Call again."
            raise ToolError(text) from cause

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[Any, Any] | None = None
    ) -> GetPromptResult | InputRequiredResult:
        """Return a prompt. Raises MCPError with a plain sentence if it is unknown or its arguments are wrong."""
        prompts = {prompt.name: prompt for prompt in await self.list_prompts()}
        if name not in prompts:
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"This server has no prompt {name[:_VALUE_CHARACTERS]!r}. Prompts: {', '.join(prompts)}.",
            )
        takes = prompts[name].arguments or []
        needed = [one.name for one in takes if one.required]
        given = set(arguments or {})
        if not set(needed) <= given <= {one.name for one in takes}:
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"The prompt {name} takes {' and '.join(one.name for one in takes)}, but got {', '.join(sorted(given)) or 'none'}.",
            )
        return await super().get_prompt(name, arguments, context)


def _listed(tool: Tool) -> Tool:
    """Return a tool with a title and a short argument schema, without an answer schema."""
    schema = as_mapping(_short(tool.input_schema))
    properties = {**as_mapping(schema.get("properties")), **own_parameters(tool.name)}
    return tool.model_copy(
        update={
            "title": tool.title or tool.name.replace("_", " ").capitalize(),
            "description": " ".join((tool.description or "").split()),
            "input_schema": {**schema, "properties": properties, "additionalProperties": False},
            "output_schema": None,
        }
    )


def _short(schema: object) -> object:
    """Return a schema without titles, with optional parameters listed without their null alternative."""
    if isinstance(schema, list):
        return [_short(item) for item in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = dict(cast("dict[str, object]", schema))
    kinds = [as_mapping(kind) for kind in as_sequence(found.get("anyOf"))]
    some = [kind for kind in kinds if kind.get("type") != "null"]
    if len(some) == 1 and len(kinds) > 1:
        del found["anyOf"]
        found = {**some[0], **found}
        if found.get("default", 0) is None:
            del found["default"]
    return {
        key: {name: _short(each) for name, each in as_mapping(value).items()} if key == "properties" else _short(value)
        for key, value in found.items()
        if not (key in _DROPPED and isinstance(value, str))
    }


def _require_allowed(tool: str, schema: Mapping[str, object], arguments: Mapping[str, object]) -> None:
    """Reject unknown arguments, and invalid arguments that concern the answer. Raises ToolError."""
    allowed = as_mapping(schema.get("properties"))
    unknown = [name for name in arguments if name not in allowed]
    if unknown:
        takes = f"Use one of {', '.join(allowed)}" if allowed else "It takes none"
        raise ToolError(f"{tool} has no argument {unknown[0][:_VALUE_CHARACTERS]!r}. {takes}.")
    for name, own in own_parameters(tool).items():
        value = arguments.get(name)
        most = own.get("maximum")
        if value is None or (isinstance(value, bool) and own["type"] == "boolean"):
            continue
        if isinstance(most, int) and isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            continue
        wanted = "true or false" if most is None else f"a whole number from 1 to {most}"
        raise ToolError(f"{name} of {tool} is {_quoted(value)}; it must be {wanted}.")


def _errors(tool: str, schema: Mapping[str, object], error: ValidationError) -> str:
    """Return a sentence for each invalid argument: its value, the allowed values, and its meaning."""
    properties = as_mapping(schema.get("properties"))
    found: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        name, *inner = (str(part) for part in problem["loc"]) if problem["loc"] else ("arguments",)
        about = str(as_mapping(properties.get(name)).get("description") or "")
        if problem["type"] == "missing":
            words = f"{tool} requires {name}"
        else:
            place = "".join(f"[{part}]" for part in inner if part.isdigit())
            words = f"{name}{place} of {tool} is {_quoted(problem['input'])}; it {_SHOULD.sub('must', problem['msg'])}"
        found.setdefault(name, f"{words}. {about}".strip())
    return " ".join(found.values())


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}…"
