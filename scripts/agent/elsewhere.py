"""Configurations for places where this project does not deploy: text for a person, made from a stack's plan, never applied.

Sources: GKE, "Deploy GPUs for batch and AI workloads on Autopilot" and "About TPUs in GKE" (node selectors and topologies); Vertex AI,
"Use a custom container" and "Configure compute resources". They were read, not tried: each text says so.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import yaml
from mcp.server.mcpserver import MCPServer
from pydantic import Field

from planning import plan as planned
from planning.types import Plan
from planning.vllm_args import vllm_arguments
from scripts.agent.hints import READS
from scripts.agent.reading import Stack
from scripts.agent.untrusted import Frozen
from scripts.agent.workbench import Workbench, sentences
from scripts.errors import CommandRefusedError
from scripts.pulumi.settings import stack_settings
from stacks.planned import to_deployment
from stacks.settings import Settings

PORT: Final = 8000
NOT_TRIED: Final = "Written from Google's documents and the plan of the stack; this project does not deploy there, and it was not tried."
_TPU_TOPOLOGIES: Final[Mapping[str, tuple[str, int]]] = {
    "v6e-1": ("1x1", 1),
    "v6e-4": ("2x2", 4),
    "v6e-8": ("2x4", 8),
}
_GKE_GPUS: Final[Mapping[str, str]] = {"nvidia-l4": "nvidia-l4", "nvidia-rtx-pro-6000": "nvidia-rtx-pro-6000"}
_VERTEX_MACHINES: Final[Mapping[str, str]] = {"nvidia-l4": "g2-standard-8"}

Place = Literal["gke", "vertex", "docker"]


class _Plain(yaml.SafeDumper):
    """Repeats what is the same, instead of referring to it."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature of the library
        """Refer to nothing."""
        return True


class ConfigurationAnswer(Frozen):
    """A configuration as text. Nothing was applied."""

    stack: str
    place: str
    text: str
    note: str = NOT_TRIED


def add_elsewhere(server: MCPServer[Any], bench: Workbench) -> None:
    """Register the tool."""

    @server.tool(annotations=READS)
    def configuration_for(
        stack: Stack,
        place: Annotated[Place, Field(description="gke: a manifest; vertex: commands; docker: a command.")],
    ) -> ConfigurationAnswer:
        """Write a stack's server as a configuration for another place, as text. Nothing is applied."""
        with sentences(bench):
            return ConfigurationAnswer(stack=stack, place=place, text=configuration(stack, place))


def configuration(stack: str, place: Place) -> str:
    """Return the text. Raises CommandRefusedError where the place has no such machine, or the weights are in a bucket."""
    settings = stack_settings(stack)
    plan = planned(to_deployment(settings))
    arguments = vllm_arguments(plan.vllm, model_or_path=settings.model, port=PORT)
    image = f"docker.io/{settings.image.repository}@{settings.image.digest}"
    if place == "gke":
        return _gke(stack, settings, plan, image, arguments)
    if place == "vertex":
        return _vertex(stack, settings, image, arguments)
    flags = ["--gpus=all", "--shm-size=10g"] if settings.cloud_run else ["--privileged", "--net=host", "--shm-size=10g"]
    variables = [f"--env={name}={value}" for name, value in plan.environment]
    command = ["docker", "run", "--rm", *flags, f"--publish={PORT}:{PORT}", *variables, "--env=HF_TOKEN"]
    return shlex.join([*command, "--entrypoint=vllm", image, "serve", *arguments]) + "\n"


def _gke(stack: str, settings: Settings, plan: Plan, image: str, arguments: Sequence[str]) -> str:
    selector, resources = _node(settings, plan)
    container = {
        "name": "vllm",
        "image": image,
        "command": ["vllm", "serve"],
        "args": list(arguments),
        "env": [
            *({"name": name, "value": value} for name, value in plan.environment),
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}},
        ],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": resources, "requests": resources},
        "startupProbe": {
            "httpGet": {"path": "/health", "port": PORT},
            "periodSeconds": 10,
            "failureThreshold": max(1, -(-plan.startup.probe_budget_s // 10)),
        },
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 10},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - a path of the container
    }
    labels = {"app": f"gemma-{stack}"}
    pod = {
        "nodeSelector": selector,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"gemma-{stack}", "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"gemma-{stack}", "labels": labels},
        "spec": {"type": "ClusterIP", "selector": labels, "ports": [{"port": PORT}]},
    }
    return yaml.dump_all([deployment, service], Dumper=_Plain, sort_keys=False, width=140)


def _node(settings: Settings, plan: Plan) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the node selector and the resources of GKE. Raises CommandRefusedError for a machine that is not known there."""
    if settings.cloud_run is not None:
        gpu = _GKE_GPUS.get(settings.cloud_run.gpu)
        if gpu is None:
            raise CommandRefusedError(
                f"GKE's name of {settings.cloud_run.gpu} is not known here; name one of {', '.join(_GKE_GPUS)}."
            )
        memory = f"{settings.cloud_run.memory_mib}Mi"
        return (
            {"cloud.google.com/gke-accelerator": gpu},
            {"nvidia.com/gpu": "1", "cpu": str(settings.cloud_run.cpu), "memory": memory},
        )
    found = _TPU_TOPOLOGIES.get(plan.accelerator)
    if found is None:
        raise CommandRefusedError(
            f"GKE's topology of {plan.accelerator} is not known here; known are {', '.join(_TPU_TOPOLOGIES)}."
        )
    topology, chips = found
    selector = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": topology}
    return selector, {"google.com/tpu": str(chips)}


def _vertex(stack: str, settings: Settings, image: str, arguments: Sequence[str]) -> str:
    run = settings.cloud_run
    machine = _VERTEX_MACHINES.get(run.gpu) if run else None
    if run is None or machine is None:
        raise CommandRefusedError(
            f"No Vertex AI machine for stack {stack} is known here; a stack with gpu {' or '.join(_VERTEX_MACHINES)} has one."
        )
    region, name = run.region, f"gemma-{stack}"
    upload = [
        *("gcloud", "ai", "models", "upload", f"--region={region}", f"--display-name={name}"),
        f"--container-image-uri={region}-docker.pkg.dev/PROJECT/REPOSITORY/{image.removeprefix('docker.io/')}",
        "--container-command=vllm,serve",
        f"--container-args=^;^{';'.join(arguments)}",
        f"--container-ports={PORT}",
        "--container-health-route=/health",
        "--container-predict-route=/v1/chat/completions",
    ]
    create = ["gcloud", "ai", "endpoints", "create", f"--region={region}", f"--display-name={name}"]
    deploy = [
        *("gcloud", "ai", "endpoints", "deploy-model", "ENDPOINT_ID", f"--region={region}", "--model=MODEL_ID"),
        *(f"--display-name={name}", f"--machine-type={machine}", f"--accelerator=type={run.gpu},count=1"),
        *("--min-replica-count=1", f"--max-replica-count={run.max_instances}"),
    ]
    return "\n".join(shlex.join(command) for command in (upload, create, deploy)) + "\n"
