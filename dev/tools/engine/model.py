"""Description of an engine, its cache folder, and the set-up error."""

import os
import re
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from localcloud.go_build import cache_folder

VERSION = "3.256.0"
"""Engine version to install: the newest on the Go module proxy when this was written. SDK 3.272.0 works with it."""

OLDEST_USABLE = (3, 200, 0)
"""Minimum version of an engine on PATH: for provider plugins by path, and `pulumi preview --json` as the scripts read it."""

LANGUAGE_HOST = "pulumi-language-python"
LANGUAGE_EXEC = "pulumi-language-python-exec"

_VERSION_OUTPUT_S = 20.0


class EngineError(Exception):
    """Set-up could not provide an engine. The message is one sentence."""


class Source(StrEnum):
    """Source of an engine, in the order of attempts."""

    PATH = "path"
    RELEASE = "release"
    BUILD = "build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A usable Pulumi CLI.

    `executable` is its path. `language_exec` is the runner of Python programs if the engine has no Python language host, otherwise None.
    """

    executable: Path
    version: str
    source: Source
    language_exec: Path | None


def project_root() -> Path:
    """Return the folder of this package's checkout."""
    return Path(__file__).resolve().parents[3]


def cache_root() -> Path:
    """Return the user's cache folder for engines, with one folder per version."""
    return cache_folder("engine")


def version_of(executable: Path) -> str | None:
    """Return the version of a Pulumi CLI, such as "3.256.0", or None if it does not respond."""
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
    """Return whether an engine on PATH is new enough."""
    return tuple(int(part) for part in version.split(".")) >= OLDEST_USABLE
