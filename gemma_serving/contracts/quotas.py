"""Quotas of Cloud Run in a stack's region that were read: `up` passes them to the program that the engine runs."""

import json
from typing import Final, TypeAlias

from gemma_serving.contracts.three_answers import Present

QUOTAS_VARIABLE: Final = "GEMMA_SERVING_QUOTAS"
Quotas: TypeAlias = tuple[tuple[str, Present[float]], ...]
"""Limits by unit, as the quotas are counted: GPUs, vCPU, GiB. Infinite without a limit."""


SERVICE_USAGE: Final = "Service Usage"


def to_variable(quotas: Quotas) -> str:
    """Return the value of QUOTAS_VARIABLE."""
    return json.dumps({unit: quota.value for unit, quota in quotas})


def from_variable(text: str | None) -> Quotas:
    """Return the quotas in the value of QUOTAS_VARIABLE; none without one."""
    return tuple((unit, Present(float(limit), SERVICE_USAGE)) for unit, limit in json.loads(text or "{}").items())
