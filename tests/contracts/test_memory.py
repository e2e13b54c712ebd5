"""A record is read only if this user alone can have written it, and nothing is written through a link."""

import stat

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.memory import Memory, memory_of, write_private
from gemma_serving.engine.backend import memory
from gemma_serving.scripts.agent.codes import code_shelf
from gemma_serving.scripts.stack import own_runs
from gemma_serving.scripts.stack.unfinished_teardown import forget, is_unfinished


@pytest.fixture
def known(tmp_path):
    found = memory_of(tmp_path, "file:///states")
    found.write("a", "text")
    return found


def test_each_folder_and_each_backend_has_records_of_its_own(tmp_path, records):
    names = [memory_of(tmp_path / name, backend).folder for name in ("x", "y") for backend in (None, "a", "b")]
    assert len({*names}) == 6
    assert all(name.is_relative_to(records / "gemma-serving") for name in names)


def test_a_record_and_its_folders_are_the_owners_alone(known, records):
    assert known.read("a") == "text"
    assert stat.S_IMODE(known.path("a").stat().st_mode) == 0o600
    above = [place for place in known.folder.parents if place.is_relative_to(records)]
    assert {stat.S_IMODE(place.stat().st_mode) for place in (known.folder, *above)} == {0o700}


def linked(path):
    path.symlink_to(path.rename(path.with_name("elsewhere")))


OTHERS = {
    "a file that others write": lambda one: one.path("a").chmod(0o622),
    "a folder that others write": lambda one: one.folder.chmod(0o722),
    "a folder above that others write": lambda one: one.folder.parent.chmod(0o722),
    "a link": lambda one: linked(one.path("a")),
    "a second name": lambda one: one.path("b").hardlink_to(one.path("a")),
    "a folder that is a link": lambda one: linked(one.folder),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_what_another_user_can_have_written_is_not_read(known, change):
    change(known)
    assert known.read("a") is None


def test_nothing_is_written_through_a_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "receipt").symlink_to(precious)
    with pytest.raises(PermissionError, match="It is a link or a device"):
        write_private(tmp_path / "receipt", "overwritten")
    assert (precious.read_text(), sorted(path.name for path in tmp_path.iterdir())) == ("kept", ["precious", "receipt"])


def test_without_a_folder_for_records_it_says_what_is_lost_and_continues(monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/x")
    own_runs.remember_run("x", "begun")
    assert "If this run is interrupted, `gemma up x` asks in a terminal before it continues." in capsys.readouterr().err
    own_runs.remember_run("x", "done")
    forget("x")
    assert (own_runs.is_own("x", has_server=True), is_unfinished("x"), own_runs.backend_of_run("x")) == (
        False,
        False,
        "",
    )
    assert capsys.readouterr().err == ""
    with pytest.raises(
        CommandRefusedError, match=r"Cannot store a question in .*: Not a directory\. Set XDG_STATE_HOME"
    ):
        code_shelf().ask("x", "question")
    assert (memory().read("a"), memory().stacks(""), Memory(memory().folder).written_s("a")) == (None, [], 0.0)
