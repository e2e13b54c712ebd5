"""Release notes of a version: its section of CHANGELOG.md."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from contracts.errors import ScriptError

_HEADING: Final = re.compile(r"^## (?P<version>\S+)(?: \((?P<date>\d{4}-\d{2}-\d{2})\))?$", re.MULTILINE)
_RELATIVE: Final = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One version's section. `date` is empty until its release, as is that of `Unreleased`."""

    version: str
    date: str
    text: str


def sections(changelog: str) -> Sequence[Section]:
    """Return the sections in their order, newest first."""
    found = list(_HEADING.finditer(changelog))
    ends = [match.start() for match in found[1:]] + [len(changelog)]
    return [
        Section(version=match["version"], date=match["date"] or "", text=changelog[match.end() : end].strip())
        for match, end in zip(found, ends, strict=True)
    ]


def released(changelog: str) -> Section:
    """Return the newest section with a date. Raises ScriptError if there is none."""
    for section in sections(changelog):
        if section.date:
            return section
    raise ScriptError("CHANGELOG.md has no heading `## X.Y.Z (YYYY-MM-DD)`. Add the section of the release.")


def notes(changelog: str, version: str, repository: str) -> str:
    """Return the release notes of a version, with links to files of its tag, because a release page resolves no relative ones.

    Raises ScriptError if the version has no section, an empty one, or one without a date.
    """
    known = {section.version: section for section in sections(changelog)}
    section = known.get(version)
    if section is None:
        raise ScriptError(
            f"CHANGELOG.md has no section for {version}. Sections: {', '.join(known)}. Add `## {version} (YYYY-MM-DD)`."
        )
    if not section.date:
        raise ScriptError(f"The section {version} of CHANGELOG.md has no date. Write `## {version} (YYYY-MM-DD)`.")
    if not section.text:
        raise ScriptError(f"The section {version} of CHANGELOG.md is empty. Describe what users see.")
    return _RELATIVE.sub(rf"](https://github.com/{repository}/blob/v{version}/\1)", section.text) + "\n"
