"""The arguments of a command, with the stack as a word."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple, cast

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.settings_files import stack_of_file
from gemma_serving.contracts.spelling import meant
from gemma_serving.scripts.cli.command import Command, chosen_of, is_readable, print_progress
from gemma_serving.scripts.cli.options import option_fields, parted
from gemma_serving.scripts.gemma.catalog import CommandEntry


class GemmaCall(NamedTuple):
    """A command with the words after it. `lead` selects a subcommand."""

    name: str
    command: Command[Any]
    words: Sequence[str]
    lead: Sequence[str] = ()


def call_of(entry: CommandEntry, words: Sequence[str]) -> GemmaCall:
    """Return the call of an entry's command, or of its subcommand."""
    whole = entry.whole()
    found = {sub.name: sub for sub in whole.subcommands if bool(entry.subcommand) == bool(sub.label)}
    chosen, own = chosen_of(replace(whole, subcommands=tuple(found.values())), [*entry.subcommand.split(), *words])
    if chosen.name in found:
        return GemmaCall(entry.name, chosen, own, [chosen.name])
    word = next(iter(own), "-")
    if whole.run is None and (has_settings(word) or not (word.startswith("-") or meant(word, found))):
        return GemmaCall(entry.name, found["run"], words, ["run"])
    return GemmaCall(entry.name, whole, words)


def with_stack(call: GemmaCall) -> Sequence[str]:
    """Return the arguments with the stack as `--stack NAME`.

    The first word by position is the stack if it has a settings file, or if the command takes fewer words. `--help` replaces all other words, but `--all`.

    Raises CommandRefusedError if a command that changes something has no stack.
    """
    fields, words = option_fields(call.command.options), [*call.lead, *call.words]
    stack = fields.get("stack")
    named, rest = parted(call.words, call.command.options)
    before = [*takewhile("--".__ne__, rest)]
    if {"-h", "--help"} & set(before):
        return [*call.lead, "--help", *(word for word in before if word == "--all")]
    if stack is None:
        return words
    is_given = any(word.partition("=")[0] in {stack.flag, "--url"} for word in before)
    # A repeated word, such as an accelerator, has no limit.
    takes = sum(len(named) if one.option.repeated else 1 for one in fields.values() if one.option.positional)
    if named and not is_given and (has_settings(named[0]) or stack_of_file(named[0]) or len(named) > takes):
        if not takes and named[1:] and is_readable(call.command, [stack.flag, named[0], *before]):
            raise CommandRefusedError(_too_many(call.name, named))
        return [*call.lead, stack.flag, *named, *rest]
    if is_given or not (stack.is_required or "url" in fields):
        return words
    if call.command.changes:
        raise CommandRefusedError(_no_stack(call.name))
    if not is_readable(call.command, [stack.flag, call.name, *named, *before]):
        return words  # refused before the engine lists the stacks
    name, why = default_stack(call.name)
    print_progress("gemma", f"stack {name} ({why})")
    return [*call.lead, stack.flag, name, *call.words]


def _too_many(command: str, named: Sequence[str]) -> str:
    """Return why a command of one stack takes no second word, with the command of each word that is a stack."""
    each = " and ".join(f"`gemma {command} {one}`" for one in named if has_settings(one))
    return f"{command} takes one stack, not {', '.join(named)}. Run {each or '`gemma` to list the stacks'}."


def _no_stack(command: str) -> str:
    """Return the refusal of a command without a stack, with those that have a settings file. Raises CommandRefusedError without any."""
    from gemma_serving.engine import runner  # noqa: PLC0415 - loads subprocess, and `--help` needs neither

    first, *others = runner.require_stacks(())
    if not others:
        return f"No stack named. Run `gemma {command} {first}`."
    return f"No stack named. Stacks with a settings file: {', '.join((first, *others))}. Run `gemma {command} STACK`."


def has_settings(stack: str) -> bool:
    """Return whether a stack has a settings file in the project's folder."""
    from gemma_serving.engine import runner  # noqa: PLC0415 - loads subprocess, and `--help` needs neither

    return stack in runner.settings_names()


def stacks_meant(word: str) -> Sequence[str]:
    """Return the stack of a settings file, or the stacks, at most two, whose names are close to a word."""
    from gemma_serving.engine import runner  # noqa: PLC0415 - loads subprocess, and `--help` needs neither

    return meant(stack_of_file(word) or word, runner.settings_names())


class ListedStack(NamedTuple):
    """One stack of the backend. An updated one with an unknown number of resources counts as deployed."""

    name: str
    is_selected: bool
    is_deployed: bool


def known_stacks(*, limit_s: float | None = None) -> Sequence[ListedStack]:
    """Return the stacks that the backend knows. Raises ScriptError, even after `limit_s` seconds, by default the limit of a query."""
    from gemma_serving.engine import runner  # noqa: PLC0415 - loads subprocess, and `--help` needs neither

    found: list[ListedStack] = []
    stacks = json.loads(runner.query(["stack", "ls", "--json"], limit_s=limit_s or runner.QUERY_LIMIT_S))
    for stack in map(as_mapping, cast("list[object]", stacks)):
        is_deployed = bool(stack.get("resourceCount", stack.get("lastUpdate")))
        name = str(stack.get("name")).rpartition("/")[2]
        found.append(ListedStack(name, stack.get("current") is True, is_deployed))
    return found


def default_stack(command: str) -> tuple[str, str]:
    """Return the stack that is meant where none is named, and why: `selected`, or `the only one deployed`.

    Raises CommandRefusedError if neither exists.
    """
    stacks = known_stacks()
    for stack in stacks:
        if stack.is_selected:
            return stack.name, "selected"
    deployed = [stack.name for stack in stacks if stack.is_deployed]
    if len(deployed) == 1:
        return deployed[0], "the only one deployed"
    several = f"Deployed: {', '.join(deployed)}." if deployed else "No stack is deployed."
    raise CommandRefusedError(f"No stack named and none selected. {several} Run `gemma {command} STACK`.")
