"""Public interface of `scripts.doctor` for other commands: what stops a deployment, as text."""

from gemma_serving.scripts.doctor.blocking import blocking_checks, weights_check
from gemma_serving.scripts.doctor.diagnosis import Diagnosis
from gemma_serving.scripts.doctor.rendering import WIDTH, report_entries, width_of

__all__ = ["WIDTH", "Diagnosis", "blocking_checks", "report_entries", "weights_check", "width_of"]
