"""The seam between the provider and Google's APIs for TPU capacity.

The vocabulary is that of the Cloud TPU API, whose queued resource is a request for capacity and whose node is the machine. On Compute Engine
one instance is both. Each backend maps Google's states to that vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from gcp_tpu_provider.compute_api import ComputeApi
from gcp_tpu_provider.compute_request import COMPUTE_ENGINE
from gcp_tpu_provider.tpu_api import GuestReport, LongRunningOperation, NodeInfo, QueuedResourceInfo, TpuApi
from gcp_tpu_provider.transport import TpuTransport


class CapacityApi(Protocol):
    """The calls of the provider. Each raises GoogleError or NoAnswerError."""

    vanished: ClassVar[str]
    """Why a request that was seen can be gone, as a sentence."""
    lost: ClassVar[str]
    """Why capacity that was there can be gone, as a sentence."""

    async def zones_to_search(self, project: str, identifier: str) -> Sequence[str]:
        """Return every zone in which a request with this id can exist."""
        ...

    async def quota_refusal(self, inputs: Mapping[str, Any], zone: str) -> str:
        """Return why no request for these inputs can succeed in a zone, where Google would not say so itself. Empty if one can, or if that is not known."""
        ...

    async def create_queued_resource(self, name: str, body: Mapping[str, Any], request_id: str) -> LongRunningOperation:
        """Ask for capacity under this full name. Sending the same request id again has no further effect."""
        ...

    async def find_queued_resource(self, name: str) -> QueuedResourceInfo | None:
        """Return the request, or None if none has this name."""
        ...

    async def delete_queued_resource(self, name: str, *, force: bool, request_id: str) -> LongRunningOperation:
        """Ask for the deletion. Without `force`, the Cloud TPU API refuses to delete capacity; Compute Engine deletes in every state."""
        ...

    async def find_node(self, name: str) -> NodeInfo | None:
        """Return the machine, or None if none has this name."""
        ...

    async def patch_node(self, name: str, changes: Mapping[str, Any], mask: str) -> LongRunningOperation:
        """Change labels, metadata, tags, the description or the external address of the machine as it was found last."""
        ...

    async def find_guest_report(self, node: str, namespace: str) -> GuestReport | None:
        """Return what the machine last published in a namespace of its guest attributes, or None if it has published nothing."""
        ...

    async def get_operation(self, name: str) -> LongRunningOperation:
        """Return an operation. One that Google no longer has counts as done."""
        ...


def capacity_api(api: str, transport: TpuTransport) -> CapacityApi:
    """Return the backend that the input `api` names."""
    return ComputeApi(transport) if api == COMPUTE_ENGINE else TpuApi(transport)
