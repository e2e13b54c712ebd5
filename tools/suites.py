"""`git diff --name-only BASE... | python -m tools.suites`: print the folders of tests that a change can break, for `make test TESTS=...`.

A pull request runs these only. Everything runs on the main branch and at night, so that a wrong row here costs a day and loses nothing.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final

BELOW: Final = {
    "contracts": (),
    "planning": ("contracts",),
    "vm_agent": ("contracts",),
    "provider": (),
    "localcloud": (),
    "tools": (),
    "components": ("planning", "contracts", "vm_agent"),
    "stacks": ("components", "planning", "contracts", "vm_agent"),
    "scripts": (
        "stacks",
        "components",
        "planning",
        "contracts",
        "vm_agent",
        "provider",
        "localcloud",
        "tools",
        "benchmarks",
    ),
    "benchmarks": ("scripts", "stacks", "components", "planning", "contracts", "vm_agent", "provider", "localcloud"),
}
"""What each room needs: what it imports, starts, or reads as text."""

TESTED: Final = {
    "contracts": ("contracts",),
    "vm_agent": ("vm_agent", "components"),
    "components": ("components", "provider", "localcloud"),
    "provider": ("provider", "components", "localcloud", "vm_agent", "benchmarks", "tools"),
    "planning": ("planning", "scripts", "stacks", "benchmarks", "localcloud", "vm_agent"),
    "stacks": ("stacks", "scripts", "localcloud"),
    "localcloud": ("localcloud", "scripts", "stacks"),
    "tools": ("tools", "scripts", "stacks"),
    "scripts": ("scripts", "stacks", "localcloud", "provider", "benchmarks"),
    "engine": ("scripts", "stacks", "localcloud", "provider", "tools", "benchmarks"),
    "evals": ("scripts",),
    "kills": ("scripts", "stacks", "localcloud", "provider"),
}
"""The rooms that the tests of a folder of `tests/` use. What those rooms need follows from `BELOW`."""

SHARED: Final = {
    "localcloud": ("scripts", "stacks", "engine", "provider", "tools"),
    "engine": ("scripts", "evals", "kills", "provider"),
    "planning": ("stacks",),
    "tools": ("localcloud", "scripts", "engine"),
    "vm_agent": ("engine",),
    "evals": ("scripts", "engine"),
    "kills": ("engine",),
}
"""Folders of tests whose helpers other folders import."""

PAGES: Final = ("tests/scripts", "tests/provider", "tests/tools", "tests/localcloud", "tests/planning", "tests/stacks")
"""Folders whose tests read pages; `tests/engine/test_readme.py` runs the commands of the README."""


def suites(changed: Iterable[str]) -> Sequence[str]:
    """Return the paths below `tests/` that these changed files can break, sorted; `["tests"]` if that cannot be told."""
    found: set[str] = set()
    for name in changed:
        here = _suites_of(PurePosixPath(name))
        if not here:
            return ["tests"]
        found |= here
    top = {"tests/engine/test_readme.py"} if "tests/engine" not in found else set[str]()
    return sorted(found | top | {"tests/test_*.py"}) if found else ["tests"]


def _suites_of(path: PurePosixPath) -> set[str]:
    room = path.parts[0] if len(path.parts) > 1 else ""
    if path.suffix == ".md" and room in {"", "docs"}:
        return set(PAGES)
    if room == "tests":
        folder = path.parts[1] if len(path.parts) > 2 else ""  # noqa: PLR2004 - tests/FOLDER/FILE
        return {f"tests/{each}" for each in (folder, *SHARED.get(folder, ()))} if folder in TESTED else set()
    return {f"tests/{folder}" for folder, used in TESTED.items() if any(room in (each, *BELOW[each]) for each in used)}


def main() -> int:
    """Print the paths for the changed files on standard input."""
    print(" ".join(suites(line.strip() for line in sys.stdin if line.strip())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
