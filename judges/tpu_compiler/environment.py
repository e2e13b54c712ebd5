"""The environment in which the compiler runs: a folder for each lock, below the user's cache.

The wheels of torch on PyPI are built for CUDA and link NVIDIA's libraries (3 GB to download), of which no function is called without a GPU. The lock
leaves them out. In their place stand symbolic links to a small library of torch, and functions are bound at their first call: Python's
flag for that is set by a `.pth` file, so the processes that vLLM starts have it too.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import IO, Final

from gemma_serving.contracts.errors import CommandRefusedError
from judges.tpu_compiler.wheels import Wheels

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
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = (Path(base) if base else Path.home() / ".cache") / "gemma-serving" / "compiler"
    return cache / f"{wheels.name}-{sha256(wheels.lock.read_bytes()).hexdigest()[:12]}"


def installed(wheels: Wheels) -> Path | None:
    """Return the interpreter of a complete environment, or None."""
    home = folder(wheels)
    python = home / "bin" / "python"
    return python if (home / _MARKER).is_file() and python.exists() else None


def install(wheels: Wheels, *, report: Callable[[str], None]) -> Path:
    """Install the locked wheels if they are not there, and return the interpreter.

    Raises CommandRefusedError, with nothing installed.
    """
    _check_machine()
    uv = find_uv()
    home = folder(wheels)
    home.parent.mkdir(parents=True, exist_ok=True)
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
    _run(
        [str(python), "-c", _LOADS],
        "loading the libraries once",
        "The compiler's wheels do not load on this machine: {}. They need glibc 2.31 or newer and no variable LD_PRELOAD; correct that",
        report,
    )


def _run(command: Sequence[str], task: str, failure: str, report: Callable[[str], None]) -> None:
    """Run a program to its end, and report each ten seconds. `failure` gets the last line of its output."""
    started = monotonic()
    report(task)
    environment = {name: value for name, value in os.environ.items() if name not in UNSET} | {"NO_COLOR": "1"}
    with tempfile.TemporaryFile("w+") as output:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
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
