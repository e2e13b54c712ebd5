"""`docker` on a machine of the local cloud that uses a real daemon: the real client, with the machine's folders in place of its paths.

`python -m dev.judges.real.docker_here ARGUMENT...` runs the client of REAL_DOCKER. Only `run` changes: /mnt and /dev/shm of the machine are folders
that only its own processes see, the image's programs need this interpreter, and a simulated server needs the machine's values.
With REAL_VLLM set, the server is the real one. All containers of a machine are removed when it powers off.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from gemma_serving.contracts.exit_codes import ExitCode
from localcloud.running import interpreter
from localcloud.running.shims.machine import OWN_FOLDERS, Machine, this_machine

CLIENT: Final = "REAL_DOCKER"
"""Variable with the path of the real client."""
MOUNTS: Final = "REAL_MOUNTS"
"""Variable with the folders that each container gets at their own paths, read-only, separated by colons."""
SERVER: Final = "REAL_SERVER_VARIABLES"
"""Variable with a JSON object: more environment variables of each container."""
MACHINE_LABEL: Final = "localcloud.machine"
_LIFELINE: Final = "--lifeline"
_VOLUME: Final = "--volume="


def run_arguments(machine: Machine, argv: Sequence[str]) -> list[str]:
    """Return the arguments of `docker run` for the real client. Options have the form --name=value, as the agent writes them."""
    image_at = next((at for at, word in enumerate(argv) if not word.startswith("-")), len(argv))
    options = [_on_host(machine, word) for word in argv[:image_at]]
    targets = [word.split(":")[1] for word in options if word.startswith(_VOLUME)]
    variables = {**_simulator_variables(machine, argv, targets), **json.loads(os.environ.get(SERVER, "{}"))}
    added = [f"--label={MACHINE_LABEL}={machine.name}"]
    added += [f"{_VOLUME}{folder}:{folder}:ro" for folder in os.environ[MOUNTS].split(":")]
    added += [f"--env={name}={value}" for name, value in variables.items()]
    return [*added, *options, *argv[image_at:]]


def _on_host(machine: Machine, option: str) -> str:
    """Return a volume with the machine's real folder."""
    if not option.startswith(_VOLUME):
        return option
    source, _, rest = option.removeprefix(_VOLUME).partition(":")
    for prefix, kept in OWN_FOLDERS.items():
        if source == prefix or source.startswith(f"{prefix}/"):
            source = f"{machine.folder / kept}{source[len(prefix) :]}"
    return f"{_VOLUME}{source}:{rest}"


def _simulator_variables(machine: Machine, argv: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    """Return the variables of a simulated server. In a real container each path is itself."""
    python_path = next((word.partition("PYTHONPATH=")[2] for word in argv if word.startswith("--env=PYTHONPATH=")), "")
    return {
        "VLLM_SIM_ACCELERATOR": machine.accelerator,
        "VLLM_SIM_CLOCK_SPEED": repr(machine.clock_speed),
        "VLLM_SIM_BIND_HOST": machine.address,
        "VLLM_SIM_PATHS": json.dumps({"/": "/nothing", **{path: path for path in targets}}),
        "VLLM_SIM_PYTHONPATH": python_path,
        "VLLM_SIM_HUB": f"{machine.base_url}/hub",
        "GCE_METADATA_HOST": os.environ.get("GCE_METADATA_HOST", ""),
        **interpreter.simulator_variables(),
    }


def _hold_lifeline(machine: Machine) -> None:
    """Start the process that removes the machine's containers at power-off, unless it runs."""
    with (machine.folder / "real-docker.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # The child keeps the lock with the open file.
        subprocess.Popen(
            [sys.executable, "-m", "dev.judges.real.docker_here", _LIFELINE],
            pass_fds=[lock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _wait_for_power_off(machine: Machine) -> NoReturn:
    def end(number: int, frame: object) -> None:
        del number, frame
        client = os.environ[CLIENT]
        listed = [client, "ps", "--all", "--quiet", f"--filter=label={MACHINE_LABEL}={machine.name}"]
        found = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()
        if found:
            subprocess.run([client, "rm", "--force", *found], check=False)
        os._exit(ExitCode.DONE)

    signal.signal(signal.SIGTERM, end)
    while True:
        time.sleep(3600)


def main(argv: Sequence[str]) -> NoReturn:
    """Become the real client."""
    machine = this_machine()
    if list(argv) == [_LIFELINE]:
        _wait_for_power_off(machine)
    arguments = list(argv)
    if arguments[:1] == ["run"]:
        _hold_lifeline(machine)
        arguments[1:] = run_arguments(machine, arguments[1:])
    client = os.environ[CLIENT]
    os.execv(client, [client, *arguments])  # noqa: S606 - the real client


if __name__ == "__main__":
    main(sys.argv[1:])
