"""The file of a gateway's stack."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from gemma_serving.planning.settings.annotations import OnChange
from gemma_serving.planning.settings.gateway import GatewaySettings
from gemma_serving.planning.settings.observability import AlertRecipients
from gemma_serving.planning.settings.text import Labels, ProjectId, ProjectPath


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStack:
    """All settings of a stack of target `gateway`."""

    project: ProjectId
    """Google Cloud project, from gcp:project."""
    target: Literal["gateway"]
    """Platform that the stack runs on."""
    gateway: GatewaySettings
    """Envoy on Cloud Run in front of several TPU stacks, and their network. Required with target gateway, otherwise rejected."""
    alerts: Annotated[AlertRecipients, OnChange("update")] = field(default_factory=AlertRecipients)
    """Alert policy in Cloud Monitoring on requests that the gateway answers with 503."""
    prices: Annotated[ProjectPath | None, OnChange("nothing")] = None
    """JSON file with custom prices, relative to `Pulumi.yaml`."""
    labels: Annotated[Labels, OnChange("update")] = field(default_factory=dict[str, str])
    """Custom labels for every resource that supports labels."""

    @property
    def regions(self) -> tuple[str, ...]:
        """Distinct regions of the gateway and of its subnetworks, in order."""
        return tuple(dict.fromkeys([self.gateway.region, *self.gateway.regions]))
