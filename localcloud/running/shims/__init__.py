"""Commands that stand in for others on PATH: `docker`, `systemd-run`, `systemctl` and `journalctl` on a simulated machine, `gcloud` for people.

Each is a small script that `install` writes; it runs a module of this package with the local cloud's own interpreter, whatever the
environment it is called in. The modules use the standard library only, because a machine calls them often.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent.parent.parent

MACHINE_COMMANDS: Final = {
    "docker": "localcloud.running.shims.docker",
    "systemd-run": "localcloud.running.shims.systemd_run",
    "systemctl": "localcloud.running.shims.systemctl",
    "journalctl": "localcloud.running.shims.journalctl",
}
"""What a machine finds first on its PATH."""

PEOPLE_COMMANDS: Final = {"gcloud": "localcloud.running.shims.gcloud"}
"""What `python -m localcloud run` puts first on PATH."""


def install(
    folder: Path, commands: Mapping[str, str] = PEOPLE_COMMANDS, environment: Mapping[str, str] | None = None
) -> Path:
    """Write the commands into a folder, executable, and return it. `environment` is set for them, over what they are called with."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"PYTHONPATH": str(_ROOT), **(environment or {})}
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    for command, module in commands.items():
        target = folder / command
        target.write_text(
            f'#!/bin/sh\n{settings} exec {shlex.quote(sys.executable)} -P -m {module} "$@"\n', encoding="utf-8"
        )
        target.chmod(0o755)
    return folder
