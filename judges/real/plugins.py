"""The real provider plugins: the installed ones, or those that the engine downloads."""

import os
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Final

from judges.real.home import Need, RealHome, run
from judges.real.rows import NotJudgedError

_DISK_GIB: Final = {"gcp": 0.3, "docker": 0.1}
_LIMIT_S: Final = 300


def pulumi_home() -> Path:
    """Return the folder in which the engine keeps plugins."""
    found = os.environ.get("PULUMI_HOME")
    return Path(found) if found else Path.home() / ".pulumi"


def plugin_version(name: str) -> str:
    """Return the version of a provider's plugin: the one of its Python package."""
    return version(f"pulumi-{name}")


def get_plugin(home: RealHome, name: str) -> str:
    """Return the version of a plugin that is installed or that the engine could download. Raises NotJudgedError."""
    wanted = plugin_version(name)
    program = pulumi_home() / "plugins" / f"resource-{name}-v{wanted}" / f"pulumi-resource-{name}"
    if program.is_file():
        return wanted
    home.get(
        Need(what=f"plugin pulumi-{name} {wanted}", where=str(pulumi_home()), disk_gib=_DISK_GIB[name], takes_s=30)
    )
    command = [str(Path(sys.executable).with_name("pulumi")), "plugin", "install", "resource", name, wanted]
    with suppress(TimeoutExpired):
        run(command, limit_s=_LIMIT_S)
    if not program.is_file():
        raise NotJudgedError(
            f"pulumi-{name} {wanted} is not installed in {pulumi_home()} and cannot be downloaded here"
        )
    return wanted
