"""Stack outputs. Times in seconds, memory in GiB of one device, rates in tokens per second, money in US dollars."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from gemma_serving.contracts.features import ServedFeatures
from gemma_serving.contracts.fields import Doc, camel_case, detail_fields
from gemma_serving.contracts.verdicts import Verdict

Target = Literal["tpu", "cloud-run"]
Auth = Literal["id-token", "tunnel", "none"]

DETAILS_TYPE: Final = "gemma-serving:index:StackDetails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """Connection to a server without a public address."""

    argv: Annotated[tuple[str, ...], Doc("Command that forwards the local port to the server.")]
    local_port: Annotated[int, Doc("Port of this machine.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeThresholds:
    """Requirements of the smoke checks."""

    startup_budget_s: Annotated[float, Doc("Maximum wait until the server is ready.")]
    max_ttft_s: Annotated[float | None, Doc("Maximum time to first token of a single stream.")] = None
    min_decode_tok_per_s: Annotated[float | None, Doc("Minimum output rate of a single stream.")] = None
    min_burst_tok_per_s: Annotated[
        float | None, Doc("Minimum output rate of the burst, all streams together; null: measured only.")
    ] = None
    burst_requests: Annotated[int, Doc("Streams in the burst.")] = 4
    max_model_len: Annotated[int | None, Doc("Maximum length that the server must report.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Planned memory of one device, and capacity of the deployment's KV cache."""

    usable_gib: Annotated[float, Doc("Memory that the driver makes available to one process.")]
    weights_gib: Annotated[float, Doc("Weights after tensor parallelism and offload.")]
    activations_gib: Annotated[float, Doc("Activations, or compiled programs on a TPU.")]
    graphs_gib: Annotated[float, Doc("CUDA graphs.")]
    kv_gib: Annotated[float, Doc("KV cache.")]
    kv_tokens: Annotated[int, Doc("Tokens that fit in the KV cache of one engine.")]
    kv_blocks: Annotated[int, Doc("`num_gpu_blocks` as vLLM reports it.")]
    max_concurrency: Annotated[
        float, Doc("Concurrent requests of the maximum length that fit in the KV cache of one engine.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupSummary:
    """Planned seconds from the container's start to the first successful health check."""

    pull_s: Annotated[float, Doc("Image pull and process start.")]
    load_s: Annotated[float, Doc("Weights.")]
    compile_s: Annotated[float, Doc("Compilation, graph capture and warm-up.")]
    total_s: Annotated[float, Doc("Total.")]
    probe_budget_s: Annotated[int, Doc("Startup-probe budget: the total with a margin.")]
    restart_s: Annotated[float | None, Doc("Restart of the server alone, with the same compiled programs.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputSummary:
    """Planned output rates."""

    decode_tok_per_s: Annotated[float, Doc("Single request, with speculative decoding if the stack has it.")]
    saturated_tok_per_s: Annotated[float, Doc("All requests together at the best batch.")]
    tokens_per_step: Annotated[
        float,
        Doc("Tokens of one request per step: 1, and the proposals of speculative decoding assumed to be accepted."),
    ] = 1.0
    plain_tok_per_s: Annotated[float | None, Doc("Single request without speculative decoding.")] = None
    break_even_share: Annotated[
        float | None,
        Doc("Accepted share from which speculative decoding makes a single request faster; null without it."),
    ] = None
    saturated_break_even_share: Annotated[float | None, Doc("The same at the best batch.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSummary:
    """Planned cost."""

    usd_per_hour: Annotated[float, Doc("One instance or slice with all its resources.")]
    most_usd: Annotated[float | None, Doc("Maximum cost; null if an earlier release deployed.")] = None
    usd_per_million_tokens: Annotated[float, Doc("Cost per million output tokens of a single stream.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginSummary:
    """A memory limit of one device that is so close that the server may fail."""

    verdict: Annotated[Literal["may fail"], Doc("`may fail`.")]
    finding: Annotated[str, Doc("Id of the finding about the limit, such as `FIT05`.")]
    available_gib: Annotated[float, Doc("Available memory.")]
    minimum_gib: Annotated[float, Doc("Minimum: the server fails below it.")]
    recommended_gib: Annotated[float, Doc("Recommended memory.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The plan in figures. `scripts.plan --json` prints the same with snake_case keys and full findings."""

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
        MarginSummary | None, Doc("Distance to the memory limit if the server may fail; otherwise null.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOutputs:
    """All outputs of a deployed stack."""

    target: Annotated[Target, Doc("`tpu` or `cloud-run`.")]
    model: Annotated[str, Doc("Hugging Face id of the checkpoint.")]
    served_model: Annotated[str, Doc("Name to send as `model`.", is_detail=True)]
    endpoint: Annotated[str, Doc("URL. For a tunnel: its local end, `http://127.0.0.1:8000`.")]
    auth: Annotated[Auth, Doc("Authentication of callers: `id-token`, `tunnel` or `none`.")]
    image: Annotated[str, Doc("The server's image, by digest.")]
    plan: Annotated[PlanSummary, Doc("The plan in figures.", is_detail=True)]
    vllm: Annotated[Mapping[str, object], Doc("vLLM options in effect, by settings key.", is_detail=True)]
    smoke: Annotated[SmokeThresholds, Doc("Thresholds of the smoke checks.", is_detail=True)]
    labels: Annotated[Mapping[str, str], Doc("Labels of the stack's resources.", is_detail=True)]
    project: Annotated[str, Doc("Google Cloud project.", is_detail=True)]
    location: Annotated[str, Doc("Region (Cloud Run) or zone (TPU).")]
    connect: Annotated[
        str | None, Doc("Command that connects your machine to the server and prints lines to paste.")
    ] = None
    check: Annotated[str | None, Doc("Command that checks the server's health and speed.")] = None
    destroy: Annotated[
        tuple[str, ...] | None, Doc("How `pulumi destroy` ends; null unless Google then holds the stack's network.")
    ] = None
    api_key_secret: Annotated[
        str | None,
        Doc("Version in Secret Manager with the API key for callers; null if the server requires none."),
    ] = None
    tunnel: Annotated[Tunnel | None, Doc("Command and local port of the tunnel; null without one.", is_detail=True)] = (
        None
    )
    zone: Annotated[str | None, Doc("TPU: zone of the capacity; null on Cloud Run.", is_detail=True)] = None
    provisioning: Annotated[
        str | None,
        Doc(
            "TPU with an order of forms or a price ceiling: form of the capacity in use, such as `spot`; null otherwise."
        ),
    ] = None
    state: Annotated[str | None, Doc("TPU: state of the queued resource, such as `ACTIVE`; null on Cloud Run.")] = None
    phase: Annotated[str | None, Doc("TPU: last phase that the TPU VM published; null on Cloud Run.")] = None
    features: Annotated[ServedFeatures, Doc("Features beyond text.", is_detail=True)]
    container: Annotated[
        str | None,
        Doc(
            "TPU: access of the server's container to the TPU VM, as last published: `confined`, `confined-with-token: ` or "
            "`privileged: ` and the reason; null on Cloud Run."
        ),
    ] = None
    deadline: Annotated[
        str | None,
        Doc(
            "TPU: time at which Google deletes the TPU VM (RFC 3339, UTC); null without a run limit, and on Cloud Run."
        ),
    ] = None

    @property
    def engines(self) -> int:
        """Engines: the copies of the server with data parallelism."""
        copies = self.vllm.get("dataParallelSize")
        return copies if isinstance(copies, int) else 1


DETAILS: Final = frozenset(camel_case(name) for name in detail_fields(StackOutputs))
"""JSON keys of the outputs that `gemma up` does not print. They are outputs of the resource `details`."""
