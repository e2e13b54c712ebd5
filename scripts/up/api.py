"""Public interface of `scripts.up` for other commands."""

from gemma_serving.scripts.up.returning import import_missing

__all__ = ["import_missing"]
