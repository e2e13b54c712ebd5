"""Choose the test suites for `make test`, `.ci/run` and the jobs of a pull request.

`python -m tools.suites here` prints the suites of `make test`: the product's, and the suites of packages that differ from the main branch.
`git diff --name-only BASE... | python -m tools.suites product` prints the product's tests that a change can break: folders, or files where
only commands of `scripts/` changed.
`git diff --name-only BASE... | python -m tools.suites packages` prints the packages whose own suites a change can break, as JSON.

Everything runs on the main branch and at night, so an error here costs a day and loses nothing.
"""

import argparse
import ast
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from tools.git import git

ROOT: Final = Path(__file__).resolve().parents[1]

_OF_COMMANDS: Final = tuple(
    "stacks components cloud engine planning contracts tpu_compiler vm_agent gcp-tpu loadtest localcloud tools".split()  # noqa: SIM905 - a line, not twelve
)
BELOW: Final = {
    "contracts": (),
    "planning": ("contracts",),
    "vm_agent": ("contracts",),
    "tpu_compiler": ("contracts", "planning"),
    "cloud": ("contracts", "planning"),
    "engine": ("contracts",),
    "components": ("planning", "contracts", "vm_agent"),
    "stacks": ("components", "cloud", "planning", "contracts", "vm_agent"),
    "scripts": _OF_COMMANDS,
    "authors": ("scripts", *_OF_COMMANDS),
    "evals": (),
    "examples": ("components", "planning", "contracts", "vm_agent"),
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
    "engine": ("authors", "examples", "gcp-tpu", "localcloud", "scripts", "stacks", "tools"),
    "engine_package": ("engine", "scripts"),
    "examples": ("evals", "examples"),
    "faults": ("gcp-tpu", "scripts", "stacks", "vm_agent"),
    "kills": ("gcp-tpu", "localcloud", "scripts", "stacks"),
    "nightly": ("authors", "gcp-tpu", "localcloud", "scripts", "stacks"),
    "planning": ("authors", "localcloud", "planning", "scripts", "stacks", "vm_agent"),
    "scripts": ("authors", "gcp-tpu", "localcloud", "scripts", "stacks"),
    "stacks": ("authors", "localcloud", "scripts", "stacks", "tools"),
    "tools": ("gcp-tpu", "localcloud", "scripts", "stacks", "tools"),
    "tpu_compiler": ("planning", "tools", "tpu_compiler"),
    "vm_agent": ("components", "localcloud", "planning", "vm_agent"),
}
"""Packages used by the tests of a folder of `tests/`. Their dependencies follow from `BELOW`."""

READS_PAGES: Final = re.compile(r'\.md"|"docs"|"docs/')
"""Tests and tools that read pages. `tests/engine/test_readme.py` runs the commands of the README."""

EVERY_PACKAGE: Final = frozenset(
    {"conftest.py", "pyproject.toml", "requirements/dev.txt", "tests/suite.py", "tools/suites.py"}
)
"""Files that affect every package's suite."""


SHARED_COMMANDS: Final = frozenset({"cli", "gemma"})
"""Folders of `scripts/` that every command runs through."""

READS_CODE: Final = re.compile(r'"ls-files"|\bROOT\b.*\.rglob|"scripts"|\ball_commands\b|\bENTRIES\b')
"""Tests and tools that read the code as text, or list all commands: the project's rules."""

STARTS_COMMAND: Final = re.compile(r'(?:scripts[./]|script\(\s*"|gemma )(\w+)')
"""A command that a text starts, or whose modules it names."""


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
    files = {PurePosixPath(name) for name in changed}
    commands = {file: _command_of(file) for file in files}
    found = set(command_tests({name for name in commands.values() if name})) if any(commands.values()) else set[str]()
    for file in sorted(file for file, command in commands.items() if not command):
        here = _suites_of(file)
        if not here:
            return ["tests"]
        found |= here
    found |= {
        file.as_posix()
        for file in files
        if file.parts[0] == "tests" and file.match("test_*.py") and (ROOT / file).is_file()
    }
    if not found:
        return ["tests"]
    found = {path for path in found if not path.startswith("tests/test_")} | {
        "tests/engine/test_readme.py",
        "tests/test_*.py",
    }
    return sorted(path for path in found if "/".join(path.split("/")[:2]) not in found - {path})


def _suites_of(path: PurePosixPath) -> set[str]:
    room = path.parts[0] if len(path.parts) > 1 else ""
    if path.suffix == ".md" and room in {"", "docs"}:
        return set(page_tests())
    if room == "tests":
        folder = path.parts[1] if len(path.parts) > 2 else ""  # noqa: PLR2004 - tests/FOLDER/FILE
        helpers = {module for module in (*_texts(), *_importers()) if module.startswith(f"tests.{folder}.")}
        return {f"tests/{folder}", *_tests(_users(helpers))} if folder in TESTED else set()
    room = path.relative_to(room).parts[0] if room == "packages" else room
    return {f"tests/{folder}" for folder, used in TESTED.items() if any(room in (each, *BELOW[each]) for each in used)}


def _command_of(path: PurePosixPath) -> str:
    """Return the command whose code or tests a file is, or an empty text."""
    parts = path.parts[1:] if path.parts[0] == "tests" else path.parts
    named = parts[1] if len(parts) > 2 and parts[0] == "scripts" else ""  # noqa: PLR2004 - scripts/NAME/FILE
    return named if named not in SHARED_COMMANDS and (ROOT / "scripts" / named / "__main__.py").is_file() else ""


def command_tests(names: Iterable[str]) -> Sequence[str]:
    """Return the files of tests that a change of commands can break.

    They are the tests of each command, of every command that imports it, even indirectly, or starts it or another of these modules, and the tests
    of the code's text.
    """
    texts = _texts()
    packages_of_names = {f"scripts.{name}" for name in names}
    found = _users(
        packages_of_names
        | {module for module in (*texts, *_importers()) if _package(module) in packages_of_names}
        | {module for module in _having(READS_CODE) if module.startswith("tools.")}
    )
    commands = {_package(module)[len("scripts.") :] for module in found if module.startswith("scripts.")}
    starters = {module for name in commands - SHARED_COMMANDS for module in _starters().get(name, ())}
    return _tests(found, starters | _having(READS_CODE))


def page_tests() -> Sequence[str]:
    """Return the files of tests that read pages, themselves or through a tool."""
    above = ("authors.", "tests.", "tools.")
    readers = {module for module in _having(READS_PAGES) if module.startswith(above)}
    return _tests(_users(readers), _having(READS_PAGES))


def _tests(found: AbstractSet[str], mentioning: AbstractSet[str] = frozenset()) -> Sequence[str]:
    """Return the files of tests that are among modules or those mentioning something, or use a fixture of the former."""
    fixtures = tuple(module.removesuffix("conftest") for module in found if module.endswith(".conftest"))
    return sorted(
        f"{module.replace('.', '/')}.py"
        for module in _texts()
        if re.match(r"tests\.(.*\.)?test_\w+$", module)
        if module in found or module.startswith(fixtures) or module in mentioning
    )


@cache
def _having(pattern: re.Pattern[str]) -> AbstractSet[str]:
    """Return the modules in whose text a pattern is found."""
    return {module for module, text in _texts().items() if pattern.search(text)}


@cache
def _starters() -> Mapping[str, AbstractSet[str]]:
    """Return the modules that start a command, by its name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, text in _texts().items():
        for name in STARTS_COMMAND.findall(text):
            found[name].add(module)
    return found


def _users(modules: AbstractSet[str]) -> AbstractSet[str]:
    """Return modules and those that import them, at any distance."""
    found: set[str] = set()
    while modules:
        found |= modules
        modules = {user for module in modules for user in _importers().get(module, ())} - found
    return found


@cache
def _importers() -> Mapping[str, AbstractSet[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, text in _texts().items():
        for used in _imported(text):
            found[used].add(module)
    return found


@cache
def _texts() -> Mapping[str, str]:
    """Return the text of each module of the product and its tests."""
    rooms = (*(name for name in BELOW if name not in suites_of_packages()), "tests")
    paths = [path.relative_to(ROOT).with_suffix("") for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    return {
        ".".join(path.parts).removesuffix(".__init__"): (ROOT / path).with_suffix(".py").read_text(encoding="utf-8")
        for path in paths
    }


def _package(module: str) -> str:
    """Return the first two parts of a module's name."""
    return ".".join(module.split(".")[:2])


def _imported(text: str) -> Iterator[str]:
    """Yield the modules that a text imports anywhere, or starts by their names."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Constant(value=str(value)) if re.fullmatch(r"scripts\.\w+(\.__main__)?", value):
                yield value
            case _:
                pass


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
