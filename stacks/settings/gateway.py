"""A gateway: one address for several stacks."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from stacks.settings.block import Block, OnChange
from stacks.settings.text import Invoker, Labels, Positive, ProjectId, Region, StackName
from stacks.settings.watching import AlertRecipients


class BackendSettings(Block):
    """A stack behind the gateway."""

    stack: StackName
    """TPU stack of this project, which names the gateway in `tpu.gateway`."""


class GatewaySettings(Block):
    """Envoy on Cloud Run in front of several stacks, and the network of their machines."""

    region: Annotated[Region, OnChange("service")]
    """Region of the Cloud Run service."""
    regions: Annotated[list[Region], Field(min_length=1)]
    """Regions with a subnetwork for TPU machines: the regions of all TPU backends' zones."""
    backends: Annotated[list[BackendSettings], Field(min_length=1)]
    """TPU stacks behind the gateway: `{ stack: NAME }`."""
    invokers: Annotated[list[Invoker], Field(default_factory=list), OnChange("update")]
    """Members that can call the gateway. They need no access to the backends. Project owners need no entry."""
    min_instances: Annotated[int, Field(ge=0)] = 1
    """Instances that always run. With 0, the first request after a pause waits a minute or more for an address in the network."""
    max_instances: Positive = 2
    """Maximum number of instances, each with up to 1000 concurrent requests."""
    internet_egress: Annotated[bool, OnChange("update")] = True
    """Add Cloud NAT to the network. Servers need it to download from the Hugging Face hub, and machines with api compute-engine for the docker
    package. Without either, set false."""

    @field_validator("regions")
    @classmethod
    def _regions_differ(cls, regions: list[str]) -> list[str]:
        if len(set(regions)) != len(regions):
            raise ValueError("regions has duplicates; list each region once")
        return regions

    @field_validator("backends")
    @classmethod
    def _backends_differ(cls, backends: list[BackendSettings]) -> list[BackendSettings]:
        names = [backend.stack for backend in backends]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f'backends has stack "{twice}" more than once; list each stack once')
        return backends

    def _problems(self) -> Iterator[str]:
        if self.min_instances > self.max_instances:
            yield (
                f"minInstances {self.min_instances} exceeds maxInstances {self.max_instances}; lower the first or raise the second"
            )


class GatewayStack(Block):
    """All settings of a stack of target `gateway`."""

    project: ProjectId
    """Google Cloud project, from gcp:project."""
    target: Literal["gateway"]
    """Platform that the stack runs on."""
    gateway: GatewaySettings
    """The gateway. Required with target gateway, otherwise rejected."""
    alerts: Annotated[
        AlertRecipients, Field(default_factory=lambda: AlertRecipients.model_validate({})), OnChange("update")
    ]
    """Alert policy in Cloud Monitoring on requests that the gateway answers with 503."""
    prices: Annotated[Annotated[str, Field(min_length=1)] | None, OnChange("nothing")] = None
    """JSON file with custom prices, relative to `Pulumi.yaml`."""
    labels: Annotated[Labels, Field(default_factory=dict), OnChange("update")]
    """Custom labels for every resource that supports labels."""
