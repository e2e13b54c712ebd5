"""Public interface of `scripts.preview` for other commands."""

from gemma_serving.scripts.preview.upcoming import headline, upcoming

__all__ = ["headline", "upcoming"]
