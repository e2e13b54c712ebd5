"""Names, limits and errors that every part of the agent uses."""

import os
import sys
from collections.abc import Sequence

from contracts.guest_attributes import CONTAINER_KEY, DOCUMENT_HASH_KEY

UNIT = "gemma-serving-agent"
CONTAINER = "gemma-serving"
HASH_LABEL = f"{CONTAINER}.{DOCUMENT_HASH_KEY}"
DRAIN_LABEL = f"{CONTAINER}.drain-s"
FORM_LABEL = f"{CONTAINER}.{CONTAINER_KEY}"
SECRETS_LABEL = f"{CONTAINER}.secrets"
# Memory on purpose: secrets on their way to docker never touch a disk.
TMPFS = "/dev/shm"  # noqa: S108 - the machine's memory; a confined container has one of its own
# On the boot disk, outside the container: what the server downloads survives its restarts. The page cache keeps it in memory as far as
# there is room. A copy in /dev/shm would take the host's memory from compilation (a v5e-1 host has 48 GiB) and be lost at a reboot.
HUB_CACHE = "/mnt/huggingface"
HUB_CACHE_VARIABLE = "HF_HOME"
STATE_FOLDER = "/var/lib/gemma-serving"
GIB = 1024**3


def log(message: str) -> None:
    """Write one line to the journal."""
    print(message, file=sys.stderr, flush=True)


def environment_variable(name: str, default: str) -> str:
    """Return an environment variable, or the default if it is absent or empty."""
    return os.environ.get(name) or default


class ServingError(Exception):
    """The document cannot be served; the message is one sentence for people.

    `log_lines` are the last lines of the server's log, if it had started. `retry` is False if another attempt cannot succeed
    until the document changes. `denied` is True if Google refused a permission: a new grant may take minutes to take effect.
    `status` is that of Google's answer, if one came.
    """

    def __init__(
        self, message: str, log_lines: Sequence[str] = (), *, retry: bool = True, denied: bool = False, status: int = 0
    ) -> None:
        super().__init__(message)
        self.log_lines = tuple(log_lines)
        self.retry = retry
        self.denied = denied
        self.status = status


class SupersededError(Exception):
    """A newer document has arrived; the work for the old one stops."""
