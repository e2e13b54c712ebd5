"""Validation of Cloud Run revision templates, with messages in its form: `Violation in CreateServiceRequest.service.template...`.

Limits: Cloud Run's pages on health checks, GPUs, CPU and memory, concurrency and request timeout.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.services.checks import Rules, obey
from localcloud.world.catalog import GpuType, gpu_types
from localcloud.world.scenario import Run
from localcloud.world.timeline import seconds

MAX_PROBE_DELAY_S = 240
MAX_STARTUP_PERIOD_S = 240
MAX_LIVENESS_PERIOD_S = 3600
MAX_READINESS_PERIOD_S = 300
"""Assumed: no figure was found on Cloud Run's page on health checks."""
MAX_STARTUP_BUDGET_S = 600
MAX_STARTUP_BUDGET_WITH_GPU_S = 1800
MAX_REQUEST_TIMEOUT_S = 3600
MAX_CONCURRENCY = 1000
DEFAULT_MAX_INSTANCES = 100
GPU_LIMIT = "nvidia.com/gpu"
_HOSTS = "where host is one of [region.]gcr.io, [region-]docker.pkg.dev or docker.io"
"""Cloud Run's words (github.com/datawranglerai/self-host-n8n-on-gcr/issues/31, 2025-10)."""
_IMAGE = re.compile(r"(([a-z0-9-]+\.)?gcr\.io|[a-z0-9-]+-docker\.pkg\.dev|docker\.io)/.+|(?![^/]*[.:][^/]*/).+")
"""An image of one of the hosts, or without a host: before its first slash, a host has a dot or a port."""
MAX_ARGUMENT_BYTES = 32 * 1024
"""Assumed, the strict case: the documented limit of an environment variable's value also applies to each word of `command` and `args`."""
DISALLOWED_MOUNTS = ("/dev/", "/proc/", "/sys/")
"""Cloud Run's pages on in-memory and Cloud Storage volume mounts, "Disallowed paths", read in 2026-11: "Cloud Run does not allow you to mount a
volume at /dev, /proc, or /sys, or on their subdirectories." The location of that sentence in the response is assumed."""
_GIB = 1 << 30
_UNITS = {
    "": 1,
    "k": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}
_CPU_FOR_MEMORY = ((24, 8.0), (16, 6.0), (8, 4.0), (4, 2.0))
"""(GiB, CPUs): more memory than this needs at least this many CPUs (Cloud Run's page on memory limits)."""


_LEAST_MEMORY_GIB = 0.125
"""Of Cloud Run's smallest second-generation sidecar."""
_BETWEEN = {3, 5, 7}
"""Numbers of vCPU that no container can have (run.v2, ResourceRequirements.limits; docs.cloud.google.com/run/docs/configuring/cpu)."""
_NO_GPU = GpuType(max_cpu=8, max_memory_gib=32)
_RESERVED = {"PORT", "K_SERVICE", "K_REVISION", "K_CONFIGURATION"}
_HOW = ("httpGet", "tcpSocket", "grpc")


class _ProbeLimits(NamedTuple):
    """Limits of Cloud Run for a kind of probe."""

    key: str
    field: str
    how: tuple[str, ...]
    max_period_s: int


_PROBES = (
    _ProbeLimits("startupProbe", "startup_probe", _HOW, MAX_STARTUP_PERIOD_S),
    _ProbeLimits("livenessProbe", "liveness_probe", ("httpGet", "grpc"), MAX_LIVENESS_PERIOD_S),
    _ProbeLimits("readinessProbe", "readiness_probe", ("httpGet", "grpc"), MAX_READINESS_PERIOD_S),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeQuota:
    """A region's quota of CPU or memory, in Google's unit: thousandths of a vCPU, or bytes."""

    what: str
    quota_id: str
    of: Callable[[JsonObject], int]
    """Usage of one instance of a template."""
    limit: Callable[[Run, str], int]
    """Limit of a region."""


def _limits(template: JsonObject) -> Iterator[JsonObject]:
    for container in parts(template, "containers"):
        yield part(part(container, "resources"), "limits")


def _cpus_of(template: JsonObject) -> float:
    return sum(cpus(limits.get("cpu", "1")) or 0 for limits in _limits(template))


def _memory_gib_of(template: JsonObject) -> float:
    return sum(memory_gib(limits.get("memory", "512Mi")) or 0 for limits in _limits(template))


def _with_gpu_limit(template: JsonObject) -> list[JsonObject]:
    pairs = zip(parts(template, "containers"), _limits(template), strict=True)
    return [container for container, limits in pairs if limits.get(GPU_LIMIT, "0") != "0"]


COMPUTE_QUOTAS = (
    ComputeQuota(
        what="CPU",
        quota_id="CpuAllocPerProjectRegion",
        of=lambda template: round(_cpus_of(template) * 1000),
        limit=lambda world, region: world.cpus_of(region) * 1000,
    ),
    ComputeQuota(
        what="memory",
        quota_id="MemAllocPerProjectRegion",
        of=lambda template: round(_memory_gib_of(template) * _GIB),
        limit=lambda world, region: world.memory_gib_of(region) * _GIB,
    ),
)


def max_instances(template: JsonObject) -> int:
    """Return the maximum instances of a template."""
    return int(part(template, "scaling").get("maxInstanceCount", DEFAULT_MAX_INSTANCES))


def gpu_of(template: JsonObject) -> str | None:
    """Return the GPU type of a template, or None."""
    return part(template, "nodeSelector").get("accelerator") or None


def check(template: JsonObject, *, region: str, world: Run, gpus_left: int, request: str) -> None:
    """Reject an invalid template (with defaults), as Cloud Run does. `gpus_left` is the remaining quota of its GPU type in the region."""
    rules = chain(
        _of_containers(template),
        _of_instance(template),
        _of_volumes(template),
        _of_numbers(template),
        _of_gpu(template, region, world, gpus_left),
        _of_quota(template, world, region),
    )
    path, below = f"Violation in {request}.service.template", "service.template"
    obey((obeyed, below + field, f"{path}{field}: {sentence}") for obeyed, field, sentence in rules)


def cpus(text: str) -> float | None:
    """Return the CPUs of a quantity such as `8` or `4000m`, or None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text)
    return None if found is None else float(found[1]) / (1000 if found[2] else 1)


def memory_gib(text: str) -> float | None:
    """Return the GiB of a quantity such as `32Gi` or `512Mi`, or None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]|Ki|Mi|Gi|Ti)?", text)
    return None if found is None else float(found[1]) * _UNITS[found[2] or ""] / _GIB


def _of_containers(template: JsonObject) -> Rules:
    containers, gpu = parts(template, "containers"), gpu_of(template)
    names = [str(container["name"]) for container in containers if container.get("name")]
    with_port = sum(bool(container.get("ports")) for container in containers)
    selector = f"a limit of {GPU_LIMIT} needs a node selector with an accelerator such as nvidia-l4."
    yield gpu is not None or not _with_gpu_limit(template), ".node_selector", selector
    yield bool(containers), ".containers", "at least one container must be given."
    yield with_port == 1, ".containers", f"exactly one container must have a port; {with_port} have one."
    unique = f"container names must be unique; given are {', '.join(names)}."
    yield len(set(names)) == len(names), ".containers", unique
    volumes = {volume.get("name") for volume in parts(template, "volumes")}
    for index, container in enumerate(containers):
        path = f".containers[{index}]"
        image = str(container.get("image") or "")
        sentence = f"Expected an image path like [host/]repo-path[:tag and/or @digest], {_HOSTS} but obtained {image}."
        yield _IMAGE.fullmatch(image) is not None, f"{path}.image", sentence
        yield from _of_words(container, path)
        yield from _of_environment(container, path)
        yield from _of_mounts(container, path, volumes)
        for kind in _PROBES:
            yield from _of_probe(kind, part(container, kind.key), path, with_gpu=gpu is not None)
        yield from _of_resources(container, path, gpu_types().get(gpu or "", _NO_GPU))


def _of_words(container: JsonObject, path: str) -> Rules:
    for key in ("command", "args"):
        for index, word in enumerate(strings(container, key)):
            size = len(word.encode())
            sentence = f"must not exceed {MAX_ARGUMENT_BYTES} bytes; given {size}."
            yield size <= MAX_ARGUMENT_BYTES, f"{path}.{key}[{index}]", sentence


def _of_environment(container: JsonObject, path: str) -> Rules:
    seen: set[str] = set()
    for index, variable in enumerate(parts(container, "env")):
        name = str(variable.get("name") or "")
        value = str(variable.get("value") or "")
        at = f"{path}.env[{index}]"
        reserved = f"the name '{name}' is reserved; it is set by Cloud Run."
        yield bool(name) and name not in seen, f"{at}.name", f"'{name}' is empty or given twice."
        yield name not in _RESERVED, f"{at}.name", reserved
        yield len(value.encode()) <= MAX_ARGUMENT_BYTES, f"{at}.value", f"must not exceed {MAX_ARGUMENT_BYTES} bytes."
        yield not (value and variable.get("valueSource")), at, "value and value_source cannot both be given."
        seen.add(name)


def _of_mounts(container: JsonObject, path: str, volumes: set[str | None]) -> Rules:
    for index, mount in enumerate(parts(container, "volumeMounts")):
        name = mount.get("name")
        given = str(mount.get("mountPath", ""))
        at = f"{path}.volume_mounts[{index}]"
        yield name in volumes, f"{at}.name", f"no volume is named '{name or ''}'."
        absolute = given.startswith("/") and ":" not in given
        yield absolute, f"{at}.mount_path", f"'{given}' must be an absolute path without ':'."
        folder = posixpath.normpath("/" + given.lstrip("/")) + "/"
        sentence = (
            "Cloud Run does not allow you to mount a volume at /dev, /proc, or /sys, or on their subdirectories. "
            f"Given: '{given}'."
        )
        yield not folder.startswith(DISALLOWED_MOUNTS), f"{at}.mount_path", sentence


def _of_probe(kind: _ProbeLimits, probe: JsonObject, path: str, *, with_gpu: bool) -> Rules:
    if not probe:
        return
    path = f"{path}.{kind.field}"
    given = [key for key in _HOW if key in probe]
    sentence = f"exactly one of {', '.join(kind.how)} must be given; given are {', '.join(given) or 'none'}."
    yield len(given) == 1 and given[0] in kind.how, path, sentence
    delay_s = int(probe.get("initialDelaySeconds", 0))
    period_s = int(probe.get("periodSeconds", 0))
    timeout_s = int(probe.get("timeoutSeconds", 0))
    failures = int(probe.get("failureThreshold", 0))
    # Cloud Run's page on health checks (preview, 2026). A readiness probe has no delay.
    begins = "is not supported: the readiness probe begins after the startup probe."
    yield kind.field != "readiness_probe" or not delay_s, f"{path}.initial_delay_seconds", begins
    for name, value, least, most in (
        ("initial_delay_seconds", delay_s, 0, MAX_PROBE_DELAY_S),
        ("period_seconds", period_s, 1, kind.max_period_s),
        ("timeout_seconds", timeout_s, 1, kind.max_period_s),
        ("failure_threshold", failures, 1, MAX_STARTUP_BUDGET_WITH_GPU_S),
    ):
        yield least <= value <= most, f"{path}.{name}", f"must be from {least} to {most}; given {value}."
    sentence = f"must not be greater than period_seconds; given {timeout_s} against {period_s}."
    yield timeout_s <= period_s, f"{path}.timeout_seconds", sentence
    if kind.field == "startup_probe":
        most_s = MAX_STARTUP_BUDGET_WITH_GPU_S if with_gpu else MAX_STARTUP_BUDGET_S
        sentence = (
            f"failure_threshold x period_seconds must not exceed {most_s} seconds{' with a GPU' if with_gpu else ''}; "
            f"given {failures} x {period_s} = {failures * period_s}."
        )
        yield failures * period_s <= most_s, f"{path}.failure_threshold", sentence


def _of_resources(container: JsonObject, path: str, most: GpuType) -> Rules:
    limits: dict[str, str] = part(part(container, "resources"), "limits")
    path = f"{path}.resources.limits"
    for key in limits:
        sentence = f"'{key}' is not a limit; cpu, memory and {GPU_LIMIT} are."
        yield key in {"cpu", "memory", GPU_LIMIT}, path, sentence
    asked, asked_memory = limits.get("cpu", "1"), limits.get("memory", "512Mi")
    cpu = cpus(asked) or 0
    memory = memory_gib(asked_memory) or 0
    sentence = f"'{asked}' is not a number of CPUs; whole numbers, or less than 1, are allowed."
    yield cpu > 0 and (cpu <= 1 or cpu == int(cpu)), f"{path}[cpu]", sentence
    sentence = f"'{asked_memory}' is not an amount of memory of at least 128Mi."
    yield memory >= _LEAST_MEMORY_GIB, f"{path}[memory]", sentence
    wrong = "Invalid value specified for"
    sentence = f"{wrong} cpu. The supported values are 1, 2, 4, 6 and 8; given {asked}."
    yield cpu not in _BETWEEN, f"{path}[cpu]", sentence
    sentence = f"{wrong} cpu. Maximum {most.max_cpu:g} CPU allowed; given {asked}."
    yield cpu <= most.max_cpu, f"{path}[cpu]", sentence
    sentence = f"{wrong} memory. Maximum {most.max_memory_gib:g}Gi allowed; given {asked_memory}."
    yield memory <= most.max_memory_gib, f"{path}[memory]", sentence
    needed = next((least for above_gib, least in _CPU_FOR_MEMORY if memory > above_gib), 0)
    sentence = (
        f"{wrong} cpu. For the specified memory ({asked_memory}), at least {needed:g} CPU are needed; given {asked}."
    )
    yield cpu >= needed, f"{path}[cpu]", sentence


def _of_instance(template: JsonObject) -> Rules:
    """Yield the limits of all containers together.

    Cloud Run's pages state the maximum of an instance ("the memory allocated to each instance of a revision"), which all its containers share.
    That the sum is checked at a deployment, and the message, are assumed.
    """
    most = gpu_types().get(gpu_of(template) or "", _NO_GPU)
    for what, total, maximum, unit in (
        ("cpu", _cpus_of(template), most.max_cpu, " CPU"),
        ("memory", _memory_gib_of(template), most.max_memory_gib, "Gi"),
    ):
        sentence = (
            f"Invalid value specified for {what}. Maximum {maximum:g}{unit} allowed for all containers of an instance; "
            f"given {total:g}{unit}."
        )
        yield total <= maximum, ".containers", sentence


def _of_volumes(template: JsonObject) -> Rules:
    names: set[str] = set()
    first_generation = template.get("executionEnvironment") == "EXECUTION_ENVIRONMENT_GEN1"
    for index, volume in enumerate(parts(template, "volumes")):
        path = f".volumes[{index}]"
        name = str(volume.get("name") or "")
        kinds = [key for key in volume if key != "name"]
        yield bool(name) and name not in names, f"{path}.name", f"'{name}' is empty or given twice."
        yield len(kinds) == 1, path, f"exactly one source must be given; given are {', '.join(kinds) or 'none'}."
        generation = "Cloud Storage volumes need the second generation execution environment."
        yield not (first_generation and kinds[0] == "gcs"), path, generation
        names.add(name)


def _of_numbers(template: JsonObject) -> Rules:
    concurrency = int(template.get("maxInstanceRequestConcurrency", 1))
    sentence = f"must be from 1 to {MAX_CONCURRENCY}; given {concurrency}."
    yield 0 <= concurrency <= MAX_CONCURRENCY, ".max_instance_request_concurrency", sentence
    timeout = template.get("timeout", "300s")
    sentence = f"must be from 1s to {MAX_REQUEST_TIMEOUT_S}s; given {timeout}."
    yield 0 < seconds(timeout) <= MAX_REQUEST_TIMEOUT_S, ".timeout", sentence
    least, most = part(template, "scaling").get("minInstanceCount", 0), max_instances(template)
    yield least <= most, ".scaling", f"min_instance_count {least} is above max_instance_count {most}."


def _of_gpu(template: JsonObject, region: str, world: Run, gpus_left: int) -> Rules:
    kind, count = gpu_of(template), max_instances(template)
    if kind is None:
        return
    accelerator, with_limit = ".node_selector.accelerator", _with_gpu_limit(template)
    yield kind in gpu_types(), accelerator, f"'{kind}' is not a GPU type; {' and '.join(gpu_types())} are."
    sentence = f"exactly one container must have a limit of {GPU_LIMIT}; {len(with_limit)} have one."
    yield len(with_limit) == 1, ".containers", sentence
    regions = world.gpu_regions.get(kind, ())
    sentence = f"GPU type {kind} is not available in region {region}; it is in {', '.join(regions)}."
    yield region in regions, accelerator, sentence
    yield from _of_gpu_container(template, kind, with_limit[0])
    single = bool(template.get("gpuZonalRedundancyDisabled"))
    sentence = (
        f"You do not have quota for using GPUs {'without' if single else 'with'} zonal redundancy ({kind} in {region}: none left). "
        "Set gpu_zonal_redundancy_disabled, or ask for quota."
    )
    yield gpus_left > 0 or count == 0, ".node_selector", sentence
    quota_id = f"{gpu_types()[kind].quota_id}{'NoZonalRedundancy' if single else ''}PerProjectRegion"
    sentence = (
        f"Max instances must be set to {gpus_left} or fewer in order to set GPU requirements.\nTo request quota: g.co/cloudrun/gpu-quota\n"
        f"Quota violated:\n{quota_id} requested: {count} allowed: {gpus_left}"
    )
    yield count <= gpus_left, ".scaling.max_instance_count", sentence


def _of_gpu_container(template: JsonObject, kind: str, container: JsonObject) -> Rules:
    need, resources = gpu_types()[kind], container["resources"]
    limits: dict[str, str] = resources["limits"]
    path = f".containers[{parts(template, 'containers').index(container)}].resources"
    asked, memory = limits.get("cpu", "1"), limits.get("memory", "512Mi")
    one = f"one GPU per instance is allowed; given {limits[GPU_LIMIT]}."
    yield limits[GPU_LIMIT] == "1", f"{path}.limits[{GPU_LIMIT}]", one
    least = f"GPU type {kind} needs at least"
    enough = (cpus(asked) or 0) >= need.min_cpu
    yield enough, f"{path}.limits[cpu]", f"{least} {need.min_cpu:g} CPU; given {asked}."
    enough = (memory_gib(memory) or 0) >= need.min_memory_gib
    yield enough, f"{path}.limits[memory]", f"{least} {need.min_memory_gib:g}Gi of memory; given {memory}."
    idle = "must be false with a GPU: GPU services are billed by instance."
    yield not resources.get("cpuIdle"), f"{path}.cpu_idle", idle
    second = template.get("executionEnvironment") != "EXECUTION_ENVIRONMENT_GEN1"
    yield second, ".execution_environment", "GPUs need the second generation execution environment."


def _of_quota(template: JsonObject, world: Run, region: str) -> Rules:
    """Yield the region's quotas of CPU and memory, which all instances of this service together must fit.

    Message: googlecodelabs/feedback issues 1856 and 2311, 2026. The lowest number of instances comes first, then each exceeded quota.
    Other services of the region do not count at a deployment.
    """
    count = max_instances(template)
    used = [(quota, quota.of(template), quota.limit(world, region)) for quota in COMPUTE_QUOTAS]
    violated = [(quota, each * count, limit) for quota, each, limit in used if each * count > limit]
    if violated:
        most = min(limit // each for _, each, limit in used if each)
        quotas = "\n".join(f"{quota.quota_id} requested: {total} allowed: {limit}" for quota, total, limit in violated)
        sentence = (
            f"Max instances must be set to {most} or fewer to set the requested total {violated[0][0].what}.\n"
            "Consider running your workload in a region with greater capacity, or requesting an increase in quota for this region if you are "
            f"seeing sustained usage near this limit, see https://cloud.google.com/run/quotas.\n\nQuota violated:\n{quotas}"
        )
        yield False, ".scaling.max_instance_count", sentence


def with_defaults(template: JsonObject, *, default_account: str, gpu_max_instances: int) -> JsonObject:
    """Return the template with Cloud Run's defaults."""
    containers = parts(template, "containers")
    if len(containers) == 1 and not containers[0].get("ports"):
        containers = [{**containers[0], "ports": [{"containerPort": 8080}]}]
    most = gpu_max_instances if gpu_of(template) else DEFAULT_MAX_INSTANCES
    return {
        "timeout": "300s",
        "serviceAccount": default_account,
        "maxInstanceRequestConcurrency": 80,
        **template,
        "scaling": {"maxInstanceCount": most, **part(template, "scaling")},
        "containers": [_container_with_defaults(container) for container in containers],
    }


def _container_with_defaults(container: JsonObject) -> JsonObject:
    filled = dict(container)
    given: JsonObject = part(container, "resources") or {"cpuIdle": True, "startupCpuBoost": True}
    limits = {"cpu": "1000m", "memory": "512Mi", **part(given, "limits")}
    filled["resources"] = {**{key: value for key, value in given.items() if value is not False}, "limits": limits}
    port: int | None = None
    if container.get("ports"):
        port = int(container["ports"][0].get("containerPort", 8080))
        filled["ports"] = [{"name": container["ports"][0].get("name") or "http1", "containerPort": port}]
    if container.get("startupProbe"):
        filled["startupProbe"] = _probe_with_defaults(container["startupProbe"], port)
    elif port is not None:
        filled["startupProbe"] = {
            "timeoutSeconds": 240,
            "periodSeconds": 240,
            "failureThreshold": 1,
            "tcpSocket": {"port": port},
        }
    for kind in ("livenessProbe", "readinessProbe"):
        if container.get(kind):
            filled[kind] = _probe_with_defaults(container[kind], port)
    return filled


def _probe_with_defaults(probe: JsonObject, port: int | None) -> JsonObject:
    filled: dict[str, Any] = {"timeoutSeconds": 1, "periodSeconds": 10, "failureThreshold": 3, **probe}
    for kind in ("httpGet", "tcpSocket", "grpc"):
        if kind in probe:
            defaults: JsonObject = {"path": "/"} if kind == "httpGet" else {}
            filled[kind] = {**defaults, **({"port": port} if port else {}), **part(probe, kind)}
    return filled
