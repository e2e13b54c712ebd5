"""Path guard file for the container of a server with an API key."""

from pathlib import Path

from gemma_serving.contracts.path_guard import GUARD_MODULE


def write_guard(folder: Path) -> Path:
    """Write the guard into a folder for every user in the container, and return it. Raises OSError."""
    carried: object = globals().get("PATH_GUARD_TEXT")  # a constant of the joined program (components.startup_script)
    text = (
        carried if isinstance(carried, str) else Path(__file__).with_name("path_guard.py").read_text(encoding="utf-8")
    )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    file = folder / f"{GUARD_MODULE}.py"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o644)
    return folder
