"""What an engine is, where it is kept, and how set-up fails."""

import os
import re
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

VERSION = "3.256.0"
"""The engine that set-up installs. The newest release that the Go module proxy served when this was written; SDK 3.272.0 works with it."""

OLDEST_USABLE = (3, 200, 0)
"""An engine found on PATH must be at least this new: provider plugins by path and `pulumi preview --json` as the scripts read it."""

LANGUAGE_HOST = "pulumi-language-python"
LANGUAGE_EXEC = "pulumi-language-python-exec"

_VERSION_OUTPUT_S = 20.0


class EngineError(Exception):
    """Set-up could not provide an engine; the message is one sentence for a person."""


class Source(StrEnum):
    """Where an engine may come from, in the order in which set-up tries."""

    PATH = "path"
    RELEASE = "release"
    BUILD = "build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A usable Pulumi CLI.

    `executable` is its path; `language_exec` is the file that runs Python programs, where the engine came without a Python language host of its own, else None.
    """

    executable: Path
    version: str
    source: Source
    language_exec: Path | None


def project_root() -> Path:
    """Return the folder of the checkout that this package lies in."""
    return Path(__file__).resolve().parents[2]


def cache_root() -> Path:
    """Return the user's cache folder for engines; every version has a folder of its own below it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "gemma-serving" / "engine"


def version_of(executable: Path) -> str | None:
    """Return the version that a Pulumi CLI says it has, such as "3.256.0", or None where it does not answer."""
    try:
        answer = subprocess.run(
            [str(executable), "version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_OUTPUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"v?(\d+\.\d+\.\d+)", answer.stdout)
    return found.group(1) if answer.returncode == 0 and found else None


def new_enough(version: str) -> bool:
    """Whether an engine found on PATH can be used."""
    return tuple(int(part) for part in version.split(".")) >= OLDEST_USABLE
