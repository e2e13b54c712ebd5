"""Public interface of `scripts.doctor` for other commands: what blocks a deployment, and the judge of places."""

from gemma_serving.scripts.doctor.blocking import (
    live_checks,
    read_quotas,
    require_ready,
    require_secrets,
    require_weights,
)
from gemma_serving.scripts.doctor.capacity import place_findings
from gemma_serving.scripts.doctor.diagnosis import Diagnosis
from gemma_serving.scripts.doctor.places import (
    ExistingRequest,
    JudgedForm,
    JudgedPlace,
    LocationCheck,
    QuotaCheck,
    judge,
    question_of,
)
from gemma_serving.scripts.doctor.rendering import report, report_entries, width_of

__all__ = [
    "Diagnosis",
    "ExistingRequest",
    "JudgedForm",
    "JudgedPlace",
    "LocationCheck",
    "QuotaCheck",
    "judge",
    "live_checks",
    "place_findings",
    "question_of",
    "read_quotas",
    "report",
    "report_entries",
    "require_ready",
    "require_secrets",
    "require_weights",
    "width_of",
]
