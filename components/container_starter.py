"""The starter of a Cloud Run container: modules of `vm_agent` and `contracts`, joined to one program that `python3 -c` runs.

vLLM's image has Python and nothing of ours. So the program travels as an argument of the container, where everybody can read it.
"""

from functools import cache
from typing import Final

from components.packed_program import packed
from components.startup_script import joined_program

ARGUMENT_LIMIT_BYTES: Final = 32 * 1024
"""Longest argument that is sent. Cloud Run states no limit for one; this is its limit for the value of an environment variable, and is
assumed for arguments (packages/localcloud/ledger/sizes.toml). Linux would take 128 KiB (MAX_ARG_STRLEN, execve(2))."""

STARTER_SECTIONS: Final = (
    "contracts.guest_attributes",
    "contracts.serving_document",
    "contracts.compile_cache",
    "contracts.container_start",
    "contracts.path_guard",
    "vm_agent.base",
    "vm_agent.cloud",
    "vm_agent.weights",
    "vm_agent.signing",
    "vm_agent.archives",
    "vm_agent.graphs",
    "vm_agent.guard_file",
    "vm_agent.starter",
)
"""Modules in the order of their dependencies. The last one starts the program."""

_HEADER: Final = '''"""Starter of a Cloud Run container that serves one model with vLLM: the same for every deployment.

It copies the weights into memory and restores compiled graphs, as its first argument says, writes the path guard of a server with an API key,
and then becomes the server of its other arguments.
Needs Python 3.10. Nothing secret is logged or put on a command line.
"""
'''
_PACKED_HEADER: Final = (
    "# Starter of a Cloud Run container, compressed: components/container_starter.py joins its text.\n"
)


@cache
def container_command() -> tuple[str, ...]:
    """Return the container's command: the starter. Its arguments are a `ContainerStart` as text and the server's command line."""
    return ("python3", "-c", packed(_PACKED_HEADER, starter_program()))


@cache
def starter_program() -> str:
    """Return the starter in plain text."""
    return joined_program(_HEADER, STARTER_SECTIONS)
