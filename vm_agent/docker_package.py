"""Docker on a machine whose boot image has none, as Compute Engine's images for TPUs."""

from vm_agent.base import ServingError, log
from vm_agent.containers import run_command

_MISSING = 127
# Other programs install packages at boot too: wait for their lock.
_INSTALL = (
    ("apt-get", "-q", "-oDPkg::Lock::Timeout=300", "update"),
    ("apt-get", "-q", "-oDPkg::Lock::Timeout=300", "-y", "install", "docker.io"),
)
_LIMIT_S = 900


def ensure_docker() -> None:
    """Install docker from the distribution's package if the machine has none.

    Raises:
        ServingError: the package cannot be installed, with apt-get's last words.
    """
    if run_command(["docker", "--version"])[0] != _MISSING:
        return
    log("This boot image has no docker: installing the package docker.io.")
    for argv in _INSTALL:
        status, output = run_command(argv, timeout_s=_LIMIT_S, env={"DEBIAN_FRONTEND": "noninteractive"})
        if status != 0:
            raise ServingError(
                f"docker is not on this machine, and `{' '.join(argv)}` failed: {output[-300:]}. "
                "Its subnetwork needs Cloud NAT, or tpu.runtimeVersion an image with docker."
            )
