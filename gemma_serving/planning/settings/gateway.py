"""A gateway: one address for several stacks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from gemma_serving.planning.settings.annotations import Checked, Items, OnChange
from gemma_serving.planning.settings.text import FromZero, Invoker, Positive, Region, StackName


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """A stack behind the gateway."""

    stack: StackName
    """TPU stack of this project, which names the gateway in `tpu.gateway`."""


def _backends_problem(backends: tuple[BackendSettings, ...]) -> str | None:
    names = [backend.stack for backend in backends]
    twice = next((name for name in names if names.count(name) > 1), None)
    return None if twice is None else f'backends has stack "{twice}" more than once; list each stack once'


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Envoy on Cloud Run in front of several stacks, and the network of their TPU VMs."""

    region: Annotated[Region, OnChange("service")]
    """Region of the Cloud Run service."""
    regions: Annotated[tuple[Region, ...], Items("region", "regions")]
    """Regions with a subnetwork for TPU VMs: the regions of all TPU backends' zones."""
    backends: Annotated[tuple[BackendSettings, ...], Checked(_backends_problem), Items("stack", "backends")]
    """TPU stacks behind the gateway: `{ stack: NAME }`."""
    invokers: Annotated[tuple[Invoker, ...], OnChange("update")] = ()
    """Members that can call the gateway. They need no access to the backends. Project owners need no entry."""
    min_instances: FromZero = 1
    """Instances that always run.

    With 0, the first request after a pause waits a minute or more for an address in the network.
    """
    max_instances: Positive = 2
    """Maximum number of instances, each with up to 1000 concurrent requests."""
    internet_egress: Annotated[bool, OnChange("update")] = True
    """Add Cloud NAT to the network.

    Servers need it to download from the Hugging Face hub. TPU VMs with api compute-engine need it for the docker package. Without either, set
    false.
    """

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        if self.min_instances > self.max_instances:
            yield (
                f"minInstances {self.min_instances} exceeds maxInstances {self.max_instances}; lower the first or raise the second"
            )
