"""The comment on a pull request: what a reviewer reads, for eight kinds of pull requests."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from gemma_serving.scripts.cli.markdown import plain, prose
from gemma_serving.scripts.preview.comment import MAX_COMMENT_BYTES, as_text, comment, verdicts
from gemma_serving.scripts.preview.plans import StackDescription
from gemma_serving.scripts.preview.previews import StackPreview
from tests.golden import golden, if_meant
from tests.scripts.preview.cases import (
    CASES,
    GOLDEN,
    PLANS,
    PREVIEWS,
    both,
    capacity,
    deployed,
    planned,
    replaced,
)


def stored(name):
    found = json.loads((PLANS / f"{name}.json").read_text())
    return {stack: StackDescription.model_validate(plan) for stack, plan in found.items()}


BASE = stored("base")
HEADS = {name: stored(name) for name in CASES}
REFUSALS = Path(__file__).resolve().parents[2] / "stacks/refusals.golden.txt"
RENDERER = MarkdownIt("commonmark", {"html": True}).enable("table")


COMPARED = [
    (False, False, "Compared with the deployed stack: 1 resource will change, 7 unchanged."),
    (True, False, "Compared with the deployed stack, on the local cloud (simulated): 1 resource will change"),
    (True, True, "As a new stack, which does not exist yet, on the local cloud (simulated): 1 resource will change"),
    (False, True, "As a new stack, which does not exist yet: 1 resource will change"),
]


@pytest.mark.parametrize(("simulated", "new", "words"), COMPARED)
def test_a_named_stack_is_plain_text_with_what_it_was_compared_with(simulated, new, words):
    one = StackPreview(stack="tpu-v6e4", changes=(capacity("create"),), unchanged=7, simulated=simulated, new_stack=new)
    text = as_text([one], BASE)
    assert words in text
    assert text.startswith("tpu-v6e4: requests TPU capacity.\nCost: $5.40/h, at most $21.60 (one run of 4 h).\n")
    assert not [mark for mark in ("<", "#", "```", "**", "credentials") if mark in text]
    footer = comment(BASE, BASE, [one]).splitlines()[-1]
    assert ("without Google Cloud credentials" in footer) is simulated


def test_settings_that_cannot_be_read_are_the_reason_instead_of_the_engines_words():
    told = "Pulumi.x.yaml, line 2: a git conflict is not resolved: <<<<<<< HEAD. Keep one of its sides."
    one = StackPreview(stack="x", error="could not unmarshal 'Pulumi.x.yaml': yaml: line 3")
    text = as_text([one], {"x": StackDescription(stack="x", error=told)})
    assert text.startswith(f"The preview of stack x failed: {told}\n")
    assert "unmarshal" not in text


def test_the_footer_has_the_reason_for_stacks_without_a_preview():
    text = comment(
        BASE, HEADS["no-change"], (), not_previewed="it leaves out stacks that are neither deployed nor changed"
    )
    assert "ran for 0 of 3 stacks, because it leaves out stacks that are neither deployed nor changed." in text


class Page(HTMLParser):
    """Text by element, and elements that were never closed."""

    def __init__(self, markdown):
        super().__init__()
        self.open, self.texts, self.tables, self.unclosed = [], [], 0, []
        self.feed(RENDERER.render(markdown))

    def handle_starttag(self, tag, attributes):
        if tag not in {"br", "hr", "img"}:
            self.open.append(tag)
        self.tables += tag == "table"

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unclosed.append(tag)

    def handle_data(self, data):
        self.texts.append((tuple(self.open), data))

    def of(self, tag):
        return " ".join("".join(data for open_, data in self.texts if tag in open_).split())


def of_case(name, *previews):
    return comment(BASE, HEADS[name], previews or PREVIEWS.get(name, ()))


def first_line(text):
    return text.splitlines()[1]


@pytest.mark.parametrize("name", CASES)
def test_the_comment_is_the_golden_one(name):
    text = of_case(name)
    assert text == golden(GOLDEN / f"{name}.md", text), if_meant()


def test_the_engine_knows_better_where_the_capacity_is():
    kept = of_case("zone", deployed("tpu-v6e4", capacity("update", "zones")))
    assert "keeps its capacity" in first_line(kept)
    assert "CAUTION" not in kept
    lost = of_case("zone", deployed("tpu-v6e4", capacity("replace", "zones", forced=("zones",))))
    assert "releases its TPU capacity" in first_line(lost)
    new = of_case("accelerator", deployed("tpu-v6e4", capacity("create")))
    assert "CAUTION" not in new
    assert "The stack is not deployed" in new


def test_a_command_in_a_finding_is_code_and_a_single_backtick_is_text():
    assert prose("Run `a --b _x_ | c` or * it.") == "Run `a --b _x_ \\| c` or &#42; it."
    assert prose("a ` b") == "a &#96; b"


def test_what_github_links_without_markup_is_code():
    words = (
        "https://evil.example/x",
        "www.evil.example",
        "GH-123",
        ":warning:",
        "1d2c2d7f2466070e69d6fb3fd5ce9a7d75f2f6ee",
    )
    for word in words:
        assert prose(f"The model {word} * it.") == f"The model `{word}` &#42; it."
        assert plain(f"a {word}`") == f"a `` {word}` ``"
    plain_words = "4 accelerators at 12:30:45, 1,234,567 tokens, a deadline"
    assert prose(plain_words) == plain_words


AROUND = [("", "."), ("", ","), ("", ":"), ("", "?"), ("(", ")"), ("(", ")."), ('"', '".'), ("'", "'"), ("", "...")]


@pytest.mark.parametrize(("before", "after"), AROUND)
def test_a_value_in_code_has_no_punctuation_of_its_sentence(before, after):
    for value in ("842da3794eaa0b77d5f08bae87a17459d91ff475", "https://a.example/b?c=d", "GH-12"):
        text = f"Set it: {before}{value}{after} Then go on."
        page = Page(prose(text))
        assert [data for tags, data in page.texts if "code" in tags] == [value]
        assert page.of("p") == text


def test_no_code_of_a_message_ends_with_the_punctuation_of_its_sentence():
    messages = REFUSALS.read_text().splitlines()
    shown = [data for line in messages for tags, data in Page(prose(line)).texts if "code" in tags]
    assert len(shown) > 20
    assert [one for one in shown if one[-1] in ".,;!?"] == []


def test_capacity_that_the_engine_would_replace_is_loud_although_the_settings_are_the_same():
    text = of_case("no-change", deployed("tpu-v6e1", capacity("replace", "runtimeVersion", forced=("runtimeVersion",))))
    assert first_line(text) == "### Preview: `tpu-v6e1` releases its TPU capacity"
    assert "`runtimeVersion`" in text


def test_a_failed_preview_is_named_and_no_text_of_others_becomes_markup():
    bad = "boom ``` @octocat <img src=x> | **bold** hf_abcdefghijkl"
    text = of_case("flag", deployed("tpu-v6e4", error=bad), deployed("l4-qat", error="quota"))
    page = Page(text)
    assert page.unclosed == []
    assert "<img src=x>" in page.of("pre")
    assert "#### `l4-qat`: no change to running resources" in text
    hostile = BASE["tpu-v6e4"].model_copy(update={"error": "x `a` <b> @octocat | [l](http://e) **b**"})
    shown = comment(BASE, {"tpu-v6e4": hostile}, ())
    warning = next(line for line in shown.splitlines() if "cannot be deployed" in line)
    assert not any(mark in warning for mark in ("@octocat", "<b>", "**b**"))
    assert " `[l](http://e`) " in warning


def test_creations_are_one_count_and_every_other_change_is_listed():
    created = tuple(replace(capacity("create"), name=f"n{n}") for n in range(30))
    others = (capacity("update", "metadata"), replace(capacity("delete"), name="old"), capacity("replace", "zones"))
    lines = of_case("flag", deployed("tpu-v6e4", *created, *others)).splitlines()
    start = lines.index("```diff")
    assert [line.split()[:2] for line in lines[start + 1 : start + 5]] == [
        ["!", "update"],
        ["-", "delete"],
        ["-", "replace"],
        ["+", "create"],
    ]
    assert lines[start + 4 : start + 6] == ["+ create  30 resources", "```"]


def test_a_comment_longer_than_github_takes_loses_the_engines_previews():
    many = tuple(replace(capacity("delete"), name="n" * 90 + str(n)) for n in range(900))
    text = of_case("flag", deployed("tpu-v6e4", *many))
    assert len(text.encode()) <= MAX_COMMENT_BYTES
    assert "Engine previews omitted" in text
    assert "| `--max-model-len` | `16384` | `8192` |" in text


def test_a_project_that_was_not_set_is_no_other_project():
    """The guide has a new user write the project into the file, so that the first pull request of each of them adds it."""
    named = both(
        replaced("tpu-v6e4", "config:\n", "config:\n  gcp:project: local-project\n"),
        replaced("tpu-v6e4", "maxModelLen: 16384", "maxModelLen: 8192"),
    )
    (found,) = [one for one in verdicts(planned(lambda _: None), planned(named)) if one.stack == "tpu-v6e4"]
    assert found.effect == "restart"
