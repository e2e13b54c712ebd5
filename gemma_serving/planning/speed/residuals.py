"""Measured against planned values: expectations for the smoke checks' requests, and causes of a value outside its band.

A band of `planning.speed.bands` covers 90% of points. Checks of one server use a wider one, to avoid warnings for one healthy server in ten.
"""

from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import Band, MemoryPlan, ThroughputPlan, WorkloadPlan
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.bands import BANDS
from gemma_serving.planning.speed.serving import server_of, workload_plan

Residual: TypeAlias = Literal["within", "below", "above", "not measured"]

SMOKE_PROMPT_TOKENS: Final = 64
SMOKE_OUTPUT_TOKENS: Final = 128
"""The streams of the smoke checks (`scripts.smoke.checks_speed`): one sentence with its chat template in, 128 tokens out."""
BURST_REQUESTS: Final = 8
"""Streams of the burst of a stack's smoke checks."""
TTFT_FLOOR_S: Final = 2.0
"""A constant, not an estimate, because a first token over a tunnel, or to a distant client, may always take this long.

It applies to every estimate below 0.5 s, and so to every stack of this repository (0.01 s to 0.09 s)."""
TTFT_MARGIN: Final = 4.0
"""A first token may take this many times the planner's estimate for one short request, which excludes cold caches."""
LEAST_MARGIN: Final = 0.8
"""Minimum fraction of an estimate that a healthy server reaches, however narrow the band: `planning.speed.serving` is accurate to about 20%."""
THRESHOLD_MARGIN: Final = 0.5
"""Fraction of an estimate that a server must reach. A threshold fails a check, so it targets broken servers, not busy
ones; a value outside its band is a separate warning."""
KV_TOLERANCE: Final = 0.10
"""The planner is accurate to 5% of KV tokens. Driver and image versions may add the same difference."""


class SmokeFigures(Struct, frozen=True, kw_only=True):
    """The planner's expectations for the smoke checks' requests."""

    decode_tok_per_s: Band
    """One stream alone, after its first token."""
    ttft_s: Band | None = None
    """Seconds to the first token of one stream alone, over a possibly slow connection."""
    burst_tok_per_s: Band | None = None
    """All streams of the burst together, over a possibly slow connection."""
    tokens_per_step: float = 1.0
    """Tokens per step and stream in these figures: above 1 with speculative decoding, by the assumed acceptance."""

    def at(self, tokens_per_step: float) -> "SmokeFigures":
        """Return the figures for a measured number of tokens per step, as the time of a step does not depend on the accepted tokens."""
        share = tokens_per_step / self.tokens_per_step
        return replace(
            self,
            decode_tok_per_s=self.decode_tok_per_s.times(share),
            burst_tok_per_s=self.burst_tok_per_s and self.burst_tok_per_s.times(share),
            tokens_per_step=tokens_per_step,
        )


def smoke_figures(
    resolved: Resolved, memory: MemoryPlan, throughput: ThroughputPlan, burst_requests: int
) -> SmokeFigures:
    """Return the values of the smoke checks' requests with their bands."""
    decode, ttft, burst = smoke_bands(resolved, memory, throughput, burst_requests, LEAST_MARGIN)
    return SmokeFigures(
        decode_tok_per_s=decode, ttft_s=ttft, burst_tok_per_s=burst, tokens_per_step=throughput.tokens_per_step
    )


def smoke_bands(
    resolved: Resolved, memory: MemoryPlan, throughput: ThroughputPlan, burst_requests: int, margin: float
) -> tuple[Band, Band, Band]:
    """Return the rate of one stream, its first token, and the rate of the burst; `margin` is the minimum fraction of an estimate."""

    def load(users: int) -> WorkloadPlan:
        # The checks' own requests are shorter than the stack's workload.
        smoke = Workload(input_tokens=SMOKE_PROMPT_TOKENS, output_tokens=SMOKE_OUTPUT_TOKENS, users=users)
        return workload_plan(server_of(resolved, memory, smoke), 0.0)

    ttft = throughput.ttft_s
    alone = load(1)
    together = load(burst_requests).output_tok_per_s
    tokens = burst_requests * SMOKE_OUTPUT_TOKENS
    slowest_s = (
        tokens / min(together.low, together.typical * margin) + TTFT_FLOOR_S
    )  # over the slowest allowed connection
    return (
        decode_band(throughput.decode_tok_per_s, is_tpu=resolved.is_tpu, margin=margin),
        Band(low=0.0, typical=ttft, high=max(ttft * TTFT_MARGIN, alone.ttft_s.high, TTFT_FLOOR_S)),
        Band(low=tokens / slowest_s, typical=together.typical, high=max(together.high, together.typical / margin)),
    )


def decode_band(tok_per_s: float, *, is_tpu: bool, margin: float = LEAST_MARGIN) -> Band:
    """Return the planned rate of one stream alone with the limits for a healthy server."""
    spread = BANDS["tpot", "tpu" if is_tpu else "gpu"]
    return Band(
        low=tok_per_s * min(1 / spread.high, margin),
        typical=tok_per_s,
        high=tok_per_s * max(1 / spread.low, 1 / margin),
    )


def residual(band: Band, measured: float | None) -> Residual:
    """Return the side of its band on which a measured value is."""
    if measured is None:
        return "not measured"
    if measured < band.low:
        return "below"
    return "above" if measured > band.high else "within"


def usual_causes(figure: str, found: Residual) -> str:
    """Return usual causes of a value outside its band; empty within it. Times are worse above the band, rates below it."""
    if found == "within":
        return ""
    if found == "not measured":
        return "the check that measures it has no result"
    if figure.endswith("_s") and not figure.endswith("_per_s"):
        return _LATE if found == "above" else _FAST
    return _SLOW if found == "below" else _FAST


_SLOW: Final = (
    "usual causes: another client uses the server, it runs on another accelerator than planned, the network or the tunnel is throttled, "
    "or the checkpoint has another quantization"
)
_LATE: Final = "usual causes: other clients' requests are queued first, or the network or the tunnel is slow"
_FAST: Final = "usual causes: a smaller or more strongly quantized checkpoint than planned, a faster accelerator, or a cache in front"
