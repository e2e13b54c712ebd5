"""Output rates of a deployment: one request alone, and all requests together under the workload.

Roofline estimates (`planning.speed.steps`), accurate to about 20% for one request; `planning.speed.bands` has the error under load.
"""

from typing import Final, Literal

from planning.memory.weights import weights_of
from planning.question.resolved import Resolved
from planning.question.types import MemoryPlan, ThroughputPlan
from planning.question.workload import DEFAULT_WORKLOAD
from planning.speed import bands
from planning.speed.serving import server_of
from planning.speed.steps import StepTime, step_of

_SHORT_REQUEST_TOKENS: Final = 256
"""Context of the single request in the decode estimate."""
_SHORT_PROMPT_TOKENS: Final = 64
"""Prompt of the request in the estimate of time to first token: longer than the smoke check's one sentence with its chat template."""


def throughput_plan(resolved: Resolved, memory: MemoryPlan) -> ThroughputPlan:
    """Return single-request and saturated output rates of a resolved deployment."""
    weights = weights_of(resolved)
    alone = step_of(resolved, weights, memory, batch=1, tokens=_SHORT_REQUEST_TOKENS)
    prompt = step_of(resolved, weights, memory, batch=1, tokens=_SHORT_PROMPT_TOKENS, computed=_SHORT_PROMPT_TOKENS)
    server = server_of(resolved, memory, resolved.deployment.workload or DEFAULT_WORKLOAD)
    full = server.load(float(server.slots), wave=0.0)
    decode = 1 / alone.total_s
    # The single request has almost no prompt. If prompts take most of the time, it alone generates more tokens than all together.
    saturated = max(full.requests_per_s * server.workload.output_tokens, decode) * resolved.dp
    band = bands.band("rate", bands.kind_of(resolved, server.prompt), saturated)
    return ThroughputPlan(
        decode_tok_per_s=decode,
        saturated_tok_per_s=saturated,
        saturated_low_tok_per_s=band.low,
        saturated_high_tok_per_s=band.high,
        saturated_batch=server.all_slots,
        bound=_bound(alone),
        ttft_s=prompt.total_s + alone.total_s,
    )


def _bound(step: StepTime) -> Literal["memory", "compute", "pcie", "overhead"]:
    parts: dict[Literal["memory", "compute", "pcie", "overhead"], float] = {
        "memory": step.memory_s,
        "compute": step.compute_s,
        "pcie": step.link_s,
        "overhead": step.fixed_s,
    }
    return max(parts, key=lambda name: parts[name])
