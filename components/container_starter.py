"""Starter of a Cloud Run container: modules of `vm_agent` and `contracts`, joined into one program for `python3 -c`.

vLLM's image has Python but not our code. So the program is an argument of the container, readable by anyone who can see the service.
"""

from functools import cache
from typing import Final

from gemma_serving.components.startup_script import joined_program, packed

STARTER_SECTIONS: Final = (
    "gemma_serving.contracts.guest_attributes",
    "gemma_serving.contracts.secret_payload",
    "gemma_serving.contracts.serving_document",
    "gemma_serving.contracts.compile_cache",
    "gemma_serving.contracts.container_start",
    "gemma_serving.contracts.path_guard",
    "gemma_serving.vm_agent.base",
    "gemma_serving.vm_agent.clock",
    "gemma_serving.vm_agent.cloud",
    "gemma_serving.vm_agent.weights",
    "gemma_serving.vm_agent.mounted",
    "gemma_serving.vm_agent.archives",
    "gemma_serving.vm_agent.guard_file",
    "gemma_serving.vm_agent.starter",
)
"""Modules in dependency order. The last one starts the program."""

_HEADER: Final = '''"""Starter of a Cloud Run container that serves one model with vLLM: the same for every deployment.

It copies the weights into memory and restores compiled graphs, as set by its first argument, writes the path guard of a server with an API key,
and then becomes the server given by its other arguments.
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
