"""What other commands use of `up`."""

from gemma_serving.scripts.up.returning import import_missing

__all__ = ["import_missing"]
