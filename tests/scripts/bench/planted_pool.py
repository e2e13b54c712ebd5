"""A load generator without a clock: it answers at once with what a server of known capacity would have done."""

from array import array

from scripts.bench.load import arrivals
from scripts.bench.pool import WorkerPool
from scripts.bench.records import RequestRecord, WorkerResult

TOLD_TOGETHER = 10
"""Verdicts of one message, as a worker sends those of a moment together."""


class PlantedPool(WorkerPool):
    """Serves each share with `slots` streams at once, of `stream_s` seconds each. The others wait in line."""

    def __init__(self, slots, stream_s):
        super().__init__()
        self._slots, self._stream_s = slots, stream_s

    async def run(self, shares, *, limit_s, progress, judge=None):
        """Return the records of the one share, until the judge ends it."""
        (share,) = shares
        records, told = [], []
        for record in self._records(share):
            records.append(record)
            progress(len(records), 0)
            if judge is None:
                continue
            told.append((record.index, share.objective.kept_by(record)))
            if len(told) == TOLD_TOGETHER:
                if judge(told) is not None:
                    break
                told = []
        return [
            WorkerResult(
                records=tuple(records),
                lags_s=array("d", [0.0]),
                cpu_s=0.0,
                wall_s=records[-1].end_s,
                stale_retries=0,
                shed=0,
                gave_up=None,
                simulated=True,
            )
        ]

    def _records(self, share):
        tokens = share.body["max_tokens"]
        free_s, users_s = [0.0] * self._slots, [0.0] * share.concurrency
        sent_s = None
        if share.rate_per_s is not None:
            sent_s = arrivals(share.rate_per_s, share.requests, share.recipe.seed, poisson=share.poisson)
        for index in range(share.requests):
            user = index % share.concurrency
            at_s = users_s[user] if sent_s is None else sent_s[index]
            slot = min(range(self._slots), key=free_s.__getitem__)
            began_s = max(at_s, free_s[slot])
            end_s = free_s[slot] = users_s[user] = began_s + self._stream_s
            step_s = self._stream_s / tokens
            yield RequestRecord(
                index=index,
                intended_s=at_s,
                sent_s=at_s,
                connect_s=0.0,
                end_s=end_s,
                times_s=array("d", [began_s + step_s * (number + 1) for number in range(tokens)]),
                prompt_tokens=share.recipe.count,
                output_tokens=tokens,
                cached_tokens=None,
                error=None,
                asked_tokens=tokens,
            )
