"""Interface between the provider and Google's APIs for TPU capacity.

It uses the terms of the Cloud TPU API: a queued resource is a capacity request, a node is the VM. On Compute Engine
one instance is both. Each backend maps Google's states to these terms.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from gcp_tpu_provider.compute_api import ComputeApi
from gcp_tpu_provider.compute_request import COMPUTE_ENGINE
from gcp_tpu_provider.tpu_api import GuestReport, LongRunningOperation, NodeInfo, QueuedResourceInfo, TpuApi
from gcp_tpu_provider.transport import TpuTransport


class CapacityApi(Protocol):
    """API calls of the provider. Each raises GoogleError or NoAnswerError."""

    vanished: ClassVar[str]
    """Sentence with the possible reasons that a visible request is gone."""
    lost: ClassVar[str]
    """Sentence with the possible reasons that capacity is gone."""

    async def zones_to_search(self, project: str, identifier: str) -> Sequence[str]:
        """Return every zone in which a request with this id might exist."""
        ...

    async def quota_refusal(self, inputs: Mapping[str, Any], zone: str) -> str:
        """Return why no request for these inputs can succeed in a zone, if Google does not report it. Empty if one can, or if unknown."""
        ...

    async def create_queued_resource(self, name: str, body: Mapping[str, Any], request_id: str) -> LongRunningOperation:
        """Request capacity under this full name. Repeating a request id has no further effect."""
        ...

    async def find_queued_resource(self, name: str) -> QueuedResourceInfo | None:
        """Return the request, or None if none has this name."""
        ...

    async def delete_queued_resource(self, name: str, *, force: bool, request_id: str) -> LongRunningOperation:
        """Request the deletion. Without `force`, the Cloud TPU API does not delete capacity. Compute Engine deletes in every state."""
        ...

    async def find_node(self, name: str) -> NodeInfo | None:
        """Return the node, or None if none has this name."""
        ...

    async def patch_node(self, name: str, changes: Mapping[str, Any], mask: str) -> LongRunningOperation:
        """Change labels, metadata, tags, the description or the external address of the node as it was last read."""
        ...

    async def find_guest_report(self, node: str, namespace: str) -> GuestReport | None:
        """Return the machine's latest report in a namespace of its guest attributes, or None if it has published nothing."""
        ...

    async def get_operation(self, name: str) -> LongRunningOperation:
        """Return an operation. Treat one that Google no longer has as done."""
        ...


def capacity_api(api: str, transport: TpuTransport) -> CapacityApi:
    """Return the backend for the input `api`."""
    return ComputeApi(transport) if api == COMPUTE_ENGINE else TpuApi(transport)
