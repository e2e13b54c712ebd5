"""Operating-system limits for a thousand open streams."""

import contextlib
import resource


def raise_open_files_limit() -> None:
    """Raise this process's limit of open files to the hard limit. The usual default is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports a hard limit that it then refuses
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_limit() -> int | None:
    """Return the hard limit of open files, or None if there is none."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard
