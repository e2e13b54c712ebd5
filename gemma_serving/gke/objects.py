"""The objects of a server: pure functions from a `GkeServer` to what kubectl, Argo CD, Flux or Pulumi apply.

Sources: [GKS] GoogleCloudPlatform/kubernetes-engine-samples 2b50365, [AP] GoogleCloudPlatform/accelerated-platforms 9320f3b.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import yaml

from gemma_serving.gke.server import LONGEST_STABILIZATION_S, QUEUE_SHARE, BucketMount, GkeOptions, GkeServer
from gemma_serving.planning.settings.google_limits import PROBE_PERIOD_S, PROBE_TIMEOUT_S
from gemma_serving.planning.units import ceil_div

KubernetesObject: TypeAlias = dict[str, Any]
NAME_LABEL: Final = "app.kubernetes.io/name"
CONTAINER: Final = "vllm"
HEALTH_PATH: Final = "/health"
TOKEN_FOLDER: Final = "/var/run/secrets/huggingface.co"  # noqa: S105 - a path. [AP] model-download/huggingface/job.yaml
_TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
_WAITING: Final = "prometheus.googleapis.com|vllm:num_requests_waiting|gauge"
"""Name of the metric for the Custom Metrics Stackdriver Adapter ([GKS] ai-ml/vllm-tpu/vllm-hpa.yaml)."""
_RUNNING: Final = "prometheus.googleapis.com|vllm:num_requests_running|gauge"
_SCRAPE_S: Final = 15
"""[GKS] ai-ml/vllm-tpu/vllm_pod_monitor.yaml."""
_LEAVE_S: Final = 10
"""Between the end of a Pod's readiness and the stop of its server, so that proxies stop sending requests to it. Assumed: kube-proxy and
Google's load balancers apply a removed endpoint within seconds."""
_STOP_S: Final = 30
"""Time of a drained server to exit before it is killed."""
_DRIVER_LIBRARIES: Final = "/usr/local/nvidia/lib64:/usr/local/cuda/lib64"
"""GKE mounts the driver's libraries at the first folder, and Google's manifests name it ([AP] online-inference-gpu/vllm/base/deployment.yaml).
The second has the image's own."""


def objects(server: GkeServer, options: GkeOptions) -> list[KubernetesObject]:
    """Return the objects in the order in which they are applied. The same input always returns the same list.

    Call `gemma_serving.gke.rules.findings` first: this function writes what it is given.
    """
    found = [
        _service_account(server),
        *_secret_provider_class(server),
        _service(server),
        _deployment(server, options),
        _pod_monitoring(server),
        *_autoscaler(server, options),
        *_disruption_budget(server, options),
        *_route(server, options),
    ]
    for one in found:
        one["metadata"] = _metadata(server, options) | one.get("metadata", {})
    return found


def _metadata(server: GkeServer, options: GkeOptions) -> KubernetesObject:
    labels = {NAME_LABEL: server.name, "app.kubernetes.io/managed-by": "gemma-serving"}
    place = {"namespace": options.namespace} if options.namespace else {}
    return {"name": server.name, **place, "labels": labels}


def _object(api: str, kind: str, **parts: object) -> KubernetesObject:
    return {"apiVersion": api, "kind": kind, "metadata": {}, **parts}


def _selector(server: GkeServer) -> Mapping[str, Mapping[str, str]]:
    return {"matchLabels": {NAME_LABEL: server.name}}


def _service_account(server: GkeServer) -> KubernetesObject:
    """Return the account of the Pods. By the annotation, Google's APIs see them as the Google service account (GKE, Workload Identity Federation)."""
    annotations = {"iam.gke.io/gcp-service-account": server.service_account}
    return _object("v1", "ServiceAccount") | {"metadata": {"annotations": annotations}}


def _secret_provider_class(server: GkeServer) -> Iterator[KubernetesObject]:
    """Yield the token as a file, by the Secret Manager add-on of GKE ([AP] model-download/huggingface/templates)."""
    if server.token_secret:
        secrets = yaml.safe_dump([{"resourceName": server.token_secret, "path": _TOKEN_FILE}])
        yield _object(
            "secrets-store.csi.x-k8s.io/v1",
            "SecretProviderClass",
            spec={"provider": "gke", "parameters": {"secrets": secrets}},
        )


def _service(server: GkeServer) -> KubernetesObject:
    ports = [{"name": "http", "port": server.port, "targetPort": "http"}]
    return _object("v1", "Service", spec={"selector": {NAME_LABEL: server.name}, "ports": ports})


def _deployment(server: GkeServer, options: GkeOptions) -> KubernetesObject:
    least, most = options.replicas
    surge = 1 if options.spare_node else 0
    spec = {
        # An autoscaler owns the number. Declared next to it, each later `up` would conflict with it.
        **({} if least < most else {"replicas": most}),
        "selector": _selector(server),
        # Without a spare node, a Pod that is started first waits for the accelerator of the one that waits for it.
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1 - surge},
        },
        "progressDeadlineSeconds": server.replica_start_s + _grace_s(server),
        "template": _pod(server, options),
    }
    return _object("apps/v1", "Deployment", spec=spec)


def _pod(server: GkeServer, options: GkeOptions) -> KubernetesObject:
    annotations = _mount_annotations(server.mount)
    volumes = _volumes(server)
    spec = {
        "serviceAccountName": server.name,
        # vLLM reads VLLM_PORT, which Kubernetes would set for a Service named vllm in the namespace.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace_s(server),
        "nodeSelector": _node_selector(server, options),
        "tolerations": _tolerations(server),
        "containers": [_container(server)],
        "volumes": [{"name": name, **volume} for name, volume, _path in volumes],
    }
    metadata = {"labels": {NAME_LABEL: server.name}, **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": spec}


def _grace_s(server: GkeServer) -> int:
    return _LEAVE_S + server.drain_s + _STOP_S


def _node_selector(server: GkeServer, options: GkeOptions) -> Mapping[str, str]:
    """Return the labels of the node.

    Flex-start: cluster-toolkit#5111, and the GKE page "Run a small batch workload with GPUs and flex-start". Spot: [GKS] ai-ml/llm-multiple-gpus.
    ComputeClass: [AP] online-inference-tpu/vllm, patch-nodeselector.yaml.
    """
    if options.compute_class:
        return {"cloud.google.com/compute-class": options.compute_class}
    form = {"flex-start": "cloud.google.com/gke-flex-start", "spot": "cloud.google.com/gke-spot"}.get(server.form)
    return {**server.node_labels, **({form: "true"} if form else {})}


def _tolerations(server: GkeServer) -> Sequence[Mapping[str, str]]:
    """Return tolerations of the taint that GKE sets on a node with the accelerator, and of one that an owner sets on spot nodes.

    [GKS] ai-ml/gke-ray/tpu/dws/rayjob-tpu-v6e-dws.yaml and ai-ml/gke-a100-jax/kubernetes/job-patch.yaml.
    """
    resource, _ = server.resource
    found = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if server.form == "spot":
        found.append({"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    return found


def _container(server: GkeServer) -> KubernetesObject:
    resource, count = server.resource
    fixed = {resource: str(count)}
    if server.memory_mib is not None:
        fixed["memory"] = f"{server.memory_mib}Mi"
    wanted = {
        **fixed,
        **({"cpu": str(server.cpu)} if server.cpu else {}),
        **({"ephemeral-storage": f"{server.disk_gib}Gi"} if server.disk_gib else {}),
    }
    return {
        "name": CONTAINER,
        "image": server.image,
        "command": list(server.command),
        "args": list(server.arguments),
        "env": [{"name": name, "value": value} for name, value in sorted(_environment(server).items())],
        "ports": [{"name": "http", "containerPort": server.port}],
        "resources": {"requests": wanted, "limits": fixed},
        # The kubelet does not count the node's minutes, so they are the margin of the planned start.
        "startupProbe": _probe(PROBE_PERIOD_S, ceil_div(server.replica_start_s, PROBE_PERIOD_S)),
        "readinessProbe": _probe(PROBE_PERIOD_S, 3),
        "livenessProbe": _probe(60, 3, 10),
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVE_S}}},
        "volumeMounts": [
            {"name": name, "mountPath": path, **({} if "emptyDir" in volume else {"readOnly": True})}
            for name, volume, path in _volumes(server)
            if path
        ],
    }


def _environment(server: GkeServer) -> Mapping[str, str]:
    """Return the server's environment, with the paths that only a Pod has."""
    token = {"HF_TOKEN_PATH": f"{TOKEN_FOLDER}/{_TOKEN_FILE}"} if server.token_secret else {}
    driver = {} if server.is_tpu else {"LD_LIBRARY_PATH": _DRIVER_LIBRARIES}
    return {**driver, **server.environment, **token}


def _probe(period_s: int, failures: int, timeout_s: int = PROBE_TIMEOUT_S) -> KubernetesObject:
    return {
        "httpGet": {"path": HEALTH_PATH, "port": "http"},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_s,
    }


def _mount_annotations(mount: BucketMount | None) -> Mapping[str, str]:
    """Return the annotations that inject the FUSE driver's container. "0" is no limit ([GKS] ai-ml/vllm-tpu/vllm-llama3-70b.yaml)."""
    if mount is None:
        return {}
    limits = {f"gke-gcsfuse/{one}-limit": "0" for one in ("cpu", "ephemeral-storage", "memory")}
    return {"gke-gcsfuse/volumes": "true", **limits}


def _volumes(server: GkeServer) -> Sequence[tuple[str, KubernetesObject, str]]:
    """Return name, volume and path of each volume. The file cache has no path: the driver's container mounts it by its name."""
    # Its content is part of the container's memory.
    found: list[tuple[str, KubernetesObject, str]] = [("dev-shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm")]  # noqa: S108 - the container's
    mount = server.mount
    if mount is not None:
        attributes = {"bucketName": mount.bucket, "mountOptions": ",".join(mount.options)}
        csi = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "volumeAttributes": attributes}
        found.append(("models", {"csi": csi}, mount.path))
        if mount.cache_mib is not None:
            cache = {"medium": "Memory", "sizeLimit": f"{mount.cache_mib}Mi"}
            found.append(("gke-gcsfuse-cache", {"emptyDir": cache}, ""))
    if server.token_secret:
        csi = {
            "driver": "secrets-store-gke.csi.k8s.io",
            "readOnly": True,
            "volumeAttributes": {"secretProviderClass": server.name},
        }
        found.append(("hf-token", {"csi": csi}, TOKEN_FOLDER))
    return found


def _pod_monitoring(server: GkeServer) -> KubernetesObject:
    endpoints = [{"port": "http", "path": "/metrics", "interval": f"{_SCRAPE_S}s"}]
    return _object(
        "monitoring.googleapis.com/v1",
        "PodMonitoring",
        spec={"selector": _selector(server), "endpoints": endpoints},
    )


def _autoscaler(server: GkeServer, options: GkeOptions) -> Iterator[KubernetesObject]:
    """Yield the autoscaler if the numbers of replicas differ.

    Waiting requests add replicas. Running ones keep those in use, because a queue is empty as soon as there are enough of them.
    """
    least, most = options.replicas
    if least >= most:
        return
    period_s = server.replica_start_s
    one = {"type": "Pods", "value": 1, "periodSeconds": period_s}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": server.name},
        "minReplicas": least,
        "maxReplicas": most,
        "metrics": [
            _metric(_WAITING, max(1, server.concurrent_requests // QUEUE_SHARE)),
            _metric(_RUNNING, server.concurrent_requests),
        ],
        # The queue stays until a new replica serves, so the next one is decided only then.
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [one]},
            "scaleDown": {
                "stabilizationWindowSeconds": min(period_s, LONGEST_STABILIZATION_S),
                "policies": [dict(one)],
            },
        },
    }
    yield _object("autoscaling/v2", "HorizontalPodAutoscaler", spec=spec)


def _metric(name: str, average: int) -> KubernetesObject:
    target = {"type": "AverageValue", "averageValue": str(average)}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}


def _disruption_budget(server: GkeServer, options: GkeOptions) -> Iterator[KubernetesObject]:
    """Yield the budget of a server with more than one replica. A single one would only block the drain of its node."""
    if options.replicas[1] > 1:
        yield _object("policy/v1", "PodDisruptionBudget", spec={"maxUnavailable": 1, "selector": _selector(server)})


def _route(server: GkeServer, options: GkeOptions) -> Iterator[KubernetesObject]:
    """Yield the pool and the route of a Gateway, which sends each request to the replica with the shortest queue.

    The endpoint picker is installed by its own chart, with the release's name NAME (gateway-api-inference-extension v1.5.0).
    [AP] inference-ref-arch/examples/llmd/initialize/templates/gateway/httproute-internal.tftpl.yaml.
    """
    if not options.gateway:
        return
    group = "inference.networking.k8s.io"
    picker = {"name": f"{server.name}-epp", "port": {"number": 9002}}
    pool = {"selector": _selector(server), "targetPorts": [{"number": server.port}], "endpointPickerRef": picker}
    yield _object(f"{group}/v1", "InferencePool", spec=pool)
    rule = {
        "backendRefs": [{"group": group, "kind": "InferencePool", "name": server.name}],
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
    }
    yield _object(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        spec={"parentRefs": [{"name": options.gateway}], "rules": [rule]},
    )
