"""A Cloud Run service: instances, probes and mount."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal, get_args

from gemma_serving.planning.machine.hardware import CLOUD_RUN_GPU_NAMES, CLOUD_RUN_MAX_CONCURRENCY, CLOUD_RUN_VCPU
from gemma_serving.planning.settings.annotations import ListOf, OnChange, OneOf
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.text import (
    DURATION,
    DurationS,
    FromZero,
    Invoker,
    MemoryMib,
    MountOption,
    Positive,
    Region,
)
from gemma_serving.planning.settings.words import AfterValidator, BeforeValidator, Field

LONGEST_REQUEST_S: Final = 3600
"""docs.cloud.google.com/run/docs/configuring/request-timeout"""
GraphCacheMode = Literal["off", "bucket"]
"""Storage of a service's torch.compile graphs: none, or its bucket for the next start."""
MountMode = Literal["fuse", "fuse-buffered", "fuse-cached", "streamer", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings(Block):
    """A startup probe on /health. The planner checks it against Cloud Run's limits. Its defaults are Cloud Run's: 30 s in all."""

    initial_delay_s: DurationS = 0
    """Wait before the first probe. Maximum: 240s."""
    period_s: DurationS = 10
    """Time between probes. Maximum: 240s."""
    failure_threshold: Positive = 3
    """Consecutive failed probes before Cloud Run terminates the container.

    With a GPU, this number times `period` must not exceed 1800s.
    """
    timeout_s: DurationS = 1
    """Timeout of one probe. Maximum: `period`."""

    @property
    def budget_s(self) -> int:
        """Seconds from the container's start until the last failed probe terminates it."""
        return self.initial_delay_s + self.period_s * self.failure_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSettings(Block):
    """Access of the server to the weights in the bucket: with or without a Cloud Storage FUSE mount."""

    mode: MountMode = "fuse-buffered"
    """How the server reads the weights in the bucket.

    `fuse` reads on demand, `fuse-buffered` reads ahead, and `fuse-cached` downloads in parallel into a file cache in memory. The other modes
    mount nothing. With `streamer`, vLLM reads gs:// itself. With `memory`, a program copies the weights into memory in parallel before the
    server starts.
    """
    cache_size_mib: MemoryMib | None = None
    """Size of the file cache of fuse-cached. It is part of the container's memory."""
    uid: FromZero | None = None
    """Owner of the files. Default: the image's user. No other user can read them."""
    gid: FromZero | None = None
    """Group of the files. Default: the image's group."""
    options: ListOf[MountOption] = ()
    """Additional gcsfuse mount options. The modes streamer and memory mount nothing."""

    @property
    def mounts(self) -> bool:
        """True if the container gets a mount of the bucket."""
        return self.mode not in {"streamer", "memory"}

    def flags(self, *, uid: int, gid: int) -> list[str]:
        """Return the gcsfuse options that do not depend on where the cache is, for an image that runs as `uid` and `gid`."""
        return [
            f"uid={uid if self.uid is None else self.uid}",
            f"gid={gid if self.gid is None else self.gid}",
            "implicit-dirs",
            "metadata-cache-ttl-secs=3600",
            "max-conns-per-host=100",
            *(["enable-buffered-read=true"] if self.mode == "fuse-buffered" else []),
        ]

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        if (self.mode == "fuse-cached") != (self.cache_size_mib is not None):
            yield 'mode fuse-cached and cacheSize require each other; set both, for example mode: fuse-cached and cacheSize: "20Gi"'


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRunSettings(Block):
    """A Cloud Run service with one GPU per instance."""

    region: Annotated[Region, OnChange("service")]
    """Region. The GPU must be available there."""
    gpu: Annotated[str, AfterValidator(OneOf(CLOUD_RUN_GPU_NAMES))]
    """GPU of each instance."""
    cpu: Annotated[int, AfterValidator(OneOf(CLOUD_RUN_VCPU))]
    """vCPU of each instance. An L4 needs at least 4, an RTX PRO 6000 at least 20."""
    memory_mib: MemoryMib
    """Memory of each instance: at least 16Gi with an L4, 80Gi with an RTX PRO 6000.

    Weights pass through the memory during loading.
    """
    concurrency: Annotated[int, Field(ge=1, le=CLOUD_RUN_MAX_CONCURRENCY)]
    """Maximum concurrent requests per instance. Further requests wait in Cloud Run's queue."""
    min_instances: FromZero = 0
    """Instances that always run. They are billed even when idle."""
    max_instances: Positive
    """Maximum number of instances.

    Each instance needs GPU, vCPU and memory quota. Deploying a change needs twice the vCPU and memory.
    """
    gpu_quota: Annotated[Positive | None, OnChange("nothing")] = None
    """GPU quota of the region (`nvidia_l4_gpu_allocation_no_zonal_redundancy` for an L4), for the planner to check."""
    cpu_quota: Annotated[Positive | None, OnChange("nothing")] = None
    """vCPU quota of the region (`cpu_allocation`), for the planner to check. Default: 20, the quota of a new project."""
    memory_quota_mib: Annotated[MemoryMib | None, OnChange("nothing")] = None
    """Memory quota of the region (`mem_allocation`), for the planner to check. Default: 40Gi, the quota of a new project."""
    startup_probe: ProbeSettings | None = None
    """Startup probe on /health: the time limit for the container to respond. Default: every 10 s for 1800 s.

    The default probe starts after 240 s if the start may take longer. The planner checks the probe against Cloud Run's limits.
    """
    readiness_probe: bool = False
    """Keep probing /health of a running instance. A preview feature of Cloud Run.

    An instance that fails it gets no new requests until it passes again. Cloud Run does not terminate it.
    """
    ingress: Annotated[Literal["all", "internal", "internal-and-cloud-load-balancing"], OnChange("update")] = "all"
    """Networks that can reach the service. Other callers, including checks from your machine, get a 404."""
    request_timeout_s: Annotated[int, Field(ge=0, le=LONGEST_REQUEST_S), BeforeValidator(DURATION)] = LONGEST_REQUEST_S
    """Timeout of one request. Maximum: 1h."""
    mount: MountSettings = field(default_factory=MountSettings)
    """Access of the server to the weights in the bucket."""
    compile_cache: GraphCacheMode | None = None
    """Storage of the graphs that torch.compile creates. Default: `bucket` with minInstances 0 and weights in the stack's own bucket, otherwise `off`.

    `bucket` stores them in the stack's bucket, so later starts skip most of their compilation.
    """
    public: Annotated[bool, OnChange("update")] = False
    """Allow the public to call the service. The plan blocks this until you accept its finding."""
    invokers: Annotated[ListOf[Invoker], OnChange("update")] = ()
    """Members that can call the service. Project owners need no entry."""
    deletion_protection: Annotated[bool, OnChange("update")] = False
    """Make `pulumi destroy` refuse to delete the service. `gemma teardown` prompts you before it clears this."""
    cuda_compatibility: bool | None = None
    """Load the image's CUDA compatibility libraries. Default: true on an L4 with a CUDA 13 image.

    Older drivers need them and newer drivers reject them (errors 803 and 804). Public sources disagree on the driver of an L4: 535 or 580.
    The log of a failed start shows which value is right.
    """
    zonal_redundancy: bool = False
    """Reserve the GPU in more than one zone. It costs more and has its own quota."""
    direct_vpc: bool | None = None
    """Send all egress through a private network of the stack. Default: true with minInstances 0 and weights from the bucket, unless
    the server fetches media or `mount.mode` is `fuse`.

    Weights load faster. After a teardown, Google holds the subnetwork for up to two hours.
    """

    def with_defaults(self, *, mode: str, has_own_bucket: bool, fetches_media: bool) -> "CloudRunSettings":
        """Return the same with a value for `direct_vpc` and `compile_cache`.

        A service that scales to zero starts often, so it starts as fast as it can. `mode` is the source of its weights: Direct VPC does not make a
        plain mount faster, and for the hub and for media it would need Cloud NAT, which costs money. In a bucket that the stack did not create,
        other writers can delete archives (SEC08).
        """
        starts_often = mode in get_args(MountMode) and self.min_instances == 0
        is_faster = starts_often and mode != "fuse" and not fetches_media
        direct_vpc = is_faster if self.direct_vpc is None else self.direct_vpc
        compile_cache = self.compile_cache or ("bucket" if starts_often and has_own_bucket else "off")
        return replace(self, direct_vpc=direct_vpc, compile_cache=compile_cache)

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        if self.min_instances > self.max_instances:
            yield (
                f"minInstances {self.min_instances} exceeds maxInstances {self.max_instances}; lower the first or raise the second"
            )
