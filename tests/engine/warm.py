"""The process that forks programs (tests/engine/warm_programs.py): started by the first test that needs it, once a worker."""

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def warm_programs():
    """Start the process that forks a program for each run of the engine, once a worker; returns it and its socket."""
    socket = Path(tempfile.mkdtemp(prefix="warm-")) / "socket"
    command = [sys.executable, "-m", "tests.engine.warm_programs", str(socket)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process, socket


def pytest_sessionfinish():
    """Stop the process and wait for it, so that the CPU time of its forks is counted."""
    if warm_programs.cache_info().currsize:
        process, socket = warm_programs()
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()
        shutil.rmtree(socket.parent)
