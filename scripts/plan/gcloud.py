"""The deployment of a Cloud Run service as a command of gcloud, as text."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from string import Template
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.staged_weights import MODELS_FOLDER
from gemma_serving.engine.runner import project_folder
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.google_limits import PROMPT_PROBE
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.plan.gke import require_project
from gemma_serving.scripts.plan.plan_options import QuestionOptions
from gemma_serving.scripts.plan.question import settings_of
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.server_command import PORT, PlannedServer

_COMMAND: Final = r"""
gcloud run deploy ${base} --project=${project} --region=${region} --image=${image} --service-account=${account} \
  --gpu=1 --gpu-type=${gpu} --no-gpu-zonal-redundancy --cpu=${cpu} --memory=${memory_mib}Mi --no-cpu-throttling --cpu-boost \
  --concurrency=${concurrency} --min-instances=${min_instances} --max-instances=${max_instances} --timeout=${request_timeout_s} \
  --execution-environment=gen2 --port=${port} --no-allow-unauthenticated \
  --add-volume=name=models,type=cloud-storage,bucket=${bucket},readonly=true --add-volume-mount=volume=models,mount-path=${folder} \
  --set-env-vars=${environment} \
  --startup-probe=httpGet.path=/health,httpGet.port=${port},${probe} \
  --command=vllm --args=${arguments}
""".strip()
"""Keys are those of the settings of a service, or of `gcloud_command`."""


def show_gcloud(options: QuestionOptions, *, as_json: bool) -> ExitCode:
    """Print the command. Raises as `gcloud_command`."""
    settings, stack = settings_of(options), options.stack or ""
    require_project(settings, stack)
    command = gcloud_command(settings, stack)
    print_text(json.dumps({"stack": stack, "command": command}) if as_json else command)
    return ExitCode.DONE


def gcloud_command(settings: Settings, stack: str) -> str:
    """Return the command. Raises CommandRefusedError for another target, and for a start that needs this project's program."""
    run, names = settings.cloud_run, Names(project=settings.project, stack=stack)
    if run is None or not run.mount.mounts or settings.weights != "bucket":
        raise CommandRefusedError(
            f"Stack {stack} is not a Cloud Run service that reads its weights from a mounted bucket, so gcloud alone cannot deploy it. "
            f"Run `gemma up {stack}`."
        )
    planned = plan(to_question(settings, project_folder()))
    server = PlannedServer(settings=settings, plan=planned, names=names)
    probe = planned.startup.probe or PROMPT_PROBE
    limits = {
        "initialDelaySeconds": probe.initial_delay_s,
        "periodSeconds": probe.period_s,
        "failureThreshold": probe.failure_threshold,
        "timeoutSeconds": probe.timeout_s,
    }
    values = {
        **asdict(run),
        "probe": ",".join(f"{key}={value}" for key, value in limits.items()),
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
    return Template(_COMMAND).substitute(values)


def _listed(words: Sequence[str]) -> str:
    """Return words as a list of gcloud with another separator than the comma, which JSON has, quoted for a shell."""
    return shlex.quote("^|^" + "|".join(words))
