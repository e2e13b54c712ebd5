"""The arguments of a command, with the stack as a word."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import CommandRefusedError
from engine import runner
from scripts.cli.command import Command
from scripts.cli.options import option_fields
from scripts.gemma.catalog import NEVER_GUESSED, WITHOUT_STATE


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaCall:
    """One command of `gemma` with the words after it."""

    name: str
    command: Command[Any]
    words: Sequence[str]

    def split(self, subcommand: str = "") -> "tuple[Sequence[str], GemmaCall]":
        """Return the subcommand's word, if there is one, and the call of that subcommand."""
        found = {sub.name: sub for sub in self.command.subcommands}
        if subcommand:
            return [subcommand], GemmaCall(name=self.name, command=found[subcommand], words=self.words)
        if self.words and self.words[0] in found:
            return self.words[:1], GemmaCall(name=self.name, command=found[self.words[0]], words=self.words[1:])
        if self.command.run is None and "run" in found and self.words and has_settings(self.words[0]):
            return ["run", "--create"], GemmaCall(name=self.name, command=found["run"], words=self.words)
        return (), self

    def with_stack(self, default: Callable[[], str], require_known: Callable[[str], None]) -> Sequence[str]:
        """Return the words with the stack as `--stack NAME`.

        The first word is the stack if it has a settings file, or if the command takes fewer words than there are; `require_known` then
        refuses one that does not exist, except for commands that work without settings and state.
        `default` names the stack where one is required and none is given.

        Raises CommandRefusedError if a command that changes something has no stack, and what the two functions raise.
        """
        fields = option_fields(self.command.options)
        stack = fields.get("stack")
        own = self.words[: self.words.index("--")] if "--" in self.words else self.words
        if stack is None or {"-h", "--help"} & set(own):
            return self.words
        leading = own[: next((at for at, word in enumerate(own) if word.startswith("-")), len(own))]
        takes = sum(one.option.positional for one in fields.values())
        if leading and (has_settings(leading[0]) or len(leading) > takes):
            if self.name not in WITHOUT_STATE:
                require_known(leading[0])
            if not takes and leading[1:] and has_settings(leading[1]):
                each = " and ".join(f"`gemma {self.name} {one}`" for one in leading)
                raise CommandRefusedError(f"{self.name} takes one stack, not {len(leading)}. Run {each}.")
            return [stack.flag, *self.words]
        if any(word.partition("=")[0] in {stack.flag, "--url"} for word in own):
            return self.words
        if not (stack.is_required or "url" in fields):
            return self.words
        if self.name in NEVER_GUESSED:
            raise CommandRefusedError(f"No stack named. Run `gemma {self.name} STACK`.")
        return [stack.flag, default(), *self.words]


def has_settings(stack: str) -> bool:
    """Return whether a stack has a settings file in the project's folder."""
    return stack in runner.stacks_in(runner.project_folder())
