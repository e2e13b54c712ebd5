"""Stack outputs: what every script may rely on.

`pulumi up` prints the outputs that people read, and `pulumi stack output --json` gives them to programs. The rest, `DETAILS`, would be sixty
lines more at the end of each `up`: the state keeps them as the outputs of one component, and `pulumi stack export` has them.
Times in seconds, memory in GiB of one device, rates in tokens per second, money in US dollars. JSON keys are the field names in
camelCase. Stacks write `StackOutputs`, scripts read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from contracts.fields import Doc, camel_case

Target = Literal["tpu", "cloud-run"]
Auth = Literal["id-token", "tunnel", "none"]
Verdict = Literal["fits", "out-of-memory", "blocked"]
Severity = Literal["block", "warn", "info"]

DETAILS_TYPE: Final = "gemma-serving:index:StackDetails"
"""Type of the component whose outputs are the `DETAILS`."""
DETAILS: Final = frozenset(
    camel_case(field)
    for field in (
        "served_model",
        "rollout",
        "plan",
        "vllm",
        "smoke",
        "labels",
        "project",
        "api_key_secret",
        "tunnel",
        "zone",
    )
)
"""JSON keys of the outputs that `pulumi up` does not print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """How to reach a server that has no public address."""

    argv: Annotated[tuple[str, ...], Doc("Command that forwards the local port to the server.")]
    local_port: Annotated[int, Doc("Port of this machine.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeThresholds:
    """What the smoke checks require of the server."""

    startup_budget_s: Annotated[float, Doc("Longest wait until the server is ready.")]
    max_ttft_s: Annotated[float | None, Doc("Longest time to the first token of one stream alone.")] = None
    min_decode_tok_per_s: Annotated[float | None, Doc("Lowest output rate of one stream alone.")] = None
    min_burst_tok_per_s: Annotated[
        float | None, Doc("Lowest output rate of the burst, all streams together; null only measures it.")
    ] = None
    burst_requests: Annotated[int, Doc("Streams in the burst.")] = 4
    max_model_len: Annotated[int | None, Doc("Length that the server has to state.")] = None
    expect_reasoning: Annotated[bool, Doc("Whether the server has a reasoning parser.")] = False
    expect_tool_calls: Annotated[bool, Doc("Whether the server has a tool-call parser.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Planned memory of one device, and what the KV cache of the deployment holds."""

    usable_gib: Annotated[float, Doc("Memory that the driver shows to one process.")]
    weights_gib: Annotated[float, Doc("Weights after tensor parallelism and offload.")]
    activations_gib: Annotated[float, Doc("Activations, or compiled programs on a TPU.")]
    graphs_gib: Annotated[float, Doc("CUDA graphs.")]
    kv_gib: Annotated[float, Doc("KV cache.")]
    kv_tokens: Annotated[int, Doc("Tokens that the KV cache holds.")]
    kv_blocks: Annotated[int, Doc("`num_gpu_blocks` as vLLM reports it.")]
    max_concurrency: Annotated[float, Doc("Requests of the longest length that the KV cache holds at once.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupSummary:
    """Planned seconds from the container's start to the first healthy answer."""

    pull_s: Annotated[float, Doc("Image pull and process start.")]
    load_s: Annotated[float, Doc("Weights.")]
    compile_s: Annotated[float, Doc("Compilation, graph capture and warm-up.")]
    total_s: Annotated[float, Doc("All of it.")]
    probe_budget_s: Annotated[int, Doc("Startup-probe budget: the total with a margin.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputSummary:
    """Planned output rates."""

    decode_tok_per_s: Annotated[float, Doc("One request alone.")]
    saturated_tok_per_s: Annotated[float, Doc("All requests together at the best batch.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSummary:
    """Planned cost."""

    usd_per_hour: Annotated[float, Doc("One instance or slice with all its parts.")]
    max_usd: Annotated[float, Doc("The most that the deployment can cost.")]
    usd_per_million_tokens: Annotated[float, Doc("A million output tokens, one request at a time.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginSummary:
    """An edge of the memory of one device that is so close that the server may fail."""

    verdict: Annotated[Literal["may fail"], Doc("`may fail`.")]
    finding: Annotated[str, Doc("Id of the finding that names the edge, such as `FIT05`.")]
    available_gib: Annotated[float, Doc("What there is.")]
    minimum_gib: Annotated[float, Doc("Less than this fails.")]
    recommended_gib: Annotated[float, Doc("This much is enough.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The plan in figures; `scripts.plan --json` prints the same with snake_case keys and the findings in full."""

    fits: Annotated[bool, Doc("Whether the deployment fits and nothing blocks it.")]
    verdict: Annotated[Verdict, Doc("`fits`, `out-of-memory` or `blocked`.")]
    model: Annotated[str, Doc("Hugging Face id of the checkpoint.")]
    accelerator: Annotated[str, Doc("Accelerator, such as v6e-4 or L4.")]
    platform: Annotated[str, Doc("`tpu-vm` or `cloud-run`.")]
    memory: Annotated[MemorySummary, Doc("Memory and KV cache.")]
    startup: Annotated[StartupSummary, Doc("Start-up time.")]
    throughput: Annotated[ThroughputSummary, Doc("Output rates.")]
    cost: Annotated[CostSummary, Doc("Cost.")]
    margin: Annotated[
        MarginSummary | None, Doc("How close the edge of the memory is where the server may fail; null elsewhere.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """How a new revision of the Cloud Run service gets requests."""

    service: Annotated[str, Doc("Full name of the service.")]
    steps: Annotated[tuple[int, ...], Doc("Shares of the traffic in percent, rising to 100.")]
    requests: Annotated[int, Doc("Requests of each measurement.")]
    max_slowdown: Annotated[float, Doc("Most by which the new revision may be slower than the old one.")]
    max_failed: Annotated[float, Doc("Most requests of a measurement that may fail, as a share.")]
    traffic: Annotated[
        Mapping[str, int] | None,
        Doc("Percent of the requests by revision where the settings name them; null where the roll-out moves them."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOutputs:
    """Everything that a deployed stack says about itself."""

    target: Annotated[Target, Doc("`tpu` or `cloud-run`.")]
    model: Annotated[str, Doc("Hugging Face id of the checkpoint.")]
    served_model: Annotated[str, Doc("The name to send as `model`.")]
    endpoint: Annotated[str, Doc("URL; for a tunnel its local end, `http://127.0.0.1:8000`.")]
    auth: Annotated[Auth, Doc("How callers are authenticated: `id-token`, `tunnel` or `none`.")]
    image: Annotated[str, Doc("The server's image, by digest.")]
    plan: Annotated[PlanSummary, Doc("The plan in figures.")]
    vllm: Annotated[Mapping[str, object], Doc("vLLM's options as they are in effect, by their settings keys.")]
    smoke: Annotated[SmokeThresholds, Doc("Thresholds of the smoke checks.")]
    labels: Annotated[Mapping[str, str], Doc("Labels of the stack's resources.")]
    project: Annotated[str, Doc("Google Cloud project.")]
    location: Annotated[str, Doc("Region (Cloud Run) or zone (TPU).")]
    connect: Annotated[
        str | None, Doc("Command that reaches the server from your machine and prints lines to paste.")
    ] = None
    check: Annotated[str | None, Doc("Command that checks the server's health and speed.")] = None
    api_key_secret: Annotated[
        str | None,
        Doc("Version in Secret Manager with the API key that callers send; null if the server requires none."),
    ] = None
    tunnel: Annotated[Tunnel | None, Doc("How to open the tunnel; null where there is none.")] = None
    zone: Annotated[str | None, Doc("TPU: zone that had capacity; null on Cloud Run.")] = None
    rollout: Annotated[
        RolloutPlan | None, Doc("How `scripts.rollout` moves the traffic; null if `pulumi up` moves it.")
    ] = None
    state: Annotated[str | None, Doc("TPU: state of the queued resource, such as `ACTIVE`; null on Cloud Run.")] = None
    phase: Annotated[str | None, Doc("TPU: last phase that the machine published; null on Cloud Run.")] = None
    container: Annotated[
        str | None,
        Doc(
            "TPU: what the server's container gets of the machine, as it last published it: `confined`, `confined-with-token: ` or "
            "`privileged: ` and the reason; null on Cloud Run."
        ),
    ] = None
    deadline: Annotated[
        str | None,
        Doc("TPU: when Google deletes the machine (RFC 3339, UTC); null if it has no run limit, and on Cloud Run."),
    ] = None
