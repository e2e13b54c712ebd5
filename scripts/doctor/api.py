"""Public interface of `scripts.doctor` for other commands: what stops a deployment, as text."""

from gemma_serving.scripts.doctor.blocking import require_ready, require_secrets, require_weights
from gemma_serving.scripts.doctor.diagnosis import Diagnosis
from gemma_serving.scripts.doctor.rendering import width_of

__all__ = ["Diagnosis", "require_ready", "require_secrets", "require_weights", "width_of"]
