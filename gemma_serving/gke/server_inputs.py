"""Inputs of the objects of a server: its planned words, sizes and times, and the choices of the cluster's owner."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gemma_serving.contracts.compile_cache import ARCHIVE_PREFIX
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.machine.families import FAMILIES
from gemma_serving.planning.machine.hardware import ACCELERATORS, topology_of
from gemma_serving.planning.settings.capacity_form import ProvisioningModel
from gemma_serving.planning.settings.cloud_run import MountMode
from gemma_serving.planning.speed.startup import LOAD_RATES
from gemma_serving.planning.units import MIB_PER_GIB, align_to

PROGRAMS_FOLDER: Final = f"{ARCHIVE_PREFIX}/pods"
"""Folder of the bucket where Pods store compiled programs without a signature: whoever writes it runs code in every Pod."""
NODE_START_S: Final = 300
"""From a Pod that no node has room for to a node that is ready, without a wait for capacity. Assumed: public reports of GPU nodes say 3 to 8
minutes (blog.easecloud.io, "Auto-Scale GPU Workloads on GKE Clusters"), and none of TPU nodes was found."""
QUEUE_SHARE: Final = 4
"""The autoscaler adds a replica if more requests wait for each replica than its concurrent requests divided by this number. Chosen: a request
then waits for about a quarter of a request's time. Google's manifests have a fixed 5 or 10 (kubernetes-engine-samples 2b50365,
ai-ml/llm-multihost-gpus/vllm-hpa.yaml and ai-ml/vllm-tpu/vllm-hpa.yaml)."""
_METRICS_AGE_S: Final = 120
"""Assumed: scrapes 15 s apart, Cloud Monitoring, its adapter, and 15 s between two decisions of an autoscaler. With metrics one minute old, the
real autoscaler added one replica too many when a start took as long as planned (dev/judges/real/kubernetes)."""
_MINUTE_S: Final = 60
_CPU_S_PER_GB: Final = 1.9
"""CPU time of gcsfuse per gigabyte that is read. Measured: gcsfuse 3.11.3 took 1.6 to 1.9 s with buffered reads and 1.9 s without, over HTTP without
TLS, on a loaded machine with 2 vCPU."""
_CACHED_CPU_S_PER_GB: Final = 4.2
"""The same with parallel downloads into a file cache in memory."""
_SIDECAR_GIB: Final = 0.5
"""Memory of a gcsfuse without its buffers and its cache. Measured as above: 45 MiB. The rest is a margin, twice the driver's default for all of it
(gcs-fuse-csi-driver 5fcdc04, pkg/webhook/config.go)."""
_SIDECAR_DISK_GIB: Final = 1
"""Log and temporary files of a gcsfuse. Assumed: a file cache is in memory, and of compiled programs it stages few at a time, of 12 to 26 MiB."""


_TPU_NODES: Final = {"v6e": "tpu-v6e-slice", "tpu7x": "tpu7x"}
"""GKE's name of the nodes of a generation of TPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GkeOptions:
    """Choices of the cluster's owner. A ComputeClass and a Gateway are named, never created; kubectl or Pulumi's provider adds the namespace."""

    replicas: tuple[int, int] = (1, 1)
    """Minimum and maximum. With different numbers, an autoscaler chooses between them."""
    image: str = ""
    """REPOSITORY@sha256:..., instead of the stack's image. Required for a stack that builds its image."""
    accelerator: str = ""
    """Machine with more of the stack's GPUs, such as L4x4, on which vLLM splits the model. Empty: the stack's accelerator."""
    compute_class: str = ""
    """ComputeClass, which replaces the node selectors and the form of capacity."""
    gateway: str = ""
    """Gateway of the namespace whose listener `https` gets a route to the server's InferencePool. Empty: clients call the Service."""
    callers: Sequence[str] = ()
    """Namespaces, and ranges of addresses, that may call the server, by a NetworkPolicy. Empty: every Pod and range that reaches it."""
    spare_node: bool = False
    """True if a change may start a new Pod before it ends an old one, because one more node is there or can be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketMount:
    """The bucket or a folder of it, mounted by Cloud Storage FUSE."""

    path: str
    mode: MountMode
    options: Sequence[str]
    """Options of gcsfuse, as of the stack's own mount."""
    cache_mib: int | None = None
    """Size of the file cache in memory; None without one."""

    @property
    def is_buffered(self) -> bool:
        """True if gcsfuse reads ahead into its memory."""
        return "enable-buffered-read=true" in self.options

    @property
    def sidecar(self) -> "Sidecar":
        """Resources of its gcsfuse. It writes the file cache, so its memory holds it (kubernetes.io, volumes: emptyDir)."""
        cpu_s = _CACHED_CPU_S_PER_GB if self.cache_mib else _CPU_S_PER_GB
        buffers_gib = constant("FUSE_BUFFERS_GIB") if self.is_buffered else 0.0
        return Sidecar(
            cpu=math.ceil(constant(LOAD_RATES[self.mode]) / 1e9 * cpu_s),
            memory_gib=_SIDECAR_GIB + buffers_gib + (self.cache_mib or 0) / MIB_PER_GIB,
            disk_gib=_SIDECAR_DISK_GIB,
        )


class Sidecar(NamedTuple):
    """Resources of the FUSE driver's container in the Pod, which it requests and cannot exceed."""

    cpu: int = 0
    memory_gib: float = 0
    disk_gib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GkeServer:
    """A stack's server on GKE: its image, words and environment, with the sizes and times that were planned for a node."""

    name: str
    """Name of all objects."""
    image: str
    """Reference by digest; empty for an image that the stack builds."""
    command: Sequence[str]
    arguments: Sequence[str]
    environment: Mapping[str, str]
    port: int
    accelerator: str
    form: ProvisioningModel
    """Form of the node's capacity."""
    zones: Sequence[str]
    """Zones of a TPU stack."""
    cpu: int | None
    """vCPU that the container requests, without the FUSE driver's. None, as the memory: a TPU's host has one Pod, which takes all of it."""
    memory_mib: int | None
    """Memory of the container, without the file cache."""
    disk_gib: int
    """Space on the node's boot disk for the container's own files and for weights from the hub."""
    bucket: str
    """Bucket with the weights, which the Pods read; empty for weights from the hub or the image."""
    mount: BucketMount | None
    """Weights, mounted read-only; None if the server streams or downloads them."""
    programs: BucketMount | None
    """Compiled XLA programs, which each Pod reads and adds to; None if each Pod compiles all of its own."""
    token_secret: str
    """Version in Secret Manager with the Hugging Face token; empty if the server downloads nothing from the hub, or has no token."""
    key_secret: str
    """Version in Secret Manager with the API key; empty if the server requires none."""
    container_start_s: float
    """Planned seconds from a ready node to the first healthy response, at the slow end of the band."""
    warm_start_s: float
    """The same of a start that finds its programs in `programs`; `container_start_s` without."""
    load_s: float
    """Planned seconds of `container_start_s`, at the middle of the band, in which the weights are read."""
    faster_load: tuple[str, float] | None
    """Setting with a shorter planned `load_s` for weights in a bucket, and that time; None if none is known, or for weights elsewhere."""
    graphs_s: float
    """Planned seconds of each start for graphs that `cloudRun.compileCache: bucket` stores on Cloud Run; 0 without it."""
    concurrent_requests: int
    """Requests that one replica runs at the same time."""
    drain_s: int
    """Time for running requests after Kubernetes stops a Pod."""
    longest_request_s: int
    """Time that a Gateway lets a request take: until it fills `vllm.maxModelLen` on a full server, at the slow end of the band."""
    lacks: Sequence[str]
    """Why a Pod cannot have some settings, and what to do, in sentences."""
    usd_per_hour: float | None
    """Price of a replica's node; None if it is unknown."""

    @property
    def secrets(self) -> Mapping[str, str]:
        """Versions in Secret Manager that the server reads, by the name of the file."""
        return {name: one for name, one in (("token", self.token_secret), ("api-key", self.key_secret)) if one}

    @property
    def mounts(self) -> Sequence[BucketMount]:
        """All mounts of the bucket."""
        return [one for one in (self.mount, self.programs) if one is not None]

    @property
    def sidecar(self) -> Sidecar:
        """Resources of the driver's container, which runs a gcsfuse for each mount, one of them busy at a time; 0 without a mount."""
        needs = [one.sidecar for one in self.mounts]
        return Sidecar(
            cpu=max((one.cpu for one in needs), default=0),
            memory_gib=sum(one.memory_gib for one in needs),
            disk_gib=sum(one.disk_gib for one in needs),
        )

    @property
    def is_tpu(self) -> bool:
        """True on TPU chips."""
        return ACCELERATORS[self.accelerator].is_tpu

    @property
    def resource(self) -> tuple[str, int]:
        """Name of the extended resource, and how many of it a Pod takes."""
        return ("google.com/tpu" if self.is_tpu else "nvidia.com/gpu"), ACCELERATORS[self.accelerator].chips

    @property
    def node_labels(self) -> Mapping[str, str]:
        """Labels of a node with the accelerator; empty if they are not known.

        GPU: Compute Engine's name, which Cloud Run uses too, for any number of them (accelerated-platforms 9320f3b,
        custom_compute_class/templates/manifests/gpu).
        TPU: kubernetes-engine-samples 2b50365, ai-ml/vllm-tpu/vllm-llama3-70b.yaml; tpu-recipes c8cfe2f, inference/ironwood/vLLM/Gemma4.
        """
        accelerator = ACCELERATORS[self.accelerator]
        if not accelerator.is_tpu:
            name = FAMILIES[accelerator.family].cloud_run.name
            return {"cloud.google.com/gke-accelerator": name} if name else {}
        name = _TPU_NODES.get(accelerator.family, "")
        topology = topology_of(accelerator)[0].partition(":")[2]
        labels = {"cloud.google.com/gke-tpu-accelerator": name, "cloud.google.com/gke-tpu-topology": topology}
        return labels if name else {}

    @property
    def replica_start_s(self) -> int:
        """Seconds until a new replica on a new node serves, at the slow end of the band, without a wait for capacity."""
        return _on_new_node_s(self.container_start_s)

    @property
    def scaling_period_s(self) -> int:
        """Seconds until the metrics that an autoscaler reads show what a new replica changed.

        A replica is added to one that serves, which has stored its programs. Replicas that a change starts compile again: then the autoscaler
        may add one too many.
        """
        return _on_new_node_s(self.warm_start_s) + _METRICS_AGE_S


def _on_new_node_s(container_s: float) -> int:
    return align_to(math.ceil(NODE_START_S + container_s), _MINUTE_S)
