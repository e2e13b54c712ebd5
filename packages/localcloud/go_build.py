"""Build a Go program from its modules, once per content and user, with progress for a user who waits.

The evaluator of the tests of alerts, the Pulumi engine and the tools for its languages are built with it.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

_BUILD_LIMIT_S = 45 * 60
_REPORT_EVERY_S = 10.0
_LINES_SHOWN = 12


class GoBuildError(Exception):
    """The program was not built. The message has the compiler's last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    """A Go program: `package` of a module whose go.mod and go.sum are complete."""

    label: str
    """First word of each progress line."""
    name: str
    """Name in error messages, such as "the Pulumi engine"."""
    package: str
    packages: int
    """Packages that a first build compiles, including the standard library (`go list -deps`)."""
    linker_flags: str = "-s -w"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFolder:
    """Temporary folders of one build."""

    module: Path
    """A copy of the module's sources."""
    result: Path
    """An empty folder for the results of the build."""
    modules: Path
    """A folder for downloaded modules that are deleted after the build."""


def cache_folder(name: str) -> Path:
    """Return the user's cache folder for one kind of program, such as `engine`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "gemma-serving" / name


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None]:
    """Lock a cache folder to one process, so two checkouts do not both build."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def new_folder(into: Path, sources: Path) -> Generator[BuildFolder]:
    """Yield the folders of a build. Without an error, its result becomes the folder `into`, atomically; everything else is deleted."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="building-") as base:
        folder = BuildFolder(module=Path(base) / "module", result=Path(base) / "result", modules=Path(base) / "modules")
        shutil.copytree(sources, folder.module)
        folder.result.mkdir()
        yield folder
        folder.result.rename(into)


def compiler() -> str | None:
    """Return the path of `go`, or None if it is not on PATH."""
    return shutil.which("go")


def environment(modules: Path | None = None) -> dict[str, str]:
    """Return the environment of Go. `modules` is the folder for downloaded modules, by default the user's module cache.

    The module file is complete, so no module may be added or upgraded implicitly. Go writes a read-only module cache; one that is deleted
    after the build must be writable.
    """
    flags = f"{os.environ.get('GOFLAGS', '')} -mod=readonly -trimpath{' -modcacherw' if modules else ''}".strip()
    own = {"GOMODCACHE": str(modules)} if modules else {}
    return {**os.environ, "GOFLAGS": flags, "CGO_ENABLED": "0", **own}


def compile_program(go: str, program: GoProgram, module: Path, target: Path, *, modules: Path | None = None) -> None:
    """Compile a program whose module is in the folder `module` to the file `target`. Raises GoBuildError."""
    # The linker drops debug information (-s -w), so the compiler writes none.
    flags = ["-gcflags=all=-dwarf=false", f"-ldflags={program.linker_flags}"]
    command = [go, "build", "-v", "-o", str(target), *flags, program.package]
    log = module.parent / "build.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=module,
            env=environment(modules),
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        with _stopped_on_error(process):
            _wait(process, log, program)
    if process.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:])
        raise GoBuildError(
            f"Building {program.name} with `{go}` failed with exit code {process.returncode}. Last lines:\n{last}"
        )


@contextlib.contextmanager
def _stopped_on_error(process: "subprocess.Popen[bytes]") -> Generator[None]:
    try:
        yield
    except BaseException:
        process.kill()
        process.wait()
        raise


def _wait(process: "subprocess.Popen[bytes]", log: Path, program: GoProgram) -> None:
    started_s = time.monotonic()
    while True:
        elapsed_s = time.monotonic() - started_s
        if elapsed_s > _BUILD_LIMIT_S:
            raise GoBuildError(
                f"Building {program.name} took longer than {_BUILD_LIMIT_S // 60} minutes and was stopped."
            )
        try:
            process.wait(timeout=_REPORT_EVERY_S)
        except subprocess.TimeoutExpired:
            elapsed_s = time.monotonic() - started_s
            text = f"{program.label}: {progress(log, program.packages)}, {elapsed_s:.0f} s so far"
            print(text, file=sys.stderr, flush=True)
        else:
            return


def progress(log: Path, packages: int) -> str:
    """Return the build's progress from Go's output: one line per fetched module, then one per compiled package."""
    lines = log.read_text(errors="replace").splitlines()
    fetched = sum(line.startswith("go: downloading ") for line in lines)
    if fetched == len(lines):
        return f"fetching modules, {fetched} fetched"
    return f"compiling, {len(lines) - fetched} of about {packages} packages"
