"""The server of a settings file on GKE, for a Pulumi program of your own that passes it to `GkeModelServer`."""

from pathlib import Path

import pulumi

from gemma_serving.contracts.settings_files import stack_of_file
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.planning.cost.subject import examine
from gemma_serving.stacks.gke import ServerOnGke, judged_server
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import finding_text, to_question, today
from gemma_serving.stacks.program import UserError
from gemma_serving.stacks.settings_wording import StackWording


def server_on_gke(path: Path, options: GkeOptions, *, project: str) -> ServerOnGke:
    """Return the server of `Pulumi.STACK.yaml` in a Google project, its objects and the findings about them, which it logs.

    Raises pulumi.RunError if the settings are invalid, or if a finding blocks the plan or the objects.
    """
    stack = stack_of_file(str(path))
    try:
        settings = from_file(path, changes={"gcp:project": project})
        question = to_question(settings, path.parent, today=today())
        wording = StackWording(question, stack)
        planned = judged_server(settings, examine(question), options, wording)
    except UserError as error:
        raise pulumi.RunError(str(error)) from None
    for one in planned.findings:
        (pulumi.log.warn if one.severity == "warn" else pulumi.log.info)(finding_text(one, wording))
    return planned
