"""The file of a gateway's stack."""

from typing import Annotated, Literal

from pydantic import Field

from gemma_serving.planning.settings.annotations import CONSISTENT, OnChange
from gemma_serving.planning.settings.gateway import GatewaySettings
from gemma_serving.planning.settings.observability import AlertRecipients
from gemma_serving.planning.settings.text import FilePath, ProjectId
from gemma_serving.stacks.settings.block import Block
from gemma_serving.stacks.settings.labels import Labels


class GatewayStack(Block):
    """All settings of a stack of target `gateway`."""

    project: ProjectId
    """Google Cloud project, from gcp:project."""
    target: Literal["gateway"]
    """Platform that the stack runs on."""
    gateway: Annotated[GatewaySettings, CONSISTENT]
    """Envoy on Cloud Run in front of several TPU stacks, and their network. Required with target gateway, otherwise rejected."""
    alerts: Annotated[AlertRecipients, Field(default_factory=AlertRecipients), OnChange("update")]
    """Alert policy in Cloud Monitoring on requests that the gateway answers with 503."""
    prices: Annotated[FilePath | None, OnChange("nothing")] = None
    """JSON file with custom prices, relative to `Pulumi.yaml`."""
    labels: Annotated[Labels, Field(default_factory=dict), OnChange("update")]
    """Custom labels for every resource that supports labels."""
