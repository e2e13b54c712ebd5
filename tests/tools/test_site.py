"""The pages as a site: each page once, links of the repository as links of the site, nested blocks where Python-Markdown sees them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.tools import site_hooks
from tests.test_pages import anchors
from tests.tools import site_search

ROOT = Path(__file__).resolve().parents[2]


def page(address, text):
    return site_hooks.on_page_markdown(text, page=SimpleNamespace(file=SimpleNamespace(src_uri=address), meta={}))


@pytest.mark.parametrize(
    ("address", "link", "becomes"),
    [
        ("index.md", "docs/tpu.md#x", "tpu.md#x"),
        ("index.md", "SECURITY.md", "security.md"),
        ("tpu.md", "../README.md", "index.md"),
        ("tpu.md", "README.md", "questions.md"),
        ("dev/contracts.md", "../../CONTRIBUTING.md", "../contributing.md"),
        ("dev/decisions/smaller.md", "../../../docs/tpu.md", "../../tpu.md"),
        ("packages/localcloud.md", "../../docs/local-cloud.md", "../local-cloud.md"),
        ("tpu.md", "../Makefile", f"{site_hooks.REPOSITORY}/blob/main/Makefile"),
        ("tpu.md", "nothing.md", "nothing.md"),
        ("tpu.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("tpu.md", "#here", "#here"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(address, link, becomes):
    assert page(address, f"See [it]({link}).") == f"See [it]({becomes})."


def test_what_belongs_to_an_item_is_indented_by_four_and_a_block_stays_as_it_is():
    text = "1. Run:\n\n   ```sh\n   make\n   ```\n\n```yaml\n- a:\n  b: [x](../Makefile)\n```"
    assert page("tpu.md", text) == text.replace("   ```", "    ```").replace("   make", "    make")


def test_every_page_for_users_is_in_the_navigation_once():
    nav = site_hooks.on_config({})["nav"]
    listed = [
        address
        for group in nav
        for pages in group.values()
        for address in ([pages] if isinstance(pages, str) else pages)
    ]
    inside = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(inside | set(site_hooks.OUTSIDE.values()))


@pytest.mark.parametrize(
    ("address", "meta"),
    [
        ("tpu.md", {}),
        ("dev/testing.md", {"search": {"exclude": True}}),
        ("dev/decisions/smaller.md", {"search": {"exclude": True}}),
        ("architecture.md", {"search": {"exclude": True}}),
        ("reference/settings.md", {"search": {"boost": 0.3}}),
        ("changelog.md", {"search": {"boost": 0.3}}),
    ],
)
def test_the_search_finds_pages_for_users_only_and_lists_after_answers(address, meta):
    found = SimpleNamespace(file=SimpleNamespace(src_uri=address), meta={})
    site_hooks.on_page_markdown("", page=found)
    assert found.meta == meta


def test_each_question_of_the_search_has_a_thread_and_sections_that_answer_it():
    sources = {each["source"] for each in site_search.QUESTIONS}
    assert len(sources) == len(site_search.QUESTIONS) == 20
    assert all(source.startswith("https://") for source in sources)
    answers = [answer.partition("#") for each in site_search.QUESTIONS for answer in each["answers"]]
    assert [
        (page, name) for page, _, name in answers if name not in anchors((ROOT / "docs" / page).with_suffix(".md"))
    ] == []


@pytest.mark.parametrize(
    ("pages", "is_near"),
    [
        ([["a", "a#1", "a#2", "a#x"]], True),
        ([["a", "a#1", "a#2", "a#3", "a#x"]], False),
        ([*[["b", "b#1"]] * 4, ["a", "a#x"]], True),
        ([*[["b", "b#1"]] * 5, ["a", "a#x"]], False),
    ],
)
def test_an_answer_is_near_the_top_among_five_pages_with_three_sections_each(pages, is_near):
    assert site_search.is_near_the_top(pages, ["c#x", "a#x"]) == is_near
