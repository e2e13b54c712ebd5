"""Access of the server's container to the machine: the accelerator's devices and few rights first, full access after a device error."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.guest_attributes import CONFINED, EXPOSED, PRIVILEGED
from vm_agent.base import TMPFS, environment_variable

DEVICE_FOLDER_VARIABLE = "GEMMA_SERVING_DEVICES"
DEVICE_FOLDER = "/dev"
CHIP = re.compile(r"accel\d+|vfio/\d+")
"""Device files of one chip: accelN up to TPU v4, vfio/N from v5e on (vllm-project/tpu-inference counts its chips by them; marin-community/marin#3751)."""
CONTROL = "vfio/vfio"
"""Container device of VFIO, required to open any group."""
CAPABILITIES = ("SYS_RESOURCE", "IPC_LOCK")
"""Capabilities that libtpu needs to lock the memory that chips read. GKE gives SYS_RESOURCE to a TPU container that is not privileged
(docs.cloud.google.com/kubernetes-engine/docs/how-to/tpus#privileged-mode), and VFIO needs IPC_LOCK beyond the limit of locked memory."""
HARDENED = ("--cap-drop=ALL", "--security-opt=no-new-privileges")
"""Options of every container that is not privileged."""
USAGE_EXIT_CODE = 2  # Python's argparse: the command line is invalid, so a retry fails too
KILLED_EXIT_CODE = 137  # 128 + SIGKILL
LOG_LINES = 2000
"""Number of last lines that are searched for a cause. vLLM prints the tracebacks of its API server after the engine's."""

DEVICE_ERROR = re.compile(
    r"couldn't open iommu group|TPU initialization failed|failed to initialize TPU|unable to initialize backend 'tpu'"
    r"|open\(/dev/(?:vfio|accel)|/dev/(?:vfio|accel)\S*.*(?:not permitted|permission denied|no such file)"
    r"|no (?:accelerator|TPU)s? (?:devices? )?found|VFIO_\w+|RLIMIT_MEMLOCK"
    r"|gathering device information|invalid CapAdd|unknown capability|not a device node",
    re.IGNORECASE,
)
"""Messages of libtpu and JAX (google/gvisor#11545, marin-community/marin#2618, jax-ml/jax#21761) and of docker for a device that cannot be opened."""
BUSY = re.compile(r"device or resource busy", re.IGNORECASE)
"""Messages for a chip that another process uses. More rights do not free it."""
OTHER_CAUSE = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|no available memory for the cache|no space left on device"
    r"|GatedRepo|RepositoryNotFound|RevisionNotFound|\b40[134] client error|address already in use|ValidationError"
    r"|larger than the maximum number of tokens that can be stored",
    re.IGNORECASE,
)
"""Messages for causes that more rights do not remove: memory, disk, hub, command line."""


@dataclass(frozen=True)
class Container:
    """A form of the container. `reason` explains a privileged form, `exposure` why it can read the machine's token. Otherwise empty."""

    options: "tuple[str, ...]"
    reason: str = ""
    exposure: str = ""

    @property
    def is_confined(self) -> bool:
        """True if it gets only the accelerator's devices."""
        return not self.reason

    @property
    def label(self) -> str:
        """Return the value of the container's label."""
        if not self.is_confined:
            return PRIVILEGED
        return EXPOSED if self.exposure else CONFINED

    @property
    def words(self) -> str:
        """Return the guest attribute."""
        return container_words(self.label, self.reason or self.exposure)


def container_words(label: str, reason: str) -> str:
    """Return the guest attribute of a container: its label and the reason for its access."""
    return f"{label}: {reason}" if reason else label


def accelerator_devices() -> "tuple[str, ...]":
    """Return docker's options for the chips of this machine, or none if no chip is found."""
    folder = Path(environment_variable(DEVICE_FOLDER_VARIABLE, DEVICE_FOLDER))
    names = sorted(str(path.relative_to(folder)) for path in (*folder.glob("accel*"), *folder.glob("vfio/*")))
    chips = [name for name in names if CHIP.fullmatch(name)]
    if not chips:
        return ()
    control = [CONTROL] if CONTROL in names else []
    return tuple(f"--device={folder / name}:{DEVICE_FOLDER}/{name}" for name in (*chips, *control))


def confined(devices: Sequence[str], shm_size_gib: float) -> Container:
    """Return the form with the accelerator's devices, two capabilities and a separate /dev/shm."""
    rights = tuple(f"--cap-add={name}" for name in CAPABILITIES)
    shm = f"--shm-size={max(1, round(shm_size_gib * 1024))}m"
    return Container((*HARDENED, *rights, "--ulimit=memlock=-1", shm, *devices))


def privileged(reason: str, shm_size_gib: float) -> Container:
    """Return the form with access to the whole machine, as in vLLM's guide for TPU, including its /dev/shm."""
    return Container(
        ("--privileged", f"--shm-size={max(1, round(shm_size_gib * 1024))}m", f"--volume={TMPFS}:{TMPFS}"), reason
    )


def device_problem(lines: Sequence[str], exit_code: int) -> "bool | None":
    """Return whether a confined server stopped because it could not use a device, or None if its last log lines do not show it."""
    text = "\n".join(lines)
    if BUSY.search(text):
        return False
    if DEVICE_ERROR.search(text):
        return True
    return False if OTHER_CAUSE.search(text) or exit_code in {0, USAGE_EXIT_CODE, KILLED_EXIT_CODE} else None
