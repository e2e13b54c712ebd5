"""The process that forks programs (tests/engine/warm_programs.py): started by the first test that needs it, once a worker."""

import functools
import json
import os
import shutil
import socket as sockets
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from dev.tools.engine.language_host import NUMBER, read_exactly, start_fork
from tests.polling import until

ROOT = Path(__file__).resolve().parents[2]
_STARTED = []


@functools.cache
def warm_programs(kind="programs"):
    """Start the process that forks a program for each run of the engine, or commands, once a worker; returns it and its socket."""
    socket = Path(tempfile.mkdtemp(prefix="warm-")) / "socket"
    command = [sys.executable, "-m", "tests.engine.warm_programs", str(socket), kind]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until(socket.exists, "it listens", process=process)
    status = os.open(f"/proc/{process.pid}/stat", os.O_RDONLY) if Path("/proc/self/stat").exists() else None
    _STARTED.append((process, socket, status))
    return process, socket


@contextmanager
def project_programs(kind, folder, environment):
    """Run, in a fork of that process, one that has imported the modules of a project too; yields its socket."""
    with tempfile.TemporaryDirectory(prefix="warm-") as place:
        socket = Path(place) / "socket"
        fork = start_fork(str(warm_programs(kind)[1]), ["--serve", str(socket), kind], environment, str(folder))
        until(socket.exists, "the process with the modules of the project listens")
        try:
            yield socket
        finally:
            fork.terminate()
            fork.wait()


def running_cpu_s():
    """Return the CPU seconds of the running processes that fork, and of their forks that have ended; 0 where `/proc` is missing."""
    ticks = 0
    for status in (status for *_, status in _STARTED if status is not None):
        with suppress(OSError):
            fields = os.pread(status, 1024, 0).rpartition(b")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / os.sysconf("SC_CLK_TCK")


def run_python(arguments, environment, folder, socket, *, stdin="", limit_s=60):
    """Do what `subprocess.run([python, *arguments])` does, in a fork."""
    order = {"arguments": arguments, "environment": environment, "folder": str(folder)}
    text = json.dumps(order).encode()
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        tempfile.TemporaryFile("w+") as given,
        sockets.socket(sockets.AF_UNIX) as connection,
    ):
        given.write(stdin)
        given.seek(0)
        connection.settimeout(limit_s)
        connection.connect(str(socket))
        sockets.send_fds(connection, [NUMBER.pack(len(text))], [stream.fileno() for stream in (out, err, given)])
        connection.sendall(text)
        read_exactly(connection, NUMBER.size)  # its process id
        code = read_exactly(connection, NUMBER.size)
        assert code, f"{arguments[0]}: the process that forks is gone"
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, NUMBER.unpack(code)[0], out.read(), err.read())


def pytest_sessionfinish():
    """Stop the processes and wait for them, so that the CPU time of their forks is counted."""
    for process, socket, status in _STARTED:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(socket.parent)
        if status is not None:
            os.close(status)
    _STARTED.clear()
