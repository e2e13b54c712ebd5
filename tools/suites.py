"""Choose the test suites for `make test`, `.ci/run` and the jobs of a pull request.

`python -m tools.suites here` prints the suites of `make test`: the product's, and those of packages that differ from the main branch.
`git diff --name-only BASE... | python -m tools.suites product` prints the product's test folders that a change can break.
`git diff --name-only BASE... | python -m tools.suites packages` prints the packages whose own suites a change can break, as JSON.

Everything runs on the main branch and at night, so an error here costs a day and loses nothing.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tools.git import git

ROOT: Final = Path(__file__).resolve().parents[1]

BELOW: Final = {
    "contracts": (),
    "planning": ("contracts",),
    "vm_agent": ("contracts",),
    "cloud": ("contracts", "planning"),
    "engine": ("contracts",),
    "components": ("planning", "contracts", "vm_agent"),
    "stacks": ("components", "cloud", "planning", "contracts", "vm_agent"),
    "scripts": (
        "stacks",
        "components",
        "cloud",
        "engine",
        "planning",
        "contracts",
        "vm_agent",
        "gcp-tpu",
        "loadtest",
        "localcloud",
        "tools",
    ),
    "authors": (
        "scripts",
        "stacks",
        "components",
        "cloud",
        "engine",
        "planning",
        "contracts",
        "vm_agent",
        "gcp-tpu",
        "loadtest",
        "localcloud",
        "tools",
    ),
    "evals": (),
    "examples": (),
    "tools": ("localcloud",),
    "gcp-tpu": (),
    "loadtest": (),
    "localcloud": (),
}
"""Dependencies of each package: imports, started programs, and files read as text. A distribution in `packages/` has its folder's name and no dependencies."""

TESTED: Final = {
    "agreement": ("authors", "gcp-tpu", "loadtest", "localcloud", "stacks"),
    "authors": ("authors",),
    "cloud": ("cloud", "engine", "localcloud", "scripts"),
    "components": ("components", "gcp-tpu", "localcloud"),
    "contracts": ("contracts", "engine"),
    "engine": ("authors", "gcp-tpu", "localcloud", "scripts", "stacks", "tools"),
    "engine_room": ("engine", "scripts"),
    "evals": ("scripts",),
    "examples": ("evals", "examples"),
    "faults": ("gcp-tpu", "scripts", "stacks", "vm_agent"),
    "kills": ("gcp-tpu", "localcloud", "scripts", "stacks"),
    "nightly": ("gcp-tpu", "localcloud", "scripts", "stacks"),
    "planning": ("authors", "localcloud", "planning", "scripts", "stacks", "vm_agent"),
    "scripts": ("authors", "gcp-tpu", "localcloud", "scripts", "stacks"),
    "stacks": ("authors", "localcloud", "scripts", "stacks", "tools"),
    "tools": ("gcp-tpu", "localcloud", "scripts", "stacks", "tools"),
    "vm_agent": ("components", "localcloud", "planning", "vm_agent"),
}
"""Packages used by the tests of a folder of `tests/`. Their dependencies follow from `BELOW`."""

SHARED: Final = {
    "agreement": ("engine",),
    "cloud": ("scripts",),
    "contracts": ("scripts", "stacks"),
    "engine": ("agreement", "evals", "kills", "nightly", "scripts"),
    "engine_room": ("scripts",),
    "evals": ("engine", "scripts"),
    "kills": ("engine",),
    "planning": ("stacks",),
    "scripts": ("agreement", "contracts"),
    "stacks": ("nightly",),
    "tools": ("agreement", "engine", "scripts"),
    "vm_agent": ("engine",),
}
"""Folders of tests whose helpers other folders import."""

PAGES: Final = (
    "tests/agreement",
    "tests/authors",
    "tests/planning",
    "tests/scripts",
    "tests/stacks",
    "tests/tools",
)
"""Folders whose tests read pages. `tests/engine/test_readme.py` runs the commands of the README."""

EVERY_PACKAGE: Final = frozenset(
    {"conftest.py", "pyproject.toml", "requirements-dev.txt", "tests/suite.py", "tools/suites.py"}
)
"""Files that affect every package's suite."""


class SuiteError(ValueError):
    """A package does not exist. The message is for the user."""


def suites_of_packages(root: Path = ROOT) -> Mapping[str, str]:
    """Return the path of each package's tests, by the name of its folder."""
    found: dict[str, str] = {}
    for file in sorted((root / "packages").glob("*/pyproject.toml")):
        (tests,) = tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]["testpaths"]
        found[file.parent.name] = (file.parent / tests).relative_to(root).as_posix()
    return found


def packages(changed: Iterable[str], known: Iterable[str]) -> Sequence[str]:
    """Return the packages whose own suites these changed files can break, because they run no other code."""
    files = {PurePosixPath(name) for name in changed}
    if any(file.as_posix() in EVERY_PACKAGE for file in files):
        return sorted(known)
    return sorted({file.parts[1] for file in files if file.parts[0] == "packages" and len(file.parts) > 1} & {*known})


def suites(changed: Iterable[str]) -> Sequence[str]:
    """Return the paths below `tests/` that these changed files can break, sorted, or `["tests"]` if that is unknown."""
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
    room = path.relative_to(room).parts[0] if room == "packages" else room
    return {f"tests/{folder}" for folder, used in TESTED.items() if any(room in (each, *BELOW[each]) for each in used)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchChanges:
    """Files that differ from the main branch, including uncommitted changes and new files."""

    base: str
    """Description of the commit compared with."""
    files: tuple[str, ...]


def difference(root: Path = ROOT) -> BranchChanges | None:
    """Return the changes since this branch left `origin/main` or its tracked branch, or None if that is unknown."""
    for name in ("origin/main", "@{upstream}"):
        commit = git(root, "merge-base", "HEAD", name)
        if commit:
            changed = git(root, "diff", "--name-only", "-z", commit.strip())
            new = git(root, "ls-files", "--others", "--exclude-standard", "-z")
            if changed is None or new is None:
                return None
            shown = name if name == "origin/main" else "the branch that this one tracks"
            files = tuple(file for file in f"{changed}{new}".split("\0") if file)
            return BranchChanges(base=f"{shown} ({commit.strip()[:7]})", files=files)
    return None


def chosen(wanted: str, known: Iterable[str], found: BranchChanges | None) -> tuple[Sequence[str], str]:
    """Return the packages to test and a sentence with the reason, or an empty sentence if the caller chose.

    `wanted` is `all`, names separated by spaces, or empty for those that differ from the main branch.
    Raises SuiteError if a name is not a package.
    """
    everyone = sorted(known)
    if wanted and wanted != "all":
        strange = sorted(set(wanted.split()) - set(everyone))
        if strange:
            raise SuiteError(f"{', '.join(strange)}: no such package. Packages: {', '.join(everyone)}, or all.")
        return sorted(set(wanted.split())), ""
    if wanted == "all":
        return everyone, ""
    if found is None:
        return (
            everyone,
            "Running all packages' suites, because neither origin/main nor a tracked branch was found to compare with.",
        )
    run = packages(found.files, everyone)
    left = [f"packages/{name}" for name in everyone if name not in run]
    return run, (
        f"Skipping the suites of {' and '.join(left)}, unchanged since {found.base}. To run all, run `make test-packages`."
        if left
        else ""
    )


def _here(wanted: str, *, product: bool) -> int:
    known = suites_of_packages()
    try:
        run, sentence = chosen(wanted, known, None if wanted else difference())
    except SuiteError as error:
        print(error, file=sys.stderr)
        return 2
    if sentence:
        print(sentence, file=sys.stderr)
    print(" ".join([*(["tests"] if product else []), *(known[name] for name in run)]))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the paths or packages. Changed files are read from standard input."""
    parser = argparse.ArgumentParser(prog="python -m tools.suites", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    here = commands.add_parser("here", help="Print the paths that `make test` runs.")
    here.add_argument("--packages", default="", help="`all` or package names. Default: those that differ.")
    here.add_argument("--no-product", action="store_true", help="Skip the product's suite.")
    commands.add_parser("product", help="Print the product's test folders for the changed files.")
    commands.add_parser("packages", help="Print the packages for the changed files, as a JSON array.")
    options = parser.parse_args(arguments)
    if options.command == "here":
        return _here(options.packages, product=not options.no_product)
    changed = [line.strip() for line in sys.stdin if line.strip()]
    if options.command == "product":
        print(" ".join(suites(changed)))
    else:
        known = suites_of_packages()
        print(json.dumps(packages(changed, known) if changed else sorted(known)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
