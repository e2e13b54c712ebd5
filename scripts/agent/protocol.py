"""The SDK's server with short tool lists, and plain sentences instead of validation errors."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import CallToolResult, InputRequiredResult, Tool
from pydantic import ValidationError

from contracts.fields import as_mapping

_VALUE_CHARACTERS: Final = 60
_SHOULD: Final = re.compile(r"^\w+ should\b")
"""Prefix of pydantic's messages: `Input should be at least ...`."""


def project_version() -> str:
    """Return the version of this project."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["version"]


class AgentServer(MCPServer[Any]):
    """The server. It rejects an invalid argument with a sentence that states the allowed values."""

    async def list_tools(self) -> list[Tool]:
        """Return the tools with short schemas."""
        return [_listed(tool) for tool in await super().list_tools()]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. Raises ToolError with a plain sentence."""
        schemas = {tool.name: as_mapping(tool.input_schema.get("properties")) for tool in await super().list_tools()}
        known = schemas.get(name, arguments)
        if unknown := [key for key in arguments if key not in known]:
            takes = ", ".join(known) or "none"
            raise ToolError(f"{name} has no argument {unknown[0][:_VALUE_CHARACTERS]!r}. It takes {takes}.")
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            return await super().call_tool(name, given, context)
        except UnexpectedToolError:
            raise  # a bug: the SDK logs it and hides its text
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                raise ToolError(_sentence(name, cause)) from None
            raise ToolError(str(cause or error)) from cause


def _listed(tool: Tool) -> Tool:
    """Return a tool with a short argument schema, without an answer schema."""
    properties = {name: as_mapping(about) for name, about in as_mapping(tool.input_schema.get("properties")).items()}
    short = {
        name: {key: value for key, value in about.items() if key != "title" and (key, value) != ("default", None)}
        for name, about in properties.items()
    }
    schema = {key: value for key, value in tool.input_schema.items() if key != "title"}
    return tool.model_copy(
        update={
            "description": " ".join((tool.description or "").split()),
            "input_schema": {**schema, "properties": short, "additionalProperties": False},
            "output_schema": None,
        }
    )


def _sentence(tool: str, error: ValidationError) -> str:
    """Return a sentence about the first invalid argument: its value, and the allowed values."""
    problem = error.errors(include_url=False)[0]
    place, value = ".".join(str(part) for part in problem["loc"]), repr(problem["input"])
    if problem["type"] == "missing":
        return f"{tool} requires {place}."
    shown = value if len(value) <= _VALUE_CHARACTERS else f"{value[:_VALUE_CHARACTERS]}…"
    return f"{place} of {tool} is {shown}; it {_SHOULD.sub('must', problem['msg'])}."
