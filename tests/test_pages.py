"""The pages name files and anchors that exist, decisions have one form, and tables of options are generated."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("packages/*/*.md"))]
GENERATED = {"accuracy.md", "assumptions.md", "checkpoints.md", "commands.md", "rules.md", "settings.md", "stacks.md"}
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


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def anchors(page):
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)}


def test_every_anchor_that_a_page_links_to_exists(subtests):
    for page in (page for page in PAGES if page.name != "CHANGELOG.md"):  # it links to pages of its time
        with subtests.test(page.relative_to(ROOT).as_posix()):
            links = re.findall(r"\]\((?!\w+://)([^)#\s]*)#([^)\s]+)\)", page.read_text())
            targets = [((page.parent / name).resolve() if name else page, anchor) for name, anchor in links]
            lost = [f"{target.name}#{anchor}" for target, anchor in targets if anchor not in anchors(target)]
            assert lost == []


def test_decisions_are_numbered_without_gaps_and_state_a_decision():
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {int(page.name[:4])}. ")
        if re.fullmatch(r"# .*\n\nFeature; see \[.*\n", text):
            continue
        assert "## Question" in text
        assert "## Decision" in text


BY_HAND = {
    "docs/agent.md": 2,  # permissions and groups of tools, compared in tests/scripts/agent/test_safety.py
    "docs/staging.md": 1,  # sources of weights
}
"""Rows that begin with an option and are written by hand, by page. Tables of a command's options are generated."""


def test_tables_of_options_are_generated():
    found = {}
    for page in PAGES:
        if page.name not in GENERATED:
            text = re.sub(r"<!-- generated: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
            found[page.relative_to(ROOT).as_posix()] = len(re.findall(r"^\| `--[a-z]", text, flags=re.MULTILINE))
    assert {name: count for name, count in found.items() if count} == BY_HAND
