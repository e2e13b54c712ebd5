"""Times to the first token of a benchmark by its rounds, which the plan does not know.

A benchmark sends one request for each user at once. These are a burst, and if all responses are equally long, the requests of the second round
arrive as their predecessors got their first tokens: in step. How long they stay in step differs between published runs, so later rounds count
as steady: at random phases of their responses.
"""

import math
from dataclasses import dataclass

from gemma_serving.planning.speed.serving import LoadedServer


def burst_s(requests: float, prompt_steps: float, step_s: float, prompt_s: float) -> float:
    """Return the mean time to the first token of `requests` requests that an idle server gets at once."""
    each = max(1 / prompt_steps, 1.0)
    group_s = max(prompt_steps, 1.0) * step_s + each * prompt_s
    groups = math.floor(requests / each)
    rest = requests - groups * each
    last_s = groups * group_s + step_s + rest * prompt_s
    # The first request starts alone, and the others wait for its step.
    alone_s = step_s * (requests - 1) / requests
    return alone_s + (each * group_s * groups * (groups + 1) / 2 + rest * last_s) / requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """How a benchmark sent its requests."""

    rounds: float | None
    """Requests for each user; None if the source does not say, so that the times are of a steady server."""
    is_mean: bool
    """Whether the time is a mean, to which the first round adds. A median is of the other rounds."""

    def times(self, server: LoadedServer, users: float) -> tuple[float, float]:
        """Return the times to the first token and per token with `users` concurrent requests on one replica, without those that wait for a place."""
        steady = server.load(users)
        if self.rounds is None:
            return steady.ttft_s, steady.tpot_s
        half, step = server.shares((users + 1) / 2), server.step((users + 1) / 2)
        prompt_s = server.extra_s(server.alone, half, together=min(users, 1 / half.prompt_steps))
        first_s = burst_s(users, half.prompt_steps, step.total_s, prompt_s) + server.outside_s
        if self.rounds < 2:
            return first_s, steady.tpot_s
        later = self.rounds - 1
        later_s = steady.ttft_s * (server.in_step_s(steady) / steady.ttft_s) ** (1 / later)
        # The rate is the same, so a response takes what its first token does not.
        token_s = steady.tpot_s - (later_s - steady.ttft_s) / server.workload.output_tokens
        token_s = max(token_s, steady.step.total_s / server.tokens_per_step)
        return ((first_s + later * later_s) / self.rounds if self.is_mean else later_s), token_s
