"""Names, limits and errors that every part of the agent knows."""

import os
import sys
from collections.abc import Sequence

UNIT = "gemma-serving-agent"
CONTAINER = "gemma-serving"
HASH_LABEL = "gemma-serving.document-hash"
NAMESPACE = "gemma-serving"
DOCUMENT_KEY = "gemma-serving-document"
SCRIPT_KEY = "startup-script"
# Memory on purpose: secrets on their way to docker never touch a disk, and the compile cache is mounted from here.
TMPFS = "/dev/shm"  # noqa: S108
GIB = 1024**3


def log(message: str) -> None:
    """Write one line to the journal."""
    print(message, file=sys.stderr, flush=True)


def setting(name: str, default: str) -> str:
    """Read an environment variable; an empty one counts as absent."""
    return os.environ.get(name) or default


class ServingError(Exception):
    """One sentence for people; `lines` are the last lines of the server's log, if it had come that far.

    `retry` is False where trying again cannot help until the document changes.
    """

    def __init__(self, message: str, lines: Sequence[str] = (), *, retry: bool = True) -> None:
        super().__init__(message)
        self.lines = tuple(lines)
        self.retry = retry


class SupersededError(Exception):
    """A newer document has arrived; what was being done for the old one is dropped."""
