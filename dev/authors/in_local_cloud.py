"""Run a command of this folder again in the environment of a local cloud, if needed in a copy of the project."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from gemma_serving.contracts.exit_codes import ExitCode

INSIDE: Final = "GEMMA_SERVING_INSIDE_FOLDER"
"""Folder of the run. Set in the process that `localcloud run` starts."""
_COPIED: Final = ("*.yaml", "*.txt", "*.toml", "__main__.py", "Makefile", ".gitignore")
_NOT_COPIED: Final = frozenset({"docs", "tests"})
_HIDDEN: Final = ("PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE", "GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT")


def inside_folder() -> Path | None:
    """Return the folder of the run in the process inside, None outside."""
    found = os.environ.get(INSIDE)
    return Path(found) if found else None


def copy_project(root: Path, target: Path) -> None:
    """Copy the checkout without `docs/` and `tests/`, so a run changes nothing in it."""
    target.mkdir(parents=True)
    for pattern in _COPIED:
        for path in root.glob(pattern):
            shutil.copy2(path, target / path.name)
    for room in root.iterdir():
        if room.is_dir() and not room.name.startswith(".") and room.name not in _NOT_COPIED:
            copy_room(room, target / room.name)
    (target / ".venv").symlink_to(Path(sys.prefix))


def copy_room(room: Path, target: Path) -> None:
    """Copy a folder of the checkout with its compiled modules, whose times and sizes still match.

    While Python writes a compiled module, it has the name `x.pyc.NUMBER`, which is gone a moment later.
    """
    shutil.copytree(room, target, symlinks=True, ignore=shutil.ignore_patterns("*.pyc.*"))


def run_inside(folder: Path, module: str, *arguments: str, scenario: str, project: Path) -> ExitCode:
    """Run a module of a project in the environment of a local cloud. `folder` is the run's."""
    cloud = ("localcloud", "run", "--providers", "standin", "--state", str(folder / "cloud"), "--scenario", scenario)
    process = subprocess.Popen(
        [sys.executable, "-m", *cloud, "--", sys.executable, "-m", module, *arguments],
        cwd=project,
        env={**{key: value for key, value in os.environ.items() if key not in _HIDDEN}, INSIDE: str(folder)},
        stdin=subprocess.DEVNULL,
    )
    try:
        return {int(code): code for code in ExitCode}.get(process.wait(), ExitCode.FAILED)
    except KeyboardInterrupt:
        process.wait(timeout=30)
        raise
