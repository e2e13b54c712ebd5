"""Tools as tables. Arguments and limits come from the options of the commands."""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Final, cast

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.scripts.agent.context import AgentContext, Answer
from gemma_serving.scripts.agent.permissions import Change
from gemma_serving.scripts.agent.presenting import FULL, LIMIT, LIMITED, MOST_ROWS, WITH_FULL
from gemma_serving.scripts.cli.options import OptionField, option_fields

_MOST_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class Argument:
    """A tool's argument: an option of its command, or one that only the tool itself uses."""

    help: str = ""
    kind: Any = None
    option: str = ""
    """Field of the option, if it has another name."""
    default: Any = None
    """Default value. If None, the command has its own."""
    required: bool = False
    is_passed: bool = True


Own: Final = partial(Argument, is_passed=False)
_FULL: Final = Own("Return everything.", bool, default=False)
_LIMIT: Final = Own(
    "Number of rows, best first; of places, for each accelerator. Default: 5.",
    Annotated[int, Field(ge=1, le=MOST_ROWS)],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCall:
    """One call of a tool."""

    agent: AgentContext
    context: Context[Any, Any]
    command: str
    given: Mapping[str, Any]
    words: Sequence[str]
    """Arguments that are passed to the command, as its options."""

    async def answer(self, *more: str) -> Answer:
        """Run the command with its options and these words."""
        return await self.agent.answer(self.context, self.command, *self.words, *more)


Body = Callable[[CommandCall], Awaitable[Answer | CallToolResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTool:
    """A tool. Without a body, it runs its command with the options."""

    name: str
    description: str
    command: str
    """Command with fixed words, such as `plan --compare`; empty without one."""
    takes: Mapping[str, Argument]
    hint: ToolAnnotations
    change: Change | None = None
    body: Body | None = None

    def add(self, server: MCPServer[Any], agent: AgentContext) -> None:
        """Register the tool."""

        async def run(*, context: Context[Any, Any], **given: Any) -> object:  # noqa: ANN401 - its signature is below
            if self.change is not None:
                agent.require(self.change)
            command, *fixed = self.command.split() or [""]
            passed = {one.option or name: given[name] for name, one in self.takes.items() if one.is_passed}
            words = option_words(command, passed) if passed else ()
            call = CommandCall(agent=agent, context=context, command=command, given=given, words=words)
            return await (self.body(call) if self.body else call.answer(*fixed))

        cast("Any", run).__signature__ = self._signature()
        server.tool(name=self.name, description=self.description, annotations=self.hint)(run)

    def _signature(self) -> inspect.Signature:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("context", kind, annotation=Context[Any, Any])]
        full = {FULL: _FULL} if self.name in WITH_FULL else {}
        limit = {LIMIT: _LIMIT} if self.name in LIMITED else {}
        for name, argument in {**self.takes, **full, **limit}.items():
            field = options_of(self.command.split()[0])[argument.option or name] if argument.is_passed else None
            default = inspect.Parameter.empty if argument.required else argument.default
            if default is None and field is not None and field.kind is bool:
                default = False
            # A default is not validated, so an optional argument needs no type that includes null.
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=_kind(argument, field)))
        return inspect.Signature(parameters, return_annotation=Answer)


def command_tool(
    command: str, takes: Mapping[str, Argument], *, hint: ToolAnnotations, change: Change | None = None
) -> Callable[[Body], CommandTool]:
    """Turn a function into a tool, with its name and description."""

    def tool(body: Body) -> CommandTool:
        name = cast("Any", body).__name__
        description = body.__doc__ or ""
        return CommandTool(
            name=name, description=description, command=command, takes=takes, hint=hint, change=change, body=body
        )

    return tool


@cache
def options_of(command: str) -> Mapping[str, OptionField]:
    """Return the options of a command."""
    return option_fields(importlib.import_module(f"gemma_serving.scripts.{command}.__main__").COMMAND.options)


def option_words(command: str, given: Mapping[str, object]) -> Sequence[str]:
    """Return options of a command as words of its command line, without unset ones."""
    fields = options_of(command)
    return [word for name, value in given.items() for word in _words(name, fields[name], value)]


def _words(name: str, field: OptionField, value: object) -> Sequence[str]:
    if value is None or value is False or value == []:
        return ()
    if value is True:
        return (field.flag,)
    what = name if field.option.positional else field.flag
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    return field.words([require_word(f"{one}", what) for one in values])


def _kind(argument: Argument, field: OptionField | None) -> Any:  # noqa: ANN401 - a type
    """Return the type of an argument, with its description and limits."""
    if argument.kind is not None or field is None:
        return Annotated[argument.kind, Field(description=argument.help)] if argument.help else argument.kind
    option = field.option
    kind = field.kind if field.kind in {bool, int, float} else str
    return Annotated[
        kind, Field(description=argument.help or option.help, ge=option.least, gt=option.above, le=option.most)
    ]


def require_word(value: str, what: str) -> str:
    """Return a value for a command line. Raises CommandRefusedError if it could be an option, or is too long."""
    if len(value) > _MOST_CHARACTERS:
        raise CommandRefusedError(f"{what} has {len(value)} characters; the limit is {_MOST_CHARACTERS}.")
    if value.startswith("-") or not value.isprintable() or not value.strip():
        raise CommandRefusedError(
            f"{what} is {value[:60]!r}; it must be a value of printable characters that does not start with -."
        )
    return value
