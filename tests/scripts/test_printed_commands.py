"""Every command that the code prints runs as it is printed: it is read by the launcher and by the options of its command.

Commands are collected from the literals of the code, with a stack's name for each value that is put in, and from what some commands print.
"""

import ast
import contextlib
import io
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.settings_files import no_settings_file, refresh_command, shipped_files, stacks_in
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.gemma import arguments
from gemma_serving.scripts.gemma.__main__ import main
from gemma_serving.scripts.gemma.catalog import ENTRIES, entry_of
from tests.records import replace
from tests.tracked import tracked

ROOT = Path(__file__).parents[2]
ROOMS = (
    "components",
    "packages/loadtest",
    "gemma_serving",
    "scripts",
    "stacks",
)
STACK = "tpu-v6e1"
HOLE = "\ue001"
"""Stands for a value that is put into a text."""
VALUES = {"key": "hfToken", "folder": "results"}
"""Values that are put in under these names; every other one is the name of a stack."""
QUOTED = re.compile(r"(\b[Rr]un )?`((?:gemma|pulumi) [^`]+)`")
BARE = re.compile(r"(?:\A|^ {2,}|\brun:? |^Next: |with: )(gemma [a-z_]+(?: [^`\n]*)?)$", re.MULTILINE)
WORDS = {
    r"\b(?:STACK|NAME)\b|\$\{?stack\}?|\{\w+\}": STACK,
    r"\bID\b": "my-project",
    r"(?<=-number |request )N\b": "1",
    r" \[[^]]*\]": "",
}
NOT_TEXT = re.compile(
    rf"gemma (?:COMMAND|NAME|4 |deploy|quality|batch|drift|plan learn|preview save|completion {HOLE}|{HOLE})|pulumi {HOLE}"
)
"""The form of every command, the model, words that are printed because they do not exist, and a command whose word is put in."""


def text_of(node):
    """The text of a literal, with a hole for each value; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "" for part in node.values)
    return VALUES.get(ast.unparse(node.value), HOLE) if isinstance(node, ast.FormattedValue) else None


def literals(source):
    """Yield the texts of a module; of an f-string, only the whole."""
    tree = ast.parse(source)
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        text = text_of(node) if id(node) not in parts else None
        if text:
            yield text


def commands_in(text):
    """Yield the commands of a text: in backticks, at the end of a sentence that says "run", and the lines of an example.

    A command without words that no sentence says to run is only named.
    """
    whole = re.sub(r"\\\n *", "", text)
    for run, command in QUOTED.findall(whole):
        is_only_named = not run and command.startswith("gemma ") and command.count(" ") == 1
        yield f"{command} --help" if is_only_named else command
    yield from (re.split(r" {2,}|\)", one)[0].rstrip(".") for one in BARE.findall(whole))


def typed_form(command):
    """A command as a user types it."""
    for pattern, value in WORDS.items():
        command = re.sub(pattern, value, command)
    return re.sub(r"\s+", " ", command.replace(HOLE, STACK)).strip()


def printed(source):
    """Yield the commands of a module as a user would type them."""
    for text in literals(source):
        for command in commands_in(text):
            if not NOT_TEXT.match(command):
                yield typed_form(command)


@cache
def all_printed():
    """Every command of the code, each with the first file that prints it."""
    found = {}
    for path in tracked(*ROOMS):
        if "tests" not in path.relative_to(ROOT).parts:
            for command in printed(path.read_text()):
                found.setdefault(command, path.relative_to(ROOT).as_posix())
    return found


def reading_only(command):
    """The same command, which reads its options and does nothing."""
    subcommands = tuple(reading_only(sub) for sub in command.subcommands)
    return replace(command, run=command.run and (lambda _: ExitCode.DONE), subcommands=subcommands)


def refusal_of(command):
    """What the launcher and the options of a command say against a command line; empty if they accept it."""
    own = shlex.split(command, comments=True)[1:]
    if own[0] == "help":
        own = [*own[1:], "--help"][:1]  # `gemma help smoke` shows the same as `gemma smoke --help`
    if own[0] in {"--help", "completion", "--version"}:
        return "" if main(own) == ExitCode.DONE else "refused"
    entry = entry_of(own[0])
    if entry is None:
        return f"{own[0]} is not a command"
    words = own[1:] if "--" not in own else own[1 : own.index("--")]
    said = io.StringIO()
    try:
        with mock.patch.object(arguments, "default_stack", return_value=(STACK, "")):
            given = arguments.with_stack(arguments.call_of(entry, words))
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = run_command(reading_only(entry.whole()), given)
    except SystemExit as ended:
        code = ended.code or 0
    except CommandRefusedError as error:
        return str(error)
    return "" if code == ExitCode.DONE else said.getvalue() or "refused"


def gemma_commands():
    return sorted(command for command in all_printed() if command.startswith("gemma "))


def test_a_printed_command_is_accepted():
    refused = [(all_printed()[one], one, said) for one in gemma_commands() if (said := refusal_of(one))]
    assert refused == []


STACKS = re.compile(r"(?:[a-z_.]*\.)?stack(?:\.name)?|options\.name|pulumi\.get_stack\(\)|stack_of_file\(.+\)")
"""Names of stacks. `settings_files.stacks_in`, the engine and `labels.owner_of` give none with a character that a shell reads."""
QUOTED_WORDS = re.compile(
    r"shlex\.(?:quote|join)\(.*\)|(?:set|refresh|enable)_command\(.*\)|[A-Z_]+(?:\[.+\])?|'[^']*' if .+ else '[^']*'"
)
"""Quoted words, commands of functions that quote, and our own: constants and choices of literals."""
OTHER_WORDS = {
    "' '.join(argv)": "a command of docker's that failed, shown by the agent",
    "Path(sys.executable).parent": "the interpreter's folder, inside double quotes",
    "arguments[0]": "a verb of pulumi",
    "command": "a command of ours",
    "entry.name": "a command of ours",
    "first": "a command of ours",
    "former": "the name of a stack in labels, which labels.owner_of reads",
    "inputs.get('role')": "a role that the program declares",
    "kind": "a type of pulumi config",
    "kind.key": "a key of the settings",
    "name": "a stack's name that naming.check_stack_name reads, or a command of ours",
    "named": "a command of ours",
    "one": "a command of ours",
    "owner": "a part of the full name of a secret's version, which Google makes",
    "project": "a project of the settings, whose schema allows no character that a shell reads",
    "receipt.stack or '--all'": "a stack's name",
    "secret": "as owner",
    "sentences.after_locks(facts, serves)": "a command with a stack's name",
    "verb": "a verb of pulumi",
    "version": "as owner",
    "word": "quoted where it is made",
    "words": "a command with what the program declares",
    "write": "a stack's name that was typed",
}
"""The other values in a command, each with the reason why a shell reads nothing in it."""


def values_in_commands(source):
    """Yield each value that an f-string puts into a command in backticks, which has more than one word."""
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else ()
        texts = [
            one.value if isinstance(one, ast.Constant) else f"{HOLE}{ast.unparse(one.value)}{HOLE}" for one in parts
        ]
        for span in re.findall("`([^`]*)`", "".join(texts)):
            yield from span.split(HOLE)[1::2] if " " in span else ()


def test_no_word_from_outside_is_in_a_command_unless_it_is_quoted():
    found = {
        value
        for path in tracked(*ROOMS)
        if path.suffix == ".py"
        for value in values_in_commands(path.read_text(encoding="utf-8"))
    }
    others = {value for value in found if not STACKS.fullmatch(value) and not QUOTED_WORDS.fullmatch(value)}
    assert others == set(OTHER_WORDS)


PLANTED = (
    'f"Run `gemma smok {stack}` to check it."',
    'f"Run `gemma logs {stack} --tail 5`."',
    '"Run `gemma plan STACK STACK`."',
    '"Change the settings and run `gemma up`."',
    '"Run `gemma smoke`, then `gemma save_token hftoken --stack NAME`."',
    '"""Do it.\\n\\n  gemma teardown NAME --force\\n"""',
)


@pytest.mark.parametrize("source", PLANTED)
def test_a_planted_wrong_command_is_seen(source):
    assert [one for one in printed(source) if refusal_of(one)] != []


def test_no_text_names_a_module_where_a_command_exists():
    names = "|".join(ENTRIES)
    wrong = [
        f"{path.relative_to(ROOT)}: {text[:60]!r}"
        for path in tracked(*ROOMS, "dev/authors")
        if "tests" not in path.relative_to(ROOT).parts
        if "-m scripts." in path.read_text()  # parsing all files takes seconds
        for text in literals(path.read_text())
        if re.search(rf"python3? -m scripts\.(?:{names})\b(?!\.)", text)
        and path.relative_to(ROOT).as_posix() != "scripts/gemma/__main__.py"
    ]
    assert wrong == []


@pytest.mark.engine
def test_a_printed_command_of_the_engine_has_its_options():
    """`pulumi WORD --help` names each option."""
    shown = {}
    for command in (one for one in all_printed() if one.startswith("pulumi ")):
        words = shlex.split(command.partition(" && ")[0])[1:]
        plain = [word for word in words[:2] if re.fullmatch(r"[a-z-]+", word) and word not in {STACK, "gs"}]
        pair = plain if words[0] in {"stack", "config", "state"} else plain[:1]
        shown.setdefault(tuple(pair), set()).update(word.partition("=")[0] for word in words if word.startswith("--"))
    engine = Path(sys.executable).with_name("pulumi")
    wrong = {}
    for words, options in shown.items():
        done = subprocess.run([engine, *words, "--help"], capture_output=True, text=True, check=False)
        lacking = [option for option in sorted(options) if not re.search(rf"{option}\b", done.stdout)]
        is_named = re.search(rf"pulumi {' '.join(words)}\b|^Aliases:\n.*\b{words[-1]}\b", done.stdout, re.MULTILINE)
        if done.returncode or lacking or not is_named:
            wrong[words] = lacking
    assert len(shown) > 8
    assert wrong == {}


def test_the_name_of_a_file_is_not_run_by_a_pasted_command(tmp_path):
    for name in ("$(id)", "a;id", "-rf", "a b", "a\nb", "tpu-v6e1", "a.b_C-1"):
        (tmp_path / f"Pulumi.{name}.yaml").touch()
    assert stacks_in(tmp_path) == ["a.b_C-1", "tpu-v6e1"]
    assert [path.name for path in shipped_files(tmp_path)] == ["Pulumi.a.b_C-1.yaml", "Pulumi.tpu-v6e1.yaml"]
    assert "`gemma init '$(touch x)' --model ID`" in no_settings_file("$(touch x)", tmp_path)


def test_a_settings_file_with_the_other_ending_of_yaml_is_named(tmp_path):
    (tmp_path / "Pulumi.chat.yml").touch()
    assert no_settings_file("chat", tmp_path).endswith("Rename it to Pulumi.chat.yaml.")
    assert refresh_command("$(id)") == "pulumi config refresh --stack '$(id)' --force"
