"""The objects of a server: a pure function from a `GkeServer` to what kubectl, Argo CD, Flux or Pulumi apply. objects.yaml has them."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any, Final, TypeAlias, cast

import yaml

from gemma_serving.contracts.labels import MANAGED_BY_LABEL, PRODUCT
from gemma_serving.contracts.path_guard import API_KEY_VARIABLE, GUARD_MODULE, OPEN_PATH_VARIABLE, PYTHON_PATH
from gemma_serving.gke.server_inputs import QUEUE_SHARE, BucketMount, GkeOptions, GkeServer
from gemma_serving.planning.settings.google_limits import PROBE_PERIOD_S
from gemma_serving.planning.units import MIB_PER_GIB, ceil_div

KubernetesObject: TypeAlias = dict[str, Any]
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""A tenth of the time with libyaml, which PyYAML's wheels have."""
_NAME_LABEL: Final = "app.kubernetes.io/name"
_SECRETS_FOLDER: Final = "/var/run/secrets/server"
_GUARD: Final = Path(__file__).parents[1] / "vm_agent" / "path_guard.py"
_GUARD_FOLDER: Final = "/etc/gemma-serving"
_START: Final = (
    f"set -e; {API_KEY_VARIABLE}=`cat {_SECRETS_FOLDER}/api-key`; "
    f"{PYTHON_PATH}={_GUARD_FOLDER}${{{PYTHON_PATH}:+:${PYTHON_PATH}}}; "
    f'export {API_KEY_VARIABLE} {PYTHON_PATH}; exec "$@"'
)
"""Shell before the server: vLLM and the guard read the key from a variable, and Kubernetes has it as a file only. A missing file ends the container."""
_LOAD_BALANCERS: Final = ("35.191.0.0/16", "130.211.0.0/22")
"""Google's health checks and front ends (cloud.google.com/load-balancing/docs/health-check-concepts). An internal Gateway's proxies have the
addresses of its own subnet."""
_LEAVE_S: Final = 10
"""Time for proxies to drop a Pod that is about to stop. Assumed: kube-proxy and Google's load balancers do within seconds."""
_STOP_S: Final = 30
"""Time of a drained server to exit before it is killed."""
_DRIVER_LIBRARIES: Final = "/usr/local/nvidia/lib64:/usr/local/cuda/lib64"
"""GKE mounts the driver's libraries at the first folder, which Google's manifests name ([AP] online-inference-gpu/vllm/base/deployment.yaml).
The second has the image's own."""
_FORMS: Final = {"flex-start": "cloud.google.com/gke-flex-start", "spot": "cloud.google.com/gke-spot"}
"""Labels of nodes by form of capacity (cluster-toolkit#5111; [GKS] ai-ml/llm-multiple-gpus/llama3-70b/text-generation-inference.yaml)."""
_CHART: Final = ("oci://registry.k8s.io/gateway-api-inference-extension/charts/inferencepool", "v1.5.0")
"""Chart of an InferencePool and its endpoint picker (kubernetes-sigs/gateway-api-inference-extension df9f890, site-src/_includes/epp.md)."""


def objects(server: GkeServer, options: GkeOptions) -> list[KubernetesObject]:
    """Return the objects in the order in which they are applied. The same input always returns the same list.

    It writes what it is given: `gemma_serving.gke.rules.findings` judges it.
    """
    template = Template(Path(__file__).with_name("objects.yaml").read_text(encoding="utf-8"))
    values = {name: json.dumps(value) for name, value in _values(server, options).items()}
    left_out = set(_left_out(server, options))
    labels = {_NAME_LABEL: server.name, f"app.kubernetes.io/{MANAGED_BY_LABEL}": PRODUCT}
    metadata = {"name": server.name, "labels": labels}
    return [
        {"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": dict(metadata), **one}
        for one in map(_without_nulls, yaml.load_all(template.substitute(values), _LOADER))
        if one["kind"] not in left_out
    ]


def picker_commands(server: GkeServer) -> tuple[str, str]:
    """Return the command that installs the pool, which has the server's name, with its endpoint picker and its policies; and the policy's change.

    No value of the chart sets how long an answer may take: its backend policy has 300 s, and ends the answers of a stopping Pod at once
    (GoogleCloudPlatform/gke-gateway-api v1.3.0, apis/networking/v1/gcpbackendpolicy_types.go).
    """
    labels = {"matchLabels": {_NAME_LABEL: server.name}}
    values = {
        "inferencePool": {"targetPorts": [{"number": server.port}], "modelServers": labels},
        "inferenceExtension": {"failureMode": "FailOpen"},
        "provider": {"name": "gke"},
    }
    chart, version = _CHART
    given = [f"--set-json={name}={_compact(value)}" for name, value in values.items()]
    draining = {"drainingTimeoutSec": _grace_s(server)}
    change = {"timeoutSec": server.longest_request_s, "connectionDraining": draining, "logging": {"enabled": False}}
    patch = f"--patch={_compact({'spec': {'default': change}})}"
    return (
        shlex.join(["helm", "upgrade", "--install", server.name, chart, f"--version={version}", *given]),
        shlex.join(["kubectl", "patch", "gcpbackendpolicy", server.name, "--type=merge", patch]),
    )


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _grace_s(server: GkeServer) -> int:
    """Return the seconds in which a Pod stops: it leaves the proxies, ends its answers, then exits."""
    return _LEAVE_S + server.drain_s + _STOP_S


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - YAML is any of its types
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in cast("KubernetesObject", value).items() if one is not None}
    return value


def _left_out(server: GkeServer, options: GkeOptions) -> Iterator[str]:
    """Yield the kinds that a server does not need."""
    least, most = options.replicas
    if not server.secrets:
        yield "SecretProviderClass"
    if not server.key_secret:
        yield "ConfigMap"
    if not options.callers:
        yield "NetworkPolicy"
    if least == most:
        yield "HorizontalPodAutoscaler"
    if most == 1:  # it would only block the drain of the replica's node
        yield "PodDisruptionBudget"
    if not options.gateway:
        yield "HTTPRoute"


def _values(server: GkeServer, options: GkeOptions) -> Mapping[str, object]:
    least, most = options.replicas
    grace_s = _grace_s(server)
    volumes = list(_volumes(server))
    versions = " ".join(server.secrets.values())
    resource, chips = server.resource
    # GKE sets the first on nodes with the accelerator ([GKS] ai-ml/gke-ray/tpu/dws/rayjob-tpu-v6e-dws.yaml), and the second on spot nodes, also on
    # those of a ComputeClass (google/skills 1af7775, skills/cloud/gke-compute-classes/SKILL.md).
    may_be_spot = server.form == "spot" or options.compute_class
    taints = [resource, *([_FORMS["spot"]] if may_be_spot else [])]
    limits = {resource: str(chips)} | ({"memory": f"{server.memory_mib}Mi"} if server.memory_mib else {})
    # Without a request, Autopilot sets 1 GiB and evicts a Pod that writes more (autopilot.json).
    disk = {"ephemeral-storage": f"{server.disk_gib}Gi"}
    return {
        **asdict(server),
        "labels": {_NAME_LABEL: server.name},
        "secret_files": yaml.safe_dump([{"resourceName": one, "path": path} for path, one in server.secrets.items()]),
        "guard": {f"{GUARD_MODULE}.py": _GUARD.read_text(encoding="utf-8")},
        "callers": [*_callers(options)],
        "command": ["/bin/sh", "-c", _START, "sh", *server.command] if server.key_secret else server.command,
        "environment": [{"name": name, "value": value} for name, value in sorted(_environment(server).items())],
        "replicas": most if least == most else None,
        "least": least,
        "most": most,
        "surge": int(options.spare_node),
        "unavailable": int(not options.spare_node),
        "period_s": server.scaling_period_s,
        "deadline_s": server.replica_start_s + grace_s,
        "grace_s": grace_s,
        "leave_s": _LEAVE_S,
        "probe_period_s": PROBE_PERIOD_S,
        "probe_failures": ceil_div(server.replica_start_s, PROBE_PERIOD_S),
        # A new version replaces the Pods, because they read it when they start.
        "annotations": {**_sidecar(server), **({"gemma-serving/secrets": versions} if versions else {})} or None,
        "node_labels": _node_labels(server, options),
        "tolerations": [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in taints],
        "requests": {**limits, **({"cpu": str(server.cpu)} if server.cpu else {}), **disk},
        "limits": limits,
        "mounts": [{"name": one["name"], "mountPath": path} for one, path in volumes if path],
        "volumes": [one for one, _ in volumes],
        "waiting": str(max(1, server.concurrent_requests // QUEUE_SHARE)),
        "running": str(server.concurrent_requests),
        "gateway": options.gateway,
        "pool": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": server.name},
    }


def _callers(options: GkeOptions) -> Iterator[KubernetesObject]:
    """Yield who may call the server, besides the collector of metrics and the Pod's node: with a Gateway, its load balancer and endpoint picker."""
    ranges = (*options.callers, *(_LOAD_BALANCERS if options.gateway else ()))
    yield from ({"ipBlock": {"cidr": one}} for one in ranges if "/" in one)
    names = [one for one in options.callers if "/" not in one]
    yield from ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": one}}} for one in names)
    if options.gateway:
        yield {"podSelector": {}}


def _sidecar(server: GkeServer) -> Mapping[str, str]:
    """Return the annotations that add the FUSE driver's container. The driver takes its limits as its requests too (autopilot.json)."""
    if not server.mounts:
        return {}
    cpu, memory_gib, disk_gib = server.sidecar
    return {
        "gke-gcsfuse/volumes": "true",
        "gke-gcsfuse/cpu-limit": str(cpu),
        "gke-gcsfuse/memory-limit": f"{round(memory_gib * MIB_PER_GIB)}Mi",
        "gke-gcsfuse/ephemeral-storage-limit": f"{disk_gib}Gi",
    }


def _environment(server: GkeServer) -> Mapping[str, str]:
    """Return the server's environment with the paths that only a Pod has."""
    driver = {} if server.is_tpu else {"LD_LIBRARY_PATH": _DRIVER_LIBRARIES}
    token = {"HF_TOKEN_PATH": f"{_SECRETS_FOLDER}/token"} if server.token_secret else {}
    # Autoscaler and endpoint picker read the metrics, and neither the collector nor the picker has the key.
    metrics = {OPEN_PATH_VARIABLE: "/metrics"} if server.key_secret else {}
    return {**driver, **server.environment, **token, **metrics}


def _node_labels(server: GkeServer, options: GkeOptions) -> Mapping[str, str]:
    """Return the labels of the nodes. A ComputeClass chooses accelerator and form itself ([AP] online-inference-tpu/vllm, patch-nodeselector.yaml)."""
    if options.compute_class:
        return {"cloud.google.com/compute-class": options.compute_class}
    form = _FORMS.get(server.form)
    return {**server.node_labels, **({form: "true"} if form else {})}


def _volumes(server: GkeServer) -> Iterator[tuple[KubernetesObject, str]]:
    """Yield each volume with its path. The driver's container takes the file cache by its name, so it has none."""
    # Its content is part of the container's memory.
    yield {"name": "dev-shm", "emptyDir": {"medium": "Memory"}}, "/dev/shm"  # noqa: S108 - the container's own
    mount = server.mount
    if mount is not None:
        yield _fuse("models", server.bucket, mount, read_only=True), mount.path
        if mount.cache_mib is not None:
            cache = {"medium": "Memory", "sizeLimit": f"{mount.cache_mib}Mi"}
            yield {"name": "gke-gcsfuse-cache", "emptyDir": cache}, ""
    if server.programs is not None:
        yield _fuse("programs", server.bucket, server.programs, read_only=False), server.programs.path
    if server.secrets:
        yield _csi("secrets", "secrets-store-gke.csi.k8s.io", secretProviderClass=server.name), _SECRETS_FOLDER
    if server.key_secret:
        yield {"name": "guard", "configMap": {"name": server.name}}, _GUARD_FOLDER


def _fuse(name: str, bucket: str, mount: BucketMount, *, read_only: bool) -> KubernetesObject:
    options = ",".join(mount.options)
    return _csi(name, "gcsfuse.csi.storage.gke.io", read_only=read_only, bucketName=bucket, mountOptions=options)


def _csi(name: str, driver: str, *, read_only: bool = True, **attributes: str) -> KubernetesObject:
    return {"name": name, "csi": {"driver": driver, "readOnly": read_only, "volumeAttributes": attributes}}
