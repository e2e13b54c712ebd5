"""The first process of a simulated machine: all its processes descend from this one and are killed with it.

`python -m localcloud.running.shims.init_process FOLDER` reads one line from standard input, the machine's description as JSON.
When the other end of that pipe closes, the machine powers off. On Linux the init process adopts orphans, so no process can escape by detaching,
and provides the machine with its own /dev/shm and /mnt if the system allows that.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from localcloud.running.shims.machine import OWN_FOLDERS, write_json

_SET_CHILD_SUBREAPER: Final = 36
_SET_PARENT_DEATH_SIGNAL: Final = 1
_NEW_NAMESPACES: Final = 0x00020000 | 0x10000000  # mount and user
_BIND_RECURSIVE: Final = 0x1000 | 0x4000
_PRIVATE_RECURSIVE: Final = 0x40000 | 0x4000
_GRACE_S: Final = 1.5
_KILL_LIMIT_S: Final = 10.0
_REAP_EVERY_S: Final = 0.25


def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    with suppress(OSError):
        return ctypes.CDLL(None, use_errno=True)
    return None


def own_view(libc: ctypes.CDLL | None, folder: Path) -> bool:
    """Set up a separate /dev/shm and /mnt for this process and its descendants. Return False if the system does not allow it."""
    kept = {Path(path): folder / name for path, name in OWN_FOLDERS.items()}
    if libc is None or not all(path.is_dir() for path in kept):
        return False
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_NEW_NAMESPACES) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    except OSError:
        return False
    if libc.mount(b"none", b"/", None, _PRIVATE_RECURSIVE, None) != 0:
        return False
    return all(
        libc.mount(os.fsencode(source), os.fsencode(path), None, _BIND_RECURSIVE, None) == 0
        for path, source in kept.items()
    )


def _allows_own_view(libc: ctypes.CDLL | None, folder: Path) -> bool:
    """Try it in a child process first because this process cannot leave a partially set up namespace."""
    if libc is None:
        return False
    child = os.fork()
    if child == 0:
        os._exit(0 if own_view(libc, folder) else 1)
    return os.waitpid(child, 0)[1] == 0


def _descendants() -> list[int]:
    """Return the pids of all running descendants of this process."""
    children: dict[int, list[int]] = {}
    if Path("/proc/self/stat").exists():
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):
                text = stat.read_text(encoding="utf-8", errors="replace")
                state, parent = text.rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(stat.parent.name))
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=False)
        for pid, parent, state in (line.split()[:3] for line in listed.stdout.splitlines()):
            if not state.startswith("Z"):
                children.setdefault(int(parent), []).append(int(pid))
    found: list[int] = []
    front = [os.getpid()]
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        found += front
    return found


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_all() -> None:
    """Stop every descendant: SIGTERM, a grace period, then SIGKILL until none is left."""
    started = time.monotonic()
    for pid in _descendants():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    while (left := _descendants()) and time.monotonic() < started + _KILL_LIMIT_S:
        if time.monotonic() > started + _GRACE_S:
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.02)


def _die_with_parent(libc: ctypes.CDLL | None) -> None:
    if libc is not None:
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _start_script(folder: Path, given: dict[str, Any], libc: ctypes.CDLL | None) -> None:
    """Run the startup script as Google's guest environment does: as a file, with its first line as interpreter, otherwise with bash."""
    script = given.get("startupScript")
    if not script:
        return
    path = folder / "startup-script"
    path.write_text(script, encoding="utf-8")
    path.chmod(0o700)
    command = [str(path)] if script.startswith("#!") else ["/bin/bash", str(path)]
    with (folder / "serial.log").open("ab") as log:
        subprocess.Popen(
            command,
            cwd=folder / "home",
            env=given["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Safe because this process has one thread.
            preexec_fn=lambda: _die_with_parent(libc),  # noqa: PLW1509
        )


def main(argv: list[str]) -> int:
    """Run the init process (see the module's docstring). Print `started`, or one line with the reason if it cannot start."""
    folder = Path(argv[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    libc = _libc()
    if libc is not None:
        libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    given = json.loads(sys.stdin.readline())
    for name in (*OWN_FOLDERS.values(), "home"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    own = _allows_own_view(libc, folder) and own_view(libc, folder)
    paths = {} if own else {path: str(folder / name) for path, name in OWN_FOLDERS.items()}
    write_json(folder / "machine.json", {**given["machine"], "init_pid": os.getpid(), "paths": paths})
    try:
        _start_script(folder, given, libc)
    except OSError as error:
        print(f"cannot run the startup script: {error.strerror}", flush=True)
        return 1
    del given
    print("started", flush=True)
    _hold()
    _end_all()
    return 0


def _hold() -> None:
    """Wait until the pipe closes or SIGTERM arrives, and reap orphans."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    descriptor = sys.stdin.fileno()
    while not stopped:
        ready, _, _ = select.select([descriptor], [], [], _REAP_EVERY_S)
        if ready and not os.read(descriptor, 1024):
            return
        _reap()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
