"""Limit of open files, which a server with many connections must raise."""

import resource
from contextlib import suppress


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard limit. Many systems start processes with 1,024, and each stream uses one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems report a hard limit that they do not allow; then keep the soft limit.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
