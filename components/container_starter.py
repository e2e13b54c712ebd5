"""The starter of a Cloud Run container: modules of `vm_agent` and `contracts`, joined to one program that `python3 -c` runs.

vLLM's image has Python and nothing of ours. So the program travels as an argument of the container, where everybody can read it.
"""

from functools import cache
from typing import Final

from components.startup_script import joined_program

ARGUMENT_LIMIT_BYTES: Final = 128 * 1024
"""Longest single argument of a Linux process (MAX_ARG_STRLEN, 32 pages of 4 KiB; execve(2)). Cloud Run states no limit of its own."""

STARTER_SECTIONS: Final = (
    "contracts.guest_attributes",
    "contracts.serving_document",
    "contracts.compile_cache",
    "contracts.container_start",
    "vm_agent.base",
    "vm_agent.cloud",
    "vm_agent.weights",
    "vm_agent.archives",
    "vm_agent.graphs",
    "vm_agent.starter",
)
"""Modules in the order of their dependencies. The last one starts the program."""

_HEADER: Final = '''"""Starter of a Cloud Run container that serves one model with vLLM: the same for every deployment.

It copies the weights into memory and restores compiled graphs, as its first argument says, and then becomes the server of its other arguments.
Needs Python 3.10. Nothing secret is logged or put on a command line.
"""
'''


@cache
def container_command() -> tuple[str, ...]:
    """Return the container's command: the starter. Its arguments are a `ContainerStart` as text and the server's command line."""
    return ("python3", "-c", joined_program(_HEADER, STARTER_SECTIONS))
