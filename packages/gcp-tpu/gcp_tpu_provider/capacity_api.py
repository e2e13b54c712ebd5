"""The backends for TPU capacity, with the same calls.

Both use the terms of the Cloud TPU API: a queued resource is a capacity request, a node is the VM. On Compute Engine
one instance is both. Each backend maps Google's states to these terms. A call raises GoogleError or NoAnswerError.
"""

from typing import TypeAlias

from gcp_tpu_provider.compute_api import ComputeApi
from gcp_tpu_provider.compute_request import COMPUTE_ENGINE
from gcp_tpu_provider.tpu_api import TpuApi
from gcp_tpu_provider.transport import TpuTransport

CapacityApi: TypeAlias = TpuApi | ComputeApi


def capacity_api(api: str, transport: TpuTransport) -> CapacityApi:
    """Return the backend for the input `api`."""
    return ComputeApi(transport) if api == COMPUTE_ENGINE else TpuApi(transport)
