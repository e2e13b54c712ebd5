"""Public interface of `scripts.stage_model` for other commands: the creation of a stack's bucket."""

from scripts.stage_model.bucket_creation import creation_steps, has_bucket

__all__ = ["creation_steps", "has_bucket"]
