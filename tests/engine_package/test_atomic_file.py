"""A replaced file is whole for each reader, and keeps its mode."""

import stat

import pytest

from gemma_serving.contracts.memory import write_private
from gemma_serving.engine import atomic_file
from gemma_serving.engine.atomic_file import replace_file


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_replaced_file_keeps_its_mode_and_nothing_lies_beside_it(tmp_path):
    path = tmp_path / "atomic_file.json"
    write_private(path, "old")
    path.chmod(0o640)
    replace_file(path, "new")
    assert (path.read_text(), mode(path), list(tmp_path.iterdir())) == ("new", 0o640, [path])


def test_what_replaces_a_private_file_is_private_from_its_first_byte(tmp_path, monkeypatch):
    path = tmp_path / "atomic_file.json"
    write_private(path, "old")
    modes = []
    monkeypatch.setattr(atomic_file.shutil, "copymode", lambda _, fresh: modes.append(mode(fresh)))
    replace_file(path, "new")
    assert modes == [0o600]


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "atomic_file.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
