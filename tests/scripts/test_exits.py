"""Text from outside is made safe where it leaves: the functions that print. Nothing in the commands prints past them."""

import ast
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma_serving.scripts.cli.command import print_progress, print_result, print_text
from gemma_serving.scripts.cli.tables import FittedTable, console, paragraph
from gemma_serving.scripts.cli.transfer import overwrite_line
from loadtest.client import plain_text as load_tester
from loadtest.progress import say
from tests.tracked import tracked

ROOT = Path(__file__).parents[2]
EXITS = {
    "scripts/cli/command.py": {"print"},
    "scripts/cli/transfer.py": {"sys.stderr.write"},
    "packages/loadtest/client/plain_text.py": {"print"},
    "packages/loadtest/generator/worker.py": {"sys.stdout.buffer.write"},  # a worker's messages to its pool
}
PAST = re.compile(r"sys\.std(out|err)\.(buffer\.)?write(lines)?|os\.write|(rich\.console\.)?Console")


def past_the_exits(source: str) -> Iterator[str]:
    """Yield what a module prints with, other than the exits. A base class is no call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id == "print":
            yield "print"
        elif isinstance(node, ast.Call) and PAST.fullmatch(ast.unparse(node.func)):
            yield ast.unparse(node.func)


def test_commands_print_through_the_exits_only():
    for path in tracked("scripts", "packages/loadtest"):
        name = str(path.relative_to(ROOT))
        if "tests/" not in name and not name.startswith("scripts/init/github/"):
            found = set(past_the_exits(path.read_text(encoding="utf-8")))
            assert found == EXITS.get(name, set()), (
                f"{name} prints with {found}: use print_text or console of scripts/cli"
            )


@pytest.mark.parametrize(
    "planted", ["print(answer)", "sys.stdout.write(x)", "say = partial(print, 'x')", "Console(file=sys.stderr)"]
)
def test_a_planted_way_past_them_is_seen(planted):
    assert list(past_the_exits(f"def show(x):\n    {planted}\n"))


def in_table(text: str) -> None:
    table = FittedTable(text, ("a", "b"), least=("b",))
    table.add_row(text, f" {text}")
    out = console(sys.stdout)
    for out.width in (200, 24, 9):
        out.print(table)
        paragraph(out, text, prefix=f"{text}: ")
        out.print(text, soft_wrap=True, markup=False)


PRINTED: dict[str, Callable[[str], None]] = {
    "text": print_text,
    "pieces": lambda text: [print_text(piece, end="") for piece in text],
    "result": print_result,
    "progress": lambda text: print_progress("smoke", text),
    "table": in_table,
    "a line that is replaced": overwrite_line,
    "load tester": load_tester.print_text,
    "load tester's progress": lambda text: say("bench", text),
}
HOSTILE = st.lists(
    st.sampled_from(["::", ":", "##[", "#", "[", "\n", " ", "\t", "\r", "\x1b]52;c;eA==\x07", "\x1b[2J", "\u202e", "\u2066", "\x9b", "\ue000", "error"])
    | st.text(max_size=4),
    max_size=12,
).map("".join)  # fmt: skip


@pytest.mark.law
@pytest.mark.parametrize("way", PRINTED)
@given(text=HOSTILE)
@example(text="::\ue000")  # the wrap of lines uses this character
def test_no_text_steers_a_terminal_or_a_workflow(way: str, text: str):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GITHUB_ACTIONS", "true")
        out = io.StringIO()
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", out)
        PRINTED[way](text)
    shown = out.getvalue().removeprefix("\r\x1b[K")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    for line in shown.split("\n"):  # as actions/runner: ActionCommand.TryParseV2 and TryParse
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


def test_without_a_workflow_colons_and_headings_stay(monkeypatch, capsys):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    for show in (print_text, load_tester.print_text):
        show(":: ##[a]")
    assert capsys.readouterr().out == ":: ##[a]\n" * 2
