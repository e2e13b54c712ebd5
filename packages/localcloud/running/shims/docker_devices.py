"""A container's devices, capabilities and limits on a simulated machine, with the errors of docker and libtpu."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud.running.shims.machine import Machine

_LOCKED: Final = 64 * 2**30
"""Bytes of memory that a TPU container must be able to lock (Google, "About TPUs in GKE", section on privileged mode: `ulimit -l 68719476736`)."""
_CANNOT_OPEN: Final = (
    "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open({device}): {why}: {why}; "
    "Couldn't open iommu group {device} (set JAX_PLATFORMS='' to automatically choose an available backend)"
)
"""JAX's error if libtpu cannot open a chip (google/gvisor#11545, vllm-project/tpu-inference#2257)."""
_CANNOT_LOCK: Final = "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: VFIO_IOMMU_MAP_DMA: Cannot allocate memory"


class OptionError(Exception):
    """Docker rejects an option. The message is docker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Rights of one container. `devices`: path in the container -> path on the machine; `memlock`: bytes that it can lock, -1 without a limit."""

    privileged: bool
    devices: dict[str, str]
    memlock: int | None
    cgroup_parent: str


def rights(given: argparse.Namespace) -> Rights:
    """Read a container's rights from its options. Raises OptionError."""
    limits = dict(text.partition("=")[::2] for text in given.ulimit)
    memlock = limits.get("memlock")
    return Rights(
        privileged=given.privileged,
        devices=dict(_device(text) for text in given.device),
        memlock=None if memlock is None else int(memlock.partition(":")[0]),
        cgroup_parent=given.cgroup_parent or "",
    )


def _device(text: str) -> tuple[str, str]:
    host, _, rest = text.partition(":")
    inside = rest.partition(":")[0] or host
    if not host.startswith("/") or not inside.startswith("/"):
        raise OptionError(f'invalid argument "{text}" for "--device" flag: {text} is not an absolute path')
    return inside, host


def check_devices(wanted: Rights) -> None:
    """Raise OptionError, as docker does when it starts the container, if the machine lacks one of its devices."""
    for host in wanted.devices.values():
        path = Path(host)
        problem = "no such file or directory" if not path.exists() else "not a device node" if path.is_dir() else ""
        if problem:
            raise OptionError(
                f'Error response from daemon: error gathering device information while adding custom device "{host}": {problem}'
            )


def device_files(accelerator: str) -> tuple[str, ...]:
    """Return the names below /dev of an accelerator's devices: accelN up to TPU v4, vfio/N and its control device from v5e on."""
    generation, _, size = accelerator.partition("-")
    if not generation.startswith("v") or not size.isdecimal():
        return ()
    counts_cores = generation in {"v2", "v3", "v4", "v5p"}
    chips = range(max(1, int(size) // 2 if counts_cores else int(size)))
    if generation in {"v2", "v3", "v4"}:
        return tuple(f"accel{number}" for number in chips)
    return (*(f"vfio/{number}" for number in chips), "vfio/vfio")


def problem_of(machine: Machine, wanted: Rights) -> str:
    """Return the error message of a server that cannot use the machine's chips. Empty if it can."""
    if wanted.privileged:
        return ""
    for name in device_files(machine.accelerator):
        device = f"/dev/{name}"
        if wanted.devices.get(device) != str(machine.devices / name):
            return _CANNOT_OPEN.format(device=device, why="No such file or directory")
        if machine.denies_devices:
            return _CANNOT_OPEN.format(device=device, why="Operation not permitted")
    locked = wanted.memlock
    if device_files(machine.accelerator) and (locked is None or -1 < locked < _LOCKED):
        return _CANNOT_LOCK
    return ""
