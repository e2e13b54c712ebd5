"""Public interface of `scripts.doctor` for other commands: what stops a deployment, as text."""

from gemma_serving.scripts.doctor.blocking import require_ready
from gemma_serving.scripts.doctor.rendering import width_of

__all__ = ["require_ready", "width_of"]
