"""Code of other authors in a process that cannot read what the user's other processes have in memory and in their environment.

/proc shows both to every process of a user. A process in a domain of Landlock, the kernel's sandbox without privileges, sees neither of a
process outside it. The domain forbids nothing else but block devices, because a domain forbids something.
"""

import ctypes
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""System calls (linux/include/uapi/asm-generic/unistd.h)."""
_MAKE_BLOCK: Final = 1 << 11
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_SEE_ALL_MEMORY: Final = (21, 38)
"""CAP_SYS_ADMIN and CAP_PERFMON, with which root reads any process's memory, in a domain too (kernel/fork.c, may_access_mm, Linux 6.18)."""


def clean_environment(variables: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment of the child: PATH, an empty home folder without tokens, and the server's own variables."""
    return {"PATH": os.environ.get("PATH", os.defpath), **variables, "HOME": str(home)}


@contextmanager
def confinement() -> Generator[Callable[[], None]]:
    """Yield the `preexec_fn` of a process that is confined. Raises CommandRefusedError if the kernel has no Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    handled = ctypes.c_uint64(_MAKE_BLOCK)
    size = ctypes.c_size_t(ctypes.sizeof(handled))
    rules = int(libc.syscall(_CREATE_RULESET, ctypes.byref(handled), size, ctypes.c_uint32(0)))
    if rules < 0:
        raise CommandRefusedError(
            f"--compile runs code of other authors, and this kernel cannot confine it: {os.strerror(ctypes.get_errno())}. "
            "Run the command where Landlock is enabled: Linux 5.13 or newer, and `landlock` in /sys/kernel/security/lsm."
        )

    def confine() -> None:
        for capability in _SEE_ALL_MEMORY:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # a user without capabilities cannot, and need not
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, rules, ctypes.c_uint32(0)):
            raise OSError(ctypes.get_errno(), "Landlock")

    try:
        yield confine
    finally:
        os.close(rules)
