"""The settings of a stack: one frozen model for both targets, units in the names.

In the configuration file keys are camelCase and quantities carry their unit (`maxRunDuration: 4h`, `memory: 32Gi`); here they are numbers with the unit in the
name (`max_run_duration_s`, `memory_mib`). Every mistake becomes one sentence with the key, the value and what is allowed (see `stacks.loading`).
"""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic.alias_generators import to_camel

from planning.hardware import FLEX_START_MAX_RUN_S
from stacks.units import DurationS, MemoryMib, format_duration

MIN_RUN_S = 600
"""Shorter runs end before a large model has been loaded; the TPU API itself takes any positive duration."""

Target = Literal["tpu", "cloud-run"]
Weights = Literal["hub", "bucket", "prefetched-image"]
Provisioning = Literal["flex-start", "spot", "standard", "reservation"]

ProjectId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$")]
Zone = Annotated[str, StringConstraints(pattern=r"^[a-z]+(-[a-z]+)+\d+-[a-z]$")]
Region = Annotated[str, StringConstraints(pattern=r"^[a-z]+(-[a-z]+)+\d+$")]
AcceleratorType = Annotated[str, StringConstraints(pattern=r"^v\d+[a-z]*-\d+$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Fraction = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{0,63}$")]
Member = Annotated[str, StringConstraints(pattern=r"^(user|group|serviceAccount|domain):[^\s:]+$")]


class _Frozen(BaseModel):
    """Camel-case keys in the file, unknown keys refused, nothing converted silently, nothing changed later."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


class ImageSettings(_Frozen):
    """The server's image: an upstream repository pinned by digest, pulled through Artifact Registry, or built on top of it."""

    repository: Annotated[str, StringConstraints(pattern=r"^[a-z0-9._/-]+$")]
    """Repository on Docker Hub, such as "vllm/vllm-openai"."""
    digest: Digest
    """"sha256:..." of the linux/amd64 image; a tag can change under a running service, a digest cannot."""
    version: str | None = None
    """What the digest is, for people; never used to pull."""
    build_context: str | None = None
    """Folder with a Dockerfile that starts from the image (build argument BASE_IMAGE); the result is pushed to a repository of the stack."""
    uid: int | None = None
    """User that the image runs as, where it is not root; a FUSE mount is then owned by this user."""
    gid: int | None = None
    """Group that the image runs as, where it is not root's."""


class VllmSettings(_Frozen):
    """vLLM's options as far as the planner understands them; `planning.OPTION_HELP` explains each. Everything else goes into `extraArgs`."""

    tensor_parallel_size: Positive | None = None
    dtype: Literal["auto", "bfloat16", "float16"] | None = None
    quantization: Literal["fp8"] | None = None
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] | None = None
    gpu_memory_utilization: Fraction | None = None
    max_model_len: Positive | None = None
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    block_size: Positive | None = None
    enforce_eager: bool | None = None
    cpu_offload_gib: Annotated[float, Field(ge=0)] | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    disable_chunked_mm_input: bool | None = None
    limit_mm_per_prompt: dict[Literal["image", "audio", "video"], Annotated[int, Field(ge=0)]] | None = None
    enable_auto_tool_choice: bool | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: str | None = None
    load_format: str | None = None
    safetensors_load_strategy: Literal["lazy", "eager", "prefetch"] | None = None
    speculative_config: dict[str, str | int | float | bool] | None = None
    trust_remote_code: bool | None = None
    served_model_name: str | None = None
    seed: int | None = None
    extra_args: Annotated[list[Annotated[str, StringConstraints(min_length=1)]], Field(default_factory=list)]

    @model_validator(mode="after")
    def _parser_for_tools(self) -> "VllmSettings":
        if self.enable_auto_tool_choice and not self.tool_call_parser:
            raise ValueError("enableAutoToolChoice needs toolCallParser; for this family set toolCallParser: gemma4")
        return self


class TpuSettings(_Frozen):
    """A TPU queued resource: capacity, and how long to wait for it."""

    accelerator_type: AcceleratorType
    """Slice, such as v6e-4; one host, so 8 chips at most."""
    zones: Annotated[list[Zone], Field(min_length=1)]
    """Tried in this order; a zone that has nothing is left behind empty."""
    provisioning: Provisioning = "flex-start"
    """How capacity is bought: flex-start waits in a queue and ends after maxRunDuration, spot may be taken away, standard and reservation stay."""
    reservation: str | None = None
    """Name of the reservation, for provisioning reservation."""
    max_run_duration_s: DurationS | None = Field(default=None, alias="maxRunDuration")
    """After this time Google deletes the nodes; flex-start requires it, seven days at most."""
    wait_per_zone_s: DurationS = Field(default=1_800, alias="waitPerZone")
    """How long to wait for capacity in one zone before the next is tried."""
    ready_timeout_s: DurationS = Field(default=3_600, alias="readyTimeout")
    """How long `up` waits for the server after the capacity is there."""
    runtime_version: str | None = None
    """TPU VM image; left out, it takes the one of the accelerator's generation."""
    allow_replace_active: bool = False
    """A change that would give up capacity that runs is refused without this."""
    allow_unlisted_zones: bool = False
    """Accept a zone that is in no list of this release, for zones newer than it."""
    tunnel_members: Annotated[list[Member], Field(default_factory=list)]
    """Who may open a tunnel to the server through Identity-Aware Proxy, beside the project's owners."""

    @field_validator("zones")
    @classmethod
    def _zones_differ(cls, zones: list[str]) -> list[str]:
        if len(set(zones)) != len(zones):
            raise ValueError("each zone can be named once")
        return zones

    @model_validator(mode="after")
    def _run_duration(self) -> "TpuSettings":
        if self.provisioning == "flex-start" and self.max_run_duration_s is None:
            raise ValueError(
                'provisioning flex-start needs maxRunDuration, at most "7d"; set for example maxRunDuration: 4h'
            )
        if self.max_run_duration_s is not None and not MIN_RUN_S <= self.max_run_duration_s <= FLEX_START_MAX_RUN_S:
            found = format_duration(self.max_run_duration_s)
            raise ValueError(f'maxRunDuration = "{found}" must lie between "10m" and "7d"')
        if (self.provisioning == "reservation") != (self.reservation is not None):
            raise ValueError("provisioning reservation and the name of a reservation go together: set both or none")
        return self


class ProbeSettings(_Frozen):
    """A startup probe on /health; the platform's limits are checked where the service is declared."""

    initial_delay_s: DurationS = Field(alias="initialDelay")
    """Wait before the first probe, 240s at most."""
    period_s: DurationS = Field(alias="period")
    """Time between probes, 240s at most."""
    failure_threshold: Positive
    """Failed probes that end the container; times period 1800s at most beside a GPU."""
    timeout_s: DurationS = Field(alias="timeout")
    """How long one probe may take, its period at most."""


class MountSettings(_Frozen):
    """How the weights come out of the bucket: Cloud Storage FUSE and its options."""

    mode: Literal["fuse", "fuse-buffered", "fuse-cached"] = "fuse"
    """fuse reads plainly, fuse-buffered ahead, fuse-cached through a file cache in memory with parallel downloads."""
    cache_mib: MemoryMib | None = Field(default=None, alias="cacheSize")
    """Size of the in-memory file cache for `fuse-cached`; it counts against the container's memory."""
    uid: int | None = None
    """Owner of the files; left out, it takes the image's user, without which the server could not read them."""
    gid: int | None = None
    """Group of the files; left out, it takes the image's."""
    options: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^[a-z-]+(=\S+)?$")]], Field(default_factory=list)
    ]
    """Further mount options, as gcsfuse takes them."""

    @model_validator(mode="after")
    def _cache(self) -> "MountSettings":
        if (self.mode == "fuse-cached") != (self.cache_mib is not None):
            raise ValueError(
                'mode fuse-cached and cacheSize go together; set for example mode: fuse-cached with cacheSize: "20Gi"'
            )
        return self


class CloudRunSettings(_Frozen):
    """A Cloud Run service with one GPU an instance."""

    region: Region
    """Region; it must have the GPU."""
    gpu: Literal["nvidia-l4", "nvidia-rtx-pro-6000"]
    """GPU of an instance."""
    cpu: Literal[4, 6, 8, 20, 22, 24, 26, 28, 30]
    """vCPU of an instance; an L4 needs 4, an RTX PRO 6000 20."""
    memory_mib: MemoryMib = Field(alias="memory")
    """Memory of an instance; an L4 needs 16Gi, an RTX PRO 6000 80Gi, and the weights pass through it."""
    concurrency: Annotated[int, Field(ge=1, le=1000)]
    """Requests that an instance takes at a time; more wait outside."""
    min_instances: Annotated[int, Field(ge=0)] = 0
    """Instances that stay up and are billed while nobody calls."""
    max_instances: Positive
    """Most instances at a time; they need quota."""
    gpu_quota: Positive | None = None
    """GPUs that the region's quota allows, where it is known: `nvidia_l4_gpu_allocation_no_zonal_redundancy` and its kin."""
    startup_probe: ProbeSettings | None = None
    """How long the container may take to answer; left out, it follows from the plan's start-up time."""
    request_timeout_s: DurationS = Field(default=3_600, alias="requestTimeout")
    """Longest time for one request."""
    mount: Annotated[MountSettings, Field(default_factory=lambda: MountSettings.model_validate({}))]
    """How the weights come out of the bucket."""
    public: bool = False
    """Let everybody call the service: finding SEC02, to be accepted by name."""
    invokers: Annotated[list[Member], Field(default_factory=list)]
    """Who may call the service, beside the project's owners."""
    deletion_protection: bool = False
    """Refuse the service's deletion; a teardown then has to switch it off first."""
    zonal_redundancy: bool = False
    """Reserve the GPU in more than one zone: dearer, and a quota of its own."""
    direct_vpc: bool = False
    """Send all egress through a private network of the stack: faster weights, but its subnet takes up to two hours to free after teardown."""

    @model_validator(mode="after")
    def _instances(self) -> "CloudRunSettings":
        if self.min_instances > self.max_instances:
            raise ValueError(
                f"minInstances {self.min_instances} is more than maxInstances {self.max_instances}; lower the one or raise the other"
            )
        return self


class BucketSettings(_Frozen):
    """The bucket that holds the weights."""

    existing: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$")] | None = None
    """A bucket that is there already: it is read, never changed and never deleted; left out, the stack makes one."""
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]*$")] | None = None
    """Folder of the weights in the bucket; left out, it takes the last part of the model's id."""
    force_destroy: bool = True
    """Delete the staged copies with the stack; they can be staged again from the hub."""


class SmokeSettings(_Frozen):
    """Thresholds of the smoke checks; what is left out takes the planner's estimate with a margin."""

    max_ttft_s: Annotated[float, Field(gt=0)] | None = None
    """Longest time to the first token of a single stream, in seconds."""
    min_decode_tok_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least output rate of a single stream, in tokens a second."""
    min_burst_tok_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least output rate of the burst together, in tokens a second; left out, it is only measured."""
    burst_requests: Positive = 8
    """Requests of the burst."""
    startup_budget_s: DurationS | None = Field(default=None, alias="startupBudget")
    """How long the checks wait for readiness."""


class Settings(_Frozen):
    """Everything that a stack says about itself. `project` comes from `gcp:project` or the environment; the token's value never comes here."""

    project: ProjectId
    """The Google Cloud project, from gcp:project."""
    target: Target
    """What the stack runs on."""
    model: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]
    """Hugging Face id of the checkpoint."""
    quantization: Literal["bf16", "fp8", "w4a16"] | None = None
    """Precision of the weights; left out, it takes what the checkpoint says."""
    weights: Weights = "hub"
    """Where the server finds its weights at start: downloaded from the hub, staged in a bucket, or part of the image."""
    image: ImageSettings
    """The server's image."""
    vllm: Annotated[VllmSettings, Field(default_factory=lambda: VllmSettings.model_validate({}))]
    """vLLM's options."""
    tpu: TpuSettings | None = None
    """The queued resource; with target tpu."""
    cloud_run: CloudRunSettings | None = None
    """The service; with target cloud-run."""
    bucket: Annotated[BucketSettings, Field(default_factory=lambda: BucketSettings.model_validate({}))]
    """The bucket; with weights bucket."""
    smoke: Annotated[SmokeSettings, Field(default_factory=lambda: SmokeSettings.model_validate({}))]
    """Thresholds of the smoke checks."""
    endpoint_url: str | None = None
    """Where clients reach the server when that is not what the stack itself makes, a load balancer for example."""
    accept_findings: Annotated[list[str], Field(default_factory=list)]
    """Ids of planner findings that are known and accepted; they are shown and stop nothing."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(default_factory=dict)]
    """Labels beside those of the project itself."""
    has_hf_token: bool = False
    """Whether the secret `hfToken` is set; its value stays with Pulumi."""

    @field_validator("endpoint_url")
    @classmethod
    def _no_localhost(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("an endpoint is a whole URL such as https://models.example.com")
        if parts.hostname == "localhost":
            raise ValueError("localhost may resolve to IPv6 first, where vLLM does not listen; write 127.0.0.1")
        return url

    @field_validator("labels")
    @classmethod
    def _labels_are_free(cls, labels: dict[str, str]) -> dict[str, str]:
        reserved = sorted(key for key in labels if key == "managed-by" or key.startswith("gemma-serving-"))
        if reserved:
            raise ValueError(f'"{reserved[0]}" is set by this project; choose another key')
        return labels

    @model_validator(mode="after")
    def _target_block(self) -> "Settings":
        blocks = {"tpu": self.tpu, "cloud-run": self.cloud_run}
        key = {"tpu": "tpu", "cloud-run": "cloudRun"}
        if blocks[self.target] is None:
            raise ValueError(f"target {self.target} needs the block {key[self.target]}")
        other = next(target for target in blocks if target != self.target)
        if blocks[other] is not None:
            raise ValueError(
                f"target {self.target} does not go with the block {key[other]}; remove the block or change the target"
            )
        if self.target == "tpu" and self.weights == "prefetched-image":
            raise ValueError("weights prefetched-image exists on Cloud Run only; on a TPU choose hub or bucket")
        return self

    @property
    def weights_prefix(self) -> str:
        """The folder of the weights in the bucket, without slashes at its ends."""
        return (self.bucket.prefix if self.bucket.prefix is not None else self.model.rpartition("/")[2]).strip("/")

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that the stack may live in, in order, each once."""
        if self.tpu is not None:
            return tuple(dict.fromkeys(zone.rpartition("-")[0] for zone in self.tpu.zones))
        return (self.cloud_run.region,) if self.cloud_run is not None else ()
