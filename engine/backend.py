"""Where the engine keeps its states, also while it runs in a copy of the project.

The engine takes a relative path such as `file://./state` from the folder that it runs in. In a copy that would be another backend, an empty one.
"""

import contextlib
import json
import os
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final, cast

from engine import runner

VARIABLE: Final = "PULUMI_BACKEND_URL"
_FILE: Final = "file://"
_IN_PROJECT: Final = re.compile(
    r"^backend:[ \t]*\n(?:[ \t]+[^\n]*\n)*?[ \t]+url:[ \t]*[\"']?([^\"'\s#]+)", re.MULTILINE
)


@contextlib.contextmanager
def absolute_backend() -> Generator[None]:
    """Let every engine of this process use the backend that the project's folder has, whatever folder it runs in."""
    url = absolute(_chosen(runner.project_folder()), runner.project_folder())
    if url is None:
        yield
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def absolute(url: str, folder: Path) -> str | None:
    """Return a file backend's URL with a path that holds in every folder; None if it has one already, or is of another kind."""
    path, mark, options = url.removeprefix(_FILE).partition("?")
    if not url.startswith(_FILE) or path.startswith(("/", "~")):
        return None
    return f"{_FILE}{(folder / path).resolve()}{mark}{options}"


def _chosen(folder: Path) -> str:
    """Return the backend's URL as the engine chooses it: the variable, else the project's file, else the login; empty if none says it."""
    given = os.environ.get(VARIABLE, "")
    if given:
        return given
    found = _IN_PROJECT.search((folder / "Pulumi.yaml").read_text(encoding="utf-8"))
    if found:
        return found[1]
    home = os.environ.get("PULUMI_CREDENTIALS_PATH") or os.environ.get("PULUMI_HOME") or str(Path.home() / ".pulumi")
    try:
        login: object = json.loads(Path(home, "credentials.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(cast("Mapping[str, object]", login).get("current") or "") if isinstance(login, dict) else ""
