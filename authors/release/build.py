"""Build every artefact of a release into one folder, check each, and write SHA256SUMS and manifest.json.

The same commit gives the same bytes.
"""

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Final

from authors.release import checksums, plugins, rehearsal, wheels
from authors.release.archives import commit_date
from authors.release.checksums import Artefact
from authors.release.schema_changes import SCHEMAS
from authors.release.version import repository, the_version
from contracts.errors import CommandRefusedError, ScriptError

ROOT: Final = Path(__file__).resolve().parents[2]
PLATFORMS: Final = tuple(f"{system}-{machine}" for system in ("linux", "darwin") for machine in ("amd64", "arm64"))
"""Names under which `pulumi plugin install` looks for an archive. The archives have sources, so all have the same bytes."""
WHEELS: Final = ("gcp-tpu", "localcloud", "loadtest")
"""Folders of packages/ that are distributions."""
REHEARSAL: Final = "rehearse.py"
_FORBIDDEN: Final = ("__pycache__", ".git", ".venv", ".env", "tests")
"""Names of files and folders that no archive may have."""

Maker = Callable[[Path, str], Iterator[tuple[Path, str]]]
"""Writes files to a folder, for a version, and yields each with its kind."""


def build(out: Path) -> Sequence[Artefact]:
    """Write the artefacts to a new or empty folder and return them. On failure the folder is not created.

    Needs the package registries for build tools. Raises ScriptError.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CommandRefusedError(f"{out} is not empty. Pass a new folder, or delete it.")
    version = the_version(ROOT)
    try:
        return _built(out, version)
    except wheels.WheelError as error:
        raise ScriptError(str(error)) from error


def _built(out: Path, version: str) -> Sequence[Artefact]:
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".release-") as base, commit_date(ROOT) as date:
        folder = Path(base) / "dist"
        folder.mkdir()
        artefacts = [_described(made, kind, version, date) for make in MAKERS for made, kind in make(folder, version)]
        unknown = {path.name for path in folder.iterdir()} - {artefact.name for artefact in artefacts}
        if unknown:
            raise ScriptError(
                f"{', '.join(sorted(unknown))}: made, but listed by no maker in authors/release/build.py."
            )
        checksums.write(folder, artefacts, repository=repository(ROOT))
        folder.chmod(0o755)
        if out.exists():
            out.rmdir()
        folder.rename(out)
    return sorted(artefacts, key=lambda artefact: artefact.name)


def _plugins(folder: Path, version: str) -> Iterator[tuple[Path, str]]:
    """Make the archive of the provider under every name that the engine asks for."""
    del version
    with tempfile.TemporaryDirectory() as base:
        archive = plugins.provider_archive(Path(base))
        for platform in PLATFORMS:
            name = f"{archive.name.removesuffix('.tar.gz')}-{platform}.tar.gz"
            yield Path(shutil.copyfile(archive, folder / name)), "plugin"


def _wheels(folder: Path, version: str) -> Iterator[tuple[Path, str]]:
    """Make the wheel and the source archive of each distribution."""
    for name in WHEELS:
        wheel = wheels.build(ROOT / "packages" / name, folder)
        yield wheel, "wheel"
        yield folder / f"{wheel.name.partition('-')[0]}-{version}.tar.gz", "sdist"


def _schemas(folder: Path, version: str) -> Iterator[tuple[Path, str]]:
    """Copy the schema, which generators of SDKs and `schema-diff` read."""
    for package, path in SCHEMAS.items():
        yield Path(shutil.copyfile(ROOT / path, folder / f"{package}-v{version}-schema.json")), "schema"


def _rehearsal(folder: Path, version: str) -> Iterator[tuple[Path, str]]:
    del version
    yield Path(shutil.copyfile(rehearsal.__file__, folder / REHEARSAL)), "script"


MAKERS: Final[Sequence[Maker]] = (_plugins, _wheels, _schemas, _rehearsal)
"""Makers of all artefacts."""


def _described(file: Path, kind: str, version: str, date: int) -> Artefact:
    """Check a file by its format, and return its description."""
    file.chmod(0o644)
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            (path,) = [name for name in names if name.endswith(".dist-info/METADATA")]
            _check_metadata(file, archive.read(path).decode(), version)
    elif file.suffix == ".gz":
        with tarfile.open(file) as archive:
            names = [member.name for member in archive.getmembers()]
            _check_members(file, archive.getmembers(), date)
            if kind == "sdist":
                content = archive.extractfile(f"{names[0].partition('/')[0]}/PKG-INFO")
                assert content is not None  # noqa: S101 - extractfile returns None for folders alone
                _check_metadata(file, content.read().decode(), version)
    else:
        names = []
    wrong = [name for name in names if {*_FORBIDDEN} & {*PurePosixPath(name).parts}]
    if wrong:
        raise ScriptError(f"{file.name} has {wrong[0]}, which no release ships. Exclude it in its maker.")
    if version not in file.name and kind != "script":
        raise ScriptError(f"{file.name} does not have the version {version} in its name.")
    return checksums.describe(file, kind, version)


def _check_members(file: Path, members: Sequence[tarfile.TarInfo], date: int) -> None:
    for member in members:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise ScriptError(f"{file.name} has {member.name}, which is not a file inside the archive.")
        if member.uid or member.gid or member.uname or member.gname:
            raise ScriptError(f"{file.name} names the owner of {member.name}, so its bytes depend on the machine.")
        if member.mtime != date:
            raise ScriptError(f"{file.name} has {member.name} with the date {member.mtime}, not the commit's, {date}.")


def _check_metadata(file: Path, text: str, version: str) -> None:
    """Check the metadata of a distribution as PyPI does: its form, and the fields that a page of PyPI shows."""
    from packaging.metadata import InvalidMetadata, Metadata  # noqa: PLC0415 - of the tools, not of a deployment
    from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename  # noqa: PLC0415

    try:
        found = Metadata.from_email(text, validate=True)
    except* InvalidMetadata as group:
        raise ScriptError(f"{file.name} has invalid metadata: {'; '.join(map(str, group.exceptions))}.") from group
    is_wheel = file.suffix == ".whl"
    named = parse_wheel_filename(file.name)[:2] if is_wheel else parse_sdist_filename(file.name)
    if named != (canonicalize_name(found.name), found.version) or str(found.version) != version:
        raise ScriptError(f"{file.name} has the metadata of {found.name} {found.version}; {version} is expected.")
    fields = HeaderParser().parsestr(text)
    missing = [
        name
        for name in ("Summary", "License-Expression", "Requires-Python", "Description-Content-Type", "Project-URL")
        if not fields.get(name)
    ]
    if missing or not found.description:
        raise ScriptError(f"{file.name} lacks {', '.join(missing or ['the description'])} in its metadata.")
