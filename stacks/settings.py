"""The settings of a stack: one frozen model for both targets.

Keys in the file are camelCase and quantities carry their unit (`maxRunDuration: 4h`, `memory: 32Gi`). Here they are numbers with
the unit in the name (`max_run_duration_s`, `memory_mib`). `stacks.loading` turns each mistake into one sentence.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, cast
from urllib.parse import urlsplit

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from contracts.labels import is_reserved
from contracts.naming import Names
from contracts.outputs import Target
from contracts.service_traffic import ALL
from contracts.staged_weights import OWN_FOLDER, own_folder
from planning.data.images import DEFAULT_IMAGES, IMAGES, Image, image_of
from planning.errors import PlanningError
from planning.machine.hardware import COMPUTE_MAX_WAIT_S, MACHINE_TYPES
from planning.question.types import CapacityApiName, GraphCacheMode, ProvisioningModel, SshAccess
from planning.question.vllm_args import STREAMER, VllmOptions
from planning.question.workload import Workload, check_workload
from planning.rules.findings import check_accepted
from planning.solve.wording import FieldWording, worded
from stacks.secrets import KINDS, SecretKey
from stacks.units import DurationS, MemoryMib
from stacks.wording import settings_key

NOT_IN_FILE: Final = ("project", "secrets")
"""Fields of the settings that no key of the file sets."""
CUDA_13: Final = 13
LONGEST_READINESS_PERIOD_S: Final = 300
"""cloud.google.com/run/docs/configuring/healthchecks names no figure that was found; assumed, on the safe side."""


@dataclass(frozen=True, slots=True)
class Matching(GroupedMetadata):
    """Text that matches a pattern; `what` and `example` name it in messages and in editors."""

    pattern: str
    what: str
    example: str = ""

    def __iter__(self) -> Iterator[object]:
        """Yield the check and its JSON schema, for pydantic."""
        examples = {"examples": [self.example]} if self.example else {}
        yield AfterValidator(self._checked)
        yield WithJsonSchema({"type": "string", "pattern": self.pattern, **examples})

    def _checked(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"expected {self.what}" + (f" such as {self.example}" if self.example else ""))
        return text


_PATH = r"^((https://\S+/)?projects/[^/\s]+/"
_NAME = r"/)?[a-z]([a-z0-9-]*[a-z0-9])?$"
ProjectId = Annotated[
    str, Matching(r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$", "a project id: 6 to 30 of a-z, 0-9 and -, a letter first")
]
ModelId = Annotated[str, Matching(r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$", "a Hugging Face id", "google/gemma-4-E2B-it")]
Commit = Annotated[
    str,
    Matching(
        r"^[0-9a-f]{40}$",
        "the 40 hexadecimal digits of a commit (a branch or a tag can move)",
        "905e84b50c4d2a365ebde34e685027578e6728db",
    ),
]
Zone = Annotated[str, Matching(r"^[a-z]+(-[a-z]+)+[0-9]+-[a-z]$", "a zone", "us-east5-a")]
Region = Annotated[str, Matching(r"^[a-z]+(-[a-z]+)+[0-9]+$", "a region", "us-east4")]
AcceleratorType = Annotated[str, Matching(r"^v[0-9]+[a-z]*-[0-9]+$", "a slice", "v6e-4")]
Network = Annotated[
    str,
    Matching(
        _PATH + "global/networks" + _NAME, "a name or self link", "projects/my-project/global/networks/my-network"
    ),
]
Subnetwork = Annotated[
    str,
    Matching(
        _PATH + r"regions/[^/\s]+/subnetworks" + _NAME,
        "a name or self link",
        "projects/my-project/regions/us-east5/subnetworks/my-subnetwork",
    ),
]
Repository = Annotated[str, Matching(r"^[a-z0-9._/-]+$", "a repository", "vllm/vllm-openai")]
Digest = Annotated[str, Matching(r"^sha256:[0-9a-f]{64}$", "sha256: and 64 hexadecimal digits")]
DockerUser = Annotated[str, Matching(r"^[a-z0-9][a-z0-9_-]{1,62}$", "the name of an account of Docker Hub", "someone")]
LabelKey = Annotated[str, Matching(r"^[a-z][a-z0-9_-]{0,62}$", "1 to 63 of a-z, 0-9, - and _, a letter first")]
LabelValue = Annotated[str, Matching(r"^[a-z0-9_-]{0,63}$", "at most 63 of a-z, 0-9, - and _")]
RevisionName = Annotated[
    str, Matching(r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", "a revision's name", "gemma-l4-qat-00003-abc")
]
TunnelRole = Annotated[
    str,
    Matching(
        r"^((projects/[a-z][a-z0-9-]{4,28}[a-z0-9]|organizations/[0-9]+)/roles/)?[A-Za-z0-9_.]{3,64}$",
        "a custom role, by its id or as projects/P/roles/ID or organizations/NUMBER/roles/ID,",
        "gemmaTunnel",
    ),
]
_MEMBER = r"^(user|group|serviceAccount|domain):[^\s:]+$"
Member = Annotated[str, Matching(_MEMBER, "a member", "user:name@example.com")]
Invoker = Annotated[str, Matching(_MEMBER, "a member (for everybody set public: true)", "user:name@example.com")]
MountOption = Annotated[str, Matching(r"^[a-z-]+(=\S+)?$", "a gcsfuse option", "file-mode=444")]
BucketName = Annotated[str, Matching(r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$", "the name of a bucket", "my-models")]
_FOLDER = r"(?!\.\.?(/|$))[A-Za-z0-9._-]+"
Prefix = Annotated[str, Matching(rf"^/*({_FOLDER}(/{_FOLDER})*/*)?$", "a folder", "models/gemma-4-E2B-it")]
ManifestHash = Annotated[
    str,
    Matching(r"^(sha256:)?[0-9a-f]{64}$", "sha256: and the 64 hexadecimal digits that scripts.stage_model prints"),
]
ProjectPath = Annotated[
    str,
    Matching(
        r"^(?!/)(?!(.*/)?\.\.(/|$))[A-Za-z0-9._/-]+$",
        "a path inside the project, without ..",
        "models/other/config.json",
    ),
]
SecretVersion = Annotated[
    str,
    Matching(
        r"^projects/[^/\s]+/secrets/[A-Za-z0-9_-]{1,255}/versions/[1-9][0-9]*$",
        "a version in Secret Manager by its number",
        "projects/my-project/secrets/hf-token/versions/1",
    ),
]
Positive = Annotated[int, Field(gt=0)]
PositiveNumber = Annotated[float, Field(gt=0)]


class _Frozen(BaseModel):
    """Camel-case keys in the file, unknown keys refused, no value converted silently, nothing changed later."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


class ImageSettings(_Frozen):
    """An image of your own: a Docker Hub repository pinned by digest. The stack pulls it through Artifact Registry."""

    repository: Repository
    """Repository on Docker Hub."""
    digest: Digest
    """Digest of the image or of its multi-architecture index. A tag can change under a running service, a digest cannot."""
    version: str | None = None
    """Version of vLLM in the image. It is never used to pull; the planner looks up what this version loads."""
    supports: Annotated[list[Literal["fp8", "nvfp4", "w4a16"]], Field(default_factory=list)]
    """Precisions that this image loads although its version does not, such as those of a patch in `buildContext`."""
    build_context: str | None = None
    """Folder with a Dockerfile that starts from this image (build argument BASE_IMAGE). The stack builds it and serves the result."""
    uid: int | None = None
    """User that the image runs as, if not root. The FUSE mount then belongs to this user; otherwise the server cannot read it."""
    gid: int | None = None
    """Group that the image runs as, if not root."""

    @property
    def known(self) -> Image | None:
        """The entry of the table of images for this repository, or None."""
        return image_of(self.repository)

    @property
    def needs_cuda_13(self) -> bool:
        """Whether the image has CUDA 13 or newer; assumed of an image of your own, which loses nothing if it is older."""
        return self.known is None or (self.known.cuda_major or 0) >= CUDA_13


def _image_block(value: object) -> object:
    """Return the block of an image that is given by name; leave a block as it is."""
    if isinstance(value, Mapping):
        return cast("object", value)
    image = IMAGES.get(value) if isinstance(value, str) else None
    if image is None:
        raise ValueError(f"expected {' or '.join(IMAGES)}, or a block with repository and digest")
    built = {"supports": list(image.supports), "buildContext": image.build_context} if image.build_context else {}
    return {"repository": image.repository, "digest": image.digest, "version": image.version, **built}


def _image_of_the_target(values: dict[str, object]) -> object:
    """Return the name of the image of the target, which is read before."""
    return DEFAULT_IMAGES[str(values["target"])]


class DockerHubSettings(_Frozen):
    """An account of Docker Hub, with which Artifact Registry pulls the image. Docker Hub limits pulls without one."""

    username: DockerUser
    """Name of the account."""
    token_secret: SecretVersion
    """Version in Secret Manager that holds an access token of the account (Public Repo Read-only). The token itself never passes through Pulumi."""


class ExistingNetworkSettings(_Frozen):
    """A network that exists already. The stack reads it and never changes it."""

    network: Network
    """Name or self link of the network. Its firewall must admit SSH from Identity-Aware Proxy (35.235.240.0/20) for the tunnel."""
    subnetwork: Subnetwork
    """Name or self link of the subnetwork, in the region of the zones. With weights hub it needs Cloud NAT."""
    private_google_access: bool
    """Whether the subnetwork has Private Google Access. Without it the VM can pull neither image nor weights."""


def _compile_cache_of_today(value: object) -> object:
    """Return the word for what releases before the disk called memory."""
    return "machine" if value == "memory" else value


class TpuSettings(_Frozen):
    """A TPU queued resource: capacity, and how long to wait for it."""

    accelerator_type: AcceleratorType
    """Slice. It must be one host: 8 chips at most."""
    zones: Annotated[list[Zone], Field(min_length=1)]
    """Zones in order of preference. Before trying the next zone, the provider deletes its request in the current one."""
    api: CapacityApiName = "cloud-tpu"
    """Google's API that gives the capacity. compute-engine makes a v6e instance instead of a queued resource; Google develops only that API further."""
    provisioning: ProvisioningModel = "flex-start"
    """How capacity is bought. flex-start waits in a queue and ends after `maxRunDuration`. Google can take spot back at any time."""
    reservation: str | None = None
    """Name of the reservation. Required with provisioning reservation, refused otherwise."""
    max_run_duration_s: DurationS | None = Field(default=None, alias="maxRunDuration")
    """Google deletes the nodes after this time."""
    wait_per_zone_s: DurationS = Field(default="30m", alias="waitPerZone", validate_default=True)
    """Longest wait for capacity in one zone. After it the provider tries the next zone."""
    wait_total_s: DurationS | None = Field(default=None, alias="waitTotal")
    """Longest wait of one `up` for capacity in all zones together. By default only `waitPerZone` limits the wait, in each zone."""
    renew_before_s: DurationS | None = Field(default=None, alias="renewBefore")
    """From this time before the end of the run, `up` requests a second machine and changes over to it. Off by default; run `up` on a schedule."""
    wait_for: Literal["ready", "active", "accepted"] = "ready"
    """What `up` waits for: the server that answers, the machine, or only Google's acceptance of the request. The next `up` goes on from there."""
    ready_timeout_s: DurationS = Field(default="1h", alias="readyTimeout", validate_default=True)
    """Longest wait of `up` for the server once capacity is there. If it is too short, `up` fails while the model still loads."""
    boot_disk_size_gb: Annotated[int, Field(ge=100)] | None = None
    """Size of the boot disk in GB. The default is Google's 100 GB. It holds the operating system, the image and the weights."""
    runtime_version: str | None = None
    """TPU VM image. The default is that of the accelerator's generation."""
    existing_network: ExistingNetworkSettings | None = None
    """Network to use. The default is a private network of the stack."""
    compile_cache: Annotated[Literal["machine", "bucket", "off"], BeforeValidator(_compile_cache_of_today)] = "machine"
    """Where compiled XLA programs are kept: on the machine's disk, which survives a crash and a reboot, or archived in the stack's bucket
    too, so that a new machine starts with them. memory is an older word for machine."""
    allow_replace_active: bool = False
    """Allow a change that gives up running capacity. Without it such a change is refused."""
    ssh: SshAccess = "os-login"
    """How a tunnel logs in to the machine. metadata-key is for projects or people that may not use OS Login: each SSH key in the metadata of
    the project or the machine is then root on the machine."""
    container: Literal["confined", "privileged"] = "confined"
    """What the server's container gets of the machine. confined: the accelerator's devices and two capabilities; after a device error the machine
    starts it with `--privileged` once and remembers that. privileged: the whole machine from the first start on, as in earlier releases."""
    egress: Literal["limited", "open"] = "limited"
    """Where the machine may connect to from a network of the stack. limited: port 443 if the server downloads nothing from the Hugging Face hub (with
    api compute-engine port 80 too, for the package of docker), everywhere if it does. open: everywhere. With `existingNetwork` it has no effect."""
    tunnel_members: Annotated[list[Member], Field(default_factory=list)]
    """Who may open a tunnel to the server through Identity-Aware Proxy; each gets all roles that the tunnel needs. Project owners need no entry."""
    tunnel_role: TunnelRole | None = None
    """Custom role that `tunnelMembers` get in place of roles/tpu.admin: its id in this project, or its full name. You create it once, and the
    stack never changes or deletes it; the doctor prints the command."""

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of the zones in order, each once."""
        return tuple(dict.fromkeys(zone.rpartition("-")[0] for zone in self.zones))

    @field_validator("zones")
    @classmethod
    def _zones_differ(cls, zones: list[str]) -> list[str]:
        if len(set(zones)) != len(zones):
            raise ValueError("each zone can be named once")
        return zones

    @model_validator(mode="after")
    def _reservation_goes_with_provisioning(self) -> "TpuSettings":
        if (self.provisioning == "reservation") != (self.reservation is not None):
            raise ValueError("provisioning reservation needs the name of a reservation, and only it takes one")
        return self

    @model_validator(mode="after")
    def _compute_engine_has_limits(self) -> "TpuSettings":
        if self.api != "compute-engine":
            return self
        if self.accelerator_type not in MACHINE_TYPES:
            raise ValueError(
                f"api compute-engine has machine types for {', '.join(MACHINE_TYPES)} only, not for {self.accelerator_type}; "
                "choose one of them, or set api to cloud-tpu"
            )
        if self.provisioning == "reservation":
            raise ValueError(
                "api compute-engine knows no reservations here; set api to cloud-tpu, or provisioning to flex-start"
            )
        if self.provisioning == "flex-start" and self.wait_per_zone_s > COMPUTE_MAX_WAIT_S:
            raise ValueError(
                "waitPerZone is longer than the 2h that Compute Engine keeps a flex-start request; shorten it, or name more zones"
            )
        if self.runtime_version is not None and "/images/" not in self.runtime_version:
            raise ValueError(
                "runtimeVersion must name a boot image with api compute-engine, such as projects/P/global/images/family/F; leave it out for Google's"
            )
        if self.renew_before_s is not None:
            raise ValueError(
                "renewBefore renews queued resources only; leave it out with api compute-engine, or set api to cloud-tpu"
            )
        return self

    @model_validator(mode="after")
    def _a_tunnel_role_is_for_cloud_tpu(self) -> "TpuSettings":
        if self.tunnel_role is not None and self.api == "compute-engine":
            raise ValueError(
                "tunnelRole replaces roles/tpu.admin, which members get with api cloud-tpu only; leave it out with api compute-engine"
            )
        return self

    @model_validator(mode="after")
    def _renewal_ends_before_the_run(self) -> "TpuSettings":
        before_s, run_s = self.renew_before_s, self.max_run_duration_s
        if before_s is not None and (run_s is None or not 0 < before_s < run_s):
            raise ValueError(
                "renewBefore needs maxRunDuration and must be shorter; set for example renewBefore: 1h with maxRunDuration: 24h"
            )
        return self

    @model_validator(mode="after")
    def _existing_network_has_one_region(self) -> "TpuSettings":
        if self.existing_network is None:
            return self
        link = re.search(r"/regions/([^/]+)/", self.existing_network.subnetwork)
        found = dict.fromkeys((*self.regions, *(link.groups() if link else ())))
        if len(found) > 1:
            raise ValueError(
                f"existingNetwork has one subnetwork and so one region, but the zones and the subnetwork name {', '.join(found)}; "
                "keep the zones of one region"
            )
        return self


class ProbeSettings(_Frozen):
    """A startup probe on /health. The planner checks it against Cloud Run's limits."""

    initial_delay_s: DurationS = Field(alias="initialDelay")
    """Wait before the first probe, 240s at most."""
    period_s: DurationS = Field(alias="period")
    """Time between probes, 240s at most."""
    failure_threshold: Positive
    """Failed probes until Cloud Run ends the container. With a GPU, times `period` it is 1800s at most."""
    timeout_s: DurationS = Field(alias="timeout")
    """Longest time for one probe, `period` at most."""


class MountSettings(_Frozen):
    """How the server reads weights from the bucket: through Cloud Storage FUSE and its options, or without a mount."""

    mode: Literal["fuse", "fuse-buffered", "fuse-cached", "streamer", "memory"] = "fuse"
    """fuse reads on demand, fuse-buffered reads ahead, fuse-cached downloads in parallel into a file cache in memory. Without a mount: with
    streamer vLLM reads gs:// itself, with memory a program copies the weights into memory in parallel before the server starts."""
    cache_mib: MemoryMib | None = Field(default=None, alias="cacheSize")
    """Size of the file cache of fuse-cached. It counts against the container's memory."""
    uid: int | None = None
    """Owner of the files. The default is the image's user; another user cannot read them."""
    gid: int | None = None
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


class ReadinessProbeSettings(_Frozen):
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


class RolloutSettings(_Frozen):
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


class CloudRunSettings(_Frozen):
    """A Cloud Run service with one GPU per instance."""

    region: Region
    """Region. It must have the GPU."""
    gpu: Literal["nvidia-l4", "nvidia-rtx-pro-6000"]
    """GPU of each instance."""
    cpu: Literal[4, 6, 8, 20, 22, 24, 26, 28, 30]
    """vCPU of each instance. An L4 needs at least 4, an RTX PRO 6000 at least 20."""
    memory_mib: MemoryMib = Field(alias="memory")
    """Memory of each instance. An L4 needs at least 16Gi, an RTX PRO 6000 at least 80Gi. While they load, weights pass through it."""
    concurrency: Annotated[int, Field(ge=1, le=1000)]
    """Most requests that Cloud Run sends to one instance at a time. More requests wait outside."""
    min_instances: Annotated[int, Field(ge=0)] = 0
    """Instances that always run. They are billed when no requests arrive."""
    max_instances: Positive
    """Most instances at a time. Each needs quota of GPUs, vCPU and memory, and twice as much of the last two while a change is deployed."""
    gpu_quota: Positive | None = None
    """GPUs that the region's quota allows (`nvidia_l4_gpu_allocation_no_zonal_redundancy` for an L4), so that the planner can check it."""
    cpu_quota: Positive | None = None
    """vCPU that the region's quota allows (`cpu_allocation`). The planner assumes the 20 of a new project where it is not set."""
    memory_quota_mib: MemoryMib | None = Field(default=None, alias="memoryQuota")
    """Memory that the region's quota allows (`mem_allocation`). The planner assumes the 40Gi of a new project where it is not set."""
    startup_probe: ProbeSettings | None = None
    """How long the container may take to answer. By default it asks every 10 s for 1800 s, after 240 s if the start may take longer."""
    readiness_probe: ReadinessProbeSettings | None = None
    """Whether Cloud Run goes on asking an instance that has started, and sends no requests to one that does not answer. A preview feature of Google's."""
    rollout: RolloutSettings | None = None
    """Let `pulumi up` make a new revision without traffic, and `scripts.rollout` move it. By default a revision that starts gets all requests."""
    ingress: Literal["all", "internal", "internal-and-cloud-load-balancing"] = "all"
    """From where the service can be reached at all. What does not come from there gets a 404, the checks of your machine too."""
    request_timeout_s: DurationS = Field(default="1h", alias="requestTimeout", validate_default=True)
    """Longest time for one request."""
    mount: Annotated[MountSettings, Field(default_factory=lambda: MountSettings.model_validate({}))]
    """How the server reads weights from the bucket."""
    compile_cache: GraphCacheMode = "off"
    """bucket keeps the graphs that torch.compile made in the stack's bucket, so that later starts spare most of their compilation."""
    public: bool = False
    """Let everybody call the service. The plan blocks this until you accept its finding."""
    invokers: Annotated[list[Invoker], Field(default_factory=list)]
    """Who may call the service. Project owners need no entry."""
    deletion_protection: bool = False
    """Let `pulumi destroy` refuse to delete the service. `scripts.teardown` asks you, and then clears it."""
    cuda_compatibility: bool | None = None
    """Load the image's CUDA compatibility libraries, which an older driver needs and a newer one refuses (errors 803 and 804). The default is true
    on an L4 with a CUDA 13 image: public sources disagree whether its driver is 535 or 580. The log of a failed start says which way to change it."""
    zonal_redundancy: bool = False
    """Reserve the GPU in more than one zone. It costs more and has its own quota."""
    direct_vpc: bool = False
    """Send all egress through a private network of the stack. Weights load faster, but after a teardown its subnetwork stays for up to two hours."""

    @model_validator(mode="after")
    def _instances(self) -> "CloudRunSettings":
        if self.min_instances > self.max_instances:
            raise ValueError(
                f"minInstances {self.min_instances} is more than maxInstances {self.max_instances}; lower the one or raise the other"
            )
        return self


class BucketSettings(_Frozen):
    """The bucket that holds the weights, and with `tpu.compileCache: bucket` compiled programs."""

    existing: BucketName | None = None
    """A bucket that exists already. The stack reads it and never changes or deletes it. By default the stack makes a bucket."""
    region: Region | None = None
    """Region of the existing bucket. The planner counts the traffic to zones in other regions. The stack's own bucket is in the first region."""
    prefix: Prefix | None = None
    """Folder of the weights in the bucket, without the hash that staging adds. The default is the last part of the model's id."""
    manifest: ManifestHash | None = None
    """Hash of the staged weights, which `scripts.stage_model` writes. Another one is a new revision, or a restart of the TPU's server. With
    `sha256:` the weights are in a folder of their own, `PREFIX-` and the first 16 digits; a hash alone is of an earlier version and `PREFIX`."""
    force_destroy: bool = True
    """Delete the staged weights together with the stack. They can be staged again from the hub."""
    retain_on_destroy: bool = False
    """Keep the stack's own bucket with its weights when the stack is destroyed. It is billed until you delete it."""

    @property
    def manifest_hash(self) -> str | None:
        """The hash of the weights that the server is bound to; None if it is bound to none."""
        return None if self.manifest is None else self.manifest.removeprefix(OWN_FOLDER)

    @model_validator(mode="after")
    def _existing_always_stays(self) -> "BucketSettings":
        if self.retain_on_destroy and self.existing is not None:
            raise ValueError(
                "retainOnDestroy is for the stack's own bucket; an existing one always stays: remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _region_of_the_existing(self) -> "BucketSettings":
        if self.region is not None and self.existing is None:
            raise ValueError("region is that of an existing bucket; set existing, or remove region")
        return self


class SmokeSettings(_Frozen):
    """Thresholds of the smoke checks that you set yourself (`contracts.outputs.SmokeThresholds`). The plan gives all others."""

    max_ttft_s: PositiveNumber | None = None
    min_decode_tok_per_s: PositiveNumber | None = None
    min_burst_tok_per_s: PositiveNumber | None = None
    burst_requests: Positive = 8
    startup_budget_s: DurationS | None = Field(default=None, alias="startupBudget")


class _KeyWording(FieldWording):
    """Fields by their settings keys."""

    def key(self, path: str) -> str:
        """Return the settings key of a field that both targets have."""
        return settings_key(path, "tpu")


_KEYS: Final = _KeyWording()
_HOST_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""vLLM compares the host of a URL, in lower case, with each name as a whole (multimodal/media/connector.py)."""


class Settings(_Frozen):
    """Everything that a stack's file says. The token's value is never part of it."""

    project: ProjectId
    """Google Cloud project, from gcp:project."""
    target: Target
    """What the stack runs on."""
    model: ModelId
    """Hugging Face id of the checkpoint. An id that the planner does not know (docs/reference/checkpoints.md) needs `modelConfig`."""
    model_revision: Commit | None = None
    """Commit of the model's repository on the Hugging Face hub. With weights hub the server loads this commit, whatever is pushed later. With weights
    bucket `scripts.stage_model` copies it, and `bucket.manifest` binds the server to the copy. `scripts.new` and `scripts.stage_model` write it."""
    architecture_file: ProjectPath | None = Field(default=None, alias="modelConfig")
    """The checkpoint's config.json, or a folder that has it, inside the project. The planner reads dimensions and size from it."""
    drafter_file: ProjectPath | None = Field(default=None, alias="draftConfig")
    """The same for the drafter that `vllm.speculativeConfig` names, if the planner does not know it."""
    quantization: Literal["bf16", "fp8", "w4a16"] | None = None
    """Precision of the weights. The default is what the checkpoint says."""
    weights: Literal["hub", "bucket", "prefetched-image"] = "hub"
    """Where the server finds its weights at start: the Hugging Face hub, the stack's bucket, or its own image (Cloud Run only)."""
    image: Annotated[
        ImageSettings,
        BeforeValidator(
            _image_block,
            json_schema_input_type=Annotated[str, Field(json_schema_extra={"enum": [*IMAGES]})] | ImageSettings,
        ),
    ] = Field(default_factory=_image_of_the_target, validate_default=True)  # pyright: ignore[reportArgumentType, reportCallIssue] - a name becomes a block
    """The server's image: a name from `planning/data/images.py`, or a block for an image of your own. The default is that of the target."""
    docker_hub: DockerHubSettings | None = None
    """The account of Docker Hub with which the image is pulled. Without it the pulls count for an address that you share with others."""
    vllm: VllmOptions = Field(default_factory=VllmOptions)
    """Options of vLLM. The planner recommends values for those that are left out."""
    tpu: TpuSettings | None = None
    """The queued resource. Required with target tpu, refused otherwise."""
    cloud_run: CloudRunSettings | None = None
    """The service. Required with target cloud-run, refused otherwise."""
    bucket: Annotated[BucketSettings, Field(default_factory=lambda: BucketSettings.model_validate({}))]
    """The bucket. Used with weights bucket."""
    smoke: Annotated[SmokeSettings, Field(default_factory=lambda: SmokeSettings.model_validate({}))]
    """Thresholds of the smoke checks."""
    workload: Workload | None = None
    """What clients will ask. With it the plan says how fast they are answered and at which price, and the smoke checks expect that speed."""
    endpoint_url: str | None = None
    """URL at which clients reach the server, if it is not the one that the stack makes: for example that of a load balancer."""
    measured_tok_per_s: PositiveNumber | None = None
    """Output rate that you measured, in tokens per second, all requests together. The planner uses it for the cost of a million tokens."""
    accept_findings: Annotated[list[str], Field(default_factory=list)]
    """Ids of the planner's findings that you accept. They are shown and do not block."""
    max_age_s: DurationS | None = Field(default=None, alias="maxAge")
    """Longest time since the first start of a machine or the service, over every machine since. `scripts.teardown --over-limit` takes down a stack that
    is older."""
    max_usd: Positive | None = None
    """Most US dollars that the stack may cost, at list prices, all its machines together. `scripts.teardown --over-limit` takes down a stack that has
    cost more."""
    prices: Annotated[str, Field(min_length=1)] | None = None
    """JSON file with prices of your own, from the folder of `Pulumi.yaml`. The planner uses them instead of the list prices, which have
    a date; `scripts.teardown --over-limit` counts list prices."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(default_factory=dict)]
    """Labels of your own for every resource that can have labels."""
    hf_token_secret: SecretVersion | None = None
    """An existing version in Secret Manager with the Hugging Face token, instead of `hfToken`. Its value never passes through Pulumi."""
    api_key_secret: SecretVersion | None = None
    """An existing version in Secret Manager with the API key, instead of `apiKey`. Its value never passes through Pulumi."""
    secrets: Annotated[list[SecretKey], Field(default_factory=list)]
    """The secrets that are set by value. The values stay with Pulumi."""

    @field_validator("endpoint_url")
    @classmethod
    def _whole_url(cls, url: str | None) -> str | None:
        try:
            parts = urlsplit(url or "https://none.example")
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("expected a whole URL such as https://models.example.com")
        return url

    @field_validator("vllm")
    @classmethod
    def _parser_for_tools(cls, options: VllmOptions) -> VllmOptions:
        if options.enable_auto_tool_choice and not options.tool_call_parser:
            raise ValueError("enableAutoToolChoice needs toolCallParser; for Gemma 4 set toolCallParser: gemma4")
        return options

    @field_validator("vllm")
    @classmethod
    def _domains_are_host_names(cls, options: VllmOptions) -> VllmOptions:
        wrong = next((name for name in options.allowed_media_domains or () if not _HOST_NAME.fullmatch(name)), None)
        if wrong is not None:
            raise ValueError(
                f'allowedMediaDomains has "{wrong}"; name each host as in its URL, in lower case and without a scheme, a port or a wildcard, '
                "such as images.example.com"
            )
        return options

    @field_validator("workload")
    @classmethod
    def _workload_is_one(cls, workload: Workload | None) -> Workload | None:
        if workload is not None:
            try:
                check_workload(workload)
            except PlanningError as error:
                raise ValueError(worded(str(error), _KEYS).removesuffix(".")) from None
        return workload

    @field_validator("accept_findings")
    @classmethod
    def _findings_exist(cls, ids: list[str]) -> list[str]:
        mistake = check_accepted(ids)
        if mistake:
            raise ValueError(mistake)
        return ids

    @field_validator("labels")
    @classmethod
    def _labels_are_free(cls, labels: dict[str, str]) -> dict[str, str]:
        reserved = next((key for key in sorted(labels) if is_reserved(key)), None)
        if reserved is not None:
            raise ValueError(f'"{reserved}" is set by this project; choose another key')
        return labels

    @model_validator(mode="after")
    def _target_block(self) -> "Settings":
        blocks = {"tpu": self.tpu, "cloud-run": self.cloud_run}
        key = {"tpu": "tpu", "cloud-run": "cloudRun"}
        if blocks[self.target] is None:
            raise ValueError(f"target {self.target} needs the block {key[self.target]}")
        other = next(target for target in blocks if target != self.target)
        if blocks[other] is not None:
            raise ValueError(f"target {self.target} takes no block {key[other]}; remove the block or change the target")
        if self.target == "tpu" and self.weights == "prefetched-image":
            raise ValueError("weights prefetched-image works on Cloud Run only; on a TPU choose hub or bucket")
        return self

    @model_validator(mode="after")
    def _revision_is_used(self) -> "Settings":
        if self.model_revision is not None and self.weights == "prefetched-image":
            raise ValueError(
                "modelRevision has no effect with weights prefetched-image: image.digest binds the weights; remove modelRevision"
            )
        return self

    @model_validator(mode="after")
    def _bucket_is_there(self) -> "Settings":
        run = self.cloud_run
        if run is None:
            return self
        mode = run.mount.mode
        if mode in {"streamer", "memory"} and self.weights != "bucket":
            raise ValueError(
                f"cloudRun.mount.mode {mode} reads weights from the bucket, and weights is {self.weights}; set weights: bucket, or remove the mode"
            )
        return self

    @model_validator(mode="after")
    def _account_is_used(self) -> "Settings":
        if self.docker_hub is not None and self.image.build_context is not None:
            raise ValueError(
                "dockerHub has no effect with image.buildContext: docker pulls with its own login; remove dockerHub"
            )
        return self

    @model_validator(mode="after")
    def _image_runs_on_the_target(self) -> "Settings":
        needed, known = "tpu" if self.target == "tpu" else "cuda", self.image.known
        if known is not None and known.platform != needed:
            raise ValueError(
                f"target {self.target} needs a {needed} image, and {known.repository} is a {known.platform} image; "
                f"set image: {DEFAULT_IMAGES[self.target]}"
            )
        return self

    @model_validator(mode="after")
    def _each_secret_once(self) -> "Settings":
        for kind in KINDS:
            if kind.key in self.secrets and self.secret_version(kind.key):
                raise ValueError(
                    f"{kind.key} and {kind.reference_key} both give the {kind.what}; keep one of them: "
                    f"pulumi config rm {kind.key}"
                )
        return self

    @property
    def served_revision(self) -> str | None:
        """The commit that the server itself downloads from the hub; None if it downloads none, or whatever its main branch has."""
        return self.model_revision if self.weights == "hub" else None

    def secret_version(self, key: SecretKey) -> str | None:
        """Return the existing version in Secret Manager that holds a secret, or None."""
        return {"hfToken": self.hf_token_secret, "apiKey": self.api_key_secret}[key]

    def has_secret(self, key: SecretKey) -> bool:
        """Whether a secret is set, by value or by reference."""
        return key in self.secrets or self.secret_version(key) is not None

    @property
    def archives_programs(self) -> bool:
        """Whether compiled programs are archived in the bucket."""
        if self.cloud_run is not None:
            return self.cloud_run.compile_cache == "bucket"
        return self.tpu is not None and self.tpu.compile_cache == "bucket"

    @property
    def uses_bucket(self) -> bool:
        """Whether the stack has a bucket: for its weights, for compiled programs, or for both."""
        return self.weights == "bucket" or self.archives_programs

    @property
    def streams_on_tpu(self) -> bool:
        """Whether a TPU server reads its weights straight from the bucket, so that none are copied to the machine."""
        return self.tpu is not None and self.weights == "bucket" and self.vllm.load_format == STREAMER

    def bucket_name(self, stack: str) -> str:
        """Return the name of the bucket that a stack with these settings has, or that it is told to use. Raises NamingError."""
        return self.bucket.existing or Names(project=self.project, stack=stack).bucket

    @property
    def weights_prefix(self) -> str:
        """The folder of the weights in the bucket, without slashes at its ends."""
        digest, is_own = self.bucket.manifest_hash, (self.bucket.manifest or "").startswith(OWN_FOLDER)
        return own_folder(self.weights_name, digest) if digest is not None and is_own else self.weights_name

    @property
    def weights_name(self) -> str:
        """That folder without the hash: where a copy of the weights is kept, and what staging adds the hash to."""
        return (self.bucket.prefix if self.bucket.prefix is not None else self.model.rpartition("/")[2]).strip("/")

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of the stack in order, each once."""
        if self.tpu is not None:
            return self.tpu.regions
        return (self.cloud_run.region,) if self.cloud_run is not None else ()
