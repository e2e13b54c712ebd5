"""Build every artefact of a release into one folder, and write SHA256SUMS and manifest.json. The same commit builds the same bytes."""

import hashlib
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from authors.release import plugins, rehearsal, wheels
from authors.release.version import SCHEMA, repository, the_version
from authors.release.wheels import ROOT
from contracts.errors import CommandRefusedError, ScriptError

PLATFORMS: Final = tuple(f"{system}-{machine}" for system in ("linux", "darwin") for machine in ("amd64", "arm64"))
"""Names under which `pulumi plugin install` searches an archive. The archives have sources, so all have the same bytes."""
WHEELS: Final = ("gcp-tpu", "localcloud", "loadtest")
"""Folders of packages/ that are distributions."""
REHEARSAL: Final = "rehearse.py"
SUMS: Final = "SHA256SUMS"
"""In the format of `sha256sum --check`."""
MANIFEST: Final = "manifest.json"
_FORBIDDEN: Final = frozenset({"__pycache__", ".git", ".venv", ".env", "tests"})
"""Names of files and folders that no archive may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """One file of a release. `bytes` is its size."""

    name: str
    kind: str
    version: str
    sha256: str
    bytes: int


def build(out: Path) -> Sequence[Artefact]:
    """Write the artefacts to a new or empty folder and return them. On failure the folder is not created.

    Needs the package registries for build tools. Raises ScriptError.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CommandRefusedError(f"{out} is not empty. Pass a new folder, or delete it.")
    version = the_version(ROOT)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".release-") as base:
        folder = Path(base) / "dist"
        folder.mkdir()
        artefacts = [describe_artefact(made, kind, version) for made, kind in _made(folder, version)]
        write_sums(folder, artefacts, repository=repository(ROOT))
        folder.chmod(0o755)
        if out.exists():
            out.rmdir()
        folder.rename(out)
    return sorted(artefacts, key=lambda artefact: artefact.name)


def _made(folder: Path, version: str) -> Iterator[tuple[Path, str]]:
    """Make all files in the folder, and yield each with its kind."""
    archive = plugins.provider_archive(folder)
    for platform in PLATFORMS:
        name = f"{archive.name.removesuffix('.tar.gz')}-{platform}.tar.gz"
        yield Path(shutil.copyfile(archive, folder / name)), "plugin"
    archive.unlink()
    for name in WHEELS:
        wheel = wheels.build(ROOT / "packages" / name, folder)
        yield wheel, "wheel"
        yield folder / f"{wheel.name.partition('-')[0]}-{version}.tar.gz", "sdist"
    yield Path(shutil.copyfile(ROOT / SCHEMA, folder / f"gcp-tpu-v{version}-schema.json")), "schema"
    yield Path(shutil.copyfile(rehearsal.__file__, folder / REHEARSAL)), "script"


def describe_artefact(file: Path, kind: str, version: str) -> Artefact:
    """Return the description of a file. Raises ScriptError if it has what no release ships, or another version."""
    file.chmod(0o644)
    names: Sequence[str] = ()
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    elif file.suffix == ".gz":
        with tarfile.open(file) as archive:
            names = archive.getnames()
    wrong = [name for name in names if _FORBIDDEN.intersection(PurePosixPath(name).parts)]
    if wrong:
        raise ScriptError(f"{file.name} has {wrong[0]}, which no release ships. Exclude it in its maker.")
    if version not in file.name and kind != "script":
        raise ScriptError(f"{file.name} does not have the version {version} in its name.")
    return Artefact(name=file.name, kind=kind, version=version, sha256=_digest(file), bytes=file.stat().st_size)


def write_sums(folder: Path, artefacts: Sequence[Artefact], *, repository: str) -> None:
    """Write both lists, with the artefacts in the order of their names."""
    ordered = sorted(artefacts, key=lambda artefact: artefact.name)
    manifest = {"schema_version": 1, "repository": repository, "artefacts": [asdict(artefact) for artefact in ordered]}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    names = sorted([*(artefact.name for artefact in ordered), MANIFEST])
    text = "".join(f"{_digest(folder / name)}  {name}\n" for name in names)
    (folder / SUMS).write_text(text, encoding="utf-8")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
