"""No command imports another one's inside: what others may use is in its `api.py`, and `cli/` and `stack/` are what all share."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ("cli", "stack")


def rooms_of(root: Path) -> list[Path]:
    return sorted(path for path in (root / "scripts").iterdir() if (path / "__init__.py").is_file())


def imported(path: Path) -> Iterator[str]:
    """Yield each module and name that a file imports, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"gemma_serving.scripts.{'.' * node.level}{node.module or ''}"


def inside_imports(root: Path) -> list[str]:
    """Return each import of another command that is not of its api, and each relative one, which would hide it."""
    found: list[str] = []
    for room in rooms_of(root):
        for path in sorted(room.rglob("*.py")):
            for name in imported(path):
                parts = name.split(".")
                is_other = parts[:2] == ["gemma_serving", "scripts"] and parts[2:3] not in (
                    [room.name],
                    *([one] for one in SHARED),
                )
                if is_other and parts[3:4] != ["api"]:
                    found.append(f"{path.relative_to(root)}: {name}")
    return found


def test_a_command_knows_others_by_their_api_only():
    assert inside_imports(ROOT) == []


def test_a_folder_is_a_command_or_what_commands_share():
    assert {room.name for room in rooms_of(ROOT) if not (room / "__main__.py").is_file()} <= {*SHARED}


def test_what_commands_share_knows_no_command():
    shared = [path for name in SHARED for path in (ROOT / "scripts" / name).rglob("*.py")]
    known = tuple(f"gemma_serving.scripts.{name}." for name in SHARED)
    found = [name for path in shared for name in imported(path) if name.startswith("gemma_serving.scripts.")]
    assert [name for name in found if not name.startswith(known)] == []


def test_every_name_of_an_api_is_used_by_another_command():
    used = {name for room in rooms_of(ROOT) for path in room.rglob("*.py") for name in imported(path)}
    for room in rooms_of(ROOT):
        api = room / "api.py"
        if api.is_file():
            names = {f"gemma_serving.scripts.{room.name}.api.{name.rpartition('.')[2]}" for name in imported(api)}
            assert names - used == set(), api


def test_the_rule_sees_each_way_into_a_command(tmp_path):
    """Planted: a module, a name, a lazy import, a relative one and the command itself; an api and its own modules are allowed."""
    for room in ("ours", "other", "cli"):
        (tmp_path / "scripts" / room).mkdir(parents=True)
        (tmp_path / "scripts" / room / "__init__.py").touch()
    lines = (
        "import gemma_serving.scripts.other.run",
        "from gemma_serving.scripts.other.run import work",
        "from gemma_serving.scripts.other import run",
        "from gemma_serving.scripts import other",
        "from ..other import run",
        "def late():\n    from gemma_serving.scripts.other.run import work",
    )
    for line in lines:
        (tmp_path / "scripts" / "ours" / "run.py").write_text(f"{line}\n")
        assert len(inside_imports(tmp_path)) == 1, line
    allowed = (
        "gemma_serving.scripts.other.api import work",
        "gemma_serving.scripts.ours.deep import work",
        "gemma_serving.scripts.stack.settings import work",
    )
    (tmp_path / "scripts" / "ours" / "run.py").write_text("".join(f"from {line}\n" for line in allowed))
    assert inside_imports(tmp_path) == []
