"""A golden file is written and compared in one run, and only with UPDATE_GOLDEN."""

from tests.golden import golden, if_meant


def test_a_change_is_written_only_if_it_is_meant(tmp_path, monkeypatch):
    path = tmp_path / "x.golden.txt"
    path.write_text("old\n")
    monkeypatch.delenv("UPDATE_GOLDEN", raising=False)
    assert golden(path, "new\n") == "old\n"
    monkeypatch.setenv("UPDATE_GOLDEN", "1")
    assert golden(path, "new\n") == path.read_text() == "new\n"


def test_the_message_has_the_command_of_the_test_that_runs():
    assert "UPDATE_GOLDEN=1 make test TESTS=tests/tools/test_golden.py, then" in if_meant()
    assert "UPDATE_GOLDEN=1 make nightly, then" in if_meant("make nightly")
