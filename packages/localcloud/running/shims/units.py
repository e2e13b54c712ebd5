"""systemd units on a simulated machine, for `systemd-run`, `systemctl` and `journalctl`."""

import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from localcloud.running.shims.machine import Machine, alive, read_json

_STOP_LIMIT_S: Final = 95.0
"""systemd waits 90 s for a unit to stop before it kills it."""
_POLL_S: Final = 0.02


def unit_name(text: str) -> str:
    """Return a unit's name without `.service`."""
    return text.removesuffix(".service")


def state_file(machine: Machine, name: str) -> Path:
    """Return the file with a unit's state."""
    return machine.units / f"{name}.json"


def log_file(machine: Machine, name: str) -> Path:
    """Return the file with a unit's output."""
    return machine.units / f"{name}.log"


def unload(machine: Machine, name: str) -> None:
    """Remove a unit's state."""
    state_file(machine, name).unlink(missing_ok=True)


def unit(machine: Machine, name: str) -> dict[str, Any] | None:
    """Return a loaded unit, or None. A transient unit is unloaded when it exits successfully, and always with `--collect`."""
    document = read_json(state_file(machine, name))
    if document is None:
        return None
    if alive(int(document["supervisor"])):
        return document
    if document["collect"] or not document.get("exitCode"):
        unload(machine, name)
        return None
    return document


def stop(machine: Machine, name: str) -> None:
    """Stop a loaded unit and wait until it has stopped."""
    document = unit(machine, name)
    if document is None:
        return
    supervisor = int(document["supervisor"])
    deadline = time.monotonic() + _STOP_LIMIT_S
    try:
        os.kill(supervisor, signal.SIGTERM)
        while alive(supervisor) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if alive(supervisor):
            os.kill(supervisor, signal.SIGKILL)
    except ProcessLookupError:
        pass
    unload(machine, name)
