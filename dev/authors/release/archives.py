"""Archives whose bytes follow from their files and the commit's date."""

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
_EARLIEST: Final = 315_532_800
"""1980-01-01, the first date that a zip archive can state."""


def source_date() -> int:
    """Return the date of an archive's files, in seconds since 1970: SOURCE_DATE_EPOCH, else the last commit's, else 1980-01-01."""
    stated = os.environ.get("SOURCE_DATE_EPOCH") or _committed() or "0"
    return max(_EARLIEST, int(stated))


def _committed() -> str:
    """Return the date of the last commit; empty without git or a history."""
    try:
        return subprocess.run(
            ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return ""


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
