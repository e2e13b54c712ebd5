"""Hard sentences are found across lines, literals and file types; their numbers only fall; subjects start with a verb of the list."""

import pytest

from tools import words
from tools.words import Hit, excess, hits_in, is_read, main, subject_fault, texts_in


def patterns(path, text, allowed=()):
    return [hit.pattern for hit in hits_in(path, text, allowed)]


PLANTED = {
    "a negation of the noun across lines": ("a.md", "This is\nno question.", "P07"),
    "a verb and its place across lines": ("a.py", "# It stands\n# there.\n", "P05"),
    "a Makefile": ("Makefile", "# nobody mends this, meanwhile it is no stack", "P01"),
    "a file without a suffix": ("gemma", "# nobody mends this, meanwhile it is no stack", "P04"),
    "HTML": ("a.html", "<p>nobody mends this, meanwhile it is no stack</p>", "P27"),
    "a docstring that starts on its second line": ("a.py", '"""\nTell if a thing exists.\n"""', "P03"),
    "a docstring in the third person": ("a.py", 'def a():\n    """Tells whether it exists."""', "P03"),
    "two literals": ("a.py", 'TEXT = (\n    "This is "\n    "no question."\n)', "P07"),
    "two added literals": ("a.py", 'TEXT = "This is " + "no question."', "P07"),
    "a value in a text": ("a.py", 'TEXT = f"{name} is " f"no question."', "P07"),
    "an attribute's docstring": ("a.py", 'a = 1\n"""Whether it runs."""', "P43"),
    "a former word in Markdown": ("CHANGELOG.md", "- Everything can be mended.", "P01"),
    "a colon for because": ("a.md", "Never move or reuse a tag: the attestations have its first content.", "P45"),
}


@pytest.mark.parametrize(("path", "text", "pattern"), PLANTED.values(), ids=PLANTED)
def test_a_planted_sentence_is_found(path, text, pattern):
    assert pattern in patterns(path, text)


@pytest.mark.parametrize(
    "text",
    [
        "It is no longer there.",
        "The provider stands in for Google.",
        "Fixed; a standard run.",
        "Key rings of Cloud KMS.",
        "The bounds of vLLM's histogram.",
        "It would fail if the disk were full.",
        "Return the lines of a table.",
        "-----BEGIN PRIVATE KEY-----, pause-began-at",
        "`maxAge`: the time after which a guard deletes the stack.",
        "Return the zones in the state: the zones of its inputs.",
    ],
)
def test_right_english_is_left_alone(text):
    assert patterns("a.md", text) == []


def test_rows_items_and_blocks_are_texts_of_their_own_and_lines_of_a_paragraph_are_one():
    found = [text for _, text in texts_in("a.md", "one\ntwo\n- three\n  four\n| five |\n\n```sh\nsix\nseven\n```\n")]
    assert found == ["one two", "- three four", "| five |", "```sh", "six", "seven", "```"]


def test_a_hit_names_file_line_words_and_replacement():
    (hit,) = hits_in("docs/a.md", "one\n\nYou mend it\n")
    assert str(hit) == "docs/a.md:3: P01 'mend' in 'You mend it'; write: fix"


def hit(path, pattern="P01"):
    return Hit(path=path, line=1, pattern=pattern, words="mend", sentence="You mend it")


def test_a_number_covers_its_hits_and_no_more_and_falls_with_them():
    hits = [hit("docs/a.md"), hit("docs/b.md")]
    assert list(excess(hits, {"docs": {"P01": 2}})) == []
    assert "docs: P01 has 2 hits, but tools/words_budget.toml allows 1. Write: fix." in list(
        excess(hits, {"docs": {"P01": 1}})
    )
    assert "lowers its 3" in next(excess(hits, {"docs": {"P01": 3}}))
    assert "lowers its 1" in next(excess([], {"docs": {"P01": 1}}))
    assert next(excess([hit("stacks/a.py")], {"docs": {"P01": 1}})).startswith("docs")


def test_a_quoted_text_is_left_out_and_another_word_in_its_place_is_not():
    quoted = "there was no available instance"
    assert patterns("a.py", f'"aborted because {quoted}"', [quoted]) == []
    assert patterns("a.py", '"aborted because this is no instance"', [quoted]) == ["P07"]


def test_tests_fixtures_and_generated_pages_are_not_read_and_every_other_text_is():
    assert all(
        map(is_read, ("docs/tpu.md", "packages/localcloud/world/store.py", "Makefile", "gemma", ".ci/run", "a.html"))
    )
    assert not any(
        map(is_read, ("tests/a.py", "packages/localcloud/tests/a.py", "docs/reference/rules.md", "requirements.txt"))
    )


@pytest.mark.parametrize(
    "subject",
    [
        "docs: nothing of it stands where it was",
        "connect: its command gets each signal once",
        "docs: 0.3.0 is no release",
        "it no longer says what it asks",
        "x: the machine: goes back by itself",
        "tools: two subjects of a commit",
        "smoke: say what failed",
        "provider: " + "add " * 17,
    ],
)
def test_a_subject_without_a_verb_of_the_list_is_a_fault(subject):
    assert subject_fault(subject)


def test_a_folder_without_git_is_not_ok(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(words, "git", lambda *_: None)
    assert main() == 1
    assert "were not checked" in capsys.readouterr().err
