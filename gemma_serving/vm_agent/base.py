"""Names, limits and errors that every part of the agent uses."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gemma_serving.contracts.guest_attributes import CONTAINER_KEY, DOCUMENT_HASH_KEY, RESTART_KEY

UNIT = "gemma-serving-agent"
CONTAINER = "gemma-serving"
HASH_LABEL = f"{CONTAINER}.{DOCUMENT_HASH_KEY}"
DRAIN_LABEL = f"{CONTAINER}.drain-s"
FORM_LABEL = f"{CONTAINER}.{CONTAINER_KEY}"
SECRETS_LABEL = f"{CONTAINER}.secrets"
RESTART_LABEL = f"{CONTAINER}.{RESTART_KEY}"
# In memory, so the agent leaves no secret on a disk. Docker keeps a container's variables in its own data folder, for root.
TMPFS = "/dev/shm"  # noqa: S108 - the machine's memory; a confined container has a separate one
# On the boot disk, outside the container, so downloads survive restarts of the server. A copy in
# /dev/shm uses the host memory that compilation needs (a v5e-1 host has 48 GiB) and is lost at a reboot.
HUB_CACHE, HUB_CACHE_FOLDER_VARIABLE = "/mnt/huggingface", "GEMMA_SERVING_HUB_CACHE"
HUB_CACHE_VARIABLE, HUB_ENDPOINT_VARIABLE = "HF_HOME", "HF_ENDPOINT"
STATE_FOLDER, STATE_FOLDER_VARIABLE = "/var/lib/gemma-serving", "GEMMA_SERVING_STATE"
GIB = 1024**3


def log(message: str) -> None:
    """Write one line to the journal."""
    print(message, file=sys.stderr, flush=True)


def environment_variable(name: str, default: str) -> str:
    """Return an environment variable, or the default if it is absent or empty."""
    return os.environ.get(name) or default


def hub_cache() -> Path:
    """Return the machine's folder of the hub cache."""
    return Path(environment_variable(HUB_CACHE_FOLDER_VARIABLE, HUB_CACHE))


class ServingError(Exception):
    """Failure to serve a document. The message is one sentence for users.

    `log_lines` are the last of the server's log. `retry` is False if only another document can succeed.
    `denied`: Google denied a permission, which a grant may provide in minutes. `status` is Google's HTTP status, or 0.
    `waits_for` is the phase of a transient cause, or empty.
    """

    def __init__(
        self,
        message: str,
        log_lines: Sequence[str] = (),
        *,
        retry: bool = True,
        denied: bool = False,
        status: int = 0,
        waits_for: str = "",
    ) -> None:
        super().__init__(message)
        self.log_lines = tuple(log_lines)
        self.retry = retry
        self.denied = denied
        self.status = status
        self.waits_for = waits_for


class SupersededError(Exception):
    """A newer document has arrived. The work for the old one stops."""
