"""The version, the notes and the repository of a release: the files that state them, and how to set the version.

All distributions have one version. Generated files repeat it, and `make docs` writes them.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from posixpath import join, normpath
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError

VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
"""X.Y.Z of semantic versioning. PyPI, npm and Go accept it unchanged; a pre-release is written differently by each."""
SCHEMA: Final = "packages/gcp-tpu/gcp_tpu_provider/schema.json"
_REPOSITORY: Final = r'^  "repository": "https://github.com/([^"]*)",$'
_TOML: Final = r'^version = "([^"]*)"$'
_PYTHON: Final = r'^VERSION(?:: Final)? = "([^"]*)"$'
_PINS: Final = r"^[a-z-]+==(.*)$"
_PAGE: Final = r"(?:gcp-tpu |-v?)(\d+\.\d+\.\d+)"
PLACES: Final[Mapping[str, str]] = {
    "gemma_serving/__init__.py": _PYTHON,
    SCHEMA: r'^  "version": "([^"]*)",$',
    "packages/gcp-tpu/gcp_tpu_provider/__init__.py": _PYTHON,
    "packages/gcp-tpu/docs/installation-configuration.md": _PAGE,
    "packages/loadtest/pyproject.toml": _TOML,
    "packages/localcloud/pyproject.toml": _TOML,
    "requirements/wheels.in": _PINS,
    "requirements/localcloud.in": _PINS,
}
"""Every handwritten place of the version, and how it is written there. The pattern's first group is the version."""
_HEADING: Final = re.compile(r"^## (\S+)(?: \((\d{4}-\d{2}-\d{2})\))?$", re.MULTILINE)
_RELATIVE: Final = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def _stated(root: Path, path: str, pattern: str) -> tuple[str, str]:
    """Return the text of a file, and what its lines of a pattern state. Raises ScriptError if no line does, or if they differ."""
    text = (root / path).read_text(encoding="utf-8")
    found = {match[1] for match in re.finditer(pattern, text, re.MULTILINE)}
    if len(found) != 1:
        raise ScriptError(f"{path} has {len(found)} values for {pattern!r}; one is expected. Correct the file.")
    return text, found.pop()


def the_version(root: Path) -> str:
    """Return the version of all distributions. Raises ScriptError if they differ."""
    stated = {path: _stated(root, path, pattern)[1] for path, pattern in PLACES.items()}
    if len({*stated.values()}) != 1:
        listed = ", ".join(f"{path}: {version}" for path, version in stated.items())
        raise ScriptError(
            f"The distributions have different versions ({listed}). Run `python -m dev.authors.release version X.Y.Z`."
        )
    return next(iter(stated.values()))


def set_version(root: Path, version: str) -> Sequence[str]:
    """Write the version to every place and return the changed paths. Writes nothing if a place is missing or the version is invalid."""
    if not VERSION.fullmatch(version):
        raise CommandRefusedError(
            f"{version!r} is not a version. A version is three numbers, X.Y.Z, such as 0.3.0, without a leading `v`."
        )
    changed: dict[str, str] = {}
    for path, pattern in PLACES.items():
        text, stated = _stated(root, path, pattern)
        if stated != version:
            changed[path] = re.sub(pattern, lambda line: line[0].replace(line[1], version), text, flags=re.MULTILINE)
    for path, text in changed.items():
        (root / path).write_text(text, encoding="utf-8")
    return list(changed)


def check_release(root: Path, tag: str, changelog: str) -> str:
    """Return the version that a tag names. Raises ScriptError unless it is the version of every place and of the newest released section."""
    version = the_version(root)
    newest = released(changelog)
    if tag != f"v{version}":
        raise ScriptError(
            f"The tag is {tag!r}, but the distributions have version {version}. Tag the commit `v{version}`."
        )
    if newest != version:
        raise ScriptError(
            f"The newest released section of CHANGELOG.md is {newest}, but the distributions have version {version}. "
            f"Write `## {version} (YYYY-MM-DD)`."
        )
    return version


def repository(root: Path) -> str:
    """Return OWNER/NAME of the repository that releases are published in."""
    return _stated(root, SCHEMA, _REPOSITORY)[1]


def _dated(changelog: str) -> Mapping[str, str]:
    """Return the text of each section with a date by its version, newest first."""
    words = _HEADING.split(changelog)[1:]
    sections = zip(words[::3], words[1::3], words[2::3], strict=True)
    return {version: text.strip() for version, date, text in sections if date}


def released(changelog: str) -> str:
    """Return the version of the newest section with a date. Raises ScriptError if none exists."""
    found = next(iter(_dated(changelog)), None)
    if found is None:
        raise ScriptError("CHANGELOG.md has no heading `## X.Y.Z (YYYY-MM-DD)`. Add the section of the release.")
    return found


def notes(changelog: str, version: str, repository: str) -> str:
    """Return the section of a version, with links to files of its tag, because a release page resolves no relative ones.

    Raises ScriptError if the version has no section with a date, or an empty one.
    """
    text = _dated(changelog).get(version)
    if not text:
        raise ScriptError(
            f"CHANGELOG.md has no section `## {version} (YYYY-MM-DD)` with text. Describe what users see."
        )
    return with_addresses(text, f"https://github.com/{repository}/blob/v{version}", "") + "\n"


def with_addresses(text: str, address: str, folder: str) -> str:
    """Return a page of a folder with its relative links below an address."""
    return _RELATIVE.sub(lambda link: f"]({address}/{normpath(join(folder, link[1]))})", text)
