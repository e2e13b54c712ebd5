"""The environment in which the compiler runs: a folder for each lock, below the user's cache.

The wheels of torch on PyPI are built for CUDA and link NVIDIA's libraries (3 GB to download), of which no function is called without a GPU. The lock
leaves them out. In their place stand symbolic links to a small library of torch, and functions are bound at their first call: Python's
flag for that is set by a `.pth` file, so the processes that vLLM starts have it too.
"""

import fcntl
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import IO, Final

from dev.judges.tpu_compiler.confined import clean_environment, confinement
from dev.judges.tpu_compiler.wheels import Wheels
from gemma_serving.contracts.errors import CommandRefusedError

PYTHON: Final = "3.12"
UNSET: Final = ("LD_BIND_NOW", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables that must not reach an environment's interpreter: with the first, torch does not load; with the second, each run compiles its modules anew."""
MARGIN_GB: Final = 1.0
"""Free disk that an installation leaves."""
_MARKER: Final = "complete"
_REPORT_EVERY_S: Final = 10.0
_STAND_IN: Final = "libtorch_global_deps.so"
_LINKED: Final = (
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcudnn.so.9",
    "libcufft.so.11",
    "libcufile.so.0",
    "libcupti.so.12",
    "libcurand.so.10",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvshmem_host.so.3",
)
"""Libraries of NVIDIA that torch 2.10.0 for CUDA 12.8 loads at its import."""
_LAZY: Final = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"
_LOADS: Final = "import jax, libtpu, torch"


def folder(wheels: Wheels) -> Path:
    """Return the folder of an environment, installed or not."""
    cache = _users_cache() / "gemma-serving" / "compiler"
    return cache / f"{wheels.name}-{sha256(wheels.lock.read_bytes()).hexdigest()[:12]}"


def _users_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base) if base else Path.home() / ".cache"


def require_own(path: Path) -> None:
    """Raise CommandRefusedError if another user owns or can write a folder below the user's cache, or one above it there."""
    base = _users_cache()
    for one in (path, *path.parents):
        if one.exists() and not _is_own(one, is_shared=one == base):
            raise CommandRefusedError(
                f"Another user owns {one} or can write to it, so code and answers below it can be theirs. If you created everything in it, run "
                f"`chmod go-w {one}`; otherwise delete it, or set XDG_CACHE_HOME to a folder that only you can write."
            )
        if one == base:
            break


def _is_own(folder: Path, *, is_shared: bool) -> bool:
    """Return whether only the user can write a folder; for a shared one, whether others can at least not replace what is in it."""
    user, link, found = os.geteuid(), folder.lstat(), folder.stat()
    if is_shared:
        return {link.st_uid, found.st_uid} <= {user, 0} and (
            not found.st_mode & stat.S_IWOTH or bool(found.st_mode & stat.S_ISVTX)
        )
    # Many distributions give each user a group of the same number, and let it write.
    others = stat.S_IWOTH if found.st_gid == found.st_uid else stat.S_IWOTH | stat.S_IWGRP
    return {link.st_uid, found.st_uid} == {user} and not found.st_mode & others


def installed(wheels: Wheels) -> Path | None:
    """Return the interpreter of a complete environment, or None. Raises CommandRefusedError if others can write it."""
    home = folder(wheels)
    require_own(home)
    python = home / "bin" / "python"
    return python if (home / _MARKER).is_file() and python.exists() else None


def install(wheels: Wheels, *, report: Callable[[str], None]) -> Path:
    """Install the locked wheels if they are not there, and return the interpreter.

    Raises CommandRefusedError, with nothing installed.
    """
    _check_machine()
    uv = find_uv()
    home = folder(wheels)
    require_own(home)
    for path in (home.parents[2], home.parents[1], home.parent):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = home.with_name(f"{home.name}.{os.getpid()}")  # uv goes on for a while if its parent is killed
    with _locked(home.with_name(f"{home.name}.lock"), report):
        found = installed(wheels)
        if found:
            return found
        for path in (home, *home.parent.glob(f"{home.name}.*/")):
            shutil.rmtree(path, ignore_errors=True)
        _check_disk(home.parent, wheels)
        try:
            _fill(partial, wheels, uv, report)
            partial.chmod(0o700)
            (partial / _MARKER).touch()
            partial.rename(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return home / "bin" / "python"


def find_uv() -> str:
    """Return the path of uv: beside this interpreter, or on PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise CommandRefusedError("uv, which installs the compiler's wheels, was not found; run `make setup`.")
    return found


def _check_machine() -> None:
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise CommandRefusedError(
            f"The TPU compiler's wheels exist for Linux on x86-64 only, and this machine is {machine}; run the command on such a machine."
        )


def _check_disk(path: Path, wheels: Wheels) -> None:
    free_gb, needed_gb = shutil.disk_usage(path).free / 1e9, wheels.disk_gb + MARGIN_GB
    if free_gb < needed_gb:
        raise CommandRefusedError(
            f"The compiler's wheels need {needed_gb:.1f} GB in {path}, and {free_gb:.1f} GB are free; delete files there, or set XDG_CACHE_HOME to a "
            "folder on another disk."
        )


def _fill(partial: Path, wheels: Wheels, uv: str, report: Callable[[str], None]) -> None:
    """Create the environment in a new folder, and load the libraries once."""
    python = partial / "bin" / "python"
    _run(
        [uv, "venv", "--quiet", "--relocatable", "--python", PYTHON, str(partial)],
        f"creating an environment with Python {PYTHON}",
        f"uv found no Python {PYTHON} and could not download it: {{}}. Install Python {PYTHON}, so that `python{PYTHON}` is on PATH",
        report,
    )
    _run(
        [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            str(python),
            "--require-hashes",
            "--no-deps",
            "-r",
            str(wheels.lock),
        ],
        f"downloading and installing {wheels.download_gb:.1f} GB of wheels",
        "uv could not install the compiler's wheels: {}. Check the network",
        report,
    )
    (packages,) = partial.glob("lib/python*/site-packages")
    (packages / "gemma_serving_lazy_binding.pth").write_text(_LAZY, encoding="utf-8")
    for name in _LINKED:
        (packages / "torch" / "lib" / name).symlink_to(_STAND_IN)
    with tempfile.TemporaryDirectory() as empty, confinement() as confine:
        _run(
            [str(python), "-c", _LOADS],
            "loading the libraries once",
            "The compiler's wheels do not load on this machine: {}. They need glibc 2.31 or newer; correct that",
            report,
            environment=clean_environment({}, Path(empty)),
            confine=confine,
        )


def _run(
    command: Sequence[str],
    task: str,
    failure: str,
    report: Callable[[str], None],
    *,
    environment: Mapping[str, str] | None = None,
    confine: Callable[[], None] | None = None,
) -> None:
    """Run a program to its end, and report each ten seconds. `failure` gets the last line of its output."""
    started = monotonic()
    report(task)
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if name not in UNSET} | {"NO_COLOR": "1"}
    with tempfile.TemporaryFile("w+") as output:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            preexec_fn=confine,  # noqa: PLW1509 - it calls the C library only
        )
        try:
            while _runs(program):
                report(f"{task}: {monotonic() - started:.0f} s")
        finally:
            program.kill()
            program.wait()
        if program.returncode:
            raise CommandRefusedError(f"{failure.format(_last_line(output))}, and run the command again.")


def _runs(program: subprocess.Popen[bytes]) -> bool:
    """Wait for some seconds, and return whether the program still runs."""
    try:
        program.wait(_REPORT_EVERY_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _last_line(output: IO[str]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().splitlines() if line.strip()]
    return lines[-1].removeprefix("cause: ").removeprefix("error: ").rstrip(".") if lines else "no output"


@contextmanager
def _locked(path: Path, report: Callable[[str], None]) -> Generator[None]:
    """Let one process install at a time."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that installs the same wheels")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
