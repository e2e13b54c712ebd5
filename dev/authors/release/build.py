"""Build every artefact of a release into one folder, and write SHA256SUMS. The same commit builds the same bytes."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dev.authors.release import plugins
from dev.authors.release.archives import ROOT, source_date, write_archive
from dev.authors.release.version import SCHEMA, repository, the_version, with_addresses
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.planning.settings.stored import FILE

PLATFORMS: Final = tuple(f"{system}-{machine}" for system in ("linux", "darwin") for machine in ("amd64", "arm64"))
"""Names under which `pulumi plugin install` searches an archive. The archives have sources, so all have the same bytes."""
DISTRIBUTIONS: Final = (ROOT, *(ROOT / "packages" / name for name in ("gcp-tpu", "localcloud", "loadtest")))
"""Folders of the distributions."""
_PRODUCT: Final = ("LICENSE", "README.md", "gemma_serving", "pyproject.toml", "requirements")
"""Files and folders of the root that are the product's distribution."""
BACKEND: Final = Path(__file__).with_name("backend.txt")
SUMS: Final = "SHA256SUMS"
"""In the format of `sha256sum --check`."""
_LIMIT_S: Final = 600
_NO_SOURCES: Final = shutil.ignore_patterns("__pycache__", "*.egg-info", FILE.name)


def _copied(package: Path, target: Path) -> Path:
    """Copy what a distribution has, of the root only the product, the files of its build's table and the settings' schema. Return the copy."""
    table = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["tool"].get("hatch")
    if table is None:
        return shutil.copytree(package, target, ignore=_NO_SOURCES)
    target.mkdir()
    for name in (*_PRODUCT, *table["build"]["targets"]["wheel"]["force-include"]):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (package / name).is_dir():
            shutil.copytree(package / name, target / name, ignore=_NO_SOURCES)
        else:
            shutil.copy2(package / name, target / name)
    # In a process of its own: the file names the modules that were loaded.
    store = [sys.executable, "-m", "dev.authors.stored_settings", str(target / FILE.relative_to(ROOT))]
    subprocess.run(store, cwd=ROOT, timeout=_LIMIT_S, check=True)
    return target


def build(out: Path) -> Sequence[Path]:
    """Write the artefacts to a new folder and return them. The checksums are written last, so a folder without them is not complete.

    Needs the package registries for build tools. Raises ScriptError.
    """
    if out.exists():
        raise CommandRefusedError(f"{out} exists. Pass a new folder, or delete it.")
    if not _uv().is_file():
        raise CommandRefusedError(f"{_uv()} is missing. Run `make setup`, then this command with `.venv/bin/python`.")
    out.mkdir(parents=True)
    _copy_plugin(out)
    for folder in DISTRIBUTIONS:
        build_distribution(folder, out)
    shutil.copyfile(ROOT / SCHEMA, out / f"gcp-tpu-v{the_version(ROOT)}-schema.json")
    write_sums(out)
    return sorted(out.iterdir())


def _uv() -> Path:
    return Path(sys.executable).with_name("uv")


def _copy_plugin(folder: Path) -> None:
    """Write the archive of the provider under the name of each platform."""
    archive = plugins.provider_archive(folder)
    for platform in PLATFORMS:
        shutil.copyfile(archive, folder / f"{archive.name.removesuffix('.tar.gz')}-{platform}.tar.gz")
    archive.unlink()


def build_distribution(package: Path, out: Path) -> None:
    """Write the wheel and the source archive of a package folder with `uv build` and the locked backend.

    The source archive is packed again, because setuptools gives its files the time of the build. Raises ScriptError.
    """
    date = source_date()
    with tempfile.TemporaryDirectory(prefix="distribution-") as base:
        sources = _copied(package, Path(base) / package.name)
        _write_addresses(sources)
        made = Path(base) / "made"
        uv = [str(_uv()), "build", "--quiet", "--no-config", "--no-create-gitignore"]
        locked = ["--build-constraint", str(BACKEND), "--require-hashes", "--python", sys.executable]
        done = subprocess.run(
            [*uv, *locked, "--out-dir", str(made), str(sources)],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(date)},
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise ScriptError(f"`uv build` of {package} ended with {done.returncode}. Its messages are above.")
        out.mkdir(parents=True, exist_ok=True)
        for wheel in made.glob("*.whl"):
            shutil.copyfile(wheel, out / wheel.name)
        for archive in made.glob("*.tar.gz"):
            _pack_again(archive, out, date)


def _write_addresses(sources: Path) -> None:
    """Write the repository's address into a copied distribution: its URLs, and the relative links of its page."""
    address = f"https://github.com/{repository(ROOT)}"
    folder = "" if (sources / "gemma_serving").is_dir() else f"packages/{sources.name}"
    files = f"{address}/blob/v{the_version(ROOT)}"
    page = sources / "README.md"
    page.write_text(with_addresses(page.read_text(encoding="utf-8"), files, folder), encoding="utf-8")
    urls = {"Repository": "", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}
    lines = ["[project.urls]", *(f'{name} = "{address}{path}"' for name, path in urls.items())]
    project = sources / "pyproject.toml"
    project.write_text("\n".join([project.read_text(encoding="utf-8"), *lines, ""]), encoding="utf-8")


def _pack_again(archive: Path, out: Path, date: int) -> None:
    with tarfile.open(archive) as opened:
        members = [(member.name, opened.extractfile(member)) for member in opened.getmembers()]
        files = {name: file.read() for name, file in members if file is not None}
    write_archive(out / archive.name, files, date)


def write_sums(folder: Path) -> None:
    """Write the checksum of each file of the folder."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
