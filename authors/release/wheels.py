"""Build the wheel and the source archive of a package folder: the same bytes from the same files.

The folder is copied without its tests, and the wheel is built from the source archive, so nothing outside the archive can be in the wheel.
The build backend is locked by hash in backend.txt. A wheel without a file of its package is refused.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final

from tools.git import git

ROOT: Final = Path(__file__).resolve().parents[2]
BACKEND: Final = Path(__file__).with_name("backend.txt")
LICENSE: Final = ROOT / "LICENSE"
_EARLIEST: Final = 315_532_800
"""1980-01-01, the first date that a zip archive can state."""
_LEFT_OUT: Final = ("tests", "__pycache__", "build", "dist", "*.egg-info", "*.pyc", ".*")
_OF_THE_FOLDER: Final = frozenset(
    {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "requirements.in", "requirements.txt"}
)
"""Files beside the modules that describe the distribution and are not installed."""
_BUILD: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from setuptools import build_meta; "
    "print(getattr(build_meta, sys.argv[2])(sys.argv[3]))"
)
_LIMIT_S: Final = 600
_LINES_SHOWN: Final = 12


class WheelError(Exception):
    """The folder has no wheel. The message names the folder, the cause and the next step."""


def build(folder: Path, out: Path) -> Path:
    """Write the source archive and the wheel of a package folder to `out`, and return the wheel's path.

    Both have the date of SOURCE_DATE_EPOCH, or of the folder's last commit. Needs a package index, or the wheel of the build backend in
    pip's cache. Raises WheelError.
    """
    if not (folder / "pyproject.toml").is_file():
        raise WheelError(f"{folder} is not a package folder: it has no pyproject.toml. Pass a folder of packages/.")
    date = source_date(folder)
    with TemporaryDirectory(prefix="wheel-") as base:
        work = Path(base)
        backend = _install_backend(work / "backend")
        sources = _copied(folder, work / "sources")
        archive = _packed(_built(backend, "build_sdist", sources, work, date), work / "packed", date)
        with tarfile.open(archive) as packed:
            packed.extractall(work / "unpacked", filter="data")
        (unpacked,) = (work / "unpacked").iterdir()
        wheel = _built(backend, "build_wheel", unpacked, work, date)
        _check(folder, wheel)
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(archive, out / archive.name)
        return Path(shutil.copyfile(wheel, out / wheel.name))


def source_date(folder: Path) -> int:
    """Return the date of an archive's files, in seconds since 1970: SOURCE_DATE_EPOCH, else the last commit's, else 1980-01-01.

    Raises WheelError if the variable is not a whole number of at least 1980-01-01.
    """
    stated = os.environ.get("SOURCE_DATE_EPOCH")
    if stated is not None:
        if not stated.isdecimal() or int(stated) < _EARLIEST:
            raise WheelError(
                f"SOURCE_DATE_EPOCH is {stated!r}; it must be whole seconds since 1970, {_EARLIEST} (1980-01-01) or later. "
                "Unset it to use the date of the last commit."
            )
        return int(stated)
    committed = (git(folder, "log", "-1", "--format=%ct") or "").strip()
    return max(_EARLIEST, int(committed)) if committed else _EARLIEST


def files_of(folder: Path) -> set[str]:
    """Return the path in the wheel of each file that belongs to a package of the folder, tests excluded."""
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    homes: dict[str, str] = settings.get("package-dir", {})
    tops: list[str] = [name for name in settings["packages"] if "." not in name]
    return {
        (PurePosixPath(top) / path).as_posix()
        for top in tops
        for path in _installed(folder / homes.get(top, top), is_root=homes.get(top) == ".")
    }


def _installed(home: Path, *, is_root: bool) -> Iterator[PurePosixPath]:
    for path in home.rglob("*"):
        inside = PurePosixPath(path.relative_to(home).as_posix())
        left_out = any(PurePosixPath(part).match(pattern) for part in inside.parts for pattern in _LEFT_OUT)
        if path.is_file() and not left_out and not (is_root and inside.as_posix() in _OF_THE_FOLDER):
            yield inside


def _check(folder: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    missing = sorted(files_of(folder) - set(names))
    if missing:
        raise WheelError(
            f"{wheel.name} lacks {', '.join(missing)}. "
            f"Add the package or the pattern to [tool.setuptools] in {folder / 'pyproject.toml'}."
        )
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        raise WheelError(f"{wheel.name} has no LICENSE. Remove `license-files` from {folder / 'pyproject.toml'}.")


def _install_backend(into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    locked = ["--only-binary", ":all:", "--require-hashes", "--target", str(into), "--requirement", str(BACKEND)]
    _run([*command, *locked], into.parent, {}, f"The build backend of {BACKEND} was not installed")
    return into


def _copied(folder: Path, into: Path) -> Path:
    """Copy the folder with the project's license. Modes are set, because a checkout's depend on the user's umask."""
    shutil.copytree(folder, into, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    shutil.copyfile(LICENSE, into / LICENSE.name)
    for path in into.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return into


def _built(backend: Path, hook: str, sources: Path, work: Path, date: int) -> Path:
    """Call a hook of the build backend without the packages of this environment, and return the file that it made."""
    out = work / hook
    out.mkdir()
    command = [sys.executable, "-I", "-S", "-c", _BUILD, str(backend), hook, str(out)]
    _run(command, sources, {"SOURCE_DATE_EPOCH": str(date)}, f"{hook} failed for {sources.name}")
    (made,) = out.iterdir()
    return made


def _run(command: list[str], cwd: Path, variables: dict[str, str], failure: str) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES_SHOWN:])
        raise WheelError(f"{failure} (exit code {done.returncode}). The last lines:\n{last}")


def _packed(archive: Path, into: Path, date: int) -> Path:
    """Write a source archive again with sorted names, one date and no owner."""
    into.mkdir()
    made = into / archive.name
    with (
        tarfile.open(archive) as old,
        made.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=date) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.type, plain.mode, plain.mtime = member.size, member.type, member.mode, date
            new.addfile(plain, old.extractfile(member) if member.isfile() else None)
    return made
