"""Each shipped stack on GKE, by the code that a program of a user calls."""

from collections.abc import Sequence
from typing import Final

from dev.judges.real.home import ROOT
from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.gke.objects import KubernetesObject
from gemma_serving.gke.server_inputs import GkeOptions, GkeServer
from gemma_serving.stacks.gke_program import server_on_gke
from gemma_serving.stacks.loading import from_file

PROJECT: Final = "local-project"
_BUILT: Final = f"us-east5-docker.pkg.dev/{PROJECT}/serving/vllm@sha256:{'0' * 64}"
"""Image of a stack that builds its own."""


def names() -> Sequence[str]:
    """Return the names of the shipped stacks."""
    return [path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT)]


def shipped(
    stack: str, *, replicas: tuple[int, int] = (1, 2), gateway: str = ""
) -> tuple[GkeServer, list[KubernetesObject]]:
    """Return the server of a shipped stack and its objects. Raises pulumi.RunError if a finding blocks it."""
    path = settings_file(stack, ROOT)
    builds = from_file(path, changes={"gcp:project": PROJECT}).image.build_context
    options = GkeOptions(replicas=replicas, image=_BUILT if builds else "", gateway=gateway)
    planned = server_on_gke(path, options, project=PROJECT)
    return planned.server, planned.objects
