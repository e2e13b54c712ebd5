"""`apt-get` on a simulated machine: `update`, and `install` of docker.io, which puts docker on the machine's PATH.

Without an external address or Cloud NAT the package archives do not respond, even with Private Google Access.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

from localcloud.running.shims import MACHINE_COMMANDS, install
from localcloud.running.shims.machine import FOLDER_VARIABLE, this_machine

_FAILED: Final = 100
"""apt-get's exit code for every error."""
_DOCKER: Final = "docker.io"


def main(words: Sequence[str]) -> int:
    """Run the command line. Return apt-get's exit code."""
    machine = this_machine()
    command, *packages = [word for word in words if not word.startswith("-")] or [""]
    if command not in {"update", "install"} or any(package != _DOCKER for package in packages):
        print(f"E: the simulated apt-get only installs {_DOCKER}, given: {' '.join(words)}", file=sys.stderr)
        return _FAILED
    if not machine.internet:
        print("E: Could not connect to archive.ubuntu.com:80 (185.125.190.81), connection timed out", file=sys.stderr)
        return _FAILED
    if command == "install":
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        docker = {"docker": MACHINE_COMMANDS["docker"]}
        install(machine.folder / "bin", docker, {FOLDER_VARIABLE: str(machine.folder), **kept})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
