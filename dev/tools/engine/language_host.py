"""Python language host for engines that were built without one.

The official `pulumi-language-python` is part of the official distribution; an engine built from its Go module lacks it. This server implements the
same protocol (`pulumirpc.LanguageRuntime`). It runs programs with the SDK's own `pulumi-language-python-exec`, and providers
with the interpreter of their virtual environment, which it creates. It exits when the engine does.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

import grpc
from google.protobuf import empty_pb2

if __name__ == "__main__":
    # Their own code imports the whole SDK, which takes as long as the rest of a host's start, and an operation starts two hosts.
    for _name in ("pulumi", "pulumi.runtime"):
        if _spec := importlib.util.find_spec(_name):
            sys.modules[_name] = importlib.util.module_from_spec(_spec)

from pulumi._version import (
    _VERSION,  # pyright: ignore[reportPrivateUsage] - importlib.metadata takes longer to load than all of this file
)
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

EXIT_AFTER_MESSAGE = 32
"""Exit code of the program's runner after it has shown the error to the user: the engine then bails out silently."""

WARM_PROGRAMS = "GEMMA_SERVING_WARM_PROGRAMS"
"""Path of a Unix socket of a process that has imported the packages and forks for each run. Without it, each run starts an interpreter."""

NUMBER = struct.Struct("!q")
"""Encoding of lengths, process ids and exit codes on that socket."""

_CHECKOUT = Path(__file__).resolve().parents[3]
_LAST_LINES = 12
_MAX_MESSAGE_BYTES = 400 * 1024 * 1024
_GRACE_S = 2.0
_PARENT_CHECK_S = 1.0


def option(info: language_pb2.ProgramInfo, name: str) -> str:
    """Return a text of `runtime.options`, or an empty text."""
    return info.options.fields[name].string_value if name in info.options.fields else ""


def environment_folder(info: language_pb2.ProgramInfo, *, is_plugin: bool) -> Path | None:
    """Return the virtual environment of a program or plugin, or None if it uses the one that this host runs in.

    The option `virtualenv` names it, relative to the folder of Pulumi.yaml. Without the option, a program uses our own, and a plugin `venv`
    in its folder, as with the official host. A plugin of this checkout, such as `packages/gcp-tpu`, uses the checkout's environment.
    """
    root = Path(info.root_directory or ".")
    named = option(info, "virtualenv")
    if not named and (not is_plugin or _CHECKOUT in root.resolve().parents):
        return None
    folder = root / (named or "venv")
    return None if folder.resolve() == Path(sys.prefix).resolve() else folder


def interpreter(info: language_pb2.ProgramInfo, *, is_plugin: bool = False) -> str:
    """Return the interpreter of a program or plugin: its virtual environment's if it exists, otherwise our own."""
    folder = environment_folder(info, is_plugin=is_plugin)
    candidate = folder / "bin" / "python" if folder else None
    return str(candidate) if candidate and candidate.exists() else sys.executable


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """Runs Pulumi programs and Python plugins as child processes."""

    def __init__(self, engine_address: str, runner: Path) -> None:
        self._engine_address = engine_address
        self._runner = runner
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def Handshake(  # noqa: N802  names are the protocol's
        self, request: language_pb2.LanguageHandshakeRequest, context: grpc.ServicerContext
    ) -> language_pb2.LanguageHandshakeResponse:
        """Store the engine's address."""
        del context
        self._engine_address = request.engine_address or self._engine_address
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:  # noqa: N802
        """Return the version of the SDK that this host supports."""
        del request, context
        return plugin_pb2.PluginInfo(version=_VERSION)

    def GetRequiredPackages(  # noqa: N802
        self, request: language_pb2.GetRequiredPackagesRequest, context: grpc.ServicerContext
    ) -> language_pb2.GetRequiredPackagesResponse:
        """Return nothing. The engine then requests a plugin when a resource needs it."""
        del request, context
        return language_pb2.GetRequiredPackagesResponse()

    def InstallDependencies(  # noqa: N802
        self, request: language_pb2.InstallDependenciesRequest, context: grpc.ServicerContext
    ) -> Iterator[language_pb2.InstallDependenciesResponse]:
        """Create the virtual environment of a program or plugin, install its packages with pip, and stream pip's output.

        The environment that this host runs in is never changed: `make setup` installs its packages.
        """
        from dev.tools.engine import dependencies  # noqa: PLC0415  not needed at start-up

        info = request.info
        environment = environment_folder(info, is_plugin=request.is_plugin)
        folder = Path(info.program_directory or request.directory or ".")
        if environment is None:
            if not request.is_plugin and (folder / dependencies.REQUIREMENTS).is_file():
                yield _progress(dependencies.NOT_INSTALLED.format(folder=folder))
            return
        try:
            dependencies.require_pip(option(info, "toolchain"))
            steps = dependencies.steps(folder, environment)
        except dependencies.DependencyError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        answer = language_pb2.InstallDependenciesResponse
        for step in steps:
            yield _progress(f"{step.purpose}\n")
            last: deque[str] = deque(maxlen=_LAST_LINES)
            with self._child([*step.command], {}, cwd=str(folder), piped=True) as child:
                context.add_callback(partial(_stop, child))
                for stream, line in _output(child):
                    last.append(line.decode(errors="replace").rstrip())
                    yield answer(stdout=line) if stream == "stdout" else answer(stderr=line)
                code = child.wait()
            if code != 0:
                context.abort(grpc.StatusCode.UNKNOWN, dependencies.failure(step, code, last))

    def GeneratePackage(  # noqa: N802
        self, request: language_pb2.GeneratePackageRequest, context: grpc.ServicerContext
    ) -> language_pb2.GeneratePackageResponse:
        """Write the Python SDK of a package into a folder."""
        from dev.tools.engine import generator, model  # noqa: PLC0415  not needed at start-up

        try:
            generator.generate(request.schema, "python", Path(request.directory), request.loader_target)
        except model.EngineError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return language_pb2.GeneratePackageResponse()

    def Link(self, request: language_pb2.LinkRequest, context: grpc.ServicerContext) -> language_pb2.LinkResponse:  # noqa: N802
        """Add generated SDKs to requirements.txt of a program."""
        from dev.tools.engine import dependencies  # noqa: PLC0415  not needed at start-up

        folders = [package.path for package in request.packages]
        try:
            text = dependencies.link(Path(request.info.root_directory), folders)
        except dependencies.DependencyError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return language_pb2.LinkResponse(import_instructions=text)

    def About(self, request: language_pb2.AboutRequest, context: grpc.ServicerContext) -> language_pb2.AboutResponse:  # noqa: N802
        """Describe the interpreter of programs."""
        del context
        return language_pb2.AboutResponse(
            executable=interpreter(request.info),
            version=sys.version.split()[0],
            metadata={"host": "stand-in of dev.tools.engine"},
        )

    def Run(self, request: language_pb2.RunRequest, context: grpc.ServicerContext) -> language_pb2.RunResponse:  # noqa: N802
        """Run a program until it exits."""
        info = request.info
        program = str(Path(info.program_directory or request.pwd or ".") / (info.entry_point or "."))
        command = [
            interpreter(info),
            str(self._runner),
            "--monitor",
            request.monitor_address,
            "--engine",
            self._engine_address,
            "--project",
            request.project,
            "--stack",
            request.stack,
            "--root_directory",
            info.root_directory,
            "--pwd",
            request.pwd,
            "--parallel",
            str(request.parallel),
            "--organization",
            request.organization,
            *(["--dry_run", "true"] if request.dryRun else []),
            program,
            *request.args,
        ]
        environment = {
            "PULUMI_CONFIG": json.dumps(dict(request.config)),
            "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(request.configSecretKeys)),
        }
        code = self._run(command, environment, request.pwd, context)
        if code == 0:
            return language_pb2.RunResponse()
        if code == EXIT_AFTER_MESSAGE:
            return language_pb2.RunResponse(bail=True)
        return language_pb2.RunResponse(error=f"the program exited with code {code}")

    def RunPlugin(  # noqa: N802
        self, request: language_pb2.RunPluginRequest, context: grpc.ServicerContext
    ) -> Iterator[language_pb2.RunPluginResponse]:
        """Run a provider written in Python and stream its output."""
        folder = request.info.program_directory or request.program
        given = dict(pair.split("=", 1) for pair in request.env if "=" in pair)
        command = [interpreter(request.info, is_plugin=True), "-u", folder, *request.args]
        with self._child(command, given, cwd=request.pwd or None, piped=True) as child:
            context.add_callback(lambda: _stop(child))
            answer = language_pb2.RunPluginResponse
            for stream, line in _output(child):
                yield answer(stdout=line) if stream == "stdout" else answer(stderr=line)
            yield language_pb2.RunPluginResponse(exitcode=child.wait())

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:  # noqa: N802
        """Stop all running programs."""
        del request, context
        self.stop()
        return empty_pb2.Empty()

    def stop(self) -> None:
        """Stop all children."""
        with self._lock:
            children = list(self._children)
        for child in children:
            _stop(child)

    def _run(self, command: list[str], environment: Mapping[str, str], cwd: str, context: grpc.ServicerContext) -> int:
        """Run a program in its own interpreter, or in a fork of one that already has the packages."""
        listening = os.environ.get(WARM_PROGRAMS)
        if listening:
            started = start_fork(listening, command[1:], {**os.environ, **environment}, cwd)
            context.add_callback(started.terminate)
            return started.wait()
        with self._child(command, environment, cwd=cwd, piped=False) as child:
            context.add_callback(lambda: _stop(child))
            return child.wait()

    def _child(
        self, command: list[str], environment: Mapping[str, str], *, cwd: str | None, piped: bool
    ) -> "subprocess.Popen[bytes]":
        stream = subprocess.PIPE if piped else None
        child = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        with self._lock:
            self._children = {known for known in self._children if known.poll() is None} | {child}
        return child


def _output(child: "subprocess.Popen[bytes]") -> Iterator[tuple[str, bytes]]:
    """Yield the lines of both streams of a child as they arrive, with "stdout" or "stderr". The engine reads a plugin's port from its first line."""
    lines: queue.Queue[tuple[str, bytes] | None] = queue.Queue()

    def pump(name: str, stream: IO[bytes] | None) -> None:
        for line in stream or ():
            lines.put((name, line))
        lines.put(None)

    for name, stream in (("stdout", child.stdout), ("stderr", child.stderr)):
        threading.Thread(target=pump, args=(name, stream), daemon=True).start()
    ended = 0
    while ended < len(("stdout", "stderr")):
        found = lines.get()
        if found is None:
            ended += 1
        else:
            yield found


def _progress(text: str) -> language_pb2.InstallDependenciesResponse:
    return language_pb2.InstallDependenciesResponse(stdout=text.encode())


def _stop(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()


@dataclass
class Fork:
    """A program running in a fork."""

    pid: int
    connection: socket.socket
    _over: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> int:
        """Return the exit code, or 1 if the forking process is gone."""
        with self.connection:
            answer = read_exactly(self.connection, NUMBER.size)
        self._over.set()
        return NUMBER.unpack(answer)[0] if answer else 1

    def terminate(self) -> None:
        """Request the program to stop, unless it has exited: its process id may be reused by then."""
        if not self._over.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


def start_fork(path: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> Fork:
    """Start a program in a fork that shares our standard output and error. Raises OSError if no process listens at `path`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    text = json.dumps({"arguments": list(arguments), "environment": dict(environment), "folder": folder}).encode()
    socket.send_fds(connection, [NUMBER.pack(len(text))], [1, 2])
    connection.sendall(text)
    answer = read_exactly(connection, NUMBER.size)
    if answer is None:
        raise ConnectionResetError(f"The process at {path} did not start the program.")
    return Fork(NUMBER.unpack(answer)[0], connection)


def read_exactly(connection: socket.socket, count: int) -> bytes | None:
    """Return the next `count` bytes of a stream, or None if it is closed before."""
    parts: list[bytes] = []
    while count > 0:
        part = connection.recv(min(count, _MAX_MESSAGE_BYTES))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve(engine_address: str, runner: Path) -> None:
    """Serve until SIGINT or SIGTERM, or until the engine is gone. Prints the port on the first line of stdout."""
    host = LanguageHost(engine_address, runner)
    options = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ]
    server = grpc.server(ThreadPoolExecutor(max_workers=16), options=options)
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server)
    port = server.add_insecure_port("127.0.0.1:0")
    ended = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    server.start()
    print(port, flush=True)
    parent = os.getppid()
    while not ended.wait(_PARENT_CHECK_S) and os.getppid() == parent:
        pass
    host.stop()
    server.stop(grace=_GRACE_S).wait()


def main() -> None:
    """Run `pulumi-language-python`. Unknown flags are the engine's, and the first plain argument is its address."""
    parser = argparse.ArgumentParser(prog="pulumi-language-python")
    parser.add_argument("--exec", required=True, type=Path)
    options, rest = parser.parse_known_args()
    sys.path[:0] = [
        str(_CHECKOUT),
        str(_CHECKOUT / "packages"),
    ]  # `python -P` leaves them out; methods import from them
    addresses = [argument for argument in rest if not argument.startswith("-")]
    serve(addresses[0] if addresses else "", options.exec)


if __name__ == "__main__":
    main()
