"""Public interface of `scripts.doctor` for other commands: what stops a deployment, as text."""

from gemma_serving.scripts.doctor.blocking import blocking_checks
from gemma_serving.scripts.doctor.rendering import WIDTH, report_entries, width_of

__all__ = ["WIDTH", "blocking_checks", "report_entries", "width_of"]
