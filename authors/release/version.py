"""The version and the repository of a release: the files that state them, and how to set them.

All distributions have one version. Generated files repeat it, and `make docs` writes them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from authors.release.changelog import released
from contracts.errors import CommandRefusedError, ScriptError
from tools.git import git

COMMAND: Final = "python -m authors.release"
VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
"""X.Y.Z of semantic versioning. PyPI, npm and Go accept it unchanged; a pre-release is written differently by each."""
UNSET_OWNER: Final = "owner--unset"
"""Owner while the repository is not set. It can never be an account, because GitHub allows no two hyphens in a row."""
PUBLICATION: Final = "packages/gcp-tpu/gcp_tpu_provider/publication.py"
_REPOSITORY: Final = re.compile(r'^REPOSITORY: Final = "([^"]*)"$', re.MULTILINE)
_OWNER_AND_NAME: Final = re.compile(r"(?=.{1,39}/)[A-Za-z0-9]+(-[A-Za-z0-9]+)*/[A-Za-z0-9._-]{1,100}")
_NAMED_IN: Final = ("README.md", "SECURITY.md", "docs", "packages")
"""Files and folders that users see, where the repository is replaced. Tests and pages for authors are left out."""
_TEXT: Final = frozenset({".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class VersionPlace:
    """A file that states the version, and the line in it. The pattern's first group is the version."""

    path: str
    pattern: str

    def read(self, root: Path) -> str:
        """Return the stated version. Raises ScriptError if the file or the line is missing."""
        file = root / self.path
        found = re.findall(self.pattern, file.read_text(encoding="utf-8"), re.MULTILINE) if file.is_file() else []
        if len(found) != 1:
            raise ScriptError(
                f"{self.path} has {len(found)} lines that match {self.pattern!r}; one is expected. "
                "Correct the file, or PLACES in authors/release/version.py."
            )
        return found[0]

    def replaced(self, root: Path, version: str) -> str:
        """Return the text of the file with another version."""
        self.read(root)
        text = (root / self.path).read_text(encoding="utf-8")
        (found,) = re.finditer(self.pattern, text, re.MULTILINE)
        return f"{text[: found.start(1)]}{version}{text[found.end(1) :]}"


_TOML: Final = r'^version = "([^"]*)"$'
_PYTHON: Final = r'^VERSION(?:: Final)? = "([^"]*)"$'

PLACES: Final[Sequence[VersionPlace]] = (
    VersionPlace("pyproject.toml", _TOML),
    VersionPlace("packages/gcp-tpu/gcp_tpu_provider/__init__.py", _PYTHON),
    VersionPlace("packages/loadtest/pyproject.toml", _TOML),
    VersionPlace("packages/localcloud/pyproject.toml", _TOML),
)
"""Every handwritten place of the version, and the order in which they are named."""


def versions(root: Path) -> Mapping[str, str]:
    """Return the version that each place states. Raises ScriptError if one has none."""
    return {place.path: place.read(root) for place in PLACES}


def the_version(root: Path) -> str:
    """Return the version of all distributions. Raises ScriptError if they differ."""
    stated = versions(root)
    if len({*stated.values()}) != 1:
        listed = ", ".join(f"{path}: {version}" for path, version in stated.items())
        raise ScriptError(f"The distributions have different versions ({listed}). Run `{COMMAND} version X.Y.Z`.")
    return next(iter(stated.values()))


def set_version(root: Path, version: str) -> Sequence[str]:
    """Write the version to every place and return the changed paths. Writes nothing if a place is missing or the version is invalid."""
    number(version)
    changed = {place.path: place.replaced(root, version) for place in PLACES if place.read(root) != version}
    _write(root, changed)
    return list(changed)


def number(version: str) -> tuple[int, int, int]:
    """Return the three numbers of a version. Raises CommandRefusedError for anything but X.Y.Z."""
    found = VERSION.fullmatch(version)
    if found is None:
        raise CommandRefusedError(
            f"{version!r} is not a version. A version is three numbers, X.Y.Z, such as 0.3.0, without a leading `v`."
        )
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch)


def check_release(root: Path, tag: str, changelog: str) -> str:
    """Return the version that a tag names. Raises ScriptError unless it is the version of every place and of the newest released section."""
    version = the_version(root)
    newest = released(changelog)
    number(newest.version)
    if tag != f"v{version}":
        raise ScriptError(
            f"The tag is {tag!r}, but the distributions have version {version}. Tag the commit `v{version}`."
        )
    if newest.version != version:
        raise ScriptError(
            f"The newest released section of CHANGELOG.md is {newest.version}, but the distributions have version {version}. "
            f"Write `## {version} (YYYY-MM-DD)`."
        )
    return version


def previous_tag(root: Path, *, before: str = "HEAD^") -> str | None:
    """Return the newest tag vX.Y.Z that a commit contains, or None if there is none."""
    found = git(root, "tag", "--list", "v*", "--merged", before)
    tags = [tag for tag in (found or "").split() if VERSION.fullmatch(tag[1:])]
    return max(tags, key=lambda tag: number(tag[1:]), default=None)


def repository(root: Path) -> str:
    """Return OWNER/NAME of the repository that releases are published in."""
    found = _REPOSITORY.findall((root / PUBLICATION).read_text(encoding="utf-8"))
    if len(found) != 1:
        raise ScriptError(f"{PUBLICATION} has {len(found)} lines `REPOSITORY: Final = ...`; one is expected.")
    return found[0]


def is_owner_set(root: Path) -> bool:
    """Return whether the owner of the repository is set."""
    return repository(root).partition("/")[0] != UNSET_OWNER


def require_owner(root: Path) -> None:
    """Raise ScriptError if the owner of the repository is not set."""
    if not is_owner_set(root):
        raise ScriptError(
            f"The repository is {repository(root)}, so nothing may be published. Run `{COMMAND} owner OWNER/NAME` and `make docs`, "
            "and commit the result."
        )


def set_owner(root: Path, named: str) -> Sequence[str]:
    """Write OWNER/NAME in place of the present repository and return the changed paths. Raises CommandRefusedError for an invalid name."""
    if not _OWNER_AND_NAME.fullmatch(named) and named != f"{UNSET_OWNER}/gemma-serving":
        raise CommandRefusedError(
            f"{named!r} is not a GitHub repository. Pass OWNER/NAME: an owner has letters, digits and single hyphens, 39 at most; "
            "a name has letters, digits, `.`, `_` and `-`."
        )
    former = repository(root)
    if former == named:
        return []
    pattern = re.compile(rf"(?<![\w.-]){re.escape(former)}(?![\w-])")
    texts = {path: (root / path).read_text(encoding="utf-8") for path in _naming(root)}
    changed = {path: pattern.sub(named, text) for path, text in texts.items() if pattern.search(text)}
    _write(root, changed)
    return list(changed)


def _naming(root: Path) -> Sequence[str]:
    """Return the paths of text files that users see."""
    found = [path for name in _NAMED_IN for path in (root / name, *(root / name).rglob("*"))]
    inside = [path.relative_to(root) for path in found if path.is_file() and path.suffix in _TEXT]
    return sorted(
        path.as_posix()
        for path in inside
        if not {"authors", "tests", "node_modules", "build", "dist"} & {*path.parts}
        and not any(part[0] == "." for part in path.parts)
    )


def _write(root: Path, changed: Mapping[str, str]) -> None:
    for path, text in changed.items():
        (root / path).write_text(text, encoding="utf-8")
