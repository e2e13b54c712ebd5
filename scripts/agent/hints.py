"""A tool's hints to clients. They do not protect; a tool protects by being absent or refusing."""

from typing import Final

from mcp.types import ToolAnnotations

READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
"""Computes from files on this computer."""
ASKS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=True)
"""Queries Google or a server, without changes."""
WAKES: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
"""Sends requests to a server. Changes nothing, but starts an instance of a service scaled to zero, which costs money."""
CHANGES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
)
DELETES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True
)
STOPS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
