"""Folders of killed processes are removed, and no folder in which an engine still runs. A relative backend is the project's, also in a copy."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine import private_folders, runner
from engine.backend import BACKEND_VARIABLE, absolute_backend
from engine.private_folders import PREFIX, private_folder, remove_left_folders

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, subprocess, sys
from engine.private_folders import held_locks, private_folder
with private_folder() as folder:
    child = subprocess.Popen(["sleep", "600"], pass_fds=held_locks(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(child.pid, folder.parent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(private_folders.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_private_and_gone_at_the_end(place):
    def interrupted():
        with private_folder() as folder:
            (folder / "secret").touch()
            assert folder.parent.stat().st_mode & 0o777 == 0o700
            assert remove_left_folders() == 0  # it is in use
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_goes_when_what_it_started_has_ended(place):
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    child, _, folder = done.stdout.strip().partition(" ")
    try:
        assert remove_left_folders() == 0  # the engine still runs in it
    finally:
        os.kill(int(child), signal.SIGKILL)
    while Path(folder).exists():  # the kernel frees the lock when the process is gone
        remove_left_folders()
    assert not Path(folder).exists()


def test_a_folder_that_is_being_made_is_not_removed(place, monkeypatch):
    """Another process looks for left folders between any two steps of this one."""
    seen, flock = [], fcntl.flock

    def look_first(descriptor, how):
        if how == fcntl.LOCK_EX:
            seen.append(remove_left_folders())
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", look_first)
    with private_folder() as folder:
        assert (seen, folder.exists()) == ([0], True)


def test_what_is_no_folder_of_ours_stays(place):
    (place / "elsewhere").mkdir()
    (place / f"{PREFIX}link").symlink_to(place / "elsewhere")
    (place / f"{PREFIX}without-a-lock").mkdir()
    (place / f"{PREFIX}file").touch()
    assert remove_left_folders() == 0
    assert len(list(place.iterdir())) == 4


@pytest.fixture
def project(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    monkeypatch.delenv("PULUMI_CREDENTIALS_PATH", raising=False)
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    (tmp_path / "Pulumi.yaml").write_text("name: x\n")
    return tmp_path


def used():
    with absolute_backend():
        return os.environ.get(BACKEND_VARIABLE)


def test_a_relative_backend_is_the_one_of_the_project_wherever_it_is_named(project, monkeypatch):
    state = f"file://{project}/state"
    assert used() is None
    (project / "home").mkdir()
    (project / "home" / "credentials.json").write_text('{"current": "file://./state"}')
    assert used() == state
    (project / "Pulumi.yaml").write_text("name: x\nbackend:\n  # the state\n  url: 'file://./own'\n")
    assert used() == f"file://{project}/own"
    monkeypatch.setenv(BACKEND_VARIABLE, "file://state?metadata=skip")
    assert used() == f"{state}?metadata=skip"
    assert os.environ[BACKEND_VARIABLE] == "file://state?metadata=skip"
    for url in ("file:///one", "file://~", "gs://bucket", "https://api.pulumi.com"):
        monkeypatch.setenv(BACKEND_VARIABLE, url)
        assert used() == url
