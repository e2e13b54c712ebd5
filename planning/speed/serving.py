"""What a deployment makes of a workload: time to the first token, time per token, rates, queues and prices.

Requests that run together share each step. An answer takes `steps` decoding steps; each prompt makes the steps that carry its chunks longer.
With n requests at a time, a request comes out each (steps x step(n) + n x extra) / n seconds, and never faster than prompts can be computed, one
chunk for each step. More requests than max-num-seqs or the KV cache allow wait in front.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from planning.data import overheads
from planning.memory.kv_cache import blocks_per_request, layout_of
from planning.memory.speculation import Drafter, speculation_of
from planning.memory.weights import WeightSizes, weights_of
from planning.question.releases import tokens_in_flight
from planning.question.resolved import Resolved
from planning.question.types import Band, Bottleneck, MemoryPlan, WorkloadPlan
from planning.question.workload import Workload
from planning.speed import bands
from planning.speed.prefill import Prompt, prompt_of
from planning.speed.steps import StepTime, adapters_s, step_of
from planning.units import HOUR_S

_MILLION: Final = 1_000_000
_FULLEST: Final = 0.99
"""Share of the saturated rate above which a queue is no longer computed as one that stands still."""
_SEARCH_STEPS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the server does with a number of requests at a time."""

    requests: float
    requests_per_s: float
    ttft_s: float
    tpot_s: float
    step: StepTime
    is_prefill_bound: bool
    prefill_share: float
    """Part of the server's time that prompts take."""


@dataclass(frozen=True, kw_only=True)
class LoadedServer:
    """A deployment under one workload; `load` answers for any number of requests at a time."""

    resolved: Resolved
    weights: WeightSizes
    memory: MemoryPlan
    workload: Workload
    prompt: Prompt
    drafter: Drafter | None
    kv_slots: int
    """Requests that the KV cache holds at a time, at least 1."""

    @property
    def slots(self) -> int:
        """Requests that are computed at a time at most."""
        return min(self.resolved.max_num_seqs, self.kv_slots)

    @cached_property
    def held_tokens(self) -> float:
        """Tokens that a request holds on average over its answer."""
        return held_tokens(self.workload, self.prompt)

    @cached_property
    def alone(self) -> StepTime:
        """A decoding step of one request."""
        return self.step(1.0)

    @cached_property
    def steps(self) -> float:
        """Decoding steps of one answer."""
        return max(self.workload.output_tokens / self.tokens_per_step, 1.0)

    @cached_property
    def tokens_per_step(self) -> float:
        """Tokens that a step gives each request: more than one with speculative decoding."""
        if self.drafter is None:
            return 1.0
        return 1 + self.drafter.proposals * self.drafter.accepted_share(self.workload.accepted_share)

    def step(self, requests: float) -> StepTime:
        """Return the time of a decoding step, proposals and their verification included."""
        batch, tokens = max(requests, 1.0), self.held_tokens
        proposals = self.drafter.proposals if self.drafter else 0
        step = step_of(
            self.resolved, self.weights, self.memory, batch=batch, tokens=tokens, computed=batch * (1 + proposals)
        )
        more_s = adapters_s(self.resolved, self.workload, batch)
        if self.drafter is not None and self.drafter.resolved is not None:
            drafter = self.drafter.resolved
            without_offload = replace(self.memory, offloaded_gib=0.0)
            one = step_of(drafter, weights_of(drafter), without_offload, batch=batch, tokens=tokens)
            more_s += proposals * one.total_s
        return replace(step, fixed_s=step.fixed_s + more_s)

    def _hidden_s(self, step: StepTime) -> float:
        """Return the arithmetic that a step hides behind reading, at most what a step of one request hides."""
        return max(min(step.memory_s - step.compute_s, self.alone.memory_s - self.alone.compute_s), 0.0)

    def load(self, requests: float, *, wave: float) -> Load:
        """Return the rates and times of `requests` at a time, at least one; `wave` is how far they arrive together, 0 to 1."""
        prompt, steps = self.prompt, self.steps
        decoding = min(requests, max(steps / prompt.steps, 1.0))
        step = self.step(decoding)
        together_step = self.step(requests)
        extra_s = prompt.extra_s(self._hidden_s(together_step), per_step=requests / steps)
        company = min((requests - 1) / (overheads.TURNAROUND_REQUESTS - 1), 1.0)
        turns = prompt.whole_steps + 1 + (overheads.TURNAROUND_STEPS - 1) * company
        lookup_s = prompt.cached_s(self._hidden_s(self.alone))
        cycle_s = (steps + turns - 1) * together_step.total_s + requests * extra_s + lookup_s
        fullest_extra_s = prompt.extra_s(self._hidden_s(step), per_step=1 / prompt.steps)
        most_per_s = 1 / (prompt.steps * step.total_s + fullest_extra_s)
        fills_steps = requests * prompt.steps > steps
        rate = min(most_per_s, requests / cycle_s) if fills_steps else requests / cycle_s
        # Prompts that fill every step cannot arrive together: the wave flattens as they come to it.
        together = wave * max(1 - requests * prompt.steps / steps, 0.0)
        interference_s = fullest_extra_s / prompt.steps
        if not fills_steps:
            interference_s = min((decoding - 1) * extra_s / steps, interference_s)
        step_s = step.total_s + (1 - together / 2) * max(interference_s, 0.0)
        waiting_s = wave * _waiting_prompts(requests, steps / prompt.steps) * prompt.service_s(self.alone)
        ttft_s = max(turns * step.total_s + extra_s + waiting_s + lookup_s, requests / rate - steps * step_s)
        prefill_s, decode_s = prompt.service_s(self.alone), steps * step.total_s / decoding
        return Load(
            requests=requests,
            requests_per_s=rate,
            ttft_s=ttft_s,
            tpot_s=step_s / self.tokens_per_step,
            step=step,
            is_prefill_bound=fills_steps or requests * extra_s > steps * step.total_s,
            prefill_share=prefill_s / (prefill_s + decode_s),
        )


def _waiting_prompts(requests: float, most: float) -> float:
    """Return the prompts in front of the average one if all arrive together; `most` requests at a time fill every step with prompts.

    The wave flattens towards that. The time to the first token does not shrink with further requests, so its highest point is kept.
    """
    highest = min(requests, max((most + 1) / 2, 1.0))
    return max((highest - 1) / 2 * (1 - highest / most), 0.0)


def server_of(resolved: Resolved, memory: MemoryPlan, workload: Workload) -> LoadedServer:
    """Return the deployment under a workload."""
    prompt = prompt_of(resolved, workload)
    return LoadedServer(
        resolved=resolved,
        weights=weights_of(resolved),
        memory=memory,
        workload=workload,
        prompt=prompt,
        drafter=speculation_of(resolved),
        kv_slots=max(1, _kv_slots(resolved, memory, workload, prompt)),
    )


def held_tokens(workload: Workload, prompt: Prompt) -> float:
    """Return the tokens that a request holds on average over its answer: the prompt and half of the answer."""
    return prompt.tokens + workload.output_tokens / 2


def _kv_slots(resolved: Resolved, memory: MemoryPlan, workload: Workload, prompt: Prompt) -> int:
    shared, own = _blocks(resolved, workload, prompt)
    return (memory.kv_blocks - shared) // own


def _blocks(resolved: Resolved, workload: Workload, prompt: Prompt) -> tuple[int, int]:
    """Return the blocks that all requests share, and those that each of them has for itself."""
    layout = layout_of(resolved)

    def blocks(tokens: int) -> int:
        return blocks_per_request(layout, max_model_len=tokens, tokens_in_flight=tokens_in_flight(resolved))

    whole = blocks(min(math.ceil(held_tokens(workload, prompt)), resolved.max_model_len))
    shared = min(blocks(prompt.cached), whole) if prompt.cached else 0
    return shared, max(whole - shared, 1)


def saturation_batch(resolved: Resolved, memory: MemoryPlan, workload: Workload) -> int:
    """Return the requests of a workload that run together: as many as max-num-seqs and the KV cache allow."""
    return server_of(resolved, memory, workload).slots


def workload_plan(resolved: Resolved, memory: MemoryPlan, usd_per_hour: float, workload: Workload) -> WorkloadPlan:
    """Return what a resolved deployment makes of a workload.

    Args:
        resolved: The deployment.
        memory: Its memory (`planning.memory.budget.memory_plan`).
        usd_per_hour: The price of one instance or slice.
        workload: What clients ask, which may be another workload than that of the deployment.
    """
    server = server_of(resolved, memory, workload)
    full = server.load(float(server.slots), wave=0.0)
    state = _open(server, full) if workload.rate_per_s is not None else _closed(server)
    return _plan(server, state, full, usd_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The server under its workload, and who waits in front of it."""

    load: Load
    users: int
    running: float
    requests_per_s: float
    queued: float
    queue_s: float
    bound: Bottleneck


def _closed(server: LoadedServer) -> _State:
    users = server.workload.users or server.slots
    running = min(users, server.slots)
    load = server.load(float(running), wave=overheads.WAVE_SHARE)
    queued = users - running
    return _State(
        load=load,
        users=users,
        running=running,
        requests_per_s=load.requests_per_s,
        queued=queued,
        queue_s=queued / load.requests_per_s,
        bound=_bound(server, load, is_full=queued > 0),
    )


def _open(server: LoadedServer, full: Load) -> _State:
    """Return the state that arrivals at random settle in; above saturation, that of the requests that arrive within one hour."""
    rate = server.workload.rate_per_s or 0.0
    share = min(rate / full.requests_per_s, _FULLEST)
    load = _at_rate(server, share * full.requests_per_s)
    service_s = server.prompt.service_s(server.alone)
    busy = min(load.requests_per_s * service_s, _FULLEST)
    prompts_s = busy * service_s / (2 * (1 - busy))
    slots = server.slots
    full_share = min(load.requests / slots, _FULLEST)
    places_s = full_share ** math.sqrt(2 * (slots + 1)) / (1 - full_share) / full.requests_per_s / 2
    excess = max(rate - full.requests_per_s, 0.0)
    growing_s = excess * HOUR_S / 2 / full.requests_per_s
    queue_s = places_s + growing_s
    served = min(rate, full.requests_per_s)
    return _State(
        load=replace(load, ttft_s=load.ttft_s + prompts_s),
        users=0,
        running=load.requests,
        requests_per_s=served,
        queued=queue_s * served,
        queue_s=queue_s,
        bound=_bound(server, full, is_full=True) if excess else "rate",
    )


def _at_rate(server: LoadedServer, rate: float) -> Load:
    """Return the load with as many requests at a time as a rate keeps there (Little's law)."""
    least = server.load(1.0, wave=0.0)
    if least.requests_per_s >= rate:
        return replace(least, requests=rate / least.requests_per_s)
    low, high = 1.0, float(server.slots)
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if server.load(middle, wave=0.0).requests_per_s >= rate else (middle, high)
    return server.load(high, wave=0.0)


def _bound(server: LoadedServer, load: Load, *, is_full: bool) -> Bottleneck:
    if load.is_prefill_bound:
        return "prefill"
    if is_full:
        return "kv-cache" if server.kv_slots < server.resolved.max_num_seqs else "max-num-seqs"
    step = load.step
    parts: dict[Bottleneck, float] = {
        "memory": step.memory_s,
        "compute": step.compute_s,
        "pcie": step.link_s,
        "overhead": step.fixed_s,
    }
    return max(parts, key=lambda name: parts[name])


def _plan(server: LoadedServer, state: _State, full: Load, usd_per_hour: float) -> WorkloadPlan:
    workload, prompt, load = server.workload, server.prompt, state.load
    kind = bands.kind_of(server.resolved, prompt)
    rate = state.requests_per_s
    shared, own = _blocks(server.resolved, workload, prompt)
    held = min((shared + state.running * own) / server.memory.kv_blocks, 1.0) if server.memory.kv_blocks else 1.0
    tpot = bands.band("tpot", kind, load.tpot_s)
    ttft = bands.band("ttft", kind, load.ttft_s + state.queue_s)
    output = bands.band("rate", kind, rate * workload.output_tokens)
    if state.bound == "rate":
        output = _certain(rate * workload.output_tokens)
    usd_per_request = usd_per_hour / HOUR_S / rate

    def price(share: float, tokens: int) -> Band:
        typical = usd_per_request * share / tokens * _MILLION
        return Band(
            low=typical * (output.typical / output.high),
            typical=typical,
            high=typical * (output.typical / output.low),
        )

    return WorkloadPlan(
        workload=workload,
        users=state.users,
        ttft_s=ttft,
        tpot_s=tpot,
        request_s=_sum(ttft, tpot, workload.output_tokens - 1),
        output_tok_per_s=output,
        requests_per_s=output.times(1 / workload.output_tokens),
        usd_per_million_input_tokens=price(load.prefill_share, prompt.tokens),
        usd_per_million_output_tokens=price(1 - load.prefill_share, workload.output_tokens),
        running_requests=_running(server, state, kind),
        queued_requests=bands.band("ttft", kind, state.queued) if state.queued else _certain(0.0),
        queue_s=bands.band("ttft", kind, state.queue_s),
        kv_share=_certain(held),
        prefix_hit_share=_certain(prompt.cached / prompt.tokens),
        bound=state.bound,
        prompt_tokens=prompt.tokens,
        most_requests_per_s=full.requests_per_s,
        most_users=server.slots,
    )


def _running(server: LoadedServer, state: _State, kind: bands.Kind) -> Band:
    """Return the requests that run: certain in a closed loop, as uncertain as the time of a token in an open one."""
    if state.users:
        return _certain(state.running)
    band = bands.band("tpot", kind, state.running)
    return Band(low=band.low, typical=band.typical, high=max(min(band.high, float(server.slots)), band.typical))


def _certain(value: float) -> Band:
    return Band(low=value, typical=value, high=value)


def _sum(first: Band, second: Band, times: int) -> Band:
    return Band(
        low=first.low + times * second.low,
        typical=first.typical + times * second.typical,
        high=first.high + times * second.high,
    )
