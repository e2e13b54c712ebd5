"""Limits of the operating system that a thousand open streams meet."""

from __future__ import annotations

import contextlib
import resource


def raise_open_files_limit() -> None:
    """Allow this process as many open files as the system lets it have; the usual default is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS names a hard limit that it then refuses
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_limit() -> int | None:
    """Open files that a process can be given; None where there is no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard
