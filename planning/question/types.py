"""What goes into the planner and what comes out of it.

Frozen, slotted, keyword-only dataclasses of the standard library alone, so that importing them costs next to nothing.
Units stand in the names: `_s` seconds, `_gib` 2^30 bytes, `_usd` US dollars.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from contracts.outputs import (
    CostSummary,
    MarginSummary,
    MemorySummary,
    PlanSummary,
    Severity,
    StartupSummary,
    ThroughputSummary,
    Verdict,
)
from planning.data.prices import Price, PriceBook
from planning.machine.hardware import Accelerator
from planning.model.spec import ModelSpec
from planning.question.vllm_args import VllmOptions
from planning.question.workload import Workload

Platform = Literal["tpu-vm", "cloud-run", "gce", "own"]
"""`own`: a machine that Google does not rent out, described by its figures (`planning.machine.devices`)."""
CompileCache = Literal["machine", "bucket", "off"]
GraphCacheMode = Literal["off", "bucket"]
"""Whether a Cloud Run service keeps the graphs that torch.compile made in its bucket, for its next start."""
ProvisioningModel = Literal["flex-start", "spot", "standard", "reservation"]
CapacityApiName = Literal["cloud-tpu", "compute-engine"]
SshAccess = Literal["os-login", "metadata-key"]
WeightsMode = Literal["hub", "disk", "memory", "fuse", "fuse-buffered", "fuse-cached", "streamer", "image"]
"""Where the server finds its weights when it starts.

`hub`: downloaded from Hugging Face; `disk`: copied from the bucket to a local disk first; `memory`: copied from the bucket to
shared memory first; `fuse`, `fuse-buffered`, `fuse-cached`: read through a Cloud Storage FUSE mount, plain, with buffered reads,
or through a file cache with parallel downloads; `streamer`: vLLM's runai_streamer reads gs://; `image`: part of the image.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupProbe:
    """A Cloud Run startup probe; the container may take `budget_s` to answer."""

    initial_delay_s: int = 0
    period_s: int = 10
    failure_threshold: int = 3
    timeout_s: int = 1

    @property
    def budget_s(self) -> int:
        """Seconds from the container's start until the last failed probe ends it."""
        return self.initial_delay_s + self.period_s * self.failure_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRunOptions:
    """What the Cloud Run service is configured with; None where it was not given."""

    region: str | None = None
    concurrency: int | None = None
    """Requests that Cloud Run sends to one instance at a time."""
    min_instances: int = 0
    max_instances: int = 1
    startup_probe: StartupProbe | None = None
    gpu_quota: int | None = None
    """GPUs that the region's quota allows, where it could be read."""
    cpu_quota: int | None = None
    """vCPU that the region's quota allows, where it could be read."""
    memory_quota_gib: float | None = None
    """Memory that the region's quota allows, where it could be read."""
    zonal_redundancy: bool = False
    direct_vpc: bool = False
    """Whether all egress goes through a subnet. Without it the network lets about 75 MB/s through."""
    mount_uid: int | None = None
    """Owner given to the files of a FUSE mount; None derives it from the image, which is always right."""
    mount_gid: int | None = None
    image_uid: int | None = None
    """The user that the server's image runs as; None for the default image (root)."""
    image_gid: int | None = None
    cuda13_image: bool = False
    cuda_compatibility: bool | None = None
    """Whether vLLM loads the image's CUDA compatibility libraries; None does so on an L4 with a CUDA 13 image."""
    rolls_out: bool = False
    """Whether a new revision is checked beside the one that serves, and so needs GPUs of its own."""
    graph_cache: GraphCacheMode = "off"
    """Where compiled graphs are kept for the next start of an instance."""
    file_cache_gib: float | None = None
    """Size of the file cache of `fuse-cached`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuOptions:
    """What the TPU queued resource is configured with."""

    provisioning_model: ProvisioningModel = "flex-start"
    api: CapacityApiName = "cloud-tpu"
    """Who gives the capacity: the Cloud TPU API, or Compute Engine, whose machines begin without docker."""
    max_run_duration_s: int | None = 14_400
    """Google deletes the nodes after this time; None sets no end, which flex-start does not allow."""
    zones: tuple[str, ...] = ()
    compile_cache: CompileCache = "machine"
    """Where compiled XLA programs are kept: on the machine's disk, in the bucket too for the next machine, or nowhere."""
    private_google_access: bool | None = None
    """Of a subnet that exists already: whether it has Private Google Access; None if the stack makes the network."""
    boot_disk_size_gb: int | None = None
    """Size of the boot disk; None for Google's 100 GB."""
    ssh: SshAccess = "os-login"
    """Who may log in to the machine: whom IAM lets in, or who has an SSH key in the metadata of the machine or the project."""
    tunnel_members: tuple[str, ...] = ()
    """Who may open a tunnel to the machine, as members of IAM."""
    tunnel_role: str | None = None
    """The custom role that they get in place of roles/tpu.admin."""
    renew_before_s: int | None = None
    """A second machine is requested this long before the end of a run and takes over; None never does. Shorter than the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Everything that the planner looks at. Only `model` and `accelerator` are required.

    Names (model, accelerator, platform, quantization) are accepted as people write them, without regard to case; `plan` resolves
    them and raises `planning.PlanningError` with one sentence when a name is unknown or two settings contradict each other.
    """

    model: str
    accelerator: str
    model_revision: str | None = None
    """Commit of the model's repository on the hub that is served or staged; empty is whatever its main branch has, None if it is not asked."""
    platform: str | None = None
    """None takes the only platform of the accelerator, or its usual one."""
    quantization: str | None = None
    """A scheme of `planning.data.quantization`; None takes what the checkpoint holds."""
    vllm: VllmOptions = field(default_factory=VllmOptions)
    """Options as given; the planner fills the rest with `planning.recommended`."""
    weights_mode: WeightsMode | None = None
    """None takes the platform's usual mode: hub on a TPU VM or GCE; fuse on Cloud Run, or fuse-buffered where fuse would start too late."""
    host_memory_gib: float | None = None
    """Memory of the container or machine; None takes the platform's default for the accelerator."""
    vcpu: float | None = None
    tpu: TpuOptions = field(default_factory=TpuOptions)
    cloud_run: CloudRunOptions = field(default_factory=CloudRunOptions)
    public: bool = False
    """The endpoint may be called by anyone."""
    has_api_key: bool = False
    """Whether the server requires an API key, and so has the path guard."""
    endpoint_url: str | None = None
    """An endpoint that the user gave in the settings, if any."""
    workload: Workload | None = None
    """What clients will ask of it; None plans the saturated rate at `planning.question.workload.DEFAULT_WORKLOAD` and answers nothing else."""
    measured_tok_per_s: float | None = None
    """Output rate that this deployment showed, all requests together; used for the cost of a million tokens and nothing else."""
    max_usd: int | None = None
    """Most US dollars that the deployment may cost before a guard takes it down."""
    accept_findings: tuple[str, ...] = ()
    """Ids of findings that the user has accepted; they are shown and stop nothing."""
    image_version: str | None = None
    """vLLM's version in the image; None for that of the default image, empty if it is not known."""
    image_supports: tuple[str, ...] = ()
    """Precisions that an image of one's own loads, whatever `planning.model.support` says."""
    model_spec: ModelSpec | None = None
    """A model that is not in the catalog (`planning.model.hf_config.model_from_config`)."""
    device: Accelerator | None = None
    """A device by its figures (`planning.machine.devices.parse_device`), instead of `accelerator`."""
    draft_spec: ModelSpec | None = None
    """The architecture of a drafter that is not in the catalog."""
    prices: PriceBook | None = None
    """Prices that replace the list prices."""
    today: str | None = None
    """Date of the question, YYYY-MM-DD. The planner has no clock: without it no price is called old."""
    existing_bucket: str | None = None
    """Name of a bucket that exists already; None for the stack's own."""
    bucket_region: str | None = None
    """Region of a bucket that exists already; None for the stack's own, which is in the region of the first zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Changes of a deployment's fields that remove a finding. `planning.question.fields.changed` applies them."""

    changes: Mapping[str, object]
    """The new value of each field, by path (`vllm.max_model_len`); None leaves the field out."""
    move: Literal["accelerator", "model"] | None = None
    """What the remedy replaces; None if it keeps both the accelerator and the model."""
    title: str = ""
    """Of a move: where it leads, in words."""
    usd_per_hour: float | None = None
    """Price per hour after the change; None if the price stays the same."""
    extra_usd_per_hour: float = 0.0
    """How much more than now that is."""
    is_deployable: bool = True
    """Whether this project can deploy the result; False for a machine of Compute Engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to know before the deployment costs anything.

    `message` and `advice` name fields of a `Deployment` by their path in backticks; `planning.solve.wording` puts the caller's keys there.
    """

    id: str
    severity: Severity
    message: str
    """The fact and its figure, one or two sentences."""
    remedies: tuple[Remedy, ...]
    """Changes that were tried: each removes this finding, and adds none that blocks."""
    advice: str
    """What to do beside a change of fields, such as asking for quota; may be empty."""
    source: str
    """Where the rule or the figure comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of one device in GiB; tokens, blocks and concurrency of the whole deployment."""

    usable_gib: float
    """What the driver shows of one device, before `--gpu-memory-utilization`."""
    budget_gib: float
    """`usable_gib` x utilisation: what weights, activations, graphs and KV cache share."""
    weights_gib: float
    """Weights on one device after tensor parallelism and offload."""
    offloaded_gib: float
    activations_gib: float
    graphs_gib: float
    kv_gib: float
    """What is left for the KV cache of one device; never below 0."""
    kv_tokens: int
    """As vLLM logs it: available KV over the KV of one longest request, times max-model-len."""
    kv_blocks: int
    """`num_gpu_blocks` as vLLM reports it."""
    block_size: int
    kv_bytes_per_token: int
    """Bytes that one further token of a long request costs on one device."""
    kv_request_gib: float
    """KV of one request of max-model-len tokens on one device."""
    max_concurrency: float
    """Requests of max-model-len tokens that the KV cache holds at once."""
    checkpoint_gib: float
    """Size of the checkpoint's files."""
    load_peak_device_gib: float
    """Highest device memory while weights load."""
    load_peak_host_gib: float
    """Highest host memory while weights load."""
    headroom_gib: float
    """Device memory outside the budget, left to the driver, to compiled programs and to allocations that nothing accounts for."""
    outside_needs_gib: float
    """The least that has to stay outside the budget: with less the server dies or refuses to start."""
    outside_enough_gib: float
    """What was seen to be enough outside the budget. Between the two the server may fail."""
    largest_max_model_len: int
    """Longest request that the KV cache holds once; 0 when nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """An edge of the memory that is so close that the server may fail."""

    verdict: Literal["may fail"]
    finding: str
    """Id of the finding that names the edge and the way out."""
    available_gib: float
    minimum_gib: float
    """Less fails."""
    recommended_gib: float
    """This much is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupPlan:
    """Seconds from the container's start to the first healthy answer."""

    pull_s: float
    load_s: float
    cached_total_s: float | None
    """Seconds of a start that finds compiled graphs in the bucket; None where none are kept there."""
    compile_s: float
    """Engine initialisation after the weights are loaded: compilation, graph capture, warm-up."""
    total_s: float
    probe_budget_s: int
    """Startup-probe budget to configure: the predicted start with a margin."""
    probe_limit_s: int | None
    """The longest budget that the platform allows; None where there is none."""
    probe: StartupProbe | None
    """The startup probe in effect: that of the settings, else the planner's; None where the platform has none."""
    ready_s: float
    """Seconds until the platform sends requests: at the first probe after the start, or with the first healthy answer."""
    restart_s: float
    """Seconds for a restart of the server alone, after a crash or a change that keeps its compiled programs: image pulled, programs read if
    they are kept, weights fetched again unless they are."""
    recompile_s: float | None
    """Seconds for a change in place after which every program is compiled: another length, batch or image. None off a TPU VM."""
    reboot_s: float | None
    """Seconds from a reboot of the machine, which keeps its disk, to the first healthy answer. None off a TPU VM."""
    node_replacement_s: float | None
    """Seconds from the boot of a new machine that replaces a lost one: with `tpu.compile_cache` bucket its programs come from the archive.
    The wait for capacity is not part of it. None off a TPU VM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputPlan:
    """Tokens per second. Estimates by a roofline, not promises."""

    decode_tok_per_s: float
    """One request alone."""
    saturated_tok_per_s: float
    """All requests together at the best batch that memory and max-num-seqs allow."""
    saturated_low_tok_per_s: float
    saturated_high_tok_per_s: float
    saturated_batch: int
    """Requests that run together at saturation."""
    bound: Literal["memory", "compute", "pcie", "overhead"]
    """What limits a single request."""
    ttft_s: float
    """Seconds to the first token of one short request alone: the prompt's step and one decoding step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A figure with its uncertainty: nine of ten measured points of its class lie between `low` and `high` (`planning.speed.bands`)."""

    low: float
    typical: float
    high: float

    def times(self, factor: float) -> "Band":
        """Return the band in another unit."""
        return Band(low=self.low * factor, typical=self.typical * factor, high=self.high * factor)

    def rounded(self, digits: int) -> dict[str, float]:
        """Return the band in JSON types."""
        return {
            "low": round(self.low, digits),
            "typical": round(self.typical, digits),
            "high": round(self.high, digits),
        }


Bottleneck = Literal["prefill", "memory", "compute", "pcie", "overhead", "kv-cache", "max-num-seqs", "rate"]
"""What keeps the output rate from being higher. `prefill`: prompts take most of the time. `memory`, `compute`, `pcie`, `overhead`: the largest
part of a decoding step. `kv-cache`, `max-num-seqs`: requests wait for room, or for a place in the batch. `rate`: no more requests arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """What a deployment makes of a workload. `low` and `high` of each band are those of the figure, not of good and bad days."""

    workload: Workload
    users: int
    """Users of a closed loop: those of the workload, or as many as the server computes at a time; 0 in an open loop."""
    ttft_s: Band
    """Seconds from sending a request to its first token, the queue included."""
    tpot_s: Band
    """Seconds between two tokens of an answer."""
    request_s: Band
    """Seconds from sending a request to its last token."""
    output_tok_per_s: Band
    """All requests together."""
    requests_per_s: Band
    usd_per_million_input_tokens: Band
    usd_per_million_output_tokens: Band
    """The price of an hour, divided over input and output by the time that the server spends on each."""
    running_requests: Band
    """Requests that are computed at a time."""
    queued_requests: Band
    """Requests that wait for a place, on average."""
    queue_s: Band
    """Seconds that a request waits for a place; part of `ttft_s`."""
    kv_share: Band
    """Part of the KV cache that is in use."""
    prefix_hit_share: Band
    """Part of the prompt tokens that the prefix cache spares."""
    bound: Bottleneck
    """What keeps the output rate from being higher."""
    prompt_tokens: int
    """Tokens of a prompt with its pictures, videos and audio."""
    most_requests_per_s: float
    """The rate at which the server is saturated; more arrivals than that queue without end."""
    most_users: int
    """Requests of this workload that the server computes at a time; further users wait."""

    def to_json(self) -> dict[str, Any]:
        """Return the answers in JSON types, each figure as a band."""
        return {
            "ttft_s": self.ttft_s.rounded(4),
            "tpot_s": self.tpot_s.rounded(5),
            "request_s": self.request_s.rounded(3),
            "output_tok_per_s": self.output_tok_per_s.rounded(2),
            "requests_per_s": self.requests_per_s.rounded(4),
            "usd_per_million_input_tokens": self.usd_per_million_input_tokens.rounded(4),
            "usd_per_million_output_tokens": self.usd_per_million_output_tokens.rounded(4),
            "running_requests": self.running_requests.rounded(2),
            "queued_requests": self.queued_requests.rounded(2),
            "queue_s": self.queue_s.rounded(3),
            "kv_share": self.kv_share.rounded(4),
            "prefix_hit_share": self.prefix_hit_share.rounded(4),
            "bound": self.bound,
            "prompt_tokens": self.prompt_tokens,
            "users": self.users,
            "most_users": self.most_users,
            "most_requests_per_s": round(self.most_requests_per_s, 4),
            "workload": asdict(self.workload),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceCost:
    """What one instance or slice costs in one of the places that the deployment names."""

    place: str
    """Zone or region; "" if the deployment names none."""
    usd_per_hour: float
    prices: tuple[Price, ...]
    """The prices that it is made from."""

    @property
    def is_assumed(self) -> bool:
        """Whether a price of this place is not known, so that the dearest known one was used."""
        return any(price.is_assumed for price in self.prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """US dollars at the prices of the dearest place that the deployment names."""

    usd_per_hour: float
    """One instance or slice, with all its parts that are billed by time: until a zone is granted, in the dearest one."""
    parts_usd_per_hour: tuple[tuple[str, float], ...]
    lowest_usd_per_hour: float
    """The same in the cheapest place."""
    places: tuple[PlaceCost, ...]
    """Each place in the order of the deployment."""
    max_usd: float
    """The most this deployment can cost: the whole run duration of a TPU, or a month of max instances on Cloud Run."""
    max_usd_basis: str
    idle_usd_per_hour: float
    """What it costs while nobody calls: min instances, or the whole slice."""
    usd_per_million_tokens: float
    """Output tokens at the measured rate where one was given, else at the estimated rate of a single request: the worst case."""
    usd_per_million_tokens_saturated: float
    prices_as_of: str
    """Date of the oldest price in `usd_per_hour`; "" if one has no date."""
    is_known: bool = True
    """False for a device of one's own without a price: every figure is 0 and means nothing."""


BillBasis = Literal["hour", "busy hour", "month", "start", "renewal"]
"""`hour`: while it runs; `busy hour`: an hour of answers at saturation; `month`: as long as the stack exists; `start`: each cold start;
`renewal`: each time that a second machine takes over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillPart:
    """One line of the bill."""

    name: str
    amount: float
    unit: str
    basis: BillBasis
    usd: float
    price: Price | None
    """The price of one unit; None for the sum of parts under a cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A deployment that runs for some hours of each day."""

    hours_per_day: float
    """Hours that are billed on a TPU VM; hours of traffic on Cloud Run."""
    usd_per_month: float
    usd_per_served_hour: float
    """For an hour in which it answers; infinite where the start takes the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCosts:
    """The whole bill, and when it is cheaper to run all the time."""

    bill: tuple[BillPart, ...]
    cold_start_s: float
    cold_start_usd: float
    """What the instance or slice costs until it answers; parts of the bill by start are not in it."""
    idle_usd_per_hour: float
    """An hour in which one instance or slice runs and nobody calls."""
    idle_billing_s: float
    """How long an instance stays after its last request; 0 where only the run's end stops it."""
    always_on_usd_per_month: float
    always_on: str
    """What that is: a minimum instance, or the slice on demand."""
    commitments: tuple[tuple[str, float], ...]
    """The same month under a commitment, where its price is known: what it is, and US dollars."""
    windows: tuple[Window, ...]
    even_requests_per_day: float | None
    """Cloud Run: single requests a day, each with its own cold start, from which one minimum instance is cheaper."""
    even_hours_per_day: float
    """Hours a day from which running all the time is cheaper; 24 or more if it never is."""
    shortest_window_h: float | None
    """TPU VM: shorter runs cost more for an hour of answers than the slice on demand; None if it has no such length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the planner says about one deployment."""

    fits: bool
    verdict: Verdict
    model: str
    accelerator: str
    platform: Platform
    quantization: str
    weights_mode: WeightsMode
    memory: MemoryPlan
    startup: StartupPlan
    throughput: ThroughputPlan
    cost: CostPlan
    margin: Margin | None
    """The edge at which the deployment may fail although nothing says that it does; None if it is far from every edge."""
    running: RunningCosts
    findings: tuple[Finding, ...]
    accepted: tuple[str, ...]
    vllm: VllmOptions
    """The options as they will be used: those given over the recommended ones."""
    environment: tuple[tuple[str, str], ...]
    """Environment variables of the server's container."""
    workload: WorkloadPlan | None = None
    """What it makes of the deployment's workload; None where none was given."""

    @property
    def stopping(self) -> tuple[Finding, ...]:
        """Findings that stop preview and up: those that block and were not accepted."""
        return tuple(f for f in self.findings if f.severity == "block" and f.id not in self.accepted)

    def summary(self) -> PlanSummary:
        """Return the plan in rounded figures, as the stack's outputs carry it."""
        memory, startup, throughput, cost = self.memory, self.startup, self.throughput, self.cost
        return PlanSummary(
            fits=self.fits,
            verdict=self.verdict,
            model=self.model,
            accelerator=self.accelerator,
            platform=self.platform,
            memory=MemorySummary(
                usable_gib=round(memory.usable_gib, 3),
                weights_gib=round(memory.weights_gib, 3),
                activations_gib=round(memory.activations_gib, 3),
                graphs_gib=round(memory.graphs_gib, 3),
                kv_gib=round(memory.kv_gib, 3),
                kv_tokens=memory.kv_tokens,
                kv_blocks=memory.kv_blocks,
                max_concurrency=round(memory.max_concurrency, 2),
            ),
            startup=StartupSummary(
                pull_s=round(startup.pull_s, 1),
                load_s=round(startup.load_s, 1),
                compile_s=round(startup.compile_s, 1),
                total_s=round(startup.total_s, 1),
                probe_budget_s=startup.probe_budget_s,
            ),
            throughput=ThroughputSummary(
                decode_tok_per_s=round(throughput.decode_tok_per_s, 2),
                saturated_tok_per_s=round(throughput.saturated_tok_per_s, 1),
            ),
            cost=CostSummary(
                usd_per_hour=round(cost.usd_per_hour, 4),
                max_usd=round(cost.max_usd, 2),
                usd_per_million_tokens=round(cost.usd_per_million_tokens, 4),
            ),
            margin=_margin_summary(self.margin) if self.margin else None,
        )


def _margin_summary(margin: Margin) -> MarginSummary:
    return MarginSummary(
        verdict=margin.verdict,
        finding=margin.finding,
        available_gib=round(margin.available_gib, 3),
        minimum_gib=round(margin.minimum_gib, 3),
        recommended_gib=round(margin.recommended_gib, 3),
    )
