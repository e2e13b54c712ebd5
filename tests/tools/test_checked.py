"""Every folder of Python is read by pyright and import-linter, so that no room grows outside the rules."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
WITHOUT_TYPES = {"dev/judges", "tests"}  # judges have a pyproject.toml of their own
LINKED = {
    path.name for path in (ROOT / "gemma_serving").iterdir() if path.is_symlink() and (path / "__init__.py").is_file()
}
"""Read as packages of `gemma_serving`."""
WITHOUT_IMPORTS = {"examples", "images", "tests"}  # run alone or copied into an image; not imported by a room


def rooms(top=ROOT):
    """The folders of Python files on top, and those of `dev/`."""
    for folder in sorted(path for path in top.iterdir() if path.is_dir() and path.name.isidentifier()):
        if folder.name == "dev":
            yield from rooms(folder)
        elif next(folder.rglob("*.py"), None):
            yield folder.relative_to(ROOT).as_posix()


def packages():
    """The names by which what is in `packages/` is imported."""
    for folder in sorted(path for path in (ROOT / "packages").iterdir() if path.is_dir()):
        here = [folder] if (folder / "__init__.py").exists() else [path.parent for path in folder.glob("*/__init__.py")]
        yield from (path.name for path in here)


def test_pyright_reads_every_room():
    assert set(rooms()) - set(TOOLS["pyright"]["include"]) == WITHOUT_TYPES


def test_import_linter_reads_every_room():
    known = set(TOOLS["importlinter"]["root_packages"])
    assert (
        {room.partition("/")[0] for room in rooms()} - {"packages"} - LINKED | set(packages())
    ) - known == WITHOUT_IMPORTS
    (circles,) = (each for each in TOOLS["importlinter"]["contracts"] if each["type"] == "acyclic_siblings")
    assert known == set(circles["ancestors"])
