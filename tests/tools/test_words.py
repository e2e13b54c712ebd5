"""Words that are never right: found, with the word to write; the allow list only shrinks. Subjects of commits."""

import pytest

from tools import words
from tools.words import Hit, excess, hits_in, is_read, main, subject_fault


def hits(text):
    return [hit.instead for hit in hits_in("a.md", text)]


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("Mended by hand.", "fix"),
        ("Three were untold.", "unknown"),
        ('    """Tell if a document exists."""', "Return whether"),
        ("It stands in the table.", "is, is listed, is stored"),
        ("This is no settings file.", "is not a"),
        ("Nobody tried it.", "the actor: another user, another deployment, the public"),
        ("The default without it.", "Default: X."),
    ],
)
def test_a_word_that_is_never_right_is_found_with_what_to_write(text, instead):
    assert hits(text) == [instead]


@pytest.mark.parametrize(
    "text", ["It is no longer there.", "The provider stands in for Google.", "Fixed; a standard run."]
)
def test_right_english_is_left_alone(text):
    assert hits(text) == []


def test_a_hit_names_file_line_word_and_replacement():
    (hit,) = hits_in("docs/a.md", "one\nmend it\n")
    assert str(hit) == "docs/a.md:2: 'mend'; write: fix"


def test_the_allow_list_covers_its_number_and_no_more_and_must_shrink():
    found = [Hit(path="a.md", line=n, word="mend", instead="fix") for n in (1, 2)]
    assert list(excess(found, {"a.md": 2})) == []
    assert len(list(excess(found, {"a.md": 1}))) == 2
    assert list(excess(found, {"a.md": 3})) == ["words_allowed.toml: a.md has 2; lower its 3"]
    assert list(excess([], {"gone.md": 1})) == ["words_allowed.toml: gone.md has 0; lower its 1"]


def test_tests_fixtures_and_generated_pages_are_not_read():
    assert is_read("docs/tpu.md")
    assert is_read("packages/localcloud/world/store.py")
    assert not is_read("tests/test_pages.py")
    assert not is_read("packages/localcloud/tests/test_world.py")
    assert not is_read("docs/reference/rules.md")


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("connect: forward each signal to the command only once", None),
        ("add the words", None),
        ("connect: the command gets each signal once", "begins with 'the'; begin with a verb: add, fix, report"),
        ("provider: " + "x" * 70, "80 characters; at most 72"),
    ],
)
def test_the_subject_of_a_commit(subject, fault):
    assert subject_fault(subject) == fault


def test_a_folder_without_git_is_not_ok(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert main() == 1
    assert "were not checked" in capsys.readouterr().err


@pytest.mark.skipif(not (words.ROOT / ".git").exists(), reason="the words of tracked files need git")
def test_the_tracked_files_and_the_new_commits_keep_the_rules(capsys):
    assert main() == 0, capsys.readouterr().err
