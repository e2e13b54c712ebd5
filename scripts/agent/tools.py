"""A tool is a command: its arguments, types and help are the command's options, and it runs the same program as a person does.

An option for people only (`Option.person`) and one that the tool sets are not arguments. A tool adds only a guard, which refuses a call or
prompts before the command runs.
"""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Annotated, Any, Final, cast

from mcp.server.mcpserver import Context, ElicitationResult, MCPServer, Resolve
from mcp.types import ToolAnnotations
from pydantic import Field

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.naming import NamingError, check_stack_name
from gemma_serving.scripts.agent.context import AgentContext, Answer
from gemma_serving.scripts.agent.permissions import Change
from gemma_serving.scripts.cli.command import Command, Effect
from gemma_serving.scripts.cli.options import OptionField, option_fields

_MOST_CHARACTERS: Final = 2000
MOST_TEXT: Final = 100_000
"""Characters of a text of any length, such as a prompt."""
_FROM_INPUT: Final = "-"
STACK: Final = "stack"
_TYPED: Final = "typed"
HINTS: Final[Mapping[Effect, ToolAnnotations]] = {
    Effect.READS: ToolAnnotations(read_only_hint=True, open_world_hint=False),
    Effect.ASKS: ToolAnnotations(read_only_hint=True, open_world_hint=True),
    Effect.SENDS: ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True
    ),
    Effect.CHANGES: ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
    ),
    Effect.DELETES: ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool."""

    agent: AgentContext
    context: Context[Any, Any]
    tool: "AgentTool"
    given: Mapping[str, Any]
    typed: Any = None
    """The user's response to the tool's prompt."""
    code: str | None = None
    """Code from the user's terminal, in place of a response."""

    @property
    def stack(self) -> str:
        """The stack of a tool whose command requires one."""
        return str(self.given[STACK])

    async def run(self) -> Answer:
        """Run the command with its options. Raises CommandRefusedError if it refuses, and ScriptError if it fails without a document."""
        words, text = self.tool.words(self.given)
        return await self.agent.answer(self.context, self.tool.room, *words, text=text)


Guard = Callable[[ToolCall], Awaitable[Answer]]
"""Runs the command of a call, unless it refuses the call."""
Prompt = Callable[[AgentContext], Callable[..., Awaitable[Any]]]
"""Returns the function of a server that asks the user, with parameters named as the tool's arguments."""
_CODE: Final = "Code that the user read on their terminal, for a client that shows no form."


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool:
    """A tool."""

    name: str
    command: str
    """Words after `python -m scripts.`: the room, and a subcommand if it is one."""
    note: str = ""
    """Facts for the caller that the command's help lacks."""
    help: str = ""
    """What the tool does, in place of the command's help, which is about every value of the options that the tool fixes."""
    fixed: Mapping[str, object] = field(default_factory=dict[str, object])
    """Options that the tool fixes; None for one that means nothing beside them."""
    requires: tuple[str, ...] = ()
    """Options that it requires although the command does not, because a person has another one instead, such as `--url`."""
    changes: tuple[Change, ...] = ()
    """Permissions that offer the tool, any of them; empty for a tool that everyone has."""
    effect: Effect | None = None
    """Default: the command's. The fixed options can make it smaller."""
    guard: Guard = ToolCall.run
    prompt: Prompt | None = None
    """Asks the user before the guard."""
    typed: Any = None
    """Type of the user's response."""
    takes_code: bool = False
    """True if a code can replace the response."""

    @property
    def room(self) -> str:
        """Folder of the command."""
        return self.command.partition(" ")[0]

    @property
    def options(self) -> Mapping[str, OptionField]:
        """The options that are its arguments."""
        fields = option_fields(command_of(self.command).options).items()
        return {name: one for name, one in fields if not one.option.person and name not in self.fixed}

    @property
    def description(self) -> str:
        """Its own help, or the command's without its examples and its layout."""
        lines = inspect.cleandoc(self.help or command_of(self.command).help or "").splitlines()
        prose = " ".join(line for line in lines if not line.startswith(" "))
        return " ".join(f"{prose} {self.note}".split())

    def add(self, server: MCPServer[Any], agent: AgentContext) -> None:
        """Register the tool."""

        async def run(*, context: Context[Any, Any], **given: Any) -> object:  # noqa: ANN401 - its signature is below
            self._require(agent, given)
            typed, code = given.pop(_TYPED, None), given.pop("code", None)
            call = ToolCall(agent=agent, context=context, tool=self, given=given, typed=typed, code=code)
            return await self.guard(call)

        signature = self._signature(agent)
        cast("Any", run).__signature__ = signature
        run.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
        hints = HINTS[self.effect or command_of(self.command).effect]
        server.tool(name=self.name, description=self.description, annotations=hints)(run)

    def _require(self, agent: AgentContext, given: Mapping[str, Any]) -> None:
        """Raise CommandRefusedError without the permission, or for a stack that is not a name."""
        if self.changes and not agent.allowed & {*self.changes}:
            agent.require(self.changes[0])
        if isinstance(stack := given.get(STACK), str):
            _require_stack_name(stack)

    def words(self, given: Mapping[str, object]) -> tuple[Sequence[str], str]:
        """Return the words of the command line, and the text for its standard input. Raises CommandRefusedError for an unsafe value."""
        fields = option_fields(command_of(self.command).options)
        found = [*self.command.split()[1:]]
        texts = [str(value) for name, value in given.items() if value is not None and fields[name].option.text]
        for name, value in {**given, **self.fixed}.items():
            found += _words(fields[name], value)
        return found, "".join(texts)

    def _signature(self, agent: AgentContext) -> inspect.Signature:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("context", kind, annotation=Context[Any, Any])]
        for name, one in self.options.items():
            is_required = one.is_required or name in self.requires
            default = inspect.Parameter.empty if is_required else json_default(one)
            # A default is not validated, so an optional argument needs no type that includes null.
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=_annotation(one)))
        if self.takes_code:
            code = Annotated[str, Field(description=_CODE, max_length=_MOST_CHARACTERS)]
            parameters.append(inspect.Parameter("code", kind, default=None, annotation=code))
        if self.prompt is not None:
            response = Annotated[ElicitationResult[self.typed], Resolve(self._checked(agent, self.prompt(agent)))]
            parameters.append(inspect.Parameter(_TYPED, kind, annotation=response))
        return inspect.Signature(parameters, return_annotation=Answer)

    def _checked(self, agent: AgentContext, prompt: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a prompt that asks nobody about a call without its permission, or about what is not a stack's name."""

        @wraps(prompt)
        async def checked(**given: Any) -> object:  # noqa: ANN401 - its signature is the prompt's
            self._require(agent, given)
            return await prompt(**given)

        return checked


@cache
def command_of(words: str) -> Command[Any]:
    """Return a command, or its subcommand: `plan`, `connect chat`."""
    room, _, name = words.partition(" ")
    whole: Command[Any] = importlib.import_module(f"gemma_serving.scripts.{room}.__main__").COMMAND
    return next(sub for sub in whole.subcommands if sub.name == name) if name else whole


def json_type(one: OptionField) -> Any:  # noqa: ANN401 - a type
    """Return the type of an option in JSON. A value with a form of its own is a text in that form."""
    kind = one.kind if one.kind in {bool, int, float} and one.option.parse is None else str
    return list[kind] if one.option.repeated or one.option.many else kind


def json_default(one: OptionField) -> object:
    """Return the default of an option in JSON; None if the command has none of that type."""
    return one.default if type(one.default) is json_type(one) else None


def _annotation(one: OptionField) -> Any:  # noqa: ANN401 - a type
    option = one.option
    return Annotated[json_type(one), Field(description=option.help, ge=option.least, gt=option.above, le=option.most)]


def _words(one: OptionField, value: object) -> Sequence[str]:
    if value is None or (value is False and not one.option.negatable):
        return ()
    if value is True:
        return (one.flag,)
    if value is False:
        return (one.flags[1],)
    if one.option.text:
        if len(str(value)) > MOST_TEXT:
            raise CommandRefusedError(f"{one.name} has {len(str(value))} characters; the limit is {MOST_TEXT}.")
        return (_FROM_INPUT,)
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [require_word(f"{each}", one.name if one.option.positional else one.flag) for each in values]
    if one.option.many:
        return (one.flag, *texts)
    return one.words(texts) if texts else ()


def require_word(value: str, what: str) -> str:
    """Return a value for a command line. Raises CommandRefusedError if it could be an option, or is too long."""
    if len(value) > _MOST_CHARACTERS:
        raise CommandRefusedError(f"{what} has {len(value)} characters; the limit is {_MOST_CHARACTERS}.")
    if value.startswith("-") or not value.isprintable() or not value.strip():
        raise CommandRefusedError(
            f"{what} is {value[:60]!r}; it must be a value of printable characters that does not start with -."
        )
    return value


def _require_stack_name(stack: str) -> None:
    """Reject paths, options, and `organization/project/stack`, which is a stack of another project. Raises CommandRefusedError."""
    try:
        check_stack_name(stack)
    except NamingError as error:
        raise CommandRefusedError(f"stack is {stack[:60]!r}. {error}") from None
