"""A stack's server on GKE: the same words as on its own target, sized and timed for a node."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.staged_weights import MODELS_FOLDER
from gemma_serving.gke.objects import KubernetesObject, objects
from gemma_serving.gke.rules import findings
from gemma_serving.gke.server_inputs import PROGRAMS_FOLDER, BucketMount, GkeOptions, GkeServer
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.machine.hardware import ACCELERATORS, find_accelerator
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.releases import STREAMS_ON_TPU, is_known_from
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.cloud_run import MountSettings
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.secrets import API_KEY, HF_TOKEN, set_command
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import SHUTDOWN_FLAG, STREAMER, XLA_CACHE_PATH
from gemma_serving.planning.settings.workload import DEFAULT_WORKLOAD
from gemma_serving.planning.solve.remedy_wording import Wording
from gemma_serving.planning.units import to_gib
from gemma_serving.stacks.planned import require_unblocked
from gemma_serving.stacks.server_command import COMMAND, PORT, PlannedServer, supports_draining

_DRAIN_S: Final = (30, 600)
"""Least and most time for running requests. Chosen: the agent of a TPU VM gives the first, and no chat's request takes longer than the second."""
_UNKNOWN_REQUEST_S: Final = 3_600
"""Time for a request whose speed is not known, as in Google's overlays of Gemma 4 ([AP] of objects.yaml,
../examples/llmd/_shared_config/templates/gateway/gcp-backend-policy-override.yaml.tftpl)."""
_DISK_MARGIN_GIB: Final = 8
"""Space for logs and the container's own files next to the weights. Assumed; with the FUSE driver's, less than Autopilot's 10 GiB."""


class ServerOnGke(NamedTuple):
    """A planned server, whose name, bucket and token a program needs, its objects, and the findings about them."""

    server: GkeServer
    objects: list[KubernetesObject]
    findings: Sequence[Finding]


def judged_server(settings: Settings, subject: Subject, options: GkeOptions, wording: Wording) -> ServerOnGke:
    """Return the server of a stack with its objects. Raises CommandRefusedError if a finding blocks the plan or the objects."""
    subject = _on_machine(subject, options.accelerator) if options.accelerator else subject
    plan = plan_of(subject)
    server = gke_server(settings, subject, plan, wording.stack, options)
    found = findings(server, options)
    require_unblocked(plan, wording.stack, wording, found)
    return ServerOnGke(server, objects(server, options), found)


def _on_machine(subject: Subject, machine: str) -> Subject:
    """Return the server on a machine with more of its GPUs, each with the vCPU and memory of the stack's instance."""
    question, own = subject.resolved.question, subject.resolved.accelerator
    sizes = [one for one in ACCELERATORS.values() if one.family == own.family and not one.is_tpu]
    found = find_accelerator(machine)
    if found not in sizes:
        allowed = f"Use one of {', '.join(one.name for one in sizes)}." if sizes else "Set tpu.acceleratorType."
        raise CommandRefusedError(f'accelerator is "{machine}", but the stack has {own.name}. {allowed}')
    run = question.cloud_run
    whole = dataclasses.replace(run, cpu=run.cpu * found.chips, memory_mib=run.memory_mib * found.chips)
    after = examine(question.changed(accelerator=found.name, platform="gce", cloud_run=whole))
    used = after.resolved.tp * after.resolved.dp
    if used < found.chips:
        idle = f"{found.chips - used} of the {found.chips} GPUs of {found.name} would be idle"
        raise CommandRefusedError(f"vllm.tensorParallelSize is {after.resolved.tp}, so {idle}. Remove it.")
    return after


def gke_server(settings: Settings, subject: Subject, plan: Plan, stack: str, options: GkeOptions) -> GkeServer:
    """Return the server of a stack. `subject` and `plan` are the stack's own, or those of a machine with more of its GPUs.

    Start, concurrent requests and price are those of a node: of the same TPU host, or of the Compute Engine machine with the GPU. Mounted weights
    of a TPU count as copied from the bucket first (GKE06).
    Raises CommandRefusedError for a number of replicas that Kubernetes rejects.
    """
    if not 1 <= options.replicas[0] <= options.replicas[1]:
        raise CommandRefusedError(
            f"replicas is {options.replicas}; expected (MIN, MAX) with 1 or more, such as (1, 3)."
        )
    planned = PlannedServer(
        settings=settings, plan=plan, names=Names(project=settings.project, stack=stack), in_pod=True
    )
    run, tpu, image, resolved = settings.cloud_run, settings.tpu, settings.image, subject.resolved
    node = subject if run is None else examine(resolved.question.changed(platform="gce"))
    mount = _mount(settings)
    programs = _programs(settings)
    start = node.startup
    gpus = resolved.accelerator.chips
    weights_gib = math.ceil(to_gib(node.weights.checkpoint)) if settings.weights == "hub" else 0
    saved_s = start.recompile_s - start.restart_s if programs and start.recompile_s else 0
    least, most = _DRAIN_S
    drain_s = min(max(math.ceil(node.workload.request_s.high), least), most) if node.workload else least
    return GkeServer(
        name=planned.names.base,
        image=options.image or ("" if image.build_context else f"{image.repository}@{image.digest}"),
        command=COMMAND,
        arguments=(*planned.arguments, *([f"{SHUTDOWN_FLAG}={drain_s}"] if supports_draining(settings) else [])),
        environment=planned.environment,
        port=PORT,
        accelerator=plan.accelerator,
        form=tpu.forms[0].model if tpu else "standard",
        zones=tpu.zones if tpu else (),
        # As on Cloud Run, gcsfuse shares the CPU that the stack sets.
        cpu=max(1, run.cpu * gpus - (mount.sidecar.cpu if mount else 0)) if run else None,
        memory_mib=run.memory_mib * gpus - (run.mount.cache_size_mib or 0) if run else None,
        disk_gib=_DISK_MARGIN_GIB + weights_gib,
        bucket=settings.bucket_name(stack) if settings.weights == "bucket" or programs else "",
        mount=mount,
        programs=programs,
        token_secret=(settings.secret_version(HF_TOKEN.key) or "") if planned.needs_hub else "",
        key_secret=settings.secret_version(API_KEY.key) or "",
        container_start_s=start.total_high_s,
        warm_start_s=start.total_high_s - saved_s,
        load_s=start.load_s,
        faster_load=_faster_load(settings, node) if settings.weights == "bucket" else None,
        graphs_s=start.compile_s if run and settings.archives_programs else 0,
        concurrent_requests=node.workload.most_users if node.workload else resolved.max_num_seqs * resolved.dp,
        drain_s=drain_s,
        longest_request_s=_longest_request_s(node),
        lacks=tuple(_lacks(planned)),
        usd_per_hour=node.cost.usd_per_hour if node.cost.is_known else None,
    )


def _longest_request_s(node: Subject) -> int:
    question = node.resolved.question
    full = dataclasses.replace(question.settings.workload or DEFAULT_WORKLOAD, users=None, rate_per_s=None)
    answer = examine(question.changed(workload=full)).workload
    if answer is None:
        return _UNKNOWN_REQUEST_S
    return math.ceil(answer.ttft_s.high + answer.tpot_s.high * node.resolved.max_model_len)


def _mount(settings: Settings) -> BucketMount | None:
    """Return the mount of the weights, with the stack's own options; None if the server downloads or streams them."""
    mount = settings.cloud_run.mount if settings.cloud_run else MountSettings()
    if settings.weights != "bucket" or settings.streams_on_tpu or not mount.mounts:
        return None
    options = mount.flags(uid=settings.image.uid or 0, gid=settings.image.gid or 0)
    if mount.cache_size_mib is not None:
        # As Google spells it for a cache in a volume of its own ([AP] of objects.yaml, online-inference-tpu/vllm).
        options += [f"file-cache:max-size-mb:{mount.cache_size_mib}", "file-cache:enable-parallel-downloads:true"]
    return BucketMount(
        path=MODELS_FOLDER, mode=mount.mode, options=(*options, *mount.options), cache_mib=mount.cache_size_mib
    )


def _faster_load(settings: Settings, node: Subject) -> tuple[str, float] | None:
    """Return the setting with which the weights are read from the bucket in a shorter planned time, and that time in seconds.

    On a GPU, the streamer is planned as fast as a mount that reads ahead.
    """
    question, run = node.resolved.question, settings.cloud_run
    if run is not None:
        setting, mode, load_format = "cloudRun.mount.mode: fuse-buffered", "fuse-buffered", None
    elif is_known_from(node.resolved, STREAMS_ON_TPU):
        setting, mode, load_format = f"vllm.loadFormat: {STREAMER}", "streamer", STREAMER
    else:
        return None
    vllm = dataclasses.replace(question.settings.vllm, load_format=load_format)
    cloud_run = dataclasses.replace(question.cloud_run, mount=MountSettings())
    after = examine(question.changed(weights_mode=mode, vllm=vllm, cloud_run=cloud_run)).startup.load_s
    return (setting, after) if after < node.startup.load_s else None


def _programs(settings: Settings) -> BucketMount | None:
    """Return the mount of compiled programs at the path that the plan's environment names; None unless a TPU stack stores them in its bucket.

    Google's manifests mount the bucket too ([GKS] of objects.yaml, ai-ml/vllm-tpu; kubernetes-sigs/wg-serving#48). The path can be a gs:// URI
    (vllm-project/tpu-inference#1554), but no public run shows that JAX then finds a program again (marin-community/marin#2318).
    """
    if settings.tpu is None or settings.tpu.compile_cache != "bucket":  # the default is that of a stack
        return None
    owner = (f"uid={settings.image.uid or 0}", f"gid={settings.image.gid or 0}")
    # JAX finds a program by a hash of all that it depends on, so the bucket's servers can share the folder. The agents of TPU VMs read others.
    options = (*owner, "implicit-dirs", f"only-dir={PROGRAMS_FOLDER}")
    return BucketMount(path=XLA_CACHE_PATH, mode="fuse", options=options)


def _lacks(planned: PlannedServer) -> Iterator[str]:
    """Yield each setting that a Pod cannot have, with what to do."""
    settings, run = planned.settings, planned.settings.cloud_run
    for kind in (API_KEY, *([HF_TOKEN] if planned.needs_hub else [])):
        if kind.key in settings.secrets:
            yield f"The stack's teardown deletes the secret of {kind.key}. Store it by reference: `{set_command(kind.key, 'STACK')} --secret ID`."
    if run is not None and not run.mount.mounts and (run.mount.mode == "memory" or planned.parts):
        mode = f"cloudRun.mount.mode {run.mount.mode}"
        yield f"With {mode}, this project's starter copies files into memory, which no Pod does. Set cloudRun.mount.mode: fuse-buffered."
