"""What a tool tells a client about itself. Hints only: what protects is that a tool is not there, or refuses."""

from typing import Final

from mcp.types import ToolAnnotations

READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
"""Computes from files of this machine."""
ASKS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=True)
"""Asks Google or a server, and changes nothing."""
WAKES: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
"""Sends requests to a server: changes nothing, and starts an instance of a service that sleeps, which costs money."""
CHANGES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
)
DELETES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True
)
STOPS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
