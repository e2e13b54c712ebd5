"""Access of the server's container: the accelerator's devices and few rights, or the whole machine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma_serving.contracts.guest_attributes import CONFINED, PRIVILEGED
from gemma_serving.vm_agent.base import TMPFS, environment_variable

DEVICE_FOLDER_VARIABLE = "GEMMA_SERVING_DEVICES"
DEVICE_FOLDER = "/dev"
CHIP = re.compile(r"accel\d+|vfio/\d+")
"""Device files of one chip: accelN up to TPU v4, vfio/N from v5e on (vllm-project/tpu-inference counts its chips by them; marin-community/marin#3751)."""
CONTROL = "vfio/vfio"
"""Container device of VFIO, required to open any group."""
CAPABILITIES = ("SYS_RESOURCE", "IPC_LOCK")
"""Capabilities that libtpu needs to lock the memory that chips read. GKE grants SYS_RESOURCE to a TPU container that is not privileged
(docs.cloud.google.com/kubernetes-engine/docs/how-to/tpus#privileged-mode), and VFIO needs IPC_LOCK beyond the limit of locked memory."""
HARDENED = ("--cap-drop=ALL", "--security-opt=no-new-privileges")
"""Options of every container that is not privileged."""
ERROR_EXIT_CODE = 1  # an exception of Python
USAGE_EXIT_CODE = 2  # Python's argparse: invalid command line, so a retry fails too
KILLED_EXIT_CODE = 137  # 128 + SIGKILL
LOG_LINES = 2000
"""Number of last lines that are searched for a cause. vLLM prints its API server's tracebacks after the engine's."""

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


@dataclass(frozen=True)
class Container:
    """A form of the container: docker's options, its label, and the reason for more access."""

    options: "tuple[str, ...]"
    label: str = CONFINED
    reason: str = ""

    @property
    def words(self) -> str:
        """Return the guest attribute."""
        return f"{self.label}: {self.reason}" if self.reason else self.label


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


def privileged(shm_size_gib: float) -> Container:
    """Return the form with access to the whole machine, as in vLLM's guide for TPU."""
    options = ("--privileged", f"--shm-size={max(1, round(shm_size_gib * 1024))}m", f"--volume={TMPFS}:{TMPFS}")
    return Container(options, PRIVILEGED, "set by tpu.container")


def is_device_error(lines: Sequence[str]) -> bool:
    """Return whether the last log lines of a confined server show that it could not use a device."""
    text = "\n".join(lines)
    return DEVICE_ERROR.search(text) is not None and BUSY.search(text) is None
