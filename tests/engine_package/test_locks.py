"""A lock ends only when its holder is known to be gone: this host, and no process of that number and age."""

import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.engine.locks import (
    StackLock,
    end_dead_locks,
    is_lock_error,
    parse_locks,
    past_dead_locks,
    read_locks,
    require_dead,
)

REFUSAL = """Updating (tpu-v6e4):
error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock file with `pulumi cancel`.
  file:///s/.pulumi/locks/organization/gemma-serving/tpu-v6e4/b783350e.json?no_tmp_dir=true: created by root@{host} (pid {pid}) at {since}
"""
"""Recorded from the engine 3.256, with another host and process."""


def now(**ago):
    return (datetime.now(UTC) - timedelta(**ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def refusal(pid, host=None, since=None):
    return REFUSAL.format(host=host or socket.gethostname(), pid=pid, since=since or now())


def dead_pid():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_lock_is_removed_only_if_its_process_is_gone(tmp_path):
    file = tmp_path / "a.json"
    file.touch()
    said = []

    def end(pid):
        place = f"file://{file}"
        lock = StackLock(place=place, user="me", host=socket.gethostname(), pid=pid, since=now(days=-1))
        end_dead_locks("x", [lock], report=said.append)

    with pytest.raises(CommandRefusedError):
        end(os.getpid())
    assert (file.exists(), said) == (True, [])
    end(dead_pid())
    assert (file.exists(), len(said)) == (False, 1)


def test_the_engines_error_names_the_holder():
    assert is_lock_error(refusal(1))
    (lock,) = parse_locks(refusal(8586, "vm", "2026-11-20T17:27:26Z"))
    assert lock == StackLock(
        place="file:///s/.pulumi/locks/organization/gemma-serving/tpu-v6e4/b783350e.json",
        user="root",
        host="vm",
        pid=8586,
        since="2026-11-20T17:27:26Z",
    )
    assert lock.holder == "root@vm (process 8586)"


@pytest.mark.parametrize(
    ("since", "shown"),
    [
        ("2026-11-20T17:27:26.957958953Z", "locked for 12 min by root@vm (process 8586)"),
        ("2026-11-20T18:27:26+01:00", "locked for 12 min by root@vm (process 8586)"),
        ("2026-11-20T17:39:20Z", "locked for less than 1 min by root@vm (process 8586)"),
        ("2026-11-20T14:30:00Z", "locked for 3 h by root@vm (process 8586)"),
        ("no-time", "locked by root@vm (process 8586)"),
    ],
)
def test_the_age_of_a_lock_is_in_minutes(since, shown):
    (lock,) = parse_locks(refusal(8586, "vm", since))
    assert lock.held(datetime(2026, 11, 20, 17, 40, tzinfo=UTC)) == shown


def test_other_errors_are_no_locks():
    assert not is_lock_error("error: no stack named 'x' found")
    assert is_lock_error("error: [409] Conflict: Another update is currently in progress.")


@pytest.mark.parametrize(
    ("pid", "host", "since", "dead"),
    [
        (dead_pid, None, None, True),
        (os.getpid, None, None, False),
        (os.getpid, None, "long ago", True),  # the number belongs to a younger process now
        (dead_pid, "another-host", None, False),
        (os.getpid, None, "not a time", False),
    ],
)
def test_dead_means_this_host_and_no_such_process(pid, host, since, dead):
    if since == "long ago":
        since = now(days=4000)
    (lock,) = parse_locks(refusal(pid(), host, since.replace(" ", "-") if since else None))
    assert lock.is_dead is dead


def test_a_live_holder_and_another_host_are_refused_by_name():
    with pytest.raises(
        CommandRefusedError,
        match=rf"locked for .* by .*process {os.getpid()}\). Wait for it to finish, then retry",
    ):
        require_dead("dev", parse_locks(refusal(os.getpid())))
    with pytest.raises(CommandRefusedError, match=r"root@far \(process 7.*run `pulumi cancel --yes --stack dev`"):
        require_dead("dev", parse_locks(refusal(7, "far")))
    with pytest.raises(CommandRefusedError, match="an update that the backend does not name"):
        require_dead("dev", ())


class Refusing:
    """Work that a lock refuses once."""

    def __init__(self, output):
        self.output, self.calls = output, 0

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            raise runner.PulumiFailedError("refused", self.output)


def test_a_dead_lock_is_ended_and_the_work_done_again(monkeypatch):
    asked, said = [], []
    monkeypatch.setattr(runner, "query", asked.append)
    work = Refusing(refusal(dead_pid()))
    past_dead_locks("dev", work, report=said.append)
    assert work.calls == 2
    assert asked == [["cancel", "--yes", "--stack", "dev"]]
    assert "which is no longer running" in said[0]


def test_the_files_of_dead_locks_are_deleted_and_no_others(monkeypatch, tmp_path):
    """`pulumi cancel` would also end a lock that was taken since, and it fails where the state cannot be read."""
    monkeypatch.setattr(runner, "query", lambda arguments: pytest.fail(str(arguments)))
    content = {"pid": dead_pid(), "username": "root", "hostname": socket.gethostname(), "timestamp": now()}
    for name in ("dead.json", "dead.json.attrs", "later.json"):
        (tmp_path / name).write_text(json.dumps(content))
    locks = [lock for lock in read_locks(tmp_path) if lock.place.endswith("/dead.json")]
    end_dead_locks("dev", locks, report=str)
    assert [path.name for path in tmp_path.iterdir()] == ["later.json"]


def test_the_files_of_a_backend_say_the_same_as_the_error(tmp_path):
    content = {"pid": 8586, "username": "root", "hostname": "vm", "timestamp": "2026-11-20T17:27:26.844582489Z"}
    (tmp_path / "a.json").write_text(json.dumps(content))
    (tmp_path / "a.json.attrs").write_text("{}")
    (tmp_path / "b.json").write_text('{"pid": 85')
    (lock,) = read_locks(tmp_path)
    assert (lock.user, lock.host, lock.pid) == ("root", "vm", 8586)
