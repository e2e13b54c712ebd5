"""The commands of `gemma`, by task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scripts.cli.command import Command

_COLUMNS: Final = 80
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One word after `gemma`."""

    name: str
    module: str = ""
    """Module with the command. Default: `scripts.NAME.__main__`."""
    subcommand: str = ""
    """The word is short for this subcommand of the module."""
    summary: str = ""
    """Default: the first line of the module's docstring."""

    @property
    def imported_from(self) -> str:
        """Name of the module with the command."""
        return self.module or f"scripts.{self.name}.__main__"

    def whole(self) -> "Command[Any]":
        """Return the module's command."""
        return import_module(self.imported_from).COMMAND

    def line(self) -> str:
        """Return one line about the command, without importing it."""
        if self.summary:
            return self.summary
        path = _ROOT / f"{self.imported_from.replace('.', '/')}.py"
        return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("r").strip('"').rstrip()


GROUPS: Final[Mapping[str, Sequence[Entry]]] = {
    "Choose": (Entry(name="plan"), Entry(name="new"), Entry(name="capacity"), Entry(name="doctor")),
    "Deploy": (
        Entry(name="save_token"),
        Entry(name="stage_model"),
        Entry(name="up", module="scripts.gemma.up"),
        Entry(name="preview"),
        Entry(name="rollout"),
    ),
    "Use": (
        Entry(
            name="chat",
            module="scripts.connect.__main__",
            subcommand="chat",
            summary="Talk to a deployed model in the terminal.",
        ),
        Entry(name="connect"),
        Entry(name="smoke"),
        Entry(
            name="bench",
            summary="Measure a server under load. Exit code 1: a point is not valid. `bench compare --gate`: 0 better or same, "
            "1 worse, 2 cannot tell.",
        ),
    ),
    "Operate": (
        Entry(name="status"),
        Entry(name="logs"),
        Entry(name="alerts"),
        Entry(name="restart"),
        Entry(name="recover"),
        Entry(name="teardown"),
        Entry(name="agent"),
    ),
}
"""A word without a module of its own is the name of a folder in `scripts/`."""

ENTRIES: Final[Mapping[str, Entry]] = {entry.name: entry for entries in GROUPS.values() for entry in entries}

SYNONYMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("destroy", "delete", "remove", "rm", "stop", "down"), "To delete a stack, run `gemma teardown STACK`."
    ),
    **dict.fromkeys(("ls", "ps", "list"), "To list the stacks, run `gemma status`."),
    **dict.fromkeys(("price", "cost", "costs"), "To show what a stack costs, run `gemma plan STACK --costs`."),
    "init": "To write the settings of a new stack, run `gemma new NAME --model 12B`.",
    **dict.fromkeys(("serve", "run", "apply"), "To deploy a stack, run `gemma up STACK`."),
}
"""Words of other tools, with the command that does the same. They are answered, not executed."""

NEVER_GUESSED: Final = frozenset(
    {"up", "teardown", "recover", "restart", "rollout", "save_token", "stage_model", "new"}
)
"""Commands that change something: their stack is always named."""

WITHOUT_STATE: Final = frozenset({"teardown", "recover"})
"""Commands that work if the settings file and the state of their stack are lost: the stack may be unknown."""


def rows(entries: Sequence[Entry], width: int = 0) -> Sequence[str]:
    """Return lines of at most 80 columns with each word and what it does. `width`: least columns of the words."""
    width = max(width, *(len(entry.name) + 4 for entry in entries))
    return [
        line
        for entry in entries
        for line in wrap(f"{f'  {entry.name}':<{width}}{entry.line()}", _COLUMNS, subsequent_indent=" " * width)
    ]


def entry_of(word: str) -> Entry | None:
    """Return the entry of a word; `stage-model` is `stage_model`."""
    return ENTRIES.get(word.replace("-", "_"))
