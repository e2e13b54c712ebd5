"""The server of a planned stack as Kubernetes objects for GKE: YAML alone on stdout, or one JSON object; findings on stderr."""

import json

import yaml

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.solve.remedy_wording import Wording, finding_json
from gemma_serving.scripts.cli.command import print_progress, print_text
from gemma_serving.scripts.plan.plan_options import GkeChoices, QuestionOptions
from gemma_serving.scripts.plan.question import settings_of
from gemma_serving.scripts.stack.settings import NO_PROJECT
from gemma_serving.stacks.gke import judged_server
from gemma_serving.stacks.planned import finding_text


def show_gke(
    question: QuestionOptions, choices: GkeChoices, subject: Subject, wording: Wording, *, as_json: bool
) -> ExitCode:
    """Print the objects. Raises CommandRefusedError if findings block the plan or the objects, or if they name a project that is not set."""
    settings, stack = settings_of(question), question.stack or ""
    options = GkeOptions(
        replicas=choices.replicas or (1, 1),
        image=question.image or "",
        accelerator=question.accelerator or "",
        compute_class=choices.compute_class or "",
        gateway=choices.gateway or "",
        callers=choices.callers or (),
        spare_node=choices.spare_node,
    )
    _, objects, found = judged_server(settings, subject, options, wording)
    if NO_PROJECT in json.dumps(objects):
        require_project(settings, stack)
    if as_json:
        shown = [finding_json(one, wording) for one in found]
        print_text(json.dumps({"stack": stack, "objects": objects, "findings": shown}, indent=2))
        return ExitCode.DONE
    for one in found:
        print_progress("plan", finding_text(one, wording))
    print_text(yaml.safe_dump_all(objects, sort_keys=False), end="")
    return ExitCode.DONE


def require_project(settings: Settings, stack: str) -> None:
    """Raise CommandRefusedError for settings without a project."""
    if settings.project == NO_PROJECT:
        raise CommandRefusedError(
            f"The names of bucket and secret contain the project, but none is set. Set gcp:project in Pulumi.{stack}.yaml or GOOGLE_CLOUD_PROJECT."
        )
