"""Tools that run one of the project's commands. Their arguments, limits and command lines come from the command's own options."""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, cast

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations
from pydantic import Field

from contracts.errors import CommandRefusedError
from scripts.agent.context import AgentContext, CommandAnswer, sentences
from scripts.agent.permissions import Change
from scripts.agent.untrusted import Frozen
from scripts.cli.options import OptionField, option_fields

_MOST_CHARACTERS: Final = 2000
"""Limit for one value of a command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A tool's argument, which is an option of its command with differences for a model."""

    kind: Any = None
    """Type, if a model may pass less than a user, or passes a list where a user writes text."""
    help: str = ""
    """Description, if the option's own help is about a terminal or too long for a list of tools."""
    option: str = ""
    """Field of the option, if it has another name."""
    default: Any = None
    """Default value. If None, the command has its own."""
    required: bool = False
    is_passed: bool = True
    """True if the command receives it. Otherwise it is not an option, and the tool itself uses it."""


Arguments = Mapping[str, Argument]
"""Tools by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCall:
    """One call of a tool."""

    agent: AgentContext
    context: Context[Any, Any]
    command: str
    given: Mapping[str, Any]
    """Its arguments."""
    words: Sequence[str]
    """Arguments that are passed to the command, as its options."""

    async def answer(self, *more: str) -> CommandAnswer:
        """Run the command with its options and additional words, and return its answer."""
        return await self.agent.answer(self.context, self.command, *self.words, *more)


Body = Callable[[CommandCall], Awaitable[Frozen]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTool:
    """A tool that runs a command. Its function provides the name, the description and the type of the answer."""

    command: str
    takes: Arguments
    hint: ToolAnnotations
    change: Change | None
    """Required permission. Such a tool also costs money."""
    body: Body

    def add(self, server: MCPServer[Any], agent: AgentContext) -> None:
        """Register the tool."""

        async def run(*, context: Context[Any, Any], **given: Any) -> object:  # noqa: ANN401 - its signature is below
            with sentences(agent):
                if self.change is not None:
                    agent.require(self.change)
                    agent.spending.require_left()
                passed = {one.option or name: given[name] for name, one in self.takes.items() if one.is_passed}
                words = option_words(self.command, passed)
                call = CommandCall(agent=agent, context=context, command=self.command, given=given, words=words)
                return await self.body(call)

        cast("Any", run).__signature__ = self._signature()
        name = cast("Any", self.body).__name__
        server.tool(name=name, description=self.body.__doc__, annotations=self.hint)(run)

    def _signature(self) -> inspect.Signature:
        fields = options_of(self.command)
        needed, own = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("context", own, annotation=Context[Any, Any])]
        for name, argument in self.takes.items():
            field = fields[argument.option or name] if argument.is_passed else None
            default = needed if argument.required else argument.default
            if default is None and field is not None and field.kind is bool:
                default = False
            kind = _kind(argument, field)
            annotation = kind | None if default is None else kind
            parameters.append(inspect.Parameter(name, own, default=default, annotation=annotation))
        answers = inspect.get_annotations(self.body, eval_str=True)["return"]
        return inspect.Signature(parameters, return_annotation=answers)


def command_tool(
    command: str, takes: Arguments, *, hint: ToolAnnotations, change: Change | None = None
) -> Callable[[Body], CommandTool]:
    """Turn a function into the tool of a command, with these of its options."""
    return lambda body: CommandTool(command=command, takes=takes, hint=hint, change=change, body=body)


@cache
def options_of(command: str) -> Mapping[str, OptionField]:
    """Return the options of a command, which is located by name as `python -m` does."""
    return option_fields(importlib.import_module(f"scripts.{command}.__main__").COMMAND.options)


def option_words(command: str, given: Mapping[str, object]) -> Sequence[str]:
    """Return options of a command as words of its command line. Unset options and disabled switches are omitted."""
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
    """Return the type of an argument, with the option's help and limits unless the tool overrides them."""
    if argument.kind is not None or field is None:
        return Annotated[argument.kind, Field(description=argument.help)] if argument.help else argument.kind
    option = field.option
    kind = field.kind if field.kind in {bool, int, float} else str
    return Annotated[
        kind, Field(description=argument.help or option.help, ge=option.least, gt=option.above, le=option.most)
    ]


def require_word(value: str, what: str) -> str:
    """Return a value for a command line.

    Raises CommandRefusedError if it can be read as an option, has control characters, or is too long.
    """
    if len(value) > _MOST_CHARACTERS:
        raise CommandRefusedError(f"{what} has {len(value)} characters; the limit is {_MOST_CHARACTERS}.")
    if value.startswith("-") or not value.isprintable() or not value.strip():
        raise CommandRefusedError(
            f"{what} is {value[:60]!r}; it must be a value of printable characters that does not start with -."
        )
    return value
