"""The path guard's file, for the container of a server that has an API key."""

from pathlib import Path

from contracts.path_guard import GUARD_MODULE


def guard_text() -> str:
    """Return the guard's source. A joined program carries it as a constant (components.startup_script), a checkout has the file."""
    carried: object = globals().get("PATH_GUARD_TEXT")
    return (
        carried if isinstance(carried, str) else Path(__file__).with_name("path_guard.py").read_text(encoding="utf-8")
    )


def write_guard(folder: Path) -> Path:
    """Write the guard into a folder that every user of the container can read, and return the folder. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    file = folder / f"{GUARD_MODULE}.py"
    file.write_text(guard_text(), encoding="utf-8")
    file.chmod(0o644)
    return folder
