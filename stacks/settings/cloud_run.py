"""A Cloud Run service: its instances, probes, mount and roll-out."""

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from contracts.service_traffic import ALL
from planning.question.types import GraphCacheMode
from stacks.settings.block import Block, Judged, OnChange
from stacks.settings.text import Invoker, MountOption, Positive, Region, RevisionName
from stacks.units import DurationS, MemoryMib

LONGEST_READINESS_PERIOD_S: Final = 300
"""cloud.google.com/run/docs/configuring/healthchecks names no figure that was found; assumed, on the safe side."""


class ProbeSettings(Block):
    """A startup probe on /health. The planner checks it against Cloud Run's limits."""

    initial_delay_s: DurationS = Field(alias="initialDelay")
    """Wait before the first probe, 240s at most."""
    period_s: DurationS = Field(alias="period")
    """Time between probes, 240s at most."""
    failure_threshold: Positive
    """Failed probes until Cloud Run ends the container. With a GPU, times `period` it is 1800s at most."""
    timeout_s: DurationS = Field(alias="timeout")
    """Longest time for one probe, `period` at most."""


class MountSettings(Block):
    """How the server reads weights from the bucket: through Cloud Storage FUSE and its options, or without a mount."""

    mode: Literal["fuse", "fuse-buffered", "fuse-cached", "streamer", "memory"] = "fuse"
    """fuse reads on demand, fuse-buffered reads ahead, fuse-cached downloads in parallel into a file cache in memory. Without a mount: with
    streamer vLLM reads gs:// itself, with memory a program copies the weights into memory in parallel before the server starts."""
    cache_mib: Annotated[MemoryMib | None, Judged("cloud_run.file_cache_gib")] = Field(default=None, alias="cacheSize")
    """Size of the file cache of fuse-cached. It counts against the container's memory."""
    uid: Annotated[int | None, Judged("cloud_run.mount_uid")] = None
    """Owner of the files. The default is the image's user; another user cannot read them."""
    gid: Annotated[int | None, Judged("cloud_run.mount_gid")] = None
    """Group of the files. The default is the image's group."""
    options: Annotated[list[MountOption], Field(default_factory=list)]
    """More gcsfuse mount options. The modes streamer and memory mount nothing."""

    @model_validator(mode="after")
    def _cache(self) -> "MountSettings":
        if (self.mode == "fuse-cached") != (self.cache_mib is not None):
            raise ValueError(
                'mode fuse-cached and cacheSize go together; set for example mode: fuse-cached with cacheSize: "20Gi"'
            )
        return self


class ReadinessProbeSettings(Block):
    """A readiness probe on /health. An instance that fails it gets no new requests until it passes again; Cloud Run does not end it."""

    period_s: DurationS = Field(default="10s", alias="period", validate_default=True)
    """Time between probes, 300s at most."""
    failure_threshold: Positive = 3
    """Failed probes until the instance gets no new requests."""
    timeout_s: DurationS = Field(default="5s", alias="timeout", validate_default=True)
    """Longest time for one probe, `period` at most."""

    @model_validator(mode="after")
    def _within_limits(self) -> "ReadinessProbeSettings":
        if not 1 <= self.period_s <= LONGEST_READINESS_PERIOD_S:
            raise ValueError(f"period is {self.period_s}s; it must be 1s to {LONGEST_READINESS_PERIOD_S}s")
        if not 1 <= self.timeout_s <= self.period_s:
            raise ValueError(f"timeout is {self.timeout_s}s; it must be 1s to the period, {self.period_s}s")
        return self


class RolloutSettings(Block):
    """How a new revision gets requests. `pulumi up` makes it without traffic; `scripts.rollout` checks it and moves the traffic in steps."""

    steps: Annotated[list[Annotated[int, Field(ge=1, le=100)]], Field(default_factory=lambda: [10, 50, 100])]
    """Shares of the traffic in percent, rising to 100. The new revision is measured before the first one and after each."""
    requests: Annotated[int, Field(ge=4, le=1000)] = 16
    """Requests of each measurement, four at a time. They are billed as every request is."""
    max_slowdown: Annotated[float, Field(ge=1)] = 1.5
    """Most by which the new revision may be slower than the old one: in time to first token, and in tokens per second."""
    max_failed: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Most requests of a measurement that may fail, as a share."""
    traffic: dict[RevisionName, Annotated[int, Field(ge=1, le=100)]] | None = None
    """Percent of the requests by the name of a revision, such as `{ gemma-l4-qat-00003-abc: 100 }` to go back to it. Then `pulumi up` moves them, and
    `scripts.rollout` does not."""

    @field_validator("traffic")
    @classmethod
    def _traffic_is_whole(cls, traffic: dict[str, int] | None) -> dict[str, int] | None:
        if traffic is not None and sum(traffic.values()) != ALL:
            raise ValueError(f"traffic adds up to {sum(traffic.values())} percent; it must add up to 100")
        return traffic

    @field_validator("steps")
    @classmethod
    def _steps_rise(cls, steps: list[int]) -> list[int]:
        if not steps or steps[-1] != ALL or steps != sorted(set(steps)):
            raise ValueError("steps must rise and end at 100, such as [10, 50, 100]")
        return steps


class CloudRunSettings(Block):
    """A Cloud Run service with one GPU per instance."""

    region: Annotated[Region, Judged("cloud_run.region"), OnChange("service")]
    """Region. It must have the GPU."""
    gpu: Annotated[Literal["nvidia-l4", "nvidia-rtx-pro-6000"], Judged("accelerator")]
    """GPU of each instance."""
    cpu: Annotated[Literal[4, 6, 8, 20, 22, 24, 26, 28, 30], Judged("vcpu")]
    """vCPU of each instance. An L4 needs at least 4, an RTX PRO 6000 at least 20."""
    memory_mib: Annotated[MemoryMib, Judged("host_memory_gib")] = Field(alias="memory")
    """Memory of each instance. An L4 needs at least 16Gi, an RTX PRO 6000 at least 80Gi. While they load, weights pass through it."""
    concurrency: Annotated[int, Field(ge=1, le=1000), Judged("cloud_run.concurrency")]
    """Most requests that Cloud Run sends to one instance at a time. More requests wait outside."""
    min_instances: Annotated[int, Field(ge=0), Judged("cloud_run.min_instances")] = 0
    """Instances that always run. They are billed when no requests arrive."""
    max_instances: Annotated[Positive, Judged("cloud_run.max_instances")]
    """Most instances at a time. Each needs quota of GPUs, vCPU and memory, and twice as much of the last two while a change is deployed."""
    gpu_quota: Annotated[Positive | None, Judged("cloud_run.gpu_quota"), OnChange("nothing")] = None
    """GPUs that the region's quota allows (`nvidia_l4_gpu_allocation_no_zonal_redundancy` for an L4), so that the planner can check it."""
    cpu_quota: Annotated[Positive | None, Judged("cloud_run.cpu_quota"), OnChange("nothing")] = None
    """vCPU that the region's quota allows (`cpu_allocation`). The planner assumes the 20 of a new project where it is not set."""
    memory_quota_mib: Annotated[MemoryMib | None, Judged("cloud_run.memory_quota_gib"), OnChange("nothing")] = Field(
        default=None, alias="memoryQuota"
    )
    """Memory that the region's quota allows (`mem_allocation`). The planner assumes the 40Gi of a new project where it is not set."""
    startup_probe: Annotated[ProbeSettings | None, Judged("cloud_run.startup_probe")] = None
    """How long the container may take to answer. By default it asks every 10 s for 1800 s, after 240 s if the start may take longer."""
    readiness_probe: ReadinessProbeSettings | None = None
    """Whether Cloud Run goes on asking an instance that has started, and sends no requests to one that does not answer. A preview feature of Google's."""
    rollout: Annotated[RolloutSettings | None, OnChange("update")] = None
    """Let `pulumi up` make a new revision without traffic, and `scripts.rollout` move it. By default a revision that starts gets all requests."""
    ingress: Annotated[Literal["all", "internal", "internal-and-cloud-load-balancing"], OnChange("update")] = "all"
    """From where the service can be reached at all. What does not come from there gets a 404, the checks of your machine too."""
    request_timeout_s: DurationS = Field(default="1h", alias="requestTimeout", validate_default=True)
    """Longest time for one request."""
    mount: Annotated[MountSettings, Field(default_factory=lambda: MountSettings.model_validate({}))]
    """How the server reads weights from the bucket."""
    compile_cache: Annotated[GraphCacheMode, Judged("cloud_run.graph_cache")] = "off"
    """bucket keeps the graphs that torch.compile made in the stack's bucket, so that later starts spare most of their compilation."""
    public: Annotated[bool, Judged("public"), OnChange("update")] = False
    """Let everybody call the service. The plan blocks this until you accept its finding."""
    invokers: Annotated[list[Invoker], Field(default_factory=list), OnChange("update")]
    """Who may call the service. Project owners need no entry."""
    deletion_protection: Annotated[bool, OnChange("update")] = False
    """Let `pulumi destroy` refuse to delete the service. `scripts.teardown` asks you, and then clears it."""
    cuda_compatibility: Annotated[bool | None, Judged("cloud_run.cuda_compatibility")] = None
    """Load the image's CUDA compatibility libraries, which an older driver needs and a newer one refuses (errors 803 and 804). The default is true
    on an L4 with a CUDA 13 image: public sources disagree whether its driver is 535 or 580. The log of a failed start says which way to change it."""
    zonal_redundancy: Annotated[bool, Judged("cloud_run.zonal_redundancy")] = False
    """Reserve the GPU in more than one zone. It costs more and has its own quota."""
    direct_vpc: Annotated[bool, Judged("cloud_run.direct_vpc")] = False
    """Send all egress through a private network of the stack. Weights load faster, but after a teardown its subnetwork stays for up to two hours."""

    @model_validator(mode="after")
    def _instances(self) -> "CloudRunSettings":
        if self.min_instances > self.max_instances:
            raise ValueError(
                f"minInstances {self.min_instances} is more than maxInstances {self.max_instances}; lower the one or raise the other"
            )
        return self
