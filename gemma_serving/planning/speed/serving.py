"""A deployment's results for a workload: time to the first token, time per token, rates, queues and prices; and its rates for one request.

Concurrent requests share each step (`planning.speed.sharing`), and prompts lengthen the steps that process their chunks. Requests that arrive at a rate
are at random phases of their responses, and so are users whose responses differ. Those of a benchmark are equally long and keep its users in step: their
prompts arrive together, which is the high end.
The rate is never higher than one HTTP front end passes on. Requests above max-num-seqs, the KV cache or the concurrency of Cloud Run are queued.

With data parallelism each replica is such a server. It serves an equal share of the requests, and the rates of all are added.
"""

import math
from functools import cached_property
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.memory.kv_cache import blocks_per_request, layout_of
from gemma_serving.planning.memory.speculation import Drafter, speculation_of
from gemma_serving.planning.memory.weights import WeightSizes, weights_of
from gemma_serving.planning.question.features import sized
from gemma_serving.planning.question.releases import STEPS_IN_FLIGHT, tokens_in_flight
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import (
    Band,
    Bottleneck,
    MemoryPlan,
    RequestLimit,
    ThroughputPlan,
    WorkloadPlan,
    certain,
)
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed import bands
from gemma_serving.planning.speed.prefill import Prompt, prompt_of
from gemma_serving.planning.speed.sharing import StepShares, shares_of
from gemma_serving.planning.speed.steps import StepTime, adapters_s, bytes_per_s, experts_read, sampled_s, step_of
from gemma_serving.planning.units import HOUR_S, ceil_div

_MILLION: Final = 1_000_000
_FULLEST: Final = 0.99
"""Fraction of the saturated rate above which the queue is no longer treated as stationary."""
_SEARCH_STEPS: Final = 30
_SHORT_REQUEST_TOKENS: Final = 256
"""Context of the single request in the decode estimate."""
_SHORT_PROMPT_TOKENS: Final = 64
"""Prompt of the request in the estimate of time to first token: longer than the smoke check's one sentence with its chat template."""


class Load(Struct, frozen=True, kw_only=True):
    """The server's performance with a number of concurrent requests."""

    requests: float
    requests_per_s: float
    ttft_s: float
    tpot_s: float
    step: StepTime
    is_prefill_bound: bool
    prefill_share: float
    """Fraction of the server's time that prompts take."""


class LoadedServer(Struct, frozen=True, kw_only=True, dict=True):
    """One replica of a deployment under its share of a workload; `load` computes any number of concurrent requests of this replica."""

    resolved: Resolved
    weights: WeightSizes
    memory: MemoryPlan
    workload: Workload
    prompt: Prompt
    drafter: Drafter | None
    kv_slots: int
    """Concurrent requests that fit in the KV cache while they are half done, at least 1."""
    whole_slots: int
    """Concurrent requests that fit in the KV cache at their full length, at least 1."""

    @property
    def own_slots(self) -> int:
        """Maximum concurrent requests that vLLM computes in one replica."""
        return min(self.resolved.max_num_seqs, self.kv_slots)

    @property
    def all_own_slots(self) -> int:
        """Maximum concurrent requests that vLLM computes in all replicas."""
        return self.own_slots * self.resolved.dp

    @property
    def admitted(self) -> int | None:
        """Maximum concurrent requests that Cloud Run sends to one replica; None without such a limit."""
        concurrency = self.resolved.question.cloud_run.concurrency
        on_cloud_run = self.resolved.platform == "cloud-run"
        return ceil_div(concurrency, self.resolved.dp) if on_cloud_run and concurrency else None

    @property
    def slots(self) -> int:
        """Maximum concurrent requests of one replica."""
        return self.own_slots if self.admitted is None else min(self.own_slots, self.admitted)

    @property
    def limits(self) -> tuple[RequestLimit, ...]:
        """Each limit that is equal to `slots`, vLLM's first; the KV cache only if max-num-seqs is larger."""
        slots: RequestLimit = "kv-cache" if self.kv_slots < self.resolved.max_num_seqs else "max-num-seqs"
        counts: dict[RequestLimit, int | None] = {slots: self.own_slots, "concurrency": self.admitted}
        return tuple(limit for limit, count in counts.items() if count == self.slots)

    @property
    def all_slots(self) -> int:
        """Maximum concurrent requests of all replicas."""
        return self.slots * self.resolved.dp

    def band(self, figure: bands.Figure, typical: float, unexplained: float = 0.0) -> Band:
        """Return a planned value with the ends of its class."""
        return bands.band(figure, typical, self.resolved, self.workload, unexplained)

    def rate_band(self, typical: float, load: Load) -> Band:
        """Return an output rate with its ends. The high one is that of greedy requests, which take no time of sampling."""
        sampling_s = sampled_s(self.resolved, self.shared_steps(load.requests)[0].decoding)
        greedy = load.step.total_s / (load.step.total_s - sampling_s)
        most = min(greedy, constant("API_REQUESTS_PER_S") / load.requests_per_s)
        high = self.band("rate", typical * most).high
        return replace(self.band("rate", typical, load.step.unexplained_share), high=high)

    @cached_property
    def held_tokens(self) -> float:
        """Tokens that a request holds on average during its response: the prompt and half of the response."""
        return self.prompt.tokens + self.workload.output_tokens / 2

    @cached_property
    def alone(self) -> StepTime:
        """A decoding step of one request."""
        return self.step(1.0)

    @cached_property
    def full(self) -> Load:
        """As many concurrent requests as it serves."""
        return self.load(float(self.slots))

    @cached_property
    def steps(self) -> float:
        """Decoding steps per response."""
        return max(self.workload.output_tokens / self.tokens_per_step, 1.0)

    @property
    def accepted_share(self) -> float | None:
        """Share of proposals that the model is assumed to accept; None without speculative decoding."""
        return None if self.drafter is None else self.drafter.accepted_share(self.workload.accepted_share)

    @cached_property
    def tokens_per_step(self) -> float:
        """Tokens per step and request: more than one with speculative decoding."""
        return 1 + (self.drafter.proposals if self.drafter else 0) * (self.accepted_share or 0.0)

    def step(self, requests: float, held_tokens: float | None = None) -> StepTime:
        """Return the time of a decoding step, including proposals and their verification."""
        batch, drafter = max(requests, 1.0), self.drafter
        tokens = self.held_tokens if held_tokens is None else held_tokens
        proposals = drafter.proposals if drafter else 0
        step = step_of(self.resolved, self.weights, self.memory, batch=batch, tokens=tokens, proposals=proposals)
        more_s = adapters_s(self.resolved, self.workload, batch)
        if drafter is not None and drafter.resolved is not None:
            without_offload = replace(self.memory, offloaded_gib=0.0)
            one = step_of(drafter.resolved, weights_of(drafter.resolved), without_offload, batch=batch, tokens=tokens)
            more_s += proposals * one.total_s
        return replace(step, fixed_s=step.fixed_s + more_s)

    def break_even_share(self, requests: float, held_tokens: float | None = None) -> float | None:
        """Return the accepted share with which requests decode as fast as without speculative decoding; None without it, or if its cost is unknown."""
        if self.drafter is None or self.resolved.has_unknown_drafter:
            return None
        plain = replace(self, drafter=None).step(requests, held_tokens)
        times = self.step(requests, held_tokens).total_s / plain.total_s
        return max((times - 1) / self.drafter.proposals, 0.0)

    def _hidden_s(self, step: StepTime) -> float:
        """Return the computation that a step hides behind reads, at most as in a step of one request."""
        return max(min(step.memory_s - step.compute_s, self.alone.memory_s - self.alone.compute_s), 0.0)

    def extra_s(self, step: StepTime, shares: StepShares, *, together: float) -> float:
        """Return the time that a prompt adds to the steps that it shares, if `together` prompts share one: its computation, or its experts.

        Prompts of one step hide the same reads, and use the same experts.
        """
        chunk = self.prompt.computed * max(together, 1.0) / shares.whole_steps
        alone = experts_read(self.weights, shares.decoding)
        more = experts_read(self.weights, chunk + shares.decoding)
        experts_s = shares.whole_steps * (more - alone) / bytes_per_s(self.resolved.accelerator) / max(together, 1.0)
        computed_s = self.prompt.extra_s(self._hidden_s(step), steps=shares.prompt_steps, per_step=together)
        return max(computed_s, experts_s)

    def shares(self, requests: float) -> StepShares:
        """Return how `requests` concurrent requests share steps, at least one."""
        company = min((requests - 1) / (constant("TURNAROUND_REQUESTS") - 1), 1.0)
        return shares_of(
            requests=requests,
            prompt_tokens=self.prompt.computed,
            output_steps=self.steps,
            budget_tokens=self.resolved.max_num_batched_tokens,
            tokens_per_decode=1 + (self.drafter.proposals if self.drafter else 0),
            arrival_steps=constant("TURNAROUND_STEPS") * company,
        )

    @cached_property
    def outside_s(self) -> float:
        """Time to the first token outside the steps: the HTTP server's, and that of the cached tokens of a prompt."""
        return constant("HTTP_SERVER_S") + max(self.prompt.lookup_s - self._hidden_s(self.alone), 0.0)

    def shared_steps(self, requests: float) -> tuple[StepShares, StepTime, float]:
        """Return how `requests` concurrent requests share steps, the time of a step without prompts, and what a prompt adds."""
        if requests not in self._shared_steps:
            shares = self.shares(requests)
            step = self.step(shares.decoding)
            self._shared_steps[requests] = shares, step, self.extra_s(step, shares, together=shares.prompts_per_step)
        return self._shared_steps[requests]

    @cached_property
    def _shared_steps(self) -> dict[float, tuple[StepShares, StepTime, float]]:
        """Results of `shared_steps`: each load of a server asks for those of the same few requests."""
        return {}

    def again_tokens(self, requests: float) -> float:
        """Return the tokens per response that vLLM computes again because it preempts requests that outgrow the KV cache: all, if the cache is full."""
        more = self.kv_slots - self.whole_slots
        return self.workload.output_tokens * min(max(requests - self.whole_slots, 0.0) / more, 1.0) if more else 0.0

    def again_s(self, requests: float) -> float:
        """Return the time in which vLLM computes them, per response."""
        return self.again_tokens(requests) * self.prompt.compute_s / self.prompt.computed

    def load(self, requests: float) -> Load:
        """Return the rates and times of `requests` concurrent requests, at least one."""
        shares, step, prompt_s = self.shared_steps(requests)
        token_s, again_s = shares.token_s(step.total_s, prompt_s), self.again_s(requests)
        first_s = shares.first_token_s(step.total_s, prompt_s) + self.outside_s
        request_s = 1 / shares.requests_per_s(step.total_s, prompt_s) + self.outside_s / requests
        own_rate = 1 / (request_s + again_s)  # what the devices serve
        rate = min(own_rate, constant("API_REQUESTS_PER_S"))
        prefill_s, decode_s = self.prompt.service_s(self.alone), self.steps * step.total_s / shares.decoding
        return Load(
            requests=requests,
            requests_per_s=rate,
            ttft_s=first_s + requests / rate - requests / own_rate,
            tpot_s=(token_s + requests * again_s / self.steps) / self.tokens_per_step,
            step=step,
            is_prefill_bound=requests * shares.prompt_steps > self.steps
            or requests * prompt_s > self.steps * step.total_s,
            prefill_share=prefill_s / (prefill_s + decode_s),
        )

    def in_step_s(self, load: Load) -> float:
        """Return the time to the first token of a load whose responses are equally long, so that prompts arrive together."""
        shares, step, _ = self.shared_steps(load.requests)
        together = min(load.requests, 1 / shares.prompt_steps)
        first_s = shares.in_step_s(step.total_s, self.extra_s(step, shares, together=together)) + self.outside_s
        return max(first_s, load.ttft_s)


def server_of(resolved: Resolved, memory: MemoryPlan, workload: Workload) -> LoadedServer:
    """Return the deployment under a workload."""
    workload = sized(workload, resolved)
    prompt = prompt_of(resolved, workload)
    kv_slots = max(1, _kv_slots(resolved, memory, workload, prompt))
    shared, whole = _blocks(resolved, workload, prompt, done=1.0)
    return LoadedServer(
        resolved=resolved,
        weights=weights_of(resolved),
        memory=memory,
        workload=workload,
        prompt=prompt,
        drafter=speculation_of(resolved),
        kv_slots=kv_slots,
        whole_slots=max(1, min((memory.kv_blocks - shared) // whole, kv_slots)),
    )


def _kv_slots(resolved: Resolved, memory: MemoryPlan, workload: Workload, prompt: Prompt) -> int:
    shared, separate = _blocks(resolved, workload, prompt)
    tokens = _longest_tokens(resolved, workload, prompt)
    # Only the prompts of the step in progress hold its tokens in addition to their windows, and each its own tokens at most.
    in_flight = min(tokens_in_flight(resolved), STEPS_IN_FLIGHT + math.ceil(prompt.tokens))
    more = max(_request_blocks(resolved, tokens, in_flight) - shared - separate, 0)
    computed, free = max(1 / prompt.steps, 1.0), memory.kv_blocks - shared
    few = free / (separate + more)
    return math.floor(few if few <= computed else (free - computed * more) / separate)


def _blocks(resolved: Resolved, workload: Workload, prompt: Prompt, done: float = 0.5) -> tuple[int, int]:
    """Return the blocks that all requests share, and the separate blocks of each with a part of its response."""
    whole = _request_blocks(resolved, _longest_tokens(resolved, workload, prompt, done), STEPS_IN_FLIGHT)
    shared = min(_request_blocks(resolved, prompt.cached, STEPS_IN_FLIGHT), whole) if prompt.cached else 0
    return shared, max(whole - shared, 1)


def _longest_tokens(resolved: Resolved, workload: Workload, prompt: Prompt, done: float = 0.5) -> int:
    return min(math.ceil(prompt.tokens + workload.output_tokens * done), resolved.max_model_len)


def _request_blocks(resolved: Resolved, tokens: int, in_flight: int) -> int:
    return blocks_per_request(layout_of(resolved), max_model_len=tokens, tokens_in_flight=in_flight)


def throughput_plan(server: LoadedServer) -> ThroughputPlan:
    """Return single-request and saturated output rates. For one request they are accurate to about 20%; `planning.speed.bands` has the error under load."""
    resolved = server.resolved
    weights = server.weights
    memory = server.memory
    plain = step_of(resolved, weights, memory, batch=1, tokens=_SHORT_REQUEST_TOKENS)
    prompt = step_of(resolved, weights, memory, batch=1, tokens=_SHORT_PROMPT_TOKENS, computed=_SHORT_PROMPT_TOKENS)
    alone = plain if server.drafter is None else server.step(1.0, _SHORT_REQUEST_TOKENS)
    decode = server.tokens_per_step / alone.total_s
    # The single request has almost no prompt. If prompts take most of the time, it alone generates more tokens than all together.
    saturated = max(server.full.requests_per_s * server.workload.output_tokens, decode) * resolved.dp
    band = server.rate_band(saturated, server.full)
    return ThroughputPlan(
        decode_tok_per_s=decode,
        tokens_per_step=server.tokens_per_step,
        accepted_share=server.accepted_share,
        plain_tok_per_s=1 / plain.total_s,
        break_even_share=server.break_even_share(1.0, _SHORT_REQUEST_TOKENS),
        saturated_break_even_share=server.break_even_share(float(server.slots)),
        saturated_tok_per_s=saturated,
        saturated_low_tok_per_s=band.low,
        saturated_high_tok_per_s=band.high,
        saturated_batch=server.all_slots,
        decode_sources=bands.decode_sources(resolved),
        bound=alone.bound,
        ttft_s=prompt.total_s + constant("HTTP_SERVER_S"),
    )


def workload_plan(server: LoadedServer, usd_per_hour: float) -> WorkloadPlan:
    """Return the results for the server's workload; `usd_per_hour` is of one instance or slice."""
    state = _closed(server) if server.workload.rate_per_s is None else _open(server)
    return _plan(server, state, usd_per_hour)


class _State(Struct, frozen=True, kw_only=True):
    """One replica under its share of the workload, with its queue."""

    load: Load
    users: int
    """Users of all replicas; 0 in an open loop."""
    replicas: int
    """Replicas that serve such a share. With fewer users than replicas, the others are idle."""
    running: float
    requests_per_s: float
    queued: float
    queue_s: float
    bound: Bottleneck


def _closed(server: LoadedServer) -> _State:
    users = server.workload.users or server.all_slots
    replicas = min(users, server.resolved.dp)
    running = min(users / replicas, server.slots)
    load = server.load(float(running))
    queued = users / replicas - running
    return _State(
        load=load,
        users=users,
        replicas=replicas,
        running=running,
        requests_per_s=load.requests_per_s,
        queued=queued,
        queue_s=queued / load.requests_per_s,
        bound=_bound(server, load, is_full=queued > 0),
    )


def _open(server: LoadedServer) -> _State:
    """Return the stationary state of random arrivals; above saturation, the state after one hour of arrivals."""
    rate, full = (server.workload.rate_per_s or 0.0) / server.resolved.dp, server.full
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
        replicas=server.resolved.dp,
        running=load.requests,
        requests_per_s=served,
        queued=queue_s * served,
        queue_s=queue_s,
        bound=_bound(server, full, is_full=True) if excess else "rate",
    )


def _at_rate(server: LoadedServer, rate: float) -> Load:
    """Return the load with as many concurrent requests as a rate sustains (Little's law)."""
    least = server.load(1.0)
    if least.requests_per_s >= rate:
        return replace(least, requests=rate / least.requests_per_s)
    low, high = 1.0, float(server.slots)
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if server.load(middle).requests_per_s >= rate else (middle, high)
    return server.load(high)


def _bound(server: LoadedServer, load: Load, *, is_full: bool) -> Bottleneck:
    if load.requests_per_s >= constant("API_REQUESTS_PER_S"):
        return "front-end"
    if load.is_prefill_bound:
        return "prefill"
    if is_full:
        return server.limits[0]
    return load.step.bound


def _plan(server: LoadedServer, state: _State, usd_per_hour: float) -> WorkloadPlan:
    workload = server.workload
    prompt = server.prompt
    load = state.load
    replicas, rate = state.replicas, state.requests_per_s * state.replicas
    shared, separate = _blocks(server.resolved, workload, prompt)
    held = min((shared + state.running * separate) / server.memory.kv_blocks, 1.0) if server.memory.kv_blocks else 1.0
    unexplained = load.step.unexplained_share
    ttft = server.band("ttft", load.ttft_s + state.queue_s, unexplained)
    tpot = server.band("tpot", load.tpot_s, unexplained)
    in_step_s = 0.0
    if state.users:
        # Responses of equal length keep users in step, and all may begin at the same time: a benchmark's.
        in_step_s = server.in_step_s(load) + state.queue_s
        others_s = (state.running - 1) * prompt.service_s(server.alone)
        ttft = replace(ttft, high=max(ttft.high, in_step_s + others_s))
    output = server.rate_band(rate * workload.output_tokens, load)
    if state.bound == "rate":
        output = certain(rate * workload.output_tokens)
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
        request_s=ttft.plus(tpot.times(workload.output_tokens - 1)),
        output_tok_per_s=output,
        requests_per_s=output.times(1 / workload.output_tokens),
        usd_per_million_input_tokens=price(load.prefill_share, prompt.tokens),
        usd_per_million_output_tokens=price(1 - load.prefill_share, workload.output_tokens),
        running_requests=certain(state.running * replicas),
        queued_requests=server.band("ttft", state.queued * replicas) if state.queued else certain(0.0),
        queue_s=server.band("ttft", state.queue_s, unexplained),
        kv_share=certain(held),
        prefix_hit_share=certain(prompt.cached / prompt.tokens),
        bound=state.bound,
        prompt_tokens=prompt.tokens,
        most_requests_per_s=server.full.requests_per_s * server.resolved.dp,
        most_users=server.all_slots,
        limits=server.limits,
        whole_users=server.whole_slots * server.resolved.dp,
        recomputed_tokens=server.again_tokens(load.requests),
        preemption_share=server.again_s(load.requests) * load.requests_per_s,
        front_end_requests_per_s=constant("API_REQUESTS_PER_S") * server.resolved.dp,
        not_measured=bands.not_measured(server.resolved, workload),
        in_step_ttft_s=in_step_s,
        unexplained_share=unexplained,
    )
