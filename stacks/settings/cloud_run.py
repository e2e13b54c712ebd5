"""A Cloud Run service: instances, probes, mount and rollout."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from contracts.service_traffic import ALL
from planning.question.types import GraphCacheMode
from stacks.settings.block import Block, Judged, OnChange
from stacks.settings.text import DurationS, Invoker, MemoryMib, MountOption, Positive, Region, RevisionName

LONGEST_READINESS_PERIOD_S: Final = 300
"""Assumed, on the safe side: cloud.google.com/run/docs/configuring/healthchecks states no figure that was found."""


class ProbeSettings(Block):
    """A startup probe on /health. The planner checks it against Cloud Run's limits."""

    initial_delay_s: DurationS = Field(alias="initialDelay")
    """Wait before the first probe. Maximum: 240s."""
    period_s: DurationS = Field(alias="period")
    """Time between probes. Maximum: 240s."""
    failure_threshold: Positive
    """Consecutive failed probes before Cloud Run terminates the container. With a GPU, this number times `period` must not exceed 1800s."""
    timeout_s: DurationS = Field(alias="timeout")
    """Timeout of one probe. Maximum: `period`."""


class MountSettings(Block):
    """Access of the server to the weights in the bucket: with or without a Cloud Storage FUSE mount."""

    mode: Literal["fuse", "fuse-buffered", "fuse-cached", "streamer", "memory"] = "fuse"
    """fuse reads on demand, fuse-buffered reads ahead, fuse-cached downloads in parallel into a file cache in memory. The other modes mount
    nothing: with streamer, vLLM reads gs:// itself; with memory, a program copies the weights into memory in parallel before the server starts."""
    cache_mib: Annotated[MemoryMib | None, Judged("cloud_run.file_cache_gib")] = Field(default=None, alias="cacheSize")
    """Size of the file cache of fuse-cached. It is part of the container's memory."""
    uid: Annotated[int | None, Judged("cloud_run.mount_uid")] = None
    """Owner of the files. Default: the image's user. No other user can read them."""
    gid: Annotated[int | None, Judged("cloud_run.mount_gid")] = None
    """Group of the files. Default: the image's group."""
    options: Annotated[list[MountOption], Field(default_factory=list)]
    """Additional gcsfuse mount options. The modes streamer and memory mount nothing."""

    def _problems(self) -> Iterator[str]:
        if (self.mode == "fuse-cached") != (self.cache_mib is not None):
            yield 'mode fuse-cached and cacheSize require each other; set both, for example mode: fuse-cached and cacheSize: "20Gi"'


class ReadinessProbeSettings(Block):
    """A readiness probe on /health. A failing instance gets no new requests until it passes again. Cloud Run does not terminate it."""

    period_s: DurationS = Field(default="10s", alias="period", validate_default=True)
    """Time between probes. Maximum: 300s."""
    failure_threshold: Positive = 3
    """Consecutive failed probes before the instance gets no new requests."""
    timeout_s: DurationS = Field(default="5s", alias="timeout", validate_default=True)
    """Timeout of one probe. Maximum: `period`."""

    def _problems(self) -> Iterator[str]:
        if not 1 <= self.period_s <= LONGEST_READINESS_PERIOD_S:
            yield f"period is {self.period_s}s; expected 1s to {LONGEST_READINESS_PERIOD_S}s"
        if not 1 <= self.timeout_s <= self.period_s:
            yield f"timeout is {self.timeout_s}s; expected 1s to {self.period_s}s, the period"


class RolloutSettings(Block):
    """Checks before traffic: `gemma up` creates a revision without traffic, and `gemma rollout` checks it and moves the traffic."""

    traffic: dict[RevisionName, Annotated[int, Field(ge=1, le=100)]] | None = None
    """Traffic percentage by revision, for example `{ gemma-l4-qat-00003-abc: 100 }` to roll back to that revision. With it `gemma up` moves the
    traffic and `gemma rollout` does not."""

    @field_validator("traffic")
    @classmethod
    def _traffic_is_whole(cls, traffic: dict[str, int] | None) -> dict[str, int] | None:
        if traffic is not None and sum(traffic.values()) != ALL:
            raise ValueError(f"traffic adds up to {sum(traffic.values())} percent; expected 100")
        return traffic


class CloudRunSettings(Block):
    """A Cloud Run service with one GPU per instance."""

    region: Annotated[Region, Judged("cloud_run.region"), OnChange("service")]
    """Region. The GPU must be available there."""
    gpu: Annotated[Literal["nvidia-l4", "nvidia-rtx-pro-6000"], Judged("accelerator")]
    """GPU of each instance."""
    cpu: Annotated[Literal[4, 6, 8, 20, 22, 24, 26, 28, 30], Judged("vcpu")]
    """vCPU of each instance. An L4 needs at least 4, an RTX PRO 6000 at least 20."""
    memory_mib: Annotated[MemoryMib, Judged("host_memory_gib")] = Field(alias="memory")
    """Memory of each instance. An L4 needs at least 16Gi, an RTX PRO 6000 at least 80Gi. Weights pass through it during loading."""
    concurrency: Annotated[int, Field(ge=1, le=1000), Judged("cloud_run.concurrency")]
    """Maximum concurrent requests per instance. Further requests wait in Cloud Run's queue."""
    min_instances: Annotated[int, Field(ge=0), Judged("cloud_run.min_instances")] = 0
    """Instances that always run. They are billed even when idle."""
    max_instances: Annotated[Positive, Judged("cloud_run.max_instances")]
    """Maximum number of instances. Each needs GPU, vCPU and memory quota; deploying a change needs twice the vCPU and memory."""
    gpu_quota: Annotated[Positive | None, Judged("cloud_run.gpu_quota"), OnChange("nothing")] = None
    """GPU quota of the region (`nvidia_l4_gpu_allocation_no_zonal_redundancy` for an L4), for the planner to check."""
    cpu_quota: Annotated[Positive | None, Judged("cloud_run.cpu_quota"), OnChange("nothing")] = None
    """vCPU quota of the region (`cpu_allocation`). If it is not set, the planner assumes 20, the quota of a new project."""
    memory_quota_mib: Annotated[MemoryMib | None, Judged("cloud_run.memory_quota_gib"), OnChange("nothing")] = Field(
        default=None, alias="memoryQuota"
    )
    """Memory quota of the region (`mem_allocation`). If it is not set, the planner assumes 40Gi, the quota of a new project."""
    startup_probe: Annotated[ProbeSettings | None, Judged("cloud_run.startup_probe")] = None
    """Time limit for the container to respond. Default: a probe every 10 s for 1800 s, after 240 s if the start may take longer."""
    readiness_probe: ReadinessProbeSettings | None = None
    """Probe of a running instance. One that does not respond gets no new requests. A preview feature of Cloud Run."""
    rollout: Annotated[RolloutSettings | None, OnChange("update")] = None
    """Checks before traffic: `gemma up` creates a revision without traffic, and `gemma rollout` moves the traffic. By default a revision that
    starts gets all traffic."""
    ingress: Annotated[Literal["all", "internal", "internal-and-cloud-load-balancing"], OnChange("update")] = "all"
    """Networks that can reach the service. Other callers, including checks from your machine, get a 404."""
    request_timeout_s: Annotated[DurationS, Judged("cloud_run.request_timeout_s")] = Field(
        default="1h", alias="requestTimeout", validate_default=True
    )
    """Timeout of one request."""
    mount: Annotated[MountSettings, Field(default_factory=lambda: MountSettings.model_validate({}))]
    """Access of the server to the weights in the bucket."""
    compile_cache: Annotated[GraphCacheMode, Judged("cloud_run.graph_cache")] = "off"
    """bucket stores the graphs that torch.compile creates in the stack's bucket, so later starts skip most of their compilation."""
    public: Annotated[bool, Judged("public"), OnChange("update")] = False
    """Allow the public to call the service. The plan blocks this until you accept its finding."""
    invokers: Annotated[list[Invoker], Field(default_factory=list), OnChange("update")]
    """Members that can call the service. Project owners need no entry."""
    deletion_protection: Annotated[bool, OnChange("update")] = False
    """Make `pulumi destroy` refuse to delete the service. `gemma teardown` prompts you before it clears this."""
    cuda_compatibility: Annotated[bool | None, Judged("cloud_run.cuda_compatibility")] = None
    """Load the image's CUDA compatibility libraries. Older drivers need them and newer drivers reject them (errors 803 and 804). Default: true
    on an L4 with a CUDA 13 image, because public sources disagree on its driver: 535 or 580. The log of a failed start shows which value is right."""
    zonal_redundancy: Annotated[bool, Judged("cloud_run.zonal_redundancy")] = False
    """Reserve the GPU in more than one zone. It costs more and has its own quota."""
    direct_vpc: Annotated[bool, Judged("cloud_run.direct_vpc")] = False
    """Send all egress through a private network of the stack. Weights load faster, but after a teardown its subnetwork remains for up to two hours."""

    def _problems(self) -> Iterator[str]:
        if self.min_instances > self.max_instances:
            yield (
                f"minInstances {self.min_instances} exceeds maxInstances {self.max_instances}; lower the first or raise the second"
            )
