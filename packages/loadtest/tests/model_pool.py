"""A load generator and a server of known capacity on a clock of their own: the same load gives the same times on every machine.

`ModelPool` replaces `loadtest.generator.pool.WorkerPool`. The server answers so many requests at once, each with the same time to the
first token and the same time per token; the others wait in the order of their arrival. It judges requests as the load generator does,
every half second of its clock, and ends when the judge says so. What it returns goes through the real arithmetic of a point.
"""

import heapq
from array import array
from dataclasses import dataclass, replace

from loadtest.generator.load import arrival_count, arrivals
from loadtest.records import RequestRecord, WorkerResult


def planted_record(index, at_s, times_s, **more):
    """A complete request, sent when it was due, with an event and a token at each of these times."""
    fields = {
        "index": index, "intended_s": at_s, "sent_s": at_s, "end_s": max(times_s, default=at_s), "times_s": array("d", times_s),
        "prompt_tokens": 16, "output_tokens": len(times_s), "cached_tokens": None, "error": None,
    }  # fmt: skip
    return RequestRecord(**(fields | more))


def planted_result(records, **more):
    """Report of a process of the load generator after these requests."""
    fields = {
        "records": tuple(records), "lags_s": array("d"), "cpu_s": 1.0, "wall_s": 10.0, "stale_retries": 0, "shed": 0, "gave_up": None,
        "simulated": True,
    }  # fmt: skip
    return WorkerResult(**(fields | more))


@dataclass(frozen=True, kw_only=True)
class ModelServer:
    ttft_s: float
    tpot_s: float
    slots: int | None = None
    """Requests at once; None for any number."""

    def held_s(self, tokens):
        """How long one request holds its slot."""
        return self.ttft_s + (tokens - 1) * self.tpot_s

    def record(self, index, at_s, free, tokens, prompt_tokens):
        start_s = max(at_s, heapq.heappop(free)) if free is not None else at_s
        times = [start_s + self.ttft_s + step * self.tpot_s for step in range(tokens)]
        if free is not None:
            heapq.heappush(free, times[-1])
        return planted_record(index, at_s, times, prompt_tokens=prompt_tokens, asked_tokens=tokens)

    def _free(self):
        return None if self.slots is None else [0.0] * self.slots

    def at_rate(self, times_s, tokens, prompt_tokens=32):
        """What happens to requests that arrive at these times."""
        free = self._free()
        return [self.record(index, at_s, free, tokens, prompt_tokens) for index, at_s in enumerate(times_s)]

    def of_users(self, users, requests, tokens, prompt_tokens):
        """What happens to users that each send the next request when the last is answered."""
        free, ready, records = self._free(), [(0.0001 * user, user) for user in range(users)], []
        while ready and len(records) < requests:
            at_s, user = heapq.heappop(ready)
            records.append(self.record(len(records), at_s, free, tokens, prompt_tokens))
            heapq.heappush(ready, (records[-1].end_s, user))
        return records


class ModelPool:
    def __init__(self, server, late_s=lambda _share: 0.0):
        self.server, self.late_s = server, late_s

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def run(self, shares, *, limit_s, progress):
        (share,) = shares
        source, rate = share.source, share.rate_per_s
        tokens, prompt_tokens = source.output_tokens, source.recipe.count
        if rate is None:
            records = self.server.of_users(share.concurrency, share.requests, tokens, prompt_tokens)
        else:
            count = arrival_count(rate, share.requests, share.duration_s)
            records = self.server.at_rate(
                arrivals(rate, count, source.recipe.seed, poisson=share.poisson), tokens, prompt_tokens
            )
        late_s = self.late_s(share)
        if late_s:  # the client sends and reads late; the server is not slower
            records = [
                replace(r, sent_s=r.sent_s + late_s, end_s=r.end_s + late_s, times_s=array("d", [t + late_s for t in r.times_s]))
                for r in records
            ]  # fmt: skip
        end_s = max(record.end_s for record in records)
        progress(len(records), 0)
        return [planted_result(records, lags_s=array("d", [late_s] * 100), cpu_s=0.01 * end_s, wall_s=end_s)]
