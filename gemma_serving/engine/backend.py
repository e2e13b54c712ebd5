"""Location of the engine's states, including when it runs in a copy of the project.

The engine resolves a relative path such as `file://./state` against the folder that it runs in.
In a copy that is another, empty backend.
"""

import contextlib
import json
import os
from collections.abc import Generator
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.installation import home_folder, own_project
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.memory import Memory, memory_of
from gemma_serving.engine import runner

BACKEND_VARIABLE: Final = "PULUMI_BACKEND_URL"
_FILE: Final = "file://"


@contextlib.contextmanager
def variable(name: str, value: str) -> Generator[None]:
    """Set an environment variable of this process temporarily."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def absolute_backend() -> Generator[None]:
    """Make every engine of this process use the project folder's backend, in any working folder."""
    folder = runner.project_folder()
    url = chosen_url(folder)
    absolute = _absolute(url, folder)
    if absolute == url:
        yield
        return
    with variable(BACKEND_VARIABLE, absolute):
        yield


def _absolute(url: str, folder: Path) -> str:
    """Return the URL of a backend, of a relative folder as the absolute one."""
    path, mark, options = url.removeprefix(_FILE).partition("?")
    if not url.startswith(_FILE) or path.startswith(("/", "~")):
        return url
    return f"{_FILE}{(folder / path).resolve()}{mark}{options}"


def memory() -> Memory:
    """Return what this machine remembers of the deployments of this folder in the chosen backend."""
    folder = runner.project_folder() if own_project() is not None else home_folder()
    return memory_of(home_folder(), _absolute(chosen_url(folder), folder).partition("?")[0])


def state_folder() -> Path | None:
    """Return the folder `.pulumi` of a file backend, or None without a project, and for other or unknown backends."""
    if own_project() is None:
        return None
    folder = runner.project_folder()
    url = chosen_url(folder)
    if not url.startswith(_FILE):
        return None
    path = Path(unquote(url.removeprefix(_FILE).partition("?")[0])).expanduser()
    return folder / path / ".pulumi"


def file_text(stack: str, suffix: str = ".json") -> str:
    """Return the text of a local backend's state, even if invalid, or of the engine's copy (`.json.bak`); empty without one."""
    path = _state_file(stack)
    try:
        return path.with_suffix(suffix).read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        return ""


def _state_file(stack: str) -> Path | None:
    """Return the file of a local backend's state, which may not exist, or None as `state_folder` does."""
    folder = state_folder()
    return folder / "stacks" / PRODUCT / f"{stack}.json" if folder else None


def drop_empty_side_file(stack: str) -> None:
    """Remove the side file of a local backend's state if it is empty. Raises ScriptError if it may not be removed.

    A kill between two writes leaves one. The engine then reads nothing (gocloud.dev, blob/fileblob); without one it reads the state, and writes it again.
    """
    state = _state_file(stack)
    path = state.with_suffix(".json.attrs") if state else None
    if path is None or not path.is_file() or path.stat().st_size:
        return
    try:
        path.unlink()
    except OSError as error:
        raise ScriptError(
            f"The state of stack {stack} has an empty side file, so it cannot be read: {error}. Remove the file."
        ) from None


def shown_url() -> str:
    """Return the URL of the project folder's backend without password and options. Empty if none is set."""
    return masked(chosen_url(runner.project_folder())).partition("?")[0]


def chosen_url(folder: Path) -> str:
    """Return the backend's URL: variable, project file, login. Empty if none is set."""
    if given := os.environ.get(BACKEND_VARIABLE):
        return given
    if url := _project_url(folder):
        return url
    home = os.environ.get("PULUMI_CREDENTIALS_PATH") or os.environ.get("PULUMI_HOME") or str(Path.home() / ".pulumi")
    try:
        login = as_mapping(json.loads(Path(home, "credentials.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return ""
    return str(login.get("current") or "")


def is_of_folder() -> bool:
    """Return whether the project file, and not the user, names the backend, so that whoever made the folder made its states."""
    folder = runner.project_folder()
    url = _project_url(folder)
    # A process sets the variable to the absolute form of a relative URL (`absolute_backend`).
    given, absolute = os.environ.get(BACKEND_VARIABLE), _absolute(url, folder)
    return bool(url) and (not given or given == absolute != url)


def _project_url(folder: Path) -> str:
    """Return the backend's URL in the project file of a folder; empty without one."""
    project = folder / "Pulumi.yaml"
    return _url_in(project.read_text(encoding="utf-8")) if project.is_file() else ""


@lru_cache(maxsize=32)
def _url_in(text: str) -> str:
    """Return the backend's URL in a project file; empty without one. A command asks several times."""
    import yaml  # noqa: PLC0415 - takes 0.04 s, and many commands import this module

    return str(as_mapping(as_mapping(yaml.safe_load(text)).get("backend")).get("url") or "")
