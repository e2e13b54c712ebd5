"""A word is a subcommand, a stack or an option by its place: each documented line reads the same, whatever its stack is called."""

import re
import shlex

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.planning.errors import PlanningError
from gemma_serving.scripts.cli import command as commands
from gemma_serving.scripts.cli.options import option_fields
from gemma_serving.scripts.gemma import arguments
from gemma_serving.scripts.gemma.__main__ import main
from gemma_serving.scripts.gemma.catalog import ENTRIES, entry_of
from gemma_serving.scripts.plan.stack_text import SUBCOMMANDS, new_file
from tests.laws import examples
from tests.records import replace
from tests.scripts.test_commands_page import HAND_WRITTEN, block_commands, inline_commands
from tests.scripts.test_printed_commands import typed_form

SUBS = {(name, sub.name) for name, entry in ENTRIES.items() for sub in entry.whole().subcommands}
NAMES = sorted({"chat", *(sub for _, sub in SUBS)})


def of_stacks(command):
    """Return True if a word after a command can be a stack."""
    return command.run is None or "stack" in option_fields(command.options)


def documented():
    """The words after `gemma` of each command of the pages and the helps."""
    pages = {line for page in HAND_WRITTEN for line in (*block_commands(page), *inline_commands(page))}
    helps = {
        line
        for entry in ENTRIES.values()
        for command in (entry.whole(), *entry.whole().subcommands)
        for line in re.findall(r"^ *(gemma .*[^\\])$", command.help or "", re.MULTILINE)
    }
    lines = {tuple(shlex.split(typed_form(line), comments=True)[1:]) for line in {*pages, *helps}}
    return sorted(words for words in lines if entry_of(words[0]) and "--help" not in words)


@pytest.fixture
def read(monkeypatch):
    """Return a function with the subcommand and the options that `gemma WORDS` would run with, or its refusal."""
    found = []
    own = commands._read

    def reads(*given):
        chosen, options = own(*given)
        found.append((chosen.name, options))
        raise CommandRefusedError("read")

    def result(*words, capsys):
        found.clear()
        main(words)
        said = capsys.readouterr().err
        return found[0] if found else said

    files = {*runner.settings_names(), *NAMES}
    monkeypatch.setattr(runner, "settings_names", lambda: sorted(files))
    monkeypatch.setattr(arguments, "default_stack", lambda _command: ("picked", "selected"))
    monkeypatch.setattr(commands, "_read", reads)
    return result


def places(words, stack):
    """Yield the words with a hole for the stack, at its place and behind each option that can stand before it."""
    command = entry_of(words[0]).whole()
    fields = [one for each in (command, *command.subcommands) for one in option_fields(each.options).values()]
    kinds = {flag: one for one in fields for flag in one.flags}
    at = words.index(stack, 1)
    own = [*words[:at], *words[at + 1 :]]
    yield (*own[:at], "", *own[at:])
    while own[at - 1] != "--stack" and at < len(own) and (one := kinds.get(own[at].partition("=")[0])):
        if one.option.many or one.option.bare:
            return  # takes the next word
        at += 1 if one.kind is bool or "=" in own[at] else 2
        yield (*own[:at], "", *own[at:])


def stack_in(options):
    """The stack of options, or of those of their connection."""
    return getattr(getattr(options, "connection", options), "stack", None)


def with_name(options, name):
    """The same options with another stack."""
    if hasattr(options, "connection"):
        return replace(options, connection=with_name(options.connection, name))
    return replace(options, stack=name)


@pytest.mark.law
def test_each_documented_line_reads_the_same_with_a_stack_of_any_name_and_at_any_place(read, capsys):
    wrong, tried = [], {}
    for words in documented()[:: examples(test=2, part=1, night=1)]:
        whole = read(*words, capsys=capsys)
        chosen, options = whole if isinstance(whole, tuple) else ("", None)
        stack = stack_in(options)
        if not isinstance(stack, str) or stack not in words[1:]:
            continue
        for line in places(words, stack):
            if line in tried:
                continue
            tried[line] = [name for name in NAMES if SUBCOMMANDS.get(name) != words[0] or "--stack" in line]
            for name in tried[line]:
                got = read(*(word or name for word in line), capsys=capsys)
                if got != (chosen, with_name(options, name)):
                    wrong.append((line, name, got))
    assert wrong == []
    assert len(tried) > 30
    assert {len(names) for names in tried.values()} <= {len(NAMES), len(NAMES) - 1, len(NAMES) - 2}


@pytest.mark.parametrize(("name", "sub"), sorted(SUBS))
def test_a_new_stack_has_no_name_that_its_commands_read_as_a_subcommand(name, sub, tmp_path, monkeypatch):
    is_read_so = (
        of_stacks(ENTRIES[name].whole()) and sub != "chat"
    )  # `gemma chat` is a command, `gemma connect chat` a stack
    assert (SUBCOMMANDS.get(sub) == name) == is_read_so
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    monkeypatch.chdir(tmp_path)
    if is_read_so:
        with pytest.raises(PlanningError, match=f"`gemma {name} {sub}` is a command. Choose another NAME."):
            new_file(sub, option="NAME")


def test_the_words_of_the_list_are_subcommands():
    assert {(name, sub) for sub, name in SUBCOMMANDS.items()} <= SUBS


@pytest.mark.parametrize("ends", [(), ("--", "python", "app.py", "--port", "80")])
def test_a_command_after_two_dashes_needs_connect_and_not_a_name(read, capsys, ends):
    for before in (("connect", "chat"), ("connect", "--stack", "chat"), ("connect", "--port", "80", "chat")):
        chosen, options = read(*before, *ends, capsys=capsys)
        assert (chosen, options.connection.stack) == ("connect", "chat")
