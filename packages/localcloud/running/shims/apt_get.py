"""`apt-get` and `docker` on a simulated machine whose boot image lacks docker, until `apt-get install docker.io` puts docker on its PATH.

Without an external address or Cloud NAT the package archives do not respond, even with Private Google Access.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

from localcloud.running.shims import MACHINE_COMMANDS, install
from localcloud.running.shims.machine import FOLDER_VARIABLE, this_machine

_FAILED, _NOT_FOUND = 100, 127
"""apt-get's exit code for every error, and the shell's for a command that does not exist."""
_DOCKER: Final = "docker.io"


def _apt_get(words: Sequence[str]) -> int:
    """Run the command line: `update`, or `install` of docker.io. Return apt-get's exit code."""
    machine = this_machine()
    command, *packages = [word for word in words if not word.startswith("-")] or [""]
    if command not in {"update", "install"} or any(package != _DOCKER for package in packages):
        print(f"E: the simulated apt-get only installs {_DOCKER}, given: {' '.join(words)}", file=sys.stderr)
        return _FAILED
    if not machine.internet:
        print("E: Could not connect to archive.ubuntu.com:80 (185.125.190.81), connection timed out", file=sys.stderr)
        return _FAILED
    if command == "install":
        docker = {"docker": MACHINE_COMMANDS["docker"]}
        variables = {FOLDER_VARIABLE: str(machine.folder)}
        if "PYTHONPATH" in os.environ:
            variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
        install(machine.folder / "bin", docker, variables)
    return 0


def main(program: str, *words: str) -> int:
    """Run `apt-get`, or fail as the shell does without `docker`."""
    if program == "apt-get":
        return _apt_get(words)
    print(f"{program}: command not found", file=sys.stderr)
    return _NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
