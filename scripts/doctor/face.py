"""Public interface of `scripts.doctor` for other commands: what stops a deployment, as text."""

from scripts.doctor.blocking import blocking
from scripts.doctor.rendering import entries, width_of

__all__ = ["blocking", "entries", "width_of"]
