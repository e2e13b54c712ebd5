"""The two servers of the package: settings, plan and arguments, as the stack of the same target has them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pulumi
from pulumi.errors import InputPropertiesError

from gemma_serving.components.checks import program_ownership
from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService, DirectVpc
from gemma_serving.components.stored_secret import SecretReference
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.naming import Names
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.images import DEFAULT_IMAGES, IMAGES
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.accepted import acceptable_ids
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.image import in_artifact_registry
from gemma_serving.planning.settings.reading import Problem, part_at
from gemma_serving.planning.settings.secrets import KINDS
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_blocks import stated_in_blocks
from gemma_serving.stacks import cloud_run, tpu
from gemma_serving.stacks.base import Context, ServerParts
from gemma_serving.stacks.package.egress import HELD_SUBNETWORK, check_egress
from gemma_serving.stacks.package.input_wording import InputWording, without_commands
from gemma_serving.stacks.package.inputs import (
    NOT_OFFERED,
    CloudRunServerInputs,
    ServerInputs,
    TpuServerInputs,
    detail,
    outputs_in,
    read_inputs,
)
from gemma_serving.stacks.planned import finding_text, preview_lines, to_question, today

_OFF: Final = {"alerts": {"enabled": False}, "metrics": {"enabled": False}}
"""Settings whose defaults need resources that only a stack declares."""
_BUCKET: Final = "name-of-the-bucket"
"""Placeholder for the bucket's name while the server is planned, because the name may be an output."""


def cloud_run_server(
    name: str, own: Mapping[str, Any], stated: Mapping[str, Any], opts: pulumi.ResourceOptions | None
) -> tuple[CloudRunGpuService, Plan]:
    """Declare a service. Raises InputPropertiesError before that. `own`: inputs of the component; `stated`: those that are settings."""
    component = f'CloudRunGpuService "{name}"'
    given = read_inputs(CloudRunServerInputs, own, component)
    context = _context(component, given, "cloud-run", stated)
    run, vpc = context.settings.service, None
    if run is None:
        raise ValueError("settings without cloudRun passed their check")
    if given.network is not None and given.subnetwork is not None:
        vpc = DirectVpc(network=given.network, subnetwork=given.subnetwork, tag=given.service_name)
    elif run.direct_vpc:
        of_network = pulumi.ResourceOptions.merge(opts, None)
        of_network.aliases = None  # those of the service
        network = cloud_run.service_network(f"{name}-network", context, given.service_name, run.region, of_network)
        vpc = DirectVpc(network=network.network, subnetwork=network.subnetwork_name, tag=given.service_name)
        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=network.ready))
    made = cloud_run.service_arguments(context, run, _parts(context, given), vpc)
    made = replace(made, service_name=given.service_name, server=_with_bucket(made.server, given))
    service = CloudRunGpuService(name, made, opts)
    if given.subnetwork is not None:
        check_egress(service, given.subnetwork, context.settings.project, [run.region], downloads=context.needs_hub)
    if vpc is not None and not isinstance(given.subnetwork, str):
        pulumi.log.info(HELD_SUBNETWORK, service)
    return service, context.plan


def tpu_server(
    name: str, own: Mapping[str, Any], stated: Mapping[str, Any], opts: pulumi.ResourceOptions | None
) -> tuple[TpuQueuedResource, Plan]:
    """Declare TPU capacity with its server. Raises InputPropertiesError before that. `own` and `stated` as in `cloud_run_server`."""
    component = f'TpuQueuedResource "{name}"'
    given = read_inputs(TpuServerInputs, own, component)
    context = _context(component, given, "tpu", stated)
    if context.settings.tpu is None:
        raise ValueError("settings without tpu passed their check")
    network = tpu.MachineNetwork(network=given.network, subnetwork=given.subnetwork, ready=())
    made = tpu.capacity_arguments(context, context.settings.tpu, _parts(context, given), network)
    server = _with_bucket(made.server, given)
    # The next steps name commands for a stack.
    made = replace(made, queued_resource_id=given.queued_resource_id, tags=given.tags, server=server, next_steps=())
    capacity = TpuQueuedResource(name, made, opts)
    downloads = tpu.downloads(context, context.settings.tpu) or not in_artifact_registry(
        context.settings.image.repository
    )
    check_egress(capacity, given.subnetwork, context.settings.project, context.settings.regions, downloads=downloads)
    return capacity, context.plan


def _context(component: str, given: ServerInputs, target: str, stated: Mapping[str, Any]) -> Context:
    """Return settings and plan. Raises InputPropertiesError for an invalid setting, and for a plan with a finding that blocks."""
    block = "tpu" if target == "tpu" else "cloudRun"
    values: dict[str, object] = {
        "image": DEFAULT_IMAGES[target],
        **stated,
        **_OFF,
        "target": target,
        "project": given.project,
        "secrets": [kind.key for kind in KINDS if kind.variable in given.secrets],
        "vllmInBlocks": stated_in_blocks(as_mapping(stated.get("vllm"))),
    }
    if given.bucket_name is not None:
        known = given.bucket_name if isinstance(given.bucket_name, str) else _BUCKET
        values["bucket"] = {**as_mapping(stated.get("bucket")), "existing": known}
    if isinstance(given, CloudRunServerInputs) and given.network is not None and block in stated:
        values[block] = {"directVpc": True, **as_mapping(stated[block])}
    if isinstance(given, TpuServerInputs) and block in stated:
        values[block] = {"compileCache": "machine", **as_mapping(stated[block])}
    settings = read_inputs(Settings, values, component, [*_problems(given, block, stated)])
    question = to_question(settings, today=today())
    subject = examine(question)
    plan = plan_of(subject)
    wording = InputWording(question)
    _require_unblocked(component, plan, wording)
    for line, is_warning in preview_lines(plan, component, wording):
        if is_warning:
            pulumi.log.warn(f"{component}: {without_commands(line)}")
    return Context(
        settings=settings,
        subject=subject,
        plan=plan,
        names=Names(project=settings.project, stack="package"),  # each name in the arguments is replaced by an input
        home_region=settings.regions[0],
        ownership=program_ownership(),
        secrets={},
    )


def _problems(given: ServerInputs, block: str, stated: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield each problem that the settings of a stack cannot have."""
    yield from (Problem(place, "") for place in outputs_in(stated))
    for path, reason in NOT_OFFERED.items():
        *outer, key = path.split(".")
        if key in as_mapping(part_at(stated, tuple(outer))):
            yield Problem((*outer, key), reason, "unknown")
    if block not in stated:
        yield Problem((block,), "", "missing")
    image = IMAGES.get(str(stated.get("image")))
    if image is not None and image.build_context is not None:
        yield Problem(("image",), "only a stack builds it; set the repository and the digest of the built image")
    run = as_mapping(stated.get("cloudRun"))
    has_network = isinstance(given, CloudRunServerInputs) and given.network is not None
    if has_network and run.get("directVpc") is False:
        yield Problem(("cloudRun", "directVpc"), "network is set; remove one of them")
    if run.get("directVpc") and not has_network and stated.get("weights") != "bucket":
        yield Problem(
            ("cloudRun", "directVpc"), "without weights: bucket, set network and subnetwork of a network with Cloud NAT"
        )
    if (given.bucket_name is not None) != (stated.get("weights") == "bucket"):
        yield Problem(("bucketName",), "bucketName and weights: bucket require each other; set both or neither")


def _require_unblocked(component: str, plan: Plan, wording: InputWording) -> None:
    """Raise InputPropertiesError with each finding that blocks the plan, at the first input that a remedy changes."""
    ids = [finding.id for finding in plan.stopping]
    accept = ""
    if all(one in acceptable_ids() for one in ids):
        accept = f" To deploy anyway, set acceptFindings: [{', '.join((*plan.accepted, *ids))}]."
    found = [
        detail(_place(finding, wording), f"{without_commands(finding_text(finding, wording))}{accept}")
        for finding in plan.stopping
    ]
    if found:
        raise InputPropertiesError(f"{component} is blocked by {', '.join(ids)}. Nothing was declared.", found)


def _place(finding: Finding, wording: InputWording) -> str:
    """Return the first input that a remedy with this component changes."""
    changes = (wording.inputs(one.changes) for one in finding.remedies if one.is_deployable)
    own = (found for found in changes if found is not None and "target" not in found)
    return next((key for found in own for key in found), "model")


def _parts(context: Context, given: ServerInputs) -> ServerParts:
    image = context.settings.image
    host = "" if in_artifact_registry(image.repository) else "docker.io/"
    return ServerParts(
        account=given.service_account,
        image=f"{host}{image.repository}@{image.digest}",
        image_repositories={},
        bucket=given.bucket_name,
        secrets={name: SecretReference(version, context.settings.project) for name, version in given.secrets.items()},
        archive_key=None,
    )


def _with_bucket(server: VllmServer, given: ServerInputs) -> VllmServer:
    """Return the server with the bucket's name in its arguments, once that is known."""
    name = given.bucket_name
    if name is None or isinstance(name, str):
        return server
    words = (pulumi.Output.all(word, name) for word in server.arguments)
    return replace(server, arguments=[word.apply(lambda known: known[0].replace(_BUCKET, known[1])) for word in words])
