"""Public interface of `scripts.new` for `init`."""

from gemma_serving.scripts.new.__main__ import NewOptions, write_settings

__all__ = ["NewOptions", "write_settings"]
