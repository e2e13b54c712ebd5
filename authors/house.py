"""`python -m authors.house`: lines of handwritten Python in each package and the packages that it imports, compared with docs/architecture.md.

Counts files outside tests that are not generated. Imports inside functions count; imports only for types do not.
"""

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grimp

from contracts.exit_codes import ExitCode

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = Path("docs/architecture.md")
PACKAGES: Final = "packages"
GUESTS: Final = ("authors", "tools", PACKAGES)
"""Name prefixes of packages that are not needed to change a stack."""
SLACK: Final = 1.03
"""Row of a package as a multiple of its lines, when the row is written."""
STALE: Final = 1.05
"""Multiple of a package's lines from which its row is out of date, and falls. 40 lines more are free, for small packages."""
TESTS: Final = "tests"
_GENERATED: Final = ('"""generated', "# generated")
_ROW: Final = re.compile(r"^\| `(?P<folder>[\w/-]+)/` \| .* \| (?P<knows>[^|]*) \| (?P<lines>[\d,]+) \|$", re.MULTILINE)
_NAME: Final = re.compile(r"`([\w/-]+)`")


@dataclass(frozen=True, slots=True)
class Room:
    """A package: its lines outside tests, and the packages that it imports, by folder name."""

    lines: int
    knows: frozenset[str]


def rooms_of(root: Path) -> Mapping[str, Room]:
    """Return each package below a project's folder by its path, such as `packages/localcloud`."""
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name.isidentifier()]
    split = [each for path in folders for each in (sorted(path.iterdir()) if path.name == PACKAGES else [path])]
    files = {path.relative_to(root).as_posix(): list(_files(path)) for path in split if path.is_dir()}
    homes = {_package(root / name): name for name, found in files.items() if found}
    graph = grimp.build_graph(*homes, exclude_type_checking_imports=True, cache_dir=None)
    knows: dict[str, frozenset[str]] = {}
    packages = homes.keys() & graph.modules  # a folder without modules is not in the graph
    for package in packages:
        graph.squash_module(package)
    for package in packages:
        others = graph.find_modules_directly_imported_by(package) - {package}
        knows[homes[package]] = frozenset(homes[other] for other in others)
    rooms = {name: Room(_lines(files[name]), knows.get(name, frozenset())) for name in homes.values()}
    tests = [path for path in root.glob("*/**/*.py") if _is_test(path.relative_to(root).parts)]
    return {**rooms, TESTS: Room(lines=_lines(tests), knows=frozenset())}


def rows_of(page: str) -> Mapping[str, Room]:
    """Return the rows of the page's table: the maximum lines of each package, and the packages that it may import."""
    return {
        match["folder"]: Room(
            lines=int(match["lines"].replace(",", "")), knows=frozenset(_NAME.findall(match["knows"]))
        )
        for match in _ROW.finditer(page)
    }


def differences(rooms: Mapping[str, Room], rows: Mapping[str, Room]) -> Iterator[str]:
    """Yield each difference between the packages and the table, as a sentence with the fix."""
    for name in sorted(rooms.keys() - rows.keys()):
        yield f"{PAGE} has no row for {name}/. Add it to the table of packages."
    for name in sorted(rows.keys() - rooms.keys()):
        yield f"{PAGE} has a row for {name}/, which has no Python. Remove it."
    for name in sorted(rooms.keys() & rows.keys()):
        room, row = rooms[name], rows[name]
        if room.lines > row.lines:
            yield f"{name}/ has {room.lines:,} lines, but {PAGE} allows {row.lines:,}. Remove some, or raise the row and lower another by as much."
        elif row.lines > room.lines * STALE + 40:
            yield f"{name}/ has {room.lines:,} lines, but {PAGE} allows {row.lines:,}. Lower the row to {allowed(room.lines):,}."
        for other in sorted(room.knows - row.knows):
            yield f"{name}/ imports {other}/, but {PAGE} does not allow it. Remove the import or allow it there."
        for other in sorted(row.knows - room.knows):
            yield f"{PAGE} allows {name}/ to import {other}/, but it does not. Remove it there."


def allowed(lines: int) -> int:
    """Return the row of a package with so many lines, rounded up to tens."""
    return math.ceil(lines * SLACK / 10) * 10


def main() -> ExitCode:
    """Print the packages, the line count that a newcomer must know, and the differences from the page."""
    rooms = rooms_of(ROOT)
    for name, room in sorted(rooms.items(), key=lambda item: -item[1].lines):
        print(f"{name:<20} {room.lines:>7,}  {', '.join(sorted(room.knows))}")
    known = sum(room.lines for name, room in rooms.items() if not name.startswith((*GUESTS, TESTS)))
    print(f"{'for a newcomer':<20} {known:>7,}")
    found = list(differences(rooms, rows_of((ROOT / PAGE).read_text(encoding="utf-8"))))
    for sentence in found:
        print(f"house: {sentence}", file=sys.stderr)
    return ExitCode.FAILED if found else ExitCode.DONE


def _lines(files: Iterable[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files)


def _is_test(parts: Sequence[str]) -> bool:
    return TESTS in parts and "__pycache__" not in parts and not any(part.startswith(".") for part in parts)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the handwritten files of a package."""
    for path in sorted(folder.rglob("*.py")):
        if not {TESTS, "__pycache__", "build", ".venv"} & {folder.name, *path.relative_to(folder).parts}:
            head = path.read_text(encoding="utf-8")[:200].lower()
            if not head.startswith(_GENERATED):
                yield path


def _package(folder: Path) -> str:
    """Return the import name of a folder: its own, or the single package's in it."""
    inside = [path.parent.name for path in sorted(folder.glob("*/__init__.py"))]
    return inside[0] if not (folder / "__init__.py").is_file() and len(inside) == 1 else folder.name


if __name__ == "__main__":
    sys.exit(main())
