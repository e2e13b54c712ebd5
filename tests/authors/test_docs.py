"""The documentation's generated parts are what the code says."""

import functools
import re
import shutil
from pathlib import Path

import pytest

from dev.authors import docs
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.scripts.cli.command import run_command

ROOT = Path(__file__).parents[2]
MADE = functools.cache(docs._made)


@pytest.fixture(autouse=True)
def made_once(monkeypatch):
    """Each generator runs once for all tests: they are about what becomes of its text."""
    monkeypatch.setattr(docs, "_made", MADE)


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the documentation that the command works on."""
    for folder in ("docs", "dev/docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name in (*docs.PAGES, "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    return tmp_path


def test_every_generated_page_is_up_to_date(capsys):
    assert run_command(docs.COMMAND, ["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "line", "planted"),
    [
        ("dev/docs/contracts.md", r"\| `managed-by` .*\n", "| `planted` | fault |\n"),
        ("docs/reference/settings.md", r"\| `[^\n]*\n", "| `planted` | fault |\n"),
        ("docs/judged.md", r"makes \d+ ", "makes 12 "),
    ],
)
def test_a_generated_part_that_was_edited_by_hand_is_named_and_written_again(copy, capsys, page, line, planted):
    path = copy / page
    good = path.read_text()
    edited = re.sub(line, planted, good, count=1)
    assert edited != good
    path.write_text(edited)
    assert run_command(docs.COMMAND, ["--check"]) == 1
    assert capsys.readouterr().out == f"docs: {page} is out of date. Run `make docs`.\n"
    assert run_command(docs.COMMAND, []) == 0
    assert path.read_text() == good


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("<!-- generated: nothing -->\n<!-- end -->\n", "x.md: table nothing not found. Known tables: labels"),
        ("<!-- generated: labels -->\n", "x.md: a `<!-- generated: NAME -->` has no `<!-- end -->`"),
        (
            "<!-- generated: labels -->\n\n<!-- generated: labels -->\n<!-- end -->\n",
            "x.md: a `<!-- generated: NAME -->` has no",
        ),
    ],
)
def test_a_wrong_marker_is_one_sentence(page, sentence):
    with pytest.raises(ScriptError) as caught:
        docs.fill(page, {"labels": "table"}, "x.md")
    assert str(caught.value).startswith(sentence)


def test_a_table_that_no_page_shows_is_refused(copy):
    page = copy / "dev" / "docs" / "contracts.md"
    page.write_text(page.read_text().replace("<!-- generated: phases -->", ""))
    with pytest.raises(ScriptError, match="No page has the marker `<!-- generated: phases -->`"):
        docs.generated_files(copy)
