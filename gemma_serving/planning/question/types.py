"""Results of the planner.

Frozen, keyword-only structs, because Python needs 40 times as long for a dataclass (decision 45).
Names state the unit: `_s` seconds, `_gib` 2^30 bytes, `_usd` US dollars.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from gemma_serving.contracts.verdicts import Verdict
from gemma_serving.planning.data.prices import Price
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.capacity_form import ProvisioningModel
from gemma_serving.planning.settings.cloud_run import ProbeSettings
from gemma_serving.planning.settings.finding import Finding, Together
from gemma_serving.planning.settings.question import Platform, WeightsMode
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.units import DAY_S, HOUR_S, ROUGH, about, figure

if TYPE_CHECKING:
    from gemma_serving.contracts.outputs import PlanSummary

_ROUNDING_GIB: Final = 1e-9
"""A budget is a product; its difference from the total is not exact."""


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """Memory of one device in GiB; tokens, blocks and concurrency of the whole deployment."""

    usable_gib: float
    """Memory of one device that the driver reports, before `--gpu-memory-utilization`."""
    budget_gib: float
    """`usable_gib` x utilization: shared by weights, activations, graphs and KV cache."""
    weights_gib: float
    """Weights on one device after tensor parallelism and offload."""
    offloaded_gib: float
    activations_gib: float
    graphs_gib: float
    kv_gib: float
    """Memory of one device that remains for the KV cache; never below 0."""
    kv_margin_gib: float
    """Possible shortfall of `kv_gib`; the verdict allows for it."""
    kv_excess_gib: float
    """Possible excess over `kv_gib`; the verdict allows for it too."""
    kv_tokens: int
    """As vLLM logs it: available KV over the KV of one longest request, times max-model-len."""
    kv_blocks: int
    """`num_gpu_blocks` as vLLM reports it."""
    block_size: int
    kv_bytes_per_token: int
    """Bytes on one device for one more token of a long request."""
    kv_request_gib: float
    """KV of one request of max-model-len tokens on one device."""
    max_concurrency: float
    """Concurrent requests of max-model-len tokens that fit in the KV cache."""
    checkpoint_gib: float
    load_peak_device_gib: float
    load_peak_host_gib: float
    headroom_gib: float
    """Device memory outside the budget: for the driver, compiled programs and untracked allocations."""
    outside_needs_gib: float
    """Minimum outside the budget; with less, the server crashes or does not start. On a TPU the need less the error of the plan."""
    outside_enough_gib: float
    """Amount outside the budget that is known to be sufficient. Between the two, the server may fail."""
    largest_max_model_len: int
    """Maximum length of a request in the KV cache; 0 if none fits."""


class EdgeOfMemory(Struct, frozen=True):
    """Available and required memory at one limit, with the rule that reports a deployment close to it."""

    rule: str
    available_gib: float
    minimum_gib: float
    """With less, it fails. A planned minimum is lower by the error of the plan."""
    recommended_gib: float
    """Sufficient amount."""

    @property
    def is_short(self) -> bool:
        """True if nothing or less than the minimum is available."""
        return self.available_gib <= 0 or self.available_gib + _ROUNDING_GIB < self.minimum_gib

    @property
    def may_fail(self) -> bool:
        """True if the minimum is available, but less than recommended."""
        return not self.is_short and self.available_gib + _ROUNDING_GIB < self.recommended_gib


class StartStage(Struct, frozen=True, kw_only=True):
    """One stage of a start. Two stages whose times overlap run side by side."""

    name: str
    begins_s: float
    """Seconds after the first stage has begun."""
    takes_s: float
    source: str
    """Names of its constants (`planning.data.overheads`)."""
    shared: str = ""
    """The resource that delays it because another stage uses it too: network, disk, or "" for none."""

    @property
    def ends_s(self) -> float:
        """Seconds from the beginning of the first stage to the end of this one."""
        return self.begins_s + self.takes_s


class StartupPlan(Struct, frozen=True, kw_only=True):
    """Seconds from the container's start to the first healthy response."""

    stages: tuple[StartStage, ...]
    """In the order in which they begin. The last one ends last."""
    beside_s: float
    """Seconds that are saved because the weights are fetched while the image is pulled."""
    pull_s: float
    """Image, process, and `connects_s`."""
    connects_s: float
    """Seconds until the connections of a Cloud Run instance with Direct VPC work, assumed."""
    load_s: float
    load_low_s: float
    load_high_s: float
    """The same with the scatter of public logs."""
    cached_total_s: float | None
    """Seconds of a start that finds compiled graphs or programs in the bucket; None if none are stored there."""
    compile_s: float
    """Engine initialization after the weights are loaded: compilation, graph capture, warm-up."""
    compile_low_s: float
    compile_high_s: float
    """The same on a host with faster and with slower cores, as far as the host is unknown, and with the scatter of public logs."""
    total_s: float
    total_low_s: float
    total_high_s: float
    """The total with loading and compiling at their low and at their high end; the image as planned. At the high end nothing runs side by side,
    as on a disk that the image alone and the weights alone use up (dev/judges/real/tests/test_start.py)."""
    probe_budget_s: int
    """Startup-probe budget to configure: the predicted start with a margin."""
    probe_limit_s: int | None
    """Maximum budget of the platform; None if it has no limit."""
    probe: ProbeSettings | None
    """Startup probe in effect, from the settings or the planner; None if the platform has none."""
    ready_s: float
    """Seconds until the platform routes traffic: at the first probe after the start, or with the first healthy response."""
    restart_s: float
    """Seconds for a restart of the server alone, after a crash or a change that keeps its compiled programs: image already pulled, programs read
    if they are stored, weights fetched again unless they are."""
    recompile_s: float | None
    """Seconds for an in-place change after which every program is compiled: another length, batch or image. None except on a TPU VM."""
    reboot_s: float | None
    """Seconds from a reboot of the node, which keeps its disk, to the first healthy response. None except on a TPU VM."""
    node_replacement_s: float | None
    """Seconds from the boot of a replacement node, whose programs come from the archive if the bucket has them.
    Excludes the wait for capacity. None except on a TPU VM."""

    @property
    def ready_words(self) -> str:
        """`ready_s` with its band, as sure as it is: about 12 min (10 to 14)."""
        wait_s = self.ready_s - self.total_s
        return about(self.ready_s, self.total_low_s + wait_s, self.total_high_s + wait_s)

    def pause_s(self, *, compiles: bool) -> float:
        """Return the seconds without a server while it restarts in place. `compiles`: by `contracts.compile_cache.changes_programs`."""
        return self.recompile_s if compiles and self.recompile_s is not None else self.restart_s


class ThroughputPlan(Struct, frozen=True, kw_only=True):
    """Tokens per second. Roofline estimates."""

    decode_tok_per_s: float
    """One request alone, with speculative decoding if the deployment has it."""
    tokens_per_step: float
    """Tokens of one request per step: 1, and the proposals that are assumed to be accepted."""
    accepted_share: float | None
    """The assumed share of accepted proposals; None without speculative decoding."""
    plain_tok_per_s: float
    """One request alone without speculative decoding."""
    break_even_share: float | None
    """Accepted share from which speculative decoding makes one request faster; over 1 if it never does, None without it or if its cost is unknown."""
    saturated_break_even_share: float | None
    """The same at the best batch."""
    saturated_tok_per_s: float
    """All requests together at the best batch that memory, max-num-seqs and the concurrency of Cloud Run allow."""
    saturated_low_tok_per_s: float
    saturated_high_tok_per_s: float
    saturated_batch: int
    """Concurrent requests at saturation."""
    decode_sources: int
    """Public sources of a time per token of such a deployment: none, one, or 2 for more (`planning.speed.bands.decode_sources`)."""
    bound: Literal["memory", "compute", "pcie", "overhead"]
    ttft_s: float
    """Seconds to the first token of one short request alone: the prompt's step and the time of the HTTP server."""


class Band(Struct, frozen=True, kw_only=True):
    """A value with its uncertainty: 90% of the measured points of its class are between `low` and `high` (`planning.speed.bands`)."""

    low: float
    typical: float
    high: float

    def times(self, factor: float) -> "Band":
        """Return the band in another unit."""
        return Band(low=self.low * factor, typical=self.typical * factor, high=self.high * factor)

    def plus(self, other: "Band") -> "Band":
        """Return the band of the sum of both, whose ends come together."""
        return Band(low=self.low + other.low, typical=self.typical + other.typical, high=self.high + other.high)

    @property
    def words(self) -> str:
        """The ends for people, such as 940 to 4,200."""
        return f"{figure(self.low, ROUGH)} to {figure(self.high, ROUGH)}"


def certain(value: float) -> Band:
    """Return the band of a value without uncertainty."""
    return Band(low=value, typical=value, high=value)


def rounded(source: object | None, **places: int) -> dict[str, Any]:
    """Return these attributes with this many decimal places: numbers, bands as low, typical and high, with None for infinity.

    All are None if the source is: its figures are unknown.
    """
    if source is None:
        return dict.fromkeys(places)
    return {name: _rounded(getattr(source, name), digits) for name, digits in places.items()}


def _rounded(value: Band | float | None, digits: int) -> Any:  # noqa: ANN401 - JSON is any of its types
    if isinstance(value, Band):
        return rounded(value, low=digits, typical=digits, high=digits)
    return None if value is None or not isfinite(value) else round(value, digits)


RequestLimit = Literal["kv-cache", "max-num-seqs", "concurrency"]
LIMIT_WORDS: Final[Mapping[RequestLimit, str]] = {
    "kv-cache": "the KV cache",
    "max-num-seqs": "vllm.maxNumSeqs",
    "concurrency": "cloudRun.concurrency",
}
"""Limits of a server's concurrent requests, with their fields as in messages."""
Bottleneck = RequestLimit | Literal["prefill", "memory", "compute", "pcie", "overhead", "front-end", "rate"]
"""Bottleneck of the output rate. `prefill`: prompts take most of the time. `memory`, `compute`, `pcie`, `overhead`: the largest
part of a decoding step. A `RequestLimit`: requests wait for it. `front-end`: the API process passes no more requests on. `rate`: no more
requests arrive."""


class WorkloadPlan(Struct, frozen=True, kw_only=True):
    """Predicted results of a workload. `low` and `high` of each band are its uncertainty, not the variation between runs."""

    workload: Workload
    users: int
    """Users of a closed loop: the workload's, or as many as the server runs concurrently; 0 in an open loop."""
    ttft_s: Band
    """Seconds from sending a request to its first token, including the queue."""
    tpot_s: Band
    request_s: Band
    """Seconds from sending a request to its last token."""
    output_tok_per_s: Band
    """All requests together."""
    requests_per_s: Band
    usd_per_million_input_tokens: Band
    usd_per_million_output_tokens: Band
    """Price per hour, divided over input and output by the time that the server spends on each."""
    running_requests: Band
    queued_requests: Band
    queue_s: Band
    """Seconds that a request is queued; part of `ttft_s`."""
    kv_share: Band
    prefix_hit_share: Band
    """Fraction of the prompt tokens that the prefix cache saves."""
    bound: Bottleneck
    prompt_tokens: int
    """Tokens of a prompt, including images, videos and audio."""
    most_requests_per_s: float
    """Saturation rate; faster arrivals queue without bound."""
    most_users: int
    """Concurrent requests of this workload that one server runs; further users wait."""
    limits: tuple[RequestLimit, ...]
    """Every limit that sets `most_users`."""
    whole_users: int
    """Concurrent requests that the KV cache holds at their full length. If more run, vLLM preempts some, and computes their tokens again."""
    recomputed_tokens: float
    """Tokens per response that vLLM computes again."""
    preemption_share: float
    """Fraction by which that lowers the rate."""
    front_end_requests_per_s: float
    """Requests per second that the API processes pass on, for any model: the limit of both rates, if they reach it."""
    not_measured: tuple[str, ...]
    """Parts of the deployment and its requests that no public load test has. They widen the bands."""
    in_step_ttft_s: float
    """Time to the first token of users in step: a benchmark, whose responses are equally long. 0 in an open loop."""
    unexplained_share: float
    """Part of a step that one publisher measured beside all that are planned. The slow ends of the bands have it, and no typical value."""

    def to_json(self) -> dict[str, Any]:
        """Return the answers in JSON types, each as a band."""
        return {
            **rounded(self, ttft_s=4, tpot_s=5, request_s=3, output_tok_per_s=2, requests_per_s=4),
            **rounded(self, usd_per_million_input_tokens=4, usd_per_million_output_tokens=4),
            **rounded(self, running_requests=2, queued_requests=2, queue_s=3, kv_share=4, prefix_hit_share=4),
            "bound": self.bound,
            **rounded(self, prompt_tokens=0, users=0, most_users=0, most_requests_per_s=4),
            **rounded(self, whole_users=0, recomputed_tokens=1, preemption_share=4),
            **rounded(self, in_step_ttft_s=4, unexplained_share=4),
            "not_measured": list(self.not_measured),
            "workload": dataclasses.asdict(self.workload),
        }


class PlaceCost(Struct, frozen=True, kw_only=True):
    """Cost of one instance or slice in one location of the deployment."""

    place: str
    """Zone or region; "" if the deployment names none."""
    usd_per_hour: float
    prices: tuple[Price, ...]

    @property
    def is_assumed(self) -> bool:
        """True if a price of this location is unknown, so the highest known one was used."""
        return any(price.is_assumed for price in self.prices)


class FormZone(Struct, frozen=True, kw_only=True):
    """A form of capacity in a zone."""

    zone: str
    usd_per_hour: float | None
    """Price of the slice; None if no price of this form in the zone's region is known."""
    skipped: str = ""
    """Why the form is not requested there; "" if it is."""


class FormStep(Struct, frozen=True, kw_only=True):
    """One form of an order of forms, with all zones of the settings."""

    model: ProvisioningModel
    wait_s: int
    """Maximum wait for this form in all its zones together, in seconds."""
    run_s: int | None
    """Seconds after which Google deletes the capacity; None if it does not."""
    places: tuple[FormZone, ...]

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones in which the form is requested, in order."""
        return tuple(place.zone for place in self.places if not place.skipped)

    @property
    def usd_per_hour(self) -> tuple[float, float] | None:
        """Lowest and highest known price in the zones in which the form is requested, or else in all; None if none is known."""
        usd = [place.usd_per_hour for place in self.places if not place.skipped or not self.zones]
        known = [one for one in usd if one is not None]
        return (min(known), max(known)) if known else None


class CostPlan(Struct, frozen=True, kw_only=True):
    """US dollars at the prices of the deployment's most expensive location, and of the first form of capacity that is requested."""

    usd_per_hour: float
    """One instance or slice with all parts billed by time, in the most expensive zone until one is granted."""
    parts_usd_per_hour: tuple[tuple[str, float], ...]
    lowest_usd_per_hour: float
    """The same in the cheapest location."""
    places: tuple[PlaceCost, ...]
    """Each location in the order of the deployment."""
    most_usd: float
    """Maximum cost: a TPU's whole run duration, or a month of max instances on Cloud Run."""
    most_usd_basis: str
    idle_usd_per_hour: float
    """Cost while idle: min instances, or the whole slice."""
    usd_per_million_tokens: float | None
    """Output tokens at the measured rate if one is set, otherwise at the estimated rate of a single request: the worst case."""
    usd_per_million_tokens_saturated: float | None
    """The same for all requests together at saturation. Both are None if the speed is unknown and no rate was measured."""
    is_measured: bool
    """True if both are at a measured rate."""
    prices_as_of: str
    """Date of the oldest price in `usd_per_hour`; "" if one has no date."""
    is_known: bool = True
    """False for a custom device without a price, for which every value is 0 and meaningless."""
    order: tuple[FormStep, ...] = ()
    """Forms of capacity in order of preference; empty if only one can be requested."""
    endless_forms: tuple[ProvisioningModel, ...] = ()
    """Forms of TPU capacity that may be requested and that Google does not end after a time."""

    @property
    def idle_usd_per_day(self) -> float:
        """Cost of a day without requests."""
        return self.idle_usd_per_hour * (DAY_S // HOUR_S)

    @property
    def most_usd_per_hour(self) -> float:
        """Highest price of any form of capacity that is requested."""
        highest = [step.usd_per_hour[1] for step in self.order if step.zones and step.usd_per_hour]
        return max([self.usd_per_hour, *highest])


BillBasis = Literal["hour", "busy hour", "month", "start"]
"""`hour`: while it runs; `busy hour`: an hour of responses at saturation; `month`: as long as the stack exists; `start`: each cold start."""


class BillPart(Struct, frozen=True, kw_only=True):
    """One line of the bill."""

    name: str
    amount: float
    unit: str
    basis: BillBasis
    usd: float
    price: Price | None
    """Price of one unit; None for the sum of parts below a cent."""


def usd_per(basis: BillBasis, parts: Iterable[BillPart]) -> float:
    """Return the sum in US dollars of the parts that are billed on this basis."""
    return sum(part.usd for part in parts if part.basis == basis)


class Window(Struct, frozen=True, kw_only=True):
    """A deployment that runs for some hours per day."""

    hours_per_day: float
    """Billed hours on a TPU VM; hours of traffic on Cloud Run."""
    usd_per_month: float
    usd_per_served_hour: float
    """Per hour of serving; infinite if the start takes the whole run."""


class RunningCosts(Struct, frozen=True, kw_only=True):
    """The whole bill, and when running all the time is cheaper."""

    bill: tuple[BillPart, ...]
    cold_start_s: float | None
    """None if the start is unknown, as all figures that need it."""
    cold_start_usd: float | None
    """Cost of the instance or slice until it is ready, and the bill's parts per start."""
    idle_usd_per_hour: float
    idle_billing_s: float
    """Seconds that an instance is billed after its last request; 0 if it runs until its run expires."""
    always_on_usd_per_month: float
    always_on: str
    """Description: a minimum instance, or the slice on demand."""
    observability_usd_per_month: float
    """Maximum cost of alerts and metrics in such a month."""
    collects_metrics: bool
    """True if that includes the metrics."""
    metrics_usd_per_month: float | None
    """Maximum cost of `metrics.enabled` in a month in which one instance or machine always runs; None without alerts and metrics."""
    commitments: tuple[tuple[str, float], ...]
    """The same month under each commitment with a known price: name and US dollars."""
    windows: tuple[Window, ...]
    even_requests_per_day: float | None
    """Cloud Run: single requests per day, each with a cold start, from which one minimum instance is cheaper."""
    even_hours_per_day: float | None
    """Hours per day from which running all the time is cheaper; 24 or more if it never is."""
    shortest_window_h: float | None
    """TPU VM: run length below which an hour of serving costs more than the slice on demand; None if it has none."""


UnknownFigure = Literal["decode", "prefill", "start"]
"""A figure that needs a constant which was never measured on the accelerator's family."""


def figures_words(unknown: tuple[UnknownFigure, ...]) -> str:
    """Return figures with the verb: "decode, prefill and start are unknown"."""
    named = " and ".join(filter(None, (", ".join(unknown[:-1]), *unknown[-1:])))
    return f"{named} {'is' if len(unknown) == 1 else 'are'} unknown"


class Figures(Struct, frozen=True, kw_only=True):
    """Figures of one deployment: memory, start, speed and cost."""

    accelerator: str
    memory: MemoryPlan
    known_startup: StartupPlan | None
    """None if `start` is in `unknown`."""
    known_throughput: ThroughputPlan | None
    """None if `decode` or `prefill` is in `unknown`."""
    unknown: tuple[UnknownFigure, ...]
    """Figures that need a constant which was never measured on the accelerator's family."""
    cost: CostPlan
    workload: WorkloadPlan | None
    """Results for the deployment's workload; None if it has none, or if its speed is unknown."""

    @property
    def startup(self) -> StartupPlan:
        """The start. Raises PlanningError if it is unknown (`known_startup`)."""
        if self.known_startup is None:
            raise PlanningError(self.unknown_words)
        return self.known_startup

    @property
    def throughput(self) -> ThroughputPlan:
        """The speed. Raises PlanningError if it is unknown (`known_throughput`)."""
        if self.known_throughput is None:
            raise PlanningError(self.unknown_words)
        return self.known_throughput

    @property
    def unknown_words(self) -> str:
        """Which figures are unknown on the accelerator, as a sentence."""
        return f"{figures_words(self.unknown).capitalize()} on {self.accelerator}: no public vLLM server on it was measured."


class Plan(Figures, frozen=True, kw_only=True):
    """The planner's result for one deployment."""

    fits: bool
    verdict: Verdict
    model: str
    platform: Platform
    quantization: str
    weights_mode: WeightsMode
    margin: EdgeOfMemory | None
    """Memory limit at which a fitting deployment may still fail; None if none is close."""
    bill: str
    """The whole bill in one line; empty without a known price."""
    running: RunningCosts
    findings: tuple[Finding, ...]
    together: tuple[Together, ...]
    """The remedy of the blocking findings, then that of the warnings too; each only if it joins the remedies of several."""
    accepted: tuple[str, ...]
    vllm: VllmOptions
    """Options in effect: those set, then the recommended ones."""
    environment: tuple[tuple[str, str], ...]
    vllm_version: str
    """Version of vLLM in the image; empty if unknown."""
    vulnerabilities: tuple[str, ...]
    """Ids of the published vulnerabilities that callers can use, the worst first."""

    @property
    def replicas(self) -> int:
        """Copies of the model. `memory` has the KV cache of one."""
        return self.vllm.data_parallel_size or 1

    @property
    def stopping(self) -> tuple[Finding, ...]:
        """Findings that stop preview and up: blocking and not accepted."""
        return tuple(f for f in self.findings if f.severity == "block" and f.id not in self.accepted)

    @property
    def together_to_start(self) -> tuple[Together, ...]:
        """The remedy of the findings that stop preview and up, without that of the warnings."""
        stopping = {finding.id for finding in self.stopping}
        return tuple(one for one in self.together if stopping.issuperset(one.ids))

    def summary(self) -> "PlanSummary":
        """Return the plan in rounded figures, as in the stack's outputs."""
        from gemma_serving.contracts import outputs  # noqa: PLC0415 - 20 ms, and only programs read a summary

        margin = self.margin
        return outputs.PlanSummary(
            fits=self.fits,
            verdict=self.verdict,
            model=self.model,
            accelerator=self.accelerator,
            platform=self.platform,
            memory=outputs.MemorySummary(
                **rounded(self.memory, usable_gib=3, weights_gib=3, activations_gib=3, graphs_gib=3, kv_gib=3),
                **rounded(self.memory, kv_tokens=0, kv_blocks=0, max_concurrency=2),
            ),
            startup=outputs.StartupSummary(
                **rounded(self.known_startup, pull_s=1, load_s=1, compile_s=1, total_s=1, restart_s=1, probe_budget_s=0)
            ),
            throughput=outputs.ThroughputSummary(
                **rounded(
                    self.known_throughput,
                    decode_tok_per_s=2,
                    tokens_per_step=3,
                    saturated_tok_per_s=1,
                    plain_tok_per_s=2,
                    break_even_share=2,
                    saturated_break_even_share=2,
                )
            ),
            cost=outputs.CostSummary(
                most_usd=round(self.cost.most_usd, 2),
                **rounded(self.cost, usd_per_hour=4, usd_per_million_tokens=4),
            ),
            margin=margin
            and outputs.MarginSummary(
                verdict="may fail",
                finding=margin.rule,
                **rounded(margin, available_gib=3, minimum_gib=3, recommended_gib=3),
            ),
        )
