"""The server of a settings file on GKE, for a Pulumi program of your own that passes it to `GkeModelServer`."""

from pathlib import Path
from typing import NamedTuple

import pulumi

from gemma_serving.contracts.settings_files import stack_of_file
from gemma_serving.gke.objects import KubernetesObject, objects
from gemma_serving.gke.rules import findings
from gemma_serving.gke.server import GkeOptions, GkeServer
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.stacks.gke import gke_server, require_writable
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import finding_text, to_deployment, today
from gemma_serving.stacks.program import UserError
from gemma_serving.stacks.wording import StackWording


class ServerOnGke(NamedTuple):
    """A planned server, whose name, bucket and token the program needs, and its objects."""

    server: GkeServer
    objects: list[KubernetesObject]


def server_on_gke(path: Path, options: GkeOptions, *, project: str) -> ServerOnGke:
    """Return the server of `Pulumi.STACK.yaml` in a Google project, and log the findings about its objects.

    Raises pulumi.RunError if the settings are invalid, or if a finding blocks the plan or the objects.
    """
    stack = stack_of_file(str(path))
    try:
        settings = from_file(path, changes={"gcp:project": project})
        deployment = to_deployment(settings, path.parent, today=today())
        subject = examine(deployment)
        plan, wording = plan_of(subject), StackWording(deployment, stack)
        server = gke_server(settings, subject, plan, stack, options)
        found = findings(server, options)
        require_writable(plan, found, stack, wording)
    except UserError as error:
        raise pulumi.RunError(str(error)) from None
    for one in found:
        (pulumi.log.warn if one.severity == "warn" else pulumi.log.info)(finding_text(one, wording))
    return ServerOnGke(server, objects(server, options))
