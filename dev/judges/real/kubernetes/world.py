"""Parts of a GKE cluster before a stack is deployed: published definitions, nodes and a metrics API."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dev.judges.real.home import go_compiler, run
from dev.judges.real.kubernetes.api import Api, Object
from dev.judges.real.kubernetes.cluster import Cluster

BOOT_DISK_GB: Final = 200
"""Boot disk of each node, which the owner chooses. GKE's default of 100 GB leaves less than the weights of some stacks."""
EXTENSION: Final = "sigs.k8s.io/gateway-api-inference-extension@v1.5.0"
DEFINITIONS: Final = {
    "github.com/GoogleCloudPlatform/prometheus-engine@v0.8.2": "cmd/operator/deploy/crds/monitoring.googleapis.com_podmonitorings.yaml",
    "sigs.k8s.io/secrets-store-csi-driver@v1.5.3": "config/crd/bases/secrets-store.csi.x-k8s.io_secretproviderclasses.yaml",
    "sigs.k8s.io/gateway-api@v1.6.1": "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    EXTENSION: "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
    "github.com/GoogleCloudPlatform/gke-gateway-api@v1.3.0": "config/crd/networking.gke.io_*s.yaml",
}
"""Published definitions, as patterns of files of Go modules. Newer versions of the first module are not served."""
NOT_JUDGED: Final = (
    "ComputeClass and its node pools: no definition is published",
    "the drivers for Cloud Storage FUSE and Secret Manager",
    "GKE's webhooks: side car of FUSE, Autopilot's limits, tolerations that GKE adds",
    "Workload Identity and IAM; Google's load balancer, which carries HTTPRoute and policies; the endpoint picker as it runs",
)
_NODES_EACH: Final = 2


def table() -> Mapping[str, Mapping[str, Any]]:
    """Return nodes.toml."""
    return tomllib.loads(Path(__file__).with_name("nodes.toml").read_text(encoding="utf-8"))


def definitions() -> Iterator[Object]:
    """Yield the published definitions. Skips the test if a module cannot be downloaded."""
    for module, pattern in DEFINITIONS.items():
        for path in sorted(downloaded(module).glob(pattern)):
            yield yaml.safe_load(path.read_text(encoding="utf-8"))


def furnish(cluster: Cluster) -> None:
    """Create definitions, nodes and the metrics API."""
    for definition in definitions():
        cluster.api.call("POST", "apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    for node in nodes():
        cluster.api.call("POST", "api/v1/nodes", node)
    _add_metrics(cluster.api, cluster.adapter_port)


def nodes() -> Iterator[Object]:
    """Yield the nodes of each machine type and form of capacity."""
    found = table()
    for machine, row in found["machine"].items():
        kind: Mapping[str, Any] = found["accelerator"][row["accelerator"]]
        key, value, effect = kind["taint"].replace("=", ":").split(":")
        room = {"cpu": f"{_cpu_left(row['vcpu'])}m", "memory": f"{_memory_left_mib(row['memory_gb'])}Mi", "pods": "110"}
        room |= {kind["resource"]: str(row["devices"]), "ephemeral-storage": f"{disk_left_gib(BOOT_DISK_GB)}Gi"}
        for form in kind["forms"]:
            for number in range(_NODES_EACH):
                labels = {"node.kubernetes.io/instance-type": machine, **kind["labels"], **found["form"][form]}
                yield {
                    "metadata": {"name": f"{machine}-{form}-{number}", "labels": labels},
                    "spec": {"taints": [{"key": key, "value": value, "effect": effect}]},
                    "status": {"capacity": room, "allocatable": room},
                }


def _memory_left_mib(memory_gb: int) -> int:
    """Return the memory that GKE leaves for Pods (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes)."""
    bounds = (0, 4, 8, 16, 128, max(memory_gb, 128))
    parts = zip(bounds[:-1], bounds[1:], (0.25, 0.20, 0.10, 0.06, 0.02), strict=True)
    reserved_gib = sum(max(0, min(memory_gb, high) - low) * fraction for low, high, fraction in parts)
    return int((memory_gb - reserved_gib) * 1024 - 100)


def _cpu_left(vcpu: int) -> int:
    """Return the thousandths of at least 4 vCPU that GKE leaves for Pods (source as above)."""
    return int(vcpu * 1000 - 60 - 10 - 2 * 5 - (vcpu - 4) * 2.5)


def disk_left_gib(boot_disk_gb: int) -> int:
    """Return the space of a boot disk that GKE leaves for Pods (source as above): without its own reserve and the threshold of evictions."""
    disk_gib = boot_disk_gb * 1e9 / 2**30
    return int(disk_gib * 0.9 - min(disk_gib * 0.5, 6 + disk_gib * 0.35, 100))


def downloaded(module: str) -> Path:
    """Return the folder of a Go module, which the Go client downloads once."""
    done = run([go_compiler("download published definitions"), "mod", "download", "-json", module], limit_s=300)
    if done.returncode:
        pytest.skip(f"go mod download {module}: {done.stdout.strip()[-200:]}")
    return Path(json.loads(done.stdout)["Dir"])


def _add_metrics(api: Api, port: int) -> None:
    """Add the metrics API of the adapter on loopback. A Service with an external name needs no network in the cluster."""
    api.call("POST", "api/v1/namespaces", {"metadata": {"name": "custom-metrics"}})
    spec: Object = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    api.call("POST", "api/v1/namespaces/custom-metrics/services", {"metadata": {"name": "adapter"}, "spec": spec})
    spec = {"group": "custom.metrics.k8s.io", "version": "v1beta2", "insecureSkipTLSVerify": True}
    spec |= {"groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"service": {"name": "adapter", "namespace": "custom-metrics", "port": port}}
    metadata = {"name": "v1beta2.custom.metrics.k8s.io"}
    api.call("POST", "apis/apiregistration.k8s.io/v1/apiservices", {"metadata": metadata, "spec": spec})
