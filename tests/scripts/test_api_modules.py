"""What other commands may use is in a command's `api.py`, and each name of it is used. Contracts of import-linter forbid the rest."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tracked import tracked

ROOT = Path(__file__).parents[2]
SHARED = ("cli", "stack")
ROOMS = sorted(path.parent for path in (ROOT / "scripts").glob("*/__init__.py"))


def imported(path: Path) -> Iterator[str]:
    """Yield each name that a file imports from a module, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_folder_is_a_command_or_what_commands_share():
    assert {room.name for room in ROOMS if not (room / "__main__.py").is_file()} <= {*SHARED}


def test_every_name_of_an_api_is_used_by_another_command():
    used = {name for path in tracked(*ROOMS) for name in imported(path)}
    for api in (ROOT / "scripts").glob("*/api.py"):
        room = f"gemma_serving.scripts.{api.parent.name}.api"
        assert {f"{room}.{name.rpartition('.')[2]}" for name in imported(api)} - used == set(), api
