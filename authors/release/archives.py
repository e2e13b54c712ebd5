"""Archives whose bytes follow from their files alone, the date of their entries, and the parts that every plugin's archive has."""

import gzip
import io
import os
import tarfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from authors.release.wheels import LICENSE, ROOT, source_date

SOURCE_DATE: Final = "SOURCE_DATE_EPOCH"
PLUGIN: Final = """runtime:
  name: python
  options:
    toolchain: pip
    virtualenv: venv
"""
"""PulumiPlugin.yaml of an installed plugin. The language host creates the environment `venv` beside it."""


@contextmanager
def commit_date(root: Path) -> Generator[int]:
    """Give every archive the date of the checkout's last commit, in seconds since 1970, unless SOURCE_DATE_EPOCH is set."""
    before = os.environ.get(SOURCE_DATE)
    date = source_date(root)
    os.environ[SOURCE_DATE] = str(date)
    try:
        yield date
    finally:
        if before is None:
            del os.environ[SOURCE_DATE]


def packed(files: Mapping[str, bytes], date: int) -> bytes:
    """Return a tar.gz of these files, which belong to root and have one date. Programs of the files stay executable by their `#!`."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=date) as compressed,
        tarfile.open(mode="w", fileobj=compressed, format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), date
            entry.mode = 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def with_plugin_parts(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the files of a plugin's archive, sorted: its own, the license and PulumiPlugin.yaml."""
    return dict(sorted({**files, "LICENSE": LICENSE.read_bytes(), "PulumiPlugin.yaml": PLUGIN.encode()}.items()))


def plugin_archive(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write the archive of a plugin and return its path. The same commit gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(files, source_date(ROOT)))
    return path
