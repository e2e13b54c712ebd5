"""The folder of the real parts, the free disk that they need, and what every part does: run a command, wait, print progress."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dev.judges.real_vllm.environment import DEFAULT_FOLDER as REAL_VLLM_FOLDER
from dev.judges.real_vllm.environment import RealVllmHome, last_line
from localcloud.go_build import compiler

ROOT: Final = Path(__file__).resolve().parents[3]
DEFAULT_FOLDER: Final = ROOT / ".real"
WAIT_LIMIT_S: Final = 300.0
_GIB: Final = 2**30
_POLL_S: Final = 0.5


def print_progress(text: str) -> None:
    """Print a line of progress."""
    print(f"real: {text}", file=sys.stderr, flush=True)


def wait_until(condition: Callable[[], object], what: str, limit_s: float = WAIT_LIMIT_S) -> float:
    """Wait for a condition and return the seconds. Fails after the limit."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s <= limit_s, f"{what} did not happen within {limit_s:.0f} s"
        time.sleep(_POLL_S)
    return time.monotonic() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that a judge needs on this machine: what, where it is put, and the disk in GiB and seconds that it takes the first time."""

    what: str
    where: str
    disk_gib: float
    takes_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RealHome:
    """Folder of everything that the real parts install and write. vLLM's environment is the one of dev.judges.real_vllm."""

    folder: Path = DEFAULT_FOLDER

    @property
    def real_vllm(self) -> RealVllmHome:
        """The real vLLM's environment."""
        return RealVllmHome(folder=REAL_VLLM_FOLDER)

    @property
    def results(self) -> Path:
        """Folder of logs and results of the last run."""
        return self.folder / "results"

    def empty_results(self) -> None:
        """Delete the results of an earlier run."""
        shutil.rmtree(self.results, ignore_errors=True)
        self.results.mkdir(parents=True)

    def get(self, need: Need) -> None:
        """Say what is fetched, and check the free disk for it. Skips the test if there is too little."""
        self.folder.mkdir(parents=True, exist_ok=True)
        free_gib = shutil.disk_usage(self.folder).free / _GIB
        if free_gib < need.disk_gib + 1:
            pytest.skip(
                f"{need.what} needs {need.disk_gib:g} GiB and 1 GiB of reserve in {self.folder}, but {free_gib:.1f} GiB are free"
            )
        print_progress(f"getting {need.what}: {need.disk_gib:g} GiB into {need.where}, about {need.takes_s} s")


def run(
    command: Sequence[str],
    *,
    limit_s: float = 120,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return it with both outputs as text. It has no standard input but `given`."""
    return subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
        env={**os.environ, **(environment or {})},
        cwd=folder or ROOT,
    )


def digest_of(sources: Path) -> str:
    """Return a short digest of the files of a Go module: a changed module is another program."""
    digest = hashlib.sha256()
    for path in sorted(sources.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def go_compiler(purpose: str) -> str:
    """Return the Go compiler. Skips the test without one."""
    go = compiler()
    if go is None:
        pytest.skip(f"`go`, needed to {purpose}, is not on PATH. Install Go 1.26 or newer")
    return go


def debian_version(package: str) -> str | None:
    """Return the installed version of a Debian package, or None."""
    if shutil.which("dpkg-query") is None:
        return None
    found = run(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Version}", package])
    state, _, version = found.stdout.partition(" ")
    return version.strip() if found.returncode == 0 and state.startswith("ii") else None


def debian_packages(home: RealHome, need: Need, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Debian packages, and install missing ones. Skips the test if that is not possible."""
    missing = [package for package in packages if debian_version(package) is None]
    if missing:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            pytest.skip(f"not installed, and only root on Debian can install: {' '.join(missing)}")
        home.get(need)
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], limit_s=600, environment=quiet)
        done = run(
            ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *missing], limit_s=1200, environment=quiet
        )
        if done.returncode:
            pytest.skip(f"apt-get install {' '.join(missing)}: {last_line(done.stderr)}")
    return {package: debian_version(package) or "" for package in packages}


def write_script(path: Path, variables: Mapping[str, str], command: Sequence[str], *more: str) -> None:
    """Write a shell script that becomes a command with these variables, or replace it at once. `more`: lines before the command."""
    lines = [*(f"export {name}={shlex.quote(value)}" for name, value in variables.items()), *more]
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text("\n".join(["#!/bin/sh", *lines, f'exec {shlex.join(command)} "$@"', ""]), encoding="utf-8")
    part.chmod(0o700)
    part.replace(path)
