"""A kept file is whole for each reader, keeps its mode, and two writers take turns."""

import stat
import threading
from dataclasses import dataclass

import pytest

from engine import atomic_file
from engine.atomic_file import KeptFileError, change_file, read_kept, replace_file, write_private


@dataclass(frozen=True)
class Row:
    schema_version: int
    count: int


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


def test_writers_take_turns(tmp_path):
    path = tmp_path / "deep" / "count.txt"

    def add():
        for _ in range(25):
            change_file(path, lambda: str(int(path.read_text() if path.exists() else "0") + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "100"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "count.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        change_file(tmp_path / "count.txt", lambda: "1")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schemaVersion": 2, "count": 1}', "has schemaVersion 2, but this version of the project reads 1"),
        ('{"schemaVersion": 1', "cannot be read"),
        ('{"schemaVersion": 1, "count": "many"}', "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, text, says):
    path = tmp_path / "atomic_file.json"
    assert read_kept(path, Row, 1) is None
    path.write_text(text)
    with pytest.raises(KeptFileError, match=says):
        read_kept(path, Row, 1)
