"""Installation of docker on boot images that lack it, such as Compute Engine's images for TPUs."""

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
        ServingError: the package cannot be installed, with the end of apt-get's output.
    """
    if run_command(["docker", "--version"])[0] != _MISSING:
        return
    log("Installing the package docker.io because this boot image has no docker.")
    for argv in _INSTALL:
        status, output = run_command(argv, timeout_s=_LIMIT_S, env={"DEBIAN_FRONTEND": "noninteractive"})
        if status != 0:
            raise ServingError(
                f"docker is not installed, and `{' '.join(argv)}` failed: {output[-300:]}. "
                "Add Cloud NAT to its subnetwork, or set tpu.runtimeVersion to an image with docker."
            )
