"""Public interface of `scripts.connect` for other commands: a connection that reopens its tunnel."""

from scripts.connect.upstream import Upstream

__all__ = ["Upstream"]
