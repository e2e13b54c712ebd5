"""`systemctl` on a simulated machine, for the units that `systemd-run` has started."""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from localcloud.running.shims import units
from localcloud.running.shims.machine import Machine, this_machine

_NOT_LOADED: Final = 5
_INACTIVE: Final = 3


def _on_each(
    machine: Machine, names: Sequence[str], action: Callable[[Machine, str], None], *, doing: str, failed: int
) -> int:
    """Apply an action to each unit. Return 0, or the code `failed` if one of them is not loaded."""
    code = 0
    for name in names:
        if units.unit(machine, name) is None:
            print(f"Failed to {doing} {name}.service: Unit {name}.service not loaded.", file=sys.stderr)
            code = failed
        else:
            action(machine, name)
    return code


def _stop(machine: Machine, names: Sequence[str]) -> int:
    return _on_each(machine, names, units.stop, doing="stop", failed=_NOT_LOADED)


def _is_active(machine: Machine, names: Sequence[str]) -> int:
    code = 0
    for name in names:
        # The simulated docker has no daemon, so it is always active.
        found = units.unit(machine, name)
        active = name == "docker" or (found is not None and bool(found["running"]))
        # A loaded unit that does not run waits for its restart.
        print("active" if active else "inactive" if found is None else "activating")
        code = code if active else _INACTIVE
    return code


def _reset_failed(machine: Machine, names: Sequence[str]) -> int:
    return _on_each(machine, names, units.unload, doing="reset failed state of unit", failed=1)


def _nothing(machine: Machine, names: Sequence[str]) -> int:
    del machine, names
    return 0


_COMMANDS: Final[dict[str, Callable[[Machine, Sequence[str]], int]]] = {
    "stop": _stop,
    "kill": _stop,
    "is-active": _is_active,
    "status": _is_active,
    "reset-failed": _reset_failed,
    "daemon-reload": _nothing,
    "enable": _nothing,
    "disable": _nothing,
}


def main(argv: Sequence[str]) -> int:
    """Run the command line: stop, kill, is-active, status, reset-failed; daemon-reload, enable and disable do nothing."""
    words = [word for word in argv if not word.startswith("-")]
    command, names = (words[0] if words else ""), [units.unit_name(name) for name in words[1:]]
    if command in _COMMANDS:
        return _COMMANDS[command](this_machine(), names)
    if command in ("start", "restart") and names == ["docker"]:
        return 0
    print(f"systemctl: the simulated machine does not support '{' '.join(argv)}'.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
