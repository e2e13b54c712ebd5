"""What a GKE cluster has before a stack comes: published definitions, nodes, and the judge's rules for every Deployment."""

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from judges.real.home import run
from judges.real.kubernetes.api import Api, Object
from judges.real.kubernetes.cluster import Cluster
from localcloud.go_build import cache_folder, compiler

NODES_EACH: Final = 2
"""Nodes of each machine type: no third replica finds one."""
BOOT_DISK_GB: Final = 200
"""Boot disk of each node, which the owner chooses. GKE's default of 100 GB leaves less than the weights of some stacks."""
DEFINITIONS: Final = {
    "github.com/GoogleCloudPlatform/prometheus-engine@v0.8.2": (
        "cmd/operator/deploy/crds/monitoring.googleapis.com_podmonitorings.yaml",
    ),
    "sigs.k8s.io/secrets-store-csi-driver@v1.5.3": (
        "config/crd/bases/secrets-store.csi.x-k8s.io_secretproviderclasses.yaml",
    ),
    "sigs.k8s.io/gateway-api@v1.6.1": ("config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",),
    "sigs.k8s.io/gateway-api-inference-extension@v1.5.0": (
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
    ),
}
"""Published definitions, as Go modules. Newer versions of the first are not served."""
NOT_JUDGED: Final = (
    "ComputeClass and its node pools: no definition is published",
    "the drivers for Cloud Storage FUSE and Secret Manager: only what a Pod must declare for them",
    "GKE's webhooks: side car of FUSE, Autopilot's limits, tolerations that GKE adds",
    "Workload Identity and IAM; the Gateway that carries InferencePool and HTTPRoute",
)
_NODES: Final = Path(__file__).with_name("nodes.toml")
_POLICY: Final = "judged"
_SECRET_NAME: Final = "(TOKEN|KEY|SECRET|PASSWORD)$"  # noqa: S105 - a pattern of names
_RULES: Final = {
    "all containers have an image by digest, because a tag may name another image tomorrow": (
        "c.image.matches('@sha256:[0-9a-f]{64}$')"
    ),
    "no container has a secret in its environment, which everyone who may read Pods can read": (
        f"!has(c.env) || c.env.all(e, !e.name.matches('{_SECRET_NAME}') && (!has(e.value) || !e.value.matches('hf_[A-Za-z0-9]{{20}}')))"
    ),
}


def accelerators() -> Mapping[str, dict[str, Any]]:
    """Return labels, taint and resource of each accelerator, by its name in nodes.toml."""
    return tomllib.loads(_NODES.read_text(encoding="utf-8"))["accelerator"]


def furnish(cluster: Cluster) -> None:
    """Create definitions, nodes, the judge's policy and the metrics API."""
    for definition in _definitions():
        cluster.api.create("apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    for node in nodes():
        cluster.api.create("api/v1/nodes", node)
    _add_policy(cluster.api)
    _add_metrics(cluster.api, cluster.adapter[0])


def nodes() -> Iterator[Object]:
    """Yield the nodes of each machine type."""
    table = tomllib.loads(_NODES.read_text(encoding="utf-8"))
    for machine, row in table["machine"].items():
        kind = table["accelerator"][row["accelerator"]]
        key, _, rest = kind["taint"].partition("=")
        value, _, effect = rest.partition(":")
        capacity = {
            "cpu": f"{_cpu_left(row['vcpu'])}m",
            "memory": f"{_memory_left_mib(row['memory_gb'])}Mi",
            "pods": "110",
        }
        capacity |= {kind["resource"]: str(row["devices"]), "ephemeral-storage": f"{disk_left_gib(BOOT_DISK_GB)}Gi"}
        plain: list[dict[str, str]] = [{}]
        forms: list[dict[str, str]] = list(table["form"].values()) if row["accelerator"].startswith("v6e") else plain
        for number, form in enumerate(form for form in forms for _ in range(NODES_EACH)):
            name = f"{machine}-{number}"
            labels = {
                "kubernetes.io/hostname": name,
                "node.kubernetes.io/instance-type": machine,
                **kind["labels"],
                **form,
            }
            yield {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {"taints": [{"key": key, "value": value, "effect": effect}]},
                "status": {"capacity": capacity, "allocatable": capacity},
            }


def _memory_left_mib(memory_gb: int) -> int:
    """Return the memory that GKE leaves for Pods (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes)."""
    reserved_gib, below_gib = 0.0, 0
    for up_to_gib, fraction in ((4, 0.25), (8, 0.20), (16, 0.10), (128, 0.06), (memory_gb, 0.02)):
        reserved_gib += max(0, min(memory_gb, up_to_gib) - below_gib) * fraction
        below_gib = max(below_gib, up_to_gib)
    return int((memory_gb - reserved_gib) * 1024 - 100)


def disk_left_gib(boot_disk_gb: int) -> int:
    """Return the space of a boot disk that GKE leaves for Pods (source as above): without its own reserve and the threshold of evictions."""
    disk_gib = boot_disk_gb * 1e9 / 2**30
    return int(disk_gib * 0.9 - min(disk_gib * 0.5, 6 + disk_gib * 0.35, 100))


def _cpu_left(vcpu: int) -> int:
    """Return the thousandths of vCPU that GKE leaves for Pods (source as above)."""
    return int(vcpu * 1000 - 60 - 10 * min(1, vcpu - 1) - 5 * min(2, vcpu - 2) - 2.5 * max(0, vcpu - 4))


def _definitions() -> Iterator[Object]:
    """Yield the published definitions, which the Go client downloads once."""
    folder = cache_folder("kubernetes") / "definitions"
    folder.mkdir(parents=True, exist_ok=True)
    for module, paths in DEFINITIONS.items():
        for path in paths:
            file = folder / f"{module.rsplit('@', maxsplit=1)[1]}-{Path(path).name}"
            if not file.is_file():
                shutil.copyfile(_downloaded(module) / path, file)
            yield yaml.safe_load(file.read_text(encoding="utf-8"))


def _downloaded(module: str) -> Path:
    go = compiler()
    if go is None:
        pytest.skip("`go`, needed to download published definitions, is not on PATH. Install Go 1.26 or newer")
    done = run([go, "mod", "download", "-json", module], limit_s=300)
    if done.returncode:
        pytest.skip(f"go mod download {module}: {done.stdout.strip()[-200:]}")
    return Path(json.loads(done.stdout)["Dir"])


def _add_policy(api: Api) -> None:
    """Add the judge's rules for Deployments. The API server applies them to each create and update."""
    lists = ("object.spec.template.spec.containers", "object.spec.template.spec.?initContainers.orValue([])")
    rules = [
        {"expression": f"{part}.all(c, {rule})", "message": f"judge: {text}"}
        for text, rule in _RULES.items()
        for part in lists
    ]
    deployments = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments"],
    }
    path = "apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    metadata = {"name": _POLICY}
    spec = {"matchConstraints": {"resourceRules": [deployments]}, "validations": rules}
    api.create(f"{path}ies", {"metadata": metadata, "spec": spec})
    api.create(
        f"{path}ybindings", {"metadata": metadata, "spec": {"policyName": _POLICY, "validationActions": ["Deny"]}}
    )


def _add_metrics(api: Api, port: int) -> None:
    """Add the metrics API of the adapter on loopback. A Service with an external name needs no network in the cluster."""
    api.create("api/v1/namespaces", {"metadata": {"name": "custom-metrics"}})
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    api.create("api/v1/namespaces/custom-metrics/services", {"metadata": {"name": "adapter"}, "spec": service})
    spec: Object = {"group": "custom.metrics.k8s.io", "version": "v1beta2", "insecureSkipTLSVerify": True}
    spec |= {"groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"service": {"name": "adapter", "namespace": "custom-metrics", "port": port}}
    path = "apis/apiregistration.k8s.io/v1/apiservices"
    api.create(path, {"metadata": {"name": "v1beta2.custom.metrics.k8s.io"}, "spec": spec})
