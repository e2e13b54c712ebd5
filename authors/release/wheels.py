"""Build the wheel and the source archive of a package folder: the same bytes from the same files.

The folder is copied without its tests, and the wheel is built from the source archive, so nothing outside the archive can be in the wheel.
The build backend is locked by hash in backend.txt. A wheel without a file of its package is refused.
"""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final

from contracts.errors import ScriptError
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
"""Files next to the modules that describe the distribution and are not installed."""
_LIMIT_S: Final = 600
_LINES_SHOWN: Final = 12


def build(folder: Path, out: Path) -> Path:
    """Write the source archive and the wheel of a package folder to `out`, and return the wheel's path.

    Needs a package index, or the build backend in uv's cache. Raises ScriptError.
    """
    date = source_date()
    with TemporaryDirectory(prefix="wheel-") as base:
        work = Path(base)
        sources = shutil.copytree(folder, work / "sources", ignore=shutil.ignore_patterns(*_LEFT_OUT))
        shutil.copyfile(LICENSE, sources / LICENSE.name)
        made = _built(sources, "--sdist", work / "made", date)
        with tarfile.open(made) as old:
            opened = [(member.name, old.extractfile(member)) for member in old.getmembers()]
            files = {name: file.read() for name, file in opened if file is not None}
        archive = write_archive(work / "packed" / made.name, files, date)
        wheel = _built(archive, "--wheel", work / "wheel", date)
        _check(folder, wheel)
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(archive, out / archive.name)
        return Path(shutil.copyfile(wheel, out / wheel.name))


def source_date() -> int:
    """Return the date of an archive's files, in seconds since 1970: SOURCE_DATE_EPOCH, else the last commit's, else 1980-01-01."""
    stated = os.environ.get("SOURCE_DATE_EPOCH") or git(ROOT, "log", "-1", "--format=%ct") or "0"
    return max(_EARLIEST, int(stated))


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
        raise ScriptError(
            f"{wheel.name} lacks {', '.join(missing)}. "
            f"Add the package or the pattern to [tool.setuptools] in {folder / 'pyproject.toml'}."
        )
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        raise ScriptError(f"{wheel.name} has no LICENSE. Remove `license-files` from {folder / 'pyproject.toml'}.")


def _built(source: Path, kind: str, out: Path, date: int) -> Path:
    """Build a distribution with the locked backend alone, and return its file. Raises ScriptError."""
    uv = [str(Path(sys.executable).with_name("uv")), "build", "--no-config", "--no-create-gitignore"]
    locked = ["--build-constraint", str(BACKEND), "--require-hashes", "--python", sys.executable]
    done = subprocess.run(
        [*uv, *locked, kind, "--out-dir", str(out), str(source)],
        cwd=source.parent,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(date)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES_SHOWN:])
        raise ScriptError(f"{source.name} was not built (exit code {done.returncode}). The last lines:\n{last}")
    (made,) = out.iterdir()
    return made


def write_archive(path: Path, files: Mapping[str, bytes], date: int) -> Path:
    """Write a tar.gz with sorted names, one date, one mode and no owner."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=date) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), date
            archive.addfile(entry, io.BytesIO(content))
    return path
