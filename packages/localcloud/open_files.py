"""The limit of open files, which a server with many connections has to raise."""

import resource
from contextlib import suppress


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one: many systems start processes with 1,024, and each stream takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems report a hard limit that they do not allow; the soft limit then stays.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
