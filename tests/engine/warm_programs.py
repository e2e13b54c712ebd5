"""Run programs and commands in forks of one process that has imported their packages once: tests start the same ones hundreds of times.

Of the project's own modules, that process imports none: a fork reads those from the folder of its own project, as a new interpreter does. A fork can become
the same process for one project, with the modules of its folder. After a change of one of them, its forks read all of them again.

The language host sends each start over a Unix socket, with its standard streams, and gets the process id, then the exit code.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from dev.tools.engine.language_host import NUMBER, read_exactly

COMMANDS = ("pydantic", "requests", "google.auth.transport.requests", "rich.console", "rich.table", "yaml")
"""Packages of commands. The SDK of programs has protocol buffers that the client of Cloud Storage cannot load beside its own."""
GOOGLE = (
    "artifactregistry",
    "cloudrunv2",
    "compute",
    "monitoring",
    "projects",
    "secretmanager",
    "serviceaccount",
    "storage",
)
"""Modules of pulumi_gcp that programs use. Each program would spend up to a second of a processor on loading them."""
SDK = ("pulumi", "pulumi.runtime", "pulumi.provider", "pulumi_gcp", *(f"pulumi_gcp.{module}" for module in GOOGLE))
PACKAGES = {"programs": (*SDK, *COMMANDS), "commands": COMMANDS}
OWN = {
    "programs": tuple(f"gemma_serving.stacks.{name}" for name in ("program", "tpu", "cloud_run", "observability")),
    "commands": tuple(
        f"gemma_serving.scripts.{name}"
        for name in (
            "gemma.__main__",
            "up.deploying",
            "up.__main__",
            "status.collect",
            "status.render",
            "doctor.api",
            "doctor.__main__",
            "logs.__main__",
            "connect.chat",
            "connect.__main__",
            "teardown.__main__",
        )
    ),
}
"""Modules of a project that import most of what its programs or commands use."""
_PROJECT = ("", 0.0)
"""Folder of the project whose modules this process has imported, and when; the folder is empty without one."""


def serve(path: Path, kind: str) -> None:
    """Import the packages, then listen."""
    for name in PACKAGES[kind]:
        load(name)
    listen(path)


def serve_project(path: Path, kind: str, folder: str) -> None:
    """Import a project's own modules, then listen."""
    global _PROJECT  # noqa: PLW0603 - one a process
    for name in OWN[kind]:
        importlib.import_module(name)
    _PROJECT = (folder, time.time())
    listen(path)


def listen(path: Path) -> None:
    """Fork a program for each connection until SIGTERM or SIGINT. The socket exists once it listens."""
    gc.freeze()  # a fork's collector leaves these pages alone, so that they stay shared
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{path}.new")
        listener.listen(64)
        Path(f"{path}.new").rename(path)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    os._exit(_attend(connection))


def load(name: str) -> None:
    """Import a module, also one that its package loads late: the SDK's modules load at the first access to a name of theirs, which `dir` is not."""
    module = importlib.import_module(name)
    with contextlib.suppress(AttributeError):
        _ = module.a_name_that_no_module_has
    assert type(module) is types.ModuleType, f"{name} would be loaded by each fork"


def _leave(number: int, frame: object) -> None:
    del number, frame
    raise SystemExit(0)


def _reap() -> None:
    """Wait for the forks that are over, so that their CPU time counts as ours."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _attend(connection: socket.socket) -> int:
    """Run one program in a fork of this fork and report how it ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
    text = read_exactly(connection, NUMBER.unpack(head)[0])
    if text is None:
        return 1
    child = os.fork()
    if child == 0:
        connection.close()
        _become(cast("dict[str, object]", json.loads(text)), streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(NUMBER.pack(child))
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
    return 0


def _forget_project(folder: str) -> None:
    """Forget the modules of the project, unless they are those of this folder and none is gone or newer than this process: the program imports them."""
    project, since_s = _PROJECT
    files = {name: str(getattr(module, "__file__", None)) for name, module in sys.modules.items()}
    own = {name: Path(file) for name, file in files.items() if project and file.startswith(f"{project}/")}
    if folder == project and all(path.exists() and path.stat().st_mtime < since_s for path in own.values()):
        return
    sys.path[:] = [path for path in sys.path if not (project and path.startswith(f"{project}/"))]
    for name in own:
        del sys.modules[name]


def _become(order: Mapping[str, object], streams: Sequence[int]) -> None:
    """Run `python FILE ...`, `python -m MODULE ...` or `python -c TEXT ...` in its folder, with its environment and streams; never returns."""
    code = 1
    try:
        for target, stream in zip((1, 2, 0), streams, strict=False):  # a program has no input
            os.dup2(stream, target)
        os.environ.clear()
        os.environ.update(cast("dict[str, str]", order["environment"]))
        os.chdir(cast("str", order["folder"]))
        arguments = cast("list[str]", order["arguments"])
        sys.argv = arguments
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in [name for name in sys.modules if name.partition(".")[0] in {"dev", "tests"}]:
            del sys.modules[name]  # this process's own, from another checkout
        sys.path[0] = str(order["folder"])
        _forget_project(sys.path[0])
        match arguments:
            case ["--serve", socket_path, kind]:
                serve_project(Path(socket_path), kind, sys.path[0])
            case ["-m", module, *_]:
                sys.argv = arguments[1:]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ["-c", text, *_]:
                sys.argv = ["-c", *arguments[2:]]
                exec(text, {"__name__": "__main__"})  # noqa: S102  as an interpreter does
            case _:
                sys.path[0] = str(Path(arguments[0]).parent)
                runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  as an interpreter does: a traceback and exit code 1
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()

            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
