"""Packages of a Python program or plugin: its virtual environment, the commands that fill it, and generated SDKs in its requirements.

The rules are the official language host's, so a folder that works here also works with the official distribution.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = "requirements.txt"
NOT_INSTALLED = (
    "{folder} has no virtual environment, so no packages were installed. "
    "To have them installed, set `virtualenv: venv` under `runtime.options` in Pulumi.yaml.\n"
)

_PIP_INSTALL = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input")


class DependencyError(Exception):
    """The packages of a folder cannot be installed. The message is one sentence with what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of an installation."""

    purpose: str
    """Its purpose, shown to the user before the command runs."""
    command: Sequence[str]


def require_pip(toolchain: str) -> None:
    """Raise DependencyError if `runtime.options.toolchain` names another tool than pip. The official host also supports poetry and uv."""
    if toolchain not in {"", "pip"}:
        raise DependencyError(
            f"runtime.options.toolchain is {toolchain}, but this engine was built from source and installs with pip only: set it to pip, "
            "or install Pulumi from https://www.pulumi.com/docs/install/."
        )


def steps(folder: Path, environment: Path) -> Sequence[Step]:
    """Return the commands that create a virtual environment and install the packages of `folder` into it, in order.

    Raises DependencyError if `environment` is a file or a folder with other content.
    """
    python = environment / "bin" / "python"
    found: list[Step] = []
    # A creation may have been interrupted.
    if not (python.exists() and any(environment.glob("lib/python*/site-packages/pip"))):
        if environment.exists() and not _may_become_environment(environment):
            raise DependencyError(
                f"runtime.options.virtualenv names {environment}, which is not a virtual environment: "
                "remove it, or name another folder in Pulumi.yaml."
            )
        purpose = f"Creating the virtual environment {environment}"
        found.append(Step(purpose=purpose, command=(sys.executable, "-m", "venv", str(environment))))
    if (folder / REQUIREMENTS).is_file():
        command = (str(python), *_PIP_INSTALL, "-r", REQUIREMENTS)
        found.append(Step(purpose=f"Installing {folder / REQUIREMENTS}", command=command))
    return found


def failure(step: Step, code: int, lines: Sequence[str]) -> str:
    """Return the error message of a command that failed: one sentence, then its last lines."""
    shown = "\n".join(f"  {line}" for line in lines) or "  (no output)"
    return f"{step.purpose} failed: `{' '.join(step.command)}` exited with code {code}. Last lines:\n{shown}"


def link(root: Path, folders: Sequence[str]) -> str:
    """Add generated SDKs to requirements.txt of the program in `root`, and return how to import them.

    `folders` are the SDKs' paths relative to `root`, such as `sdks/gcp-tpu`. A line that names one stays as it is.
    Raises DependencyError without requirements.txt.
    """
    file = root / REQUIREMENTS
    if not file.is_file():
        raise DependencyError(f"{file} not found: create it with the line `pulumi`, then run the command again.")
    lines = file.read_text(encoding="utf-8").splitlines()
    new = [folder for folder in folders if folder not in lines]
    file.write_text("".join(f"{line}\n" for line in [*lines, *new]), encoding="utf-8")
    modules = [facts.parent.name for folder in folders for facts in (root / folder).glob("*/pulumi-plugin.json")]
    imports = "".join(f"  import {module} as {module.removeprefix('pulumi_')}\n" for module in modules)
    return f"You can import the SDK in your Python code with:\n\n{imports}"


def _may_become_environment(path: Path) -> bool:
    """Return whether `python -m venv` may write to an existing path: an empty folder, or an environment without pip."""
    return path.is_dir() and ((path / "pyvenv.cfg").is_file() or not any(path.iterdir()))
