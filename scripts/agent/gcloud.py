"""The deployment of a Cloud Run service as a command of gcloud, as text."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from string import Template

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.staged_weights import MODELS_FOLDER
from gemma_serving.engine.runner import project_folder
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.google_limits import PROMPT_PROBE
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.agent.pages import TEXTS
from gemma_serving.stacks.planned import to_deployment
from gemma_serving.stacks.server_command import PORT, PlannedServer


def gcloud_command(settings: Settings, stack: str) -> str:
    """Return the command. Raises CommandRefusedError for another target, and for a start that needs this project's program."""
    run, names = settings.cloud_run, Names(project=settings.project, stack=stack)
    if run is None or not run.mount.mounts or settings.weights != "bucket":
        raise CommandRefusedError(
            f"Stack {stack} is not a Cloud Run service that reads its weights from a mounted bucket, so gcloud alone cannot deploy it. "
            f"Run `gemma up {stack}`."
        )
    planned = plan(to_deployment(settings, project_folder()))
    server = PlannedServer(settings=settings, plan=planned, names=names)
    values = {
        **asdict(run),
        **asdict(planned.startup.probe or PROMPT_PROBE),
        "base": names.base,
        "project": settings.project,
        "image": f"{settings.image.repository}@{settings.image.digest}",
        "account": names.account_email,
        "bucket": settings.bucket_name(stack),
        "folder": MODELS_FOLDER,
        "port": PORT,
        "environment": _listed([f"{name}={value}" for name, value in server.environment.items()]),
        "arguments": _listed(["serve", *server.arguments]),
    }
    return Template(TEXTS["command"]).substitute(values)


def _listed(words: Sequence[str]) -> str:
    """Return words as a list of gcloud with another separator than the comma, which JSON has, quoted for a shell."""
    return shlex.quote("^|^" + "|".join(words))
