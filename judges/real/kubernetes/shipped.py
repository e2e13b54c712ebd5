"""The objects of each shipped stack on GKE, by the product's own code, with the figures of its plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.gke.objects import objects
from gemma_serving.gke.server import NODE_START_S, GkeOptions, GkeServer
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.stacks.gke import gke_server
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_deployment
from judges.real.home import ROOT
from judges.real.kubernetes.api import Object

PROJECT: Final = "local-project"
_BUILT: Final = f"us-east5-docker.pkg.dev/{PROJECT}/serving/vllm@sha256:{'0' * 64}"
"""Image of a stack that builds its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedStack:
    """A shipped stack on GKE."""

    name: str
    server: GkeServer
    options: GkeOptions

    @property
    def objects(self) -> Sequence[Object]:
        """Objects as `gemma plan STACK --gke` prints them."""
        return objects(self.server, self.options)

    @property
    def start_s(self) -> float:
        """Planned seconds from the container's start until the server answers."""
        return self.server.container_start_s

    @property
    def node_s(self) -> float:
        """Planned seconds until a new node is ready."""
        return NODE_START_S


def names() -> Sequence[str]:
    """Return the names of the shipped stacks."""
    return [path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT)]


def shipped(stack: str, *, replicas: tuple[int, int] = (1, 2)) -> ShippedStack:
    """Return a shipped stack on GKE."""
    settings = from_file(settings_file(stack, ROOT), project=PROJECT)
    subject = examine(to_deployment(settings))
    options = GkeOptions(replicas=replicas, image=_BUILT if settings.image.build_context else "")
    return ShippedStack(
        name=stack, server=gke_server(settings, subject, plan_of(subject), stack, options), options=options
    )
