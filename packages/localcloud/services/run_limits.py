"""Validation of Cloud Run revision templates, with messages in its form: `Violation in CreateServiceRequest.service.template...`.

Limits: Cloud Run's pages on health checks, GPUs, CPU and memory, concurrency and request timeout.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.errors import CloudError
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
MAX_ARGUMENT_BYTES = 32 * 1024
"""Assumed, the strict case: the documented limit of an environment variable's value also applies to each word of `command` and `args`."""
DISALLOWED_MOUNTS = ("/dev", "/proc", "/sys")
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


_BETWEEN = {3, 5, 7}
"""Numbers of vCPU that no container can have (run.v2, ResourceRequirements.limits; docs.cloud.google.com/run/docs/configuring/cpu)."""
_NO_GPU = GpuType(max_cpu=8, max_memory_gib=32)


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


COMPUTE_QUOTAS = (
    ComputeQuota(
        what="CPU",
        quota_id="CpuAllocPerProjectRegion",
        of=lambda template: round(sum(cpus(limits.get("cpu", "1")) or 0 for limits in _limits(template)) * 1000),
        limit=lambda world, region: world.cpus_of(region) * 1000,
    ),
    ComputeQuota(
        what="memory",
        quota_id="MemAllocPerProjectRegion",
        of=lambda template: round(
            sum(memory_gib(limits.get("memory", "512Mi")) or 0 for limits in _limits(template)) * _GIB
        ),
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
    checker = _TemplateCheck(template=template, path=f"{request}.service.template")
    checker.selector()
    checker.containers()
    checker.instance()
    checker.volumes()
    checker.numbers()
    checker.gpu(region, world, gpus_left)
    checker.quota(world, region)


def cpus(text: str) -> float | None:
    """Return the CPUs of a quantity such as `8` or `4000m`, or None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text)
    return None if found is None else float(found[1]) / (1000 if found[2] else 1)


def memory_gib(text: str) -> float | None:
    """Return the GiB of a quantity such as `32Gi` or `512Mi`, or None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]|Ki|Mi|Gi|Ti)?", text)
    return None if found is None else float(found[1]) * _UNITS[found[2] or ""] / _GIB


def _violation(path: str, text: str) -> CloudError:
    return CloudError.field(path.partition(".")[2], f"Violation in {path}: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TemplateCheck:
    template: JsonObject
    path: str

    def selector(self) -> None:
        """Reject a GPU limit without a node selector."""
        if gpu_of(self.template) is None and self._with_gpu_limit():
            raise _violation(
                f"{self.path}.node_selector",
                f"a limit of {GPU_LIMIT} needs a node selector with an accelerator such as nvidia-l4.",
            )

    def _with_gpu_limit(self) -> list[JsonObject]:
        containers = parts(self.template, "containers")
        return [
            container
            for container in containers
            if part(part(container, "resources"), "limits").get(GPU_LIMIT, "0") != "0"
        ]

    def containers(self) -> None:
        containers: list[JsonObject] = parts(self.template, "containers")
        if not containers:
            raise _violation(f"{self.path}.containers", "at least one container must be given.")
        with_ports = [container for container in containers if container.get("ports")]
        if len(with_ports) != 1:
            raise _violation(
                f"{self.path}.containers", f"exactly one container must have a port; {len(with_ports)} have one."
            )
        names = [str(container["name"]) for container in containers if container.get("name")]
        if len(set(names)) != len(names):
            raise _violation(
                f"{self.path}.containers", f"container names must be unique; given are {', '.join(names)}."
            )
        for index, container in enumerate(containers):
            self._container(container, f"{self.path}.containers[{index}]")

    def _container(self, container: JsonObject, path: str) -> None:
        if not container.get("image"):
            raise _violation(
                f"{path}.image", "expected a container image path of form [hostname/]repo-path[:tag and/or @digest]."
            )
        self._words(container, path)
        self._environment(container, path)
        self._mounts(container, path)
        gpu = gpu_of(self.template) is not None
        if container.get("startupProbe"):
            _startup_probe(container["startupProbe"], f"{path}.startup_probe", gpu=gpu)
        if container.get("livenessProbe"):
            _liveness_probe(container["livenessProbe"], f"{path}.liveness_probe")
        if container.get("readinessProbe"):
            _readiness_probe(container["readinessProbe"], f"{path}.readiness_probe")
        self._resources(container, path)

    def _words(self, container: JsonObject, path: str) -> None:
        for key in ("command", "args"):
            for index, word in enumerate(strings(container, key)):
                if (size := len(word.encode())) > MAX_ARGUMENT_BYTES:
                    raise _violation(
                        f"{path}.{key}[{index}]", f"must not exceed {MAX_ARGUMENT_BYTES} bytes; given {size}."
                    )

    def _environment(self, container: JsonObject, path: str) -> None:
        seen: set[str] = set()
        for index, env in enumerate(parts(container, "env")):
            if not env.get("name") or env["name"] in seen:
                raise _violation(f"{path}.env[{index}].name", f"'{env.get('name', '')}' is empty or given twice.")
            if env["name"] in {"PORT", "K_SERVICE", "K_REVISION", "K_CONFIGURATION"}:
                raise _violation(
                    f"{path}.env[{index}].name", f"the name '{env['name']}' is reserved; it is set by Cloud Run."
                )
            if len(str(env.get("value") or "").encode()) > MAX_ARGUMENT_BYTES:
                raise _violation(f"{path}.env[{index}].value", f"must not exceed {MAX_ARGUMENT_BYTES} bytes.")
            if env.get("value") and env.get("valueSource"):
                raise _violation(f"{path}.env[{index}]", "value and value_source cannot both be given.")
            seen.add(env["name"])

    def _mounts(self, container: JsonObject, path: str) -> None:
        known = {volume.get("name") for volume in parts(self.template, "volumes")}
        for index, mount in enumerate(parts(container, "volumeMounts")):
            if mount.get("name") not in known:
                raise _violation(
                    f"{path}.volume_mounts[{index}].name", f"no volume is named '{mount.get('name', '')}'."
                )
            _mount_path(str(mount.get("mountPath", "")), f"{path}.volume_mounts[{index}].mount_path")

    def _resources(self, container: JsonObject, path: str) -> None:
        limits: dict[str, str] = part(part(container, "resources"), "limits")
        for key in limits:
            if key not in {"cpu", "memory", GPU_LIMIT}:
                raise _violation(
                    f"{path}.resources.limits", f"'{key}' is not a limit; cpu, memory and {GPU_LIMIT} are."
                )
        cpu, memory = cpus(limits.get("cpu", "1")), memory_gib(limits.get("memory", "512Mi"))
        if cpu is None or cpu <= 0 or (cpu > 1 and cpu != int(cpu)):
            raise _violation(
                f"{path}.resources.limits[cpu]",
                f"'{limits.get('cpu')}' is not a number of CPUs; whole numbers, or less than 1, are allowed.",
            )
        if memory is None or memory < 0.125:  # noqa: PLR2004 - Cloud Run's smallest second-generation sidecar
            raise _violation(
                f"{path}.resources.limits[memory]",
                f"'{limits.get('memory')}' is not an amount of memory of at least 128Mi.",
            )
        most = gpu_types().get(gpu_of(self.template) or "", _NO_GPU)
        if cpu in _BETWEEN:
            raise _violation(
                f"{path}.resources.limits[cpu]",
                f"Invalid value specified for cpu. The supported values are 1, 2, 4, 6 and 8; given {limits.get('cpu')}.",
            )
        if cpu > most.max_cpu:
            raise _violation(
                f"{path}.resources.limits[cpu]",
                f"Invalid value specified for cpu. Maximum {most.max_cpu:g} CPU allowed; given {limits.get('cpu')}.",
            )
        if memory > most.max_memory_gib:
            raise _violation(
                f"{path}.resources.limits[memory]",
                f"Invalid value specified for memory. Maximum {most.max_memory_gib:g}Gi allowed; given {limits.get('memory')}.",
            )
        for above_gib, needed in _CPU_FOR_MEMORY:
            if memory > above_gib and cpu < needed:
                raise _violation(
                    f"{path}.resources.limits[cpu]",
                    f"Invalid value specified for cpu. For the specified memory ({limits.get('memory')}), at least {needed:g} CPU are needed; "
                    f"given {limits.get('cpu', '1')}.",
                )

    def instance(self) -> None:
        """Reject containers that together need more than an instance has.

        Cloud Run's pages give the maximum of an instance ("the memory allocated to each instance of a revision"), which all its containers share.
        That the sum is checked at a deployment, and the message, are assumed.
        """
        most = gpu_types().get(gpu_of(self.template) or "", _NO_GPU)
        limits = list(_limits(self.template))
        cpu = sum(cpus(each.get("cpu", "1")) or 0 for each in limits)
        memory = sum(memory_gib(each.get("memory", "512Mi")) or 0 for each in limits)
        for what, total, maximum, unit in (
            ("cpu", cpu, most.max_cpu, " CPU"),
            ("memory", memory, most.max_memory_gib, "Gi"),
        ):
            if total > maximum:
                raise _violation(
                    f"{self.path}.containers",
                    f"Invalid value specified for {what}. Maximum {maximum:g}{unit} allowed for all containers of an instance; given {total:g}{unit}.",
                )

    def volumes(self) -> None:
        names: set[str] = set()
        for index, volume in enumerate(parts(self.template, "volumes")):
            path = f"{self.path}.volumes[{index}]"
            if not volume.get("name") or volume["name"] in names:
                raise _violation(f"{path}.name", f"'{volume.get('name', '')}' is empty or given twice.")
            names.add(volume["name"])
            kinds = [key for key in volume if key != "name"]
            if len(kinds) != 1:
                raise _violation(path, f"exactly one source must be given; given are {', '.join(kinds) or 'none'}.")
            if kinds[0] == "gcs" and self.template.get("executionEnvironment") == "EXECUTION_ENVIRONMENT_GEN1":
                raise _violation(path, "Cloud Storage volumes need the second generation execution environment.")

    def numbers(self) -> None:
        concurrency = int(self.template.get("maxInstanceRequestConcurrency", 1))
        if not 0 <= concurrency <= MAX_CONCURRENCY:
            raise _violation(
                f"{self.path}.max_instance_request_concurrency",
                f"must be from 1 to {MAX_CONCURRENCY}; given {concurrency}.",
            )
        timeout_s = seconds(self.template.get("timeout", "300s"))
        if not 0 < timeout_s <= MAX_REQUEST_TIMEOUT_S:
            raise _violation(
                f"{self.path}.timeout",
                f"must be from 1s to {MAX_REQUEST_TIMEOUT_S}s; given {self.template['timeout']}.",
            )
        scaling = part(self.template, "scaling")
        if scaling.get("minInstanceCount", 0) > scaling.get("maxInstanceCount", DEFAULT_MAX_INSTANCES):
            raise _violation(
                f"{self.path}.scaling",
                f"min_instance_count {scaling['minInstanceCount']} is above max_instance_count {scaling['maxInstanceCount']}.",
            )

    def gpu(self, region: str, world: Run, gpus_left: int) -> None:
        kind = gpu_of(self.template)
        if kind is None:
            return
        with_gpu_limit = self._with_gpu_limit()
        if kind not in gpu_types():
            raise _violation(
                f"{self.path}.node_selector.accelerator",
                f"'{kind}' is not a GPU type; {' and '.join(gpu_types())} are.",
            )
        if len(with_gpu_limit) != 1:
            raise _violation(
                f"{self.path}.containers",
                f"exactly one container must have a limit of {GPU_LIMIT}; {len(with_gpu_limit)} have one.",
            )
        if region not in world.gpu_regions.get(kind, ()):
            raise _violation(
                f"{self.path}.node_selector.accelerator",
                f"GPU type {kind} is not available in region {region}; it is in {', '.join(world.gpu_regions.get(kind, ()))}.",
            )
        self._gpu_container(kind, with_gpu_limit[0])
        count = max_instances(self.template)
        if gpus_left <= 0 and count > 0:
            redundancy = "without" if self.template.get("gpuZonalRedundancyDisabled") else "with"
            raise _violation(
                f"{self.path}.node_selector",
                f"You do not have quota for using GPUs {redundancy} zonal redundancy ({kind} in {region}: none left). "
                "Set gpu_zonal_redundancy_disabled, or ask for quota.",
            )
        if count > gpus_left:
            single = bool(self.template.get("gpuZonalRedundancyDisabled"))
            quota_id = f"{gpu_types()[kind].quota_id}{'NoZonalRedundancy' if single else ''}PerProjectRegion"
            raise _violation(
                f"{self.path}.scaling.max_instance_count",
                f"Max instances must be set to {gpus_left} or fewer in order to set GPU requirements.\nTo request quota: g.co/cloudrun/gpu-quota\n"
                f"Quota violated:\n{quota_id} requested: {count} allowed: {gpus_left}",
            )

    def quota(self, world: Run, region: str) -> None:
        """Reject CPUs or memory above the region's quotas for all instances of this service together.

        Message: googlecodelabs/feedback issues 1856 and 2311, 2026. The lowest number of instances comes first, then each exceeded quota.
        Other services of the region do not count at a deployment.
        """
        count = max_instances(self.template)
        used = [(quota, quota.of(self.template), quota.limit(world, region)) for quota in COMPUTE_QUOTAS]
        violated = [(quota, each * count, limit) for quota, each, limit in used if each * count > limit]
        if not violated:
            return
        most = min(limit // each for _, each, limit in used if each)
        quotas = "\n".join(f"{quota.quota_id} requested: {total} allowed: {limit}" for quota, total, limit in violated)
        raise _violation(
            f"{self.path}.scaling.max_instance_count",
            f"Max instances must be set to {most} or fewer to set the requested total {violated[0][0].what}.\n"
            "Consider running your workload in a region with greater capacity, or requesting an increase in quota for this region if you are "
            f"seeing sustained usage near this limit, see https://cloud.google.com/run/quotas.\n\nQuota violated:\n{quotas}",
        )

    def _gpu_container(self, kind: str, container: JsonObject) -> None:
        need, resources = gpu_types()[kind], container["resources"]
        path = f"{self.path}.containers[{self.template['containers'].index(container)}].resources"
        limits: dict[str, str] = resources["limits"]
        if limits[GPU_LIMIT] != "1":
            raise _violation(
                f"{path}.limits[{GPU_LIMIT}]", f"one GPU per instance is allowed; given {limits[GPU_LIMIT]}."
            )
        cpu, memory = cpus(limits.get("cpu", "1")) or 0, memory_gib(limits.get("memory", "512Mi")) or 0
        if cpu < need.min_cpu:
            raise _violation(
                f"{path}.limits[cpu]",
                f"GPU type {kind} needs at least {need.min_cpu:g} CPU; given {limits.get('cpu', '1')}.",
            )
        if memory < need.min_memory_gib:
            raise _violation(
                f"{path}.limits[memory]",
                f"GPU type {kind} needs at least {need.min_memory_gib:g}Gi of memory; given {limits.get('memory', '512Mi')}.",
            )
        if resources.get("cpuIdle"):
            raise _violation(f"{path}.cpu_idle", "must be false with a GPU: GPU services are billed by instance.")
        if self.template.get("executionEnvironment") == "EXECUTION_ENVIRONMENT_GEN1":
            raise _violation(
                f"{self.path}.execution_environment", "GPUs need the second generation execution environment."
            )


def _mount_path(given: str, path: str) -> None:
    if not given.startswith("/") or ":" in given:
        raise _violation(path, f"'{given}' must be an absolute path without ':'.")
    at = posixpath.normpath("/" + given.lstrip("/"))
    if any(at == folder or at.startswith(folder + "/") for folder in DISALLOWED_MOUNTS):
        raise _violation(
            path,
            "Cloud Run does not allow you to mount a volume at /dev, /proc, or /sys, or on their subdirectories. "
            f"Given: '{given}'.",
        )


def _range(probe: JsonObject, key: str, path: str, low: int, high: int) -> int:
    value = int(probe.get(key, 0))
    if not low <= value <= high:
        raise _violation(
            f"{path}.{re.sub('([A-Z])', lambda found: '_' + found[1].lower(), key)}",
            f"must be from {low} to {high}; given {value}.",
        )
    return value


def _kinds(probe: JsonObject, path: str, allowed: tuple[str, ...]) -> None:
    given = [key for key in ("httpGet", "tcpSocket", "grpc") if key in probe]
    if len(given) != 1 or given[0] not in allowed:
        raise _violation(
            path, f"exactly one of {', '.join(allowed)} must be given; given are {', '.join(given) or 'none'}."
        )


def _timeout(probe: JsonObject, path: str, period_s: int, high: int) -> None:
    timeout_s = _range(probe, "timeoutSeconds", path, 1, high)
    if timeout_s > period_s:
        raise _violation(
            f"{path}.timeout_seconds", f"must not be greater than period_seconds; given {timeout_s} against {period_s}."
        )


def _startup_probe(probe: JsonObject, path: str, *, gpu: bool) -> None:
    _kinds(probe, path, ("httpGet", "tcpSocket", "grpc"))
    _range(probe, "initialDelaySeconds", path, 0, MAX_PROBE_DELAY_S)
    period_s = _range(probe, "periodSeconds", path, 1, MAX_STARTUP_PERIOD_S)
    _timeout(probe, path, period_s, MAX_STARTUP_PERIOD_S)
    failures = _range(probe, "failureThreshold", path, 1, MAX_STARTUP_BUDGET_WITH_GPU_S)
    most_s = MAX_STARTUP_BUDGET_WITH_GPU_S if gpu else MAX_STARTUP_BUDGET_S
    if failures * period_s > most_s:
        with_gpu = " with a GPU" if gpu else ""
        raise _violation(
            f"{path}.failure_threshold",
            f"failure_threshold x period_seconds must not exceed {most_s} seconds{with_gpu}; given {failures} x {period_s} = {failures * period_s}.",
        )


def _liveness_probe(probe: JsonObject, path: str) -> None:
    _kinds(probe, path, ("httpGet", "grpc"))
    _range(probe, "initialDelaySeconds", path, 0, MAX_PROBE_DELAY_S)
    period_s = _range(probe, "periodSeconds", path, 1, MAX_LIVENESS_PERIOD_S)
    _timeout(probe, path, period_s, MAX_LIVENESS_PERIOD_S)
    _range(probe, "failureThreshold", path, 1, MAX_STARTUP_BUDGET_WITH_GPU_S)


def _readiness_probe(probe: JsonObject, path: str) -> None:
    """Reject probes that Cloud Run does not offer for readiness (page on health checks, preview, 2026): HTTP and gRPC, no delay."""
    _kinds(probe, path, ("httpGet", "grpc"))
    if probe.get("initialDelaySeconds"):
        raise _violation(
            f"{path}.initial_delay_seconds", "is not supported: the readiness probe begins after the startup probe."
        )
    period_s = _range(probe, "periodSeconds", path, 1, MAX_READINESS_PERIOD_S)
    _timeout(probe, path, period_s, MAX_READINESS_PERIOD_S)
    _range(probe, "failureThreshold", path, 1, MAX_STARTUP_BUDGET_WITH_GPU_S)


def with_defaults(template: JsonObject, *, default_account: str, gpu_max_instances: int) -> JsonObject:
    """Return the template with Cloud Run's defaults."""
    scaling = {**part(template, "scaling")}
    scaling.setdefault("maxInstanceCount", gpu_max_instances if gpu_of(template) else DEFAULT_MAX_INSTANCES)
    filled: JsonObject = {
        "timeout": "300s",
        "serviceAccount": default_account,
        "maxInstanceRequestConcurrency": 80,
        **template,
        "scaling": scaling,
    }
    containers: list[JsonObject] = [dict(container) for container in parts(template, "containers")]
    if len(containers) == 1 and not containers[0].get("ports"):
        containers[0]["ports"] = [{"containerPort": 8080}]
    filled["containers"] = [_container_with_defaults(container) for container in containers]
    return filled


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
