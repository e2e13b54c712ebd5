"""The pages name files and anchors that exist, and decisions have one form."""

import importlib.metadata
import io
import json
import re
import tomllib
from pathlib import Path

import pytest

from gemma_serving.contracts import installation
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.cli.options import CommandParser
from gemma_serving.scripts.cli.tables import console, paragraph
from tests.scripts.test_printed_commands import ROOMS, literals
from tests.tracked import tracked

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "dev/docs/**/*.md", "packages/*/*.md")
    for page in sorted(ROOT.glob(pattern))
]
PLACEHOLDER = re.compile(r"NAME|<|\*|\$|STATE|GROUP")


def named_files(page):
    """Yield the project's paths in backticks, which start with a package's folder."""
    for code in re.findall(r"`([\w./<>*$-]+/[\w./<>*$-]*)`", page.read_text()):
        room = code.partition("/")[0]
        if room not in {"", "..", "...", ".work"} and (ROOT / room).is_dir() and not PLACEHOLDER.search(code):
            yield code


def test_every_file_that_a_page_names_exists(subtests):
    for page in (page for page in PAGES if page.name != "CHANGELOG.md"):  # it names files of its time
        with subtests.test(page.relative_to(ROOT).as_posix()):
            assert [name for name in named_files(page) if not (ROOT / name).exists()] == []


RECIPES = tomllib.loads((ROOT / "tests/recipes.toml").read_text())
A_FILE, A_NAME = re.compile(r"[\w./-]*[\w-](?:/|\.\w+)"), re.compile(r"[A-Z]\w+")


def recipe_rows():
    """Return the words in backticks of each recipe of CONTRIBUTING.md, by what it adds."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| to add |")[2].partition("\n\n")[0]
    rows = [line.removeprefix("| ").partition(" | ") for line in table.splitlines()[2:]]
    return {adds: re.findall(r"`([^`]+)`", text) for adds, _, text in rows}


def texts_in(place):
    """Yield the texts of a file, or of the files in a folder."""
    files = [place] if place.is_file() else [path for path in sorted(place.rglob("*.*")) if path.suffix != ".pyc"]
    return (path.read_text() for path in files if path.is_file())


def test_each_recipe_sends_to_files_that_have_what_it_names(subtests):
    rows = recipe_rows()
    assert rows.keys() == RECIPES.keys()
    for adds, places in RECIPES.items():
        with subtests.test(adds):
            named = [code for code in rows[adds] if A_FILE.fullmatch(code) and not PLACEHOLDER.search(code)]
            assert [code for code in named if not any(place.endswith(code) for place in places)] == [], "no pattern"
            assert [place for place in places if not any(place.endswith(code) for code in named)] == [], (
                "not in the row"
            )
            patterns = {place: re.compile(pattern, re.MULTILINE) for place, pattern in places.items()}
            missing = [place for place, one in patterns.items() if not any(map(one.search, texts_in(ROOT / place)))]
            assert missing == [], "the pattern is not in the file"
            names = {code for code in rows[adds] if A_NAME.fullmatch(code)}
            assert {name for name in names if not any(name in pattern for pattern in places.values())} == set()


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def anchors(page):
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {slug(heading) for heading in headings} | set(re.findall(r'<a id="([\w-]+)"></a>', text))


def test_every_anchor_that_a_page_links_to_exists(subtests):
    for page in (page for page in PAGES if page.name != "CHANGELOG.md"):  # it links to pages of its time
        with subtests.test(page.relative_to(ROOT).as_posix()):
            links = re.findall(r"\]\((?!\w+://)([^)#\s]*)#([^)\s]+)\)", page.read_text())
            targets = [((page.parent / name).resolve() if name else page, anchor) for name, anchor in links]
            lost = [f"{target.name}#{anchor}" for target, anchor in targets if anchor not in anchors(target)]
            assert lost == []


def texts_of_the_product():
    """Yield each text of the product's programs and data that names a page, with its file."""
    for path in [path for suffix in (".py", ".json") for path in tracked(*ROOMS, suffix=suffix)]:
        text = path.read_text() if "tests" not in path.parts else ""
        if "docs/" in text:
            yield from ((path.relative_to(ROOT), one) for one in (literals(text) if path.suffix == ".py" else [text]))


def test_a_page_that_a_text_of_the_product_names_exists_and_another_projects_page_is_not_taken_for_one():
    found = [
        (path, page[0], page.start() in {one.start() for one in installation._PAGE.finditer(text)}, page["anchor"])
        for path, text in texts_of_the_product()
        for page in re.finditer(r"(?:dev/)?docs/[\w/-]+\.md\b(?:#(?P<anchor>[\w-]+))?", text)
    ]
    assert len([one for one in found if one[2]]) > 40
    assert [one for one in found if one[2] != (ROOT / one[1].partition("#")[0]).is_file()] == []
    assert [one for one in found if one[3] and one[3] not in anchors(ROOT / one[1].partition("#")[0])] == []


@pytest.fixture
def in_a_wheel(monkeypatch):
    """Let the product be an installed wheel, and return the address of its pages."""
    given = importlib.metadata.metadata("pulumi")
    del given["Project-URL"]
    given["Project-URL"] = "Issues, https://example.com/o/n/issues"
    given["Project-URL"] = "Repository, https://example.com/o/n"
    monkeypatch.setattr(installation, "CHECKOUT", None)
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _name: given)
    return f"https://example.com/o/n/blob/v{installation.VERSION}/"


def shown(text):
    """The text by each way in which a command prints: plainly, as JSON, in a table's font, and as a help."""
    for write in (
        lambda out: print_text(text, out),
        lambda out: print_text(json.dumps(text), out),
        lambda out: paragraph(console(out), text),
        lambda out: out.write(CommandParser(description=text).format_help()),
    ):
        out = io.StringIO()
        write(out)
        yield " ".join(out.getvalue().split())


@pytest.mark.parametrize("page", ["docs/costs.md", "docs/cloud-run.md#restart-the-server", "docs/reference/rules.md"])
def test_a_page_is_a_path_in_a_checkout_and_an_address_in_a_wheel(in_a_wheel, monkeypatch, page):
    text = f"Read {page}. (vLLM, docs/usage/security.md)"
    for said in shown(text):
        assert f"Read {in_a_wheel}{page}. (vLLM, docs/usage/security.md)" in said
    monkeypatch.setattr(installation, "CHECKOUT", ROOT)
    for said in shown(text):
        assert text in said


SMALLER = re.compile(
    r'\| <a id="decision-(\d+)"></a>(\d+) \| [^|]+\. \| [^|]+\. \| [0-9a-f]{8} \| \[[^|]+\]\([^|]+\) \|'
)
"""A row of dev/docs/decisions/smaller.md: number, decision, reason, commit, page."""


def test_each_decision_is_one_page_or_one_row_and_states_a_decision():
    pages = sorted((ROOT / "dev" / "docs" / "decisions").glob("*.md"))
    smaller = pages.pop()
    assert smaller.name == "smaller.md"
    rows = [SMALLER.fullmatch(line) for line in smaller.read_text().partition("| --- ")[2].splitlines()[1:]]
    assert all(row and row[1] == row[2] for row in rows)
    numbers = [*(int(page.name[:4]) for page in pages), *(int(row[1]) for row in rows)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {int(page.name[:4])}. ")
        assert "## Question" in text
        assert "## Decision" in text


def faults_of_answers(text):
    """Return the faults of a page of questions. Required: at most 48 of them, each with one or two sentences and a link."""
    entries = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    yield from [f"{len(entries)} questions"] * (len(entries) > 48)
    for question, _, rest in (entry.partition("\n") for entry in entries):
        answer = rest.partition("\n## ")[0].strip()
        sentences = [line for line in answer.splitlines() if line]
        whole = all(line.endswith(".") and not re.search(r"[.!?] [A-Z]", line) for line in sentences)
        if not (question.endswith("?") and 1 <= len(sentences) <= 2 and whole and "](" in answer):
            yield question


def test_each_question_has_two_sentences_and_a_link():
    text = (ROOT / "docs" / "faq.md").read_text()
    assert list(faults_of_answers(text)) == []
    for planted in (
        "### A question",
        "### Why?\n\nBecause.",
        "### Why?\n\nIt [is](x.md). So. It is.\nYes.\n",
        "### Why?",
    ):
        assert len(list(faults_of_answers(f"{text}\n{planted}\n"))) == 2


def test_the_pages_of_the_first_hour_are_short():
    pages = ("README.md", "docs/get-started.md", "docs/folder.md")
    assert sum(len((ROOT / page).read_text().split()) for page in pages) <= 2_600


def test_three_pages_have_one_picture_of_what_is_where_and_it_names_each_folder():
    pages = ("README.md", "CONTRIBUTING.md", "docs/architecture.md")
    (picture,) = {
        re.search(r"^```\n(Pulumi\..*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)[1] for page in pages
    }
    names = [path.relative_to(ROOT).as_posix() for path in tracked(suffix="")]
    listed = {name.partition("/")[0] for name in names if "/" in name and not name.startswith(".")}
    assert len(picture.splitlines()) == 9
    assert set(re.findall(r"(?<!\S)(\w+)/", picture)) == listed
