"""Public interface of `scripts.quality` for other commands: the share of right answers of a deployment."""

from scripts.quality.beside import quality_of

__all__ = ["quality_of"]
