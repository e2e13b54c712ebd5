"""How prompts and decoding requests share the engine's steps, counted in steps.

vLLM's scheduler (v1/core/sched/scheduler.py) fills a step up to max-num-batched-tokens: first each running request in order of arrival, with one
token (and the proposals that it verifies) or the next chunk of its prompt, then waiting requests, first come, first served. So only one
prompt at a time is computed in part, prompts wait for each other but never for decoding requests, and decoding requests never wait.

With asynchronous scheduling, a step is scheduled while the one before it runs. A request that arrives then waits for both.

The time that steps take is not part of this module: a wait is a number of steps, so it is the same on every accelerator. `dev.judges.real_vllm.scheduler`
counts the steps of vLLM's own scheduler, and `tests/planning/test_sharing.py` compares.
"""

import math

from msgspec import Struct


class StepShares(Struct, frozen=True, kw_only=True):
    """Steps of the average request among `requests` concurrent ones, whose clients send the next one when a response ends."""

    requests: float
    prompt_steps: float
    """Steps that a prompt fills, beside decoding requests, as a fraction: short prompts share a step."""
    arrival_steps: float
    """Steps between the arrival of a request and the first step that can have its prompt."""
    queue_steps: float
    """Steps after that in which earlier prompts leave no room for it."""
    decoding_steps: float
    """Steps of a response after its first token."""

    @property
    def whole_steps(self) -> int:
        """Steps from the first chunk of a prompt to its last one."""
        return max(math.ceil(self.prompt_steps), 1)

    @property
    def cycle_steps(self) -> float:
        """Steps from the arrival of a request to that of its user's next one."""
        return self.arrival_steps + self.queue_steps + self.whole_steps + self.decoding_steps

    @property
    def prompts_per_step(self) -> float:
        """Prompts that arrive during a step on average, as many as are computed."""
        return self.requests / self.cycle_steps

    @property
    def decoding(self) -> float:
        """Requests that decode in the average step, at least one."""
        return max(self.prompts_per_step * self.decoding_steps, 1.0)

    @property
    def others_per_step(self) -> float:
        """Prompts of other requests that are computed during a step in which a request's own is not."""
        elsewhere = self.cycle_steps - self.prompt_steps
        return (self.requests - 1) / elsewhere if elsewhere > 0 else 0.0

    @property
    def together(self) -> float:
        """Prompts that get their first token in the same step as a request, itself included."""
        return 1 + min(self.others_per_step, max(1 / self.prompt_steps - 1, 0.0))

    def first_token_s(self, step_s: float, prompt_s: float) -> float:
        """Return the mean time to the first token, if a step takes `step_s` and a prompt adds `prompt_s` to the steps that it shares."""
        arrival_s = self.arrival_steps * self.token_s(step_s, prompt_s)
        queue_s = self.queue_steps * (step_s + prompt_s / self.prompt_steps)
        return arrival_s + queue_s + self.whole_steps * step_s + self.together * prompt_s

    def in_step_s(self, step_s: float, prompt_s: float) -> float:
        """Return the mean time to the first token of requests that arrive in step: as many together as a step has room for, one such group after the other."""
        each, arrival = 1 / self.prompt_steps, self.arrival_steps
        full_s = step_s + each * prompt_s
        groups = max(self.requests / each, 1.0)
        # The groups behind one compute their prompts while its next requests arrive; the last groups have fewer behind them.
        behind = max(arrival * (1 - (arrival + 1) / 2 / groups), 0.0)
        elsewhere = self.decoding_steps + arrival + self.whole_steps
        queue_s = max(self.requests * self.prompt_steps - elsewhere, 0.0) * full_s
        own_s = self.whole_steps * step_s + max(min(self.requests, each), 1.0) * prompt_s
        return behind * full_s + (arrival - behind) * step_s + queue_s + own_s

    def token_s(self, step_s: float, prompt_s: float) -> float:
        """Return the mean time of a step of a decoding request, with the prompts of others."""
        return step_s + self.others_per_step * prompt_s

    def requests_per_s(self, step_s: float, prompt_s: float) -> float:
        """Return the rate: the prompts of an average step over its time."""
        return self.prompts_per_step / (step_s + self.prompts_per_step * prompt_s)


def shares_of(
    *,
    requests: float,
    prompt_tokens: float,
    output_steps: float,
    budget_tokens: int,
    tokens_per_decode: int,
    arrival_steps: float,
) -> StepShares:
    """Return the shares of `requests` concurrent requests, at least one, at random phases of their responses.

    `prompt_tokens`: to compute, without those in the prefix cache. `budget_tokens`: max-num-batched-tokens. `tokens_per_decode`: 1, and the proposals of
    a step. The queue is that of one server and `requests` customers with equal service, whose mean wait is a root of the quadratic that
    Schweitzer's approximation of mean value analysis gives, with half of the service in progress left at an arrival.
    """
    others = (requests - 1) * tokens_per_decode
    decoded = output_steps * tokens_per_decode
    # Decoding requests take tokens of each step, but not more than leave room for as many prompts as there are responses.
    taken = min(others, budget_tokens * decoded / (decoded + prompt_tokens))
    prompt_steps = prompt_tokens / max(budget_tokens - taken, 1.0)
    decoding_steps = max(output_steps - 1, 0.0)
    elsewhere = decoding_steps + arrival_steps + max(math.ceil(prompt_steps), 1) - prompt_steps
    spare = elsewhere - requests * prompt_steps
    product = prompt_steps * (elsewhere - (requests - 1) * prompt_steps / 2)
    root = math.sqrt(max(spare * spare + 4 * product, 0.0))
    return StepShares(
        requests=requests,
        prompt_steps=prompt_steps,
        arrival_steps=arrival_steps,
        # No approximation: at most 1 / prompt_steps prompts are computed in a step.
        queue_steps=max((root - spare) / 2, -spare, prompt_steps) - prompt_steps,
        decoding_steps=decoding_steps,
    )
