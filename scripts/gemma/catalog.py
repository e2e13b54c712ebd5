"""The commands of `gemma`, by task."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from gemma_serving.scripts.cli.command import Command

_COLUMNS: Final = 80
_SCRIPTS: Final = Path(__file__).resolve().parents[1]


class CommandEntry(NamedTuple):
    """One word after `gemma`, short for a module's command or its subcommand."""

    name: str
    module: str
    subcommand: str = ""
    summary: str = ""
    """Default: the first line of the module's docstring."""

    def whole(self) -> "Command[Any]":
        """Return the module's command."""
        return import_module(self.module).COMMAND

    def line(self) -> str:
        """Return one line about the command, without importing it."""
        path = Path(_SCRIPTS, *self.module.split(".")[2:])
        first = path.with_suffix(".py").read_text(encoding="utf-8").partition("\n")[0]
        return self.summary or first.removeprefix("r").strip('"').rstrip()


_OTHERS: Final = {
    "chat": CommandEntry(
        "chat", "gemma_serving.scripts.connect.__main__", "chat", "Talk to a deployed model in the terminal."
    ),
    "bench": CommandEntry("bench", "gemma_serving.scripts.bench.__main__", summary="Measure a server under load."),
}
"""Words that are more than the name of a folder in `scripts/`."""


def _entries(words: str) -> Sequence[CommandEntry]:
    return [_OTHERS.get(word) or CommandEntry(word, f"gemma_serving.scripts.{word}.__main__") for word in words.split()]


_ORDER: Final = {
    "Plan": "init plan capacity doctor",
    "Deploy": "save_token stage_model up",
    "Use": "chat connect smoke bench",
    "Operate": "status logs alerts agent",
    "Change": "preview",
    "Delete": "teardown",
}
"""Commands by task. A folder of `scripts/` with a command that is not listed is under "Other"."""


def grouped_commands() -> Mapping[str, Sequence[CommandEntry]]:
    """Return the commands by task, from the folders of `scripts/`."""
    listed = " ".join((*_ORDER.values(), "gemma")).split()
    folders = sorted(path.parent.name for path in _SCRIPTS.glob("*/__main__.py"))
    groups = {**_ORDER, "Other": " ".join(name for name in folders if name not in listed)}
    return {title: _entries(words) for title, words in groups.items() if words}


GROUPS: Final = grouped_commands()
ENTRIES: Final[Mapping[str, CommandEntry]] = {entry.name: entry for entries in GROUPS.values() for entry in entries}

_ANSWERS: Final = {
    "destroy delete remove rm stop down": "To delete a stack, run `gemma teardown STACK`.",
    "ls ps list show": "To list the stacks, run `gemma status`.",
    "price cost costs": "To show the cost of a stack, run `gemma plan STACK --costs`.",
    "create new": "To write the settings of a new stack, run `gemma init NAME --model 12B`.",
    "deploy launch start serve run apply update": "To deploy a stack, run `gemma up STACK`.",
    "recover repair import": "To continue after an interrupted run, run `gemma up STACK`.",
    "restart": "To restart the server of a stack, run `gemma up STACK --restart`.",
    "ssh open tunnel proxy": "To reach the server of a stack, run `gemma connect STACK`.",
    "ask talk": "To ask the model of a stack, run `gemma chat STACK`.",
    "test check": "To check the server of a stack, run `gemma smoke STACK`.",
    "benchmark load": "To measure the server of a stack, run `gemma bench STACK`.",
    "diff": "To show the changes of a stack, run `gemma preview STACK`.",
    "refresh": "To compare a stack with Google Cloud, run `gemma status STACK --refresh`.",
    "tail": "To follow the logs of a stack, run `gemma logs STACK --follow`.",
    "rollback": "To return to earlier settings, restore Pulumi.STACK.yaml, then run `gemma up STACK`.",
    "stage": "To copy the weights of a stack to its bucket, run `gemma stage_model STACK`.",
    "mcp": "To serve the commands to an assistant, run `gemma agent`.",
    "config set edit": "To change a setting, edit Pulumi.STACK.yaml; docs/reference/settings.md lists the keys.",
    "version": "To show the version, run `gemma --version`.",
}
SYNONYMS: Final = {word: sentence for words, sentence in _ANSWERS.items() for word in words.split()}
"""Words of other tools: they are answered, not executed."""

COMPLETE: Final = "__complete"
"""A shell requests candidates with it. The words so far follow."""


def command_rows(entries: Sequence[CommandEntry], width: int = 0) -> Sequence[str]:
    """Return lines of at most 80 columns with each word, in `width` columns, and its purpose."""
    width = max(width, *(len(entry.name) + 4 for entry in entries))
    return [
        line
        for entry in entries
        for line in wrap(f"{f'  {entry.name}':<{width}}{entry.line()}", _COLUMNS, subsequent_indent=" " * width)
    ]


def entry_of(word: str) -> CommandEntry | None:
    """Return the entry of a word; `stage-model` is `stage_model`."""
    return ENTRIES.get(word.replace("-", "_"))
