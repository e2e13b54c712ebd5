"""What the terms of a report mean. The report shows a definition where it uses the term."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term and its definition."""

    name: str
    meaning: str


TERMS: Final = {
    "load": Term(
        name="Load",
        meaning="Closed loop: requests in flight (concurrency), where each answer starts the next request. Open loop: requests sent per"
        " second (/s), whatever the server does.",
    ),
    "valid": Term(
        name="Valid",
        meaning="Not valid: too many requests failed, this client was the limit, or the figures contradict each other or the server's own."
        " Do not use the figures of such a point. Its marks are hollow, and its distribution is dashed.",
    ),
    "failed": Term(
        name="Failed",
        meaning="Requests without a complete answer, as a share of all requests. They count in no latency and no token rate. Above"
        " --max-failed the point is not valid.",
    ),
    "lengths": Term(name="In, out", meaning="Tokens of the prompt and of the answer, by the server's own count."),
    "done": Term(name="Done", meaning="Requests with a complete answer."),
    "rate": Term(name="Req/s", meaning="Complete answers per second over the whole point, until its last request ended."),
    "goodput": Term(name="Goodput", meaning="Complete answers per second that meet every limit of --slo."),
    "throughput": Term(
        name="Out tok/s",
        meaning="Output tokens of complete answers per second over the whole point. All tok/s counts the tokens of the prompts too.",
    ),
    "steady": Term(
        name="Steady",
        meaning="Without the first wave of requests, which fills an idle server, and without the last answers, which empty it.",
    ),
    "ttft": Term(
        name="TTFT",
        meaning="Time to first token: from the intended send time of a request to its first event with text, reasoning or a tool call.",
    ),
    "tpot": Term(
        name="TPOT",
        meaning="Time per output token: from the first output to the last event of the answer, divided by the output tokens after the"
        " first. One value per request.",
    ),
    "itl": Term(
        name="ITL",
        meaning="Inter-token latency: the time between neighbouring events of a stream. An event may hold several tokens. TPOT averages"
        " pauses away; ITL shows them.",
    ),
    "e2e": Term(name="E2E", meaning="End-to-end latency: from the intended send time to the last event of the answer."),
    "percentile": Term(
        name="p50, p90, p95, p99, p99.9",
        meaning="Percentiles: p99 is the value that 99 % of the requests do not exceed, and p50 is the median. p95 and p99.9 are shown"
        " from 59 and 2,995 requests on. ~ marks a p99 of fewer than 299 requests: it is little more than the slowest request.",
    ),
    "limit": Term(name="Limit", meaning="The limits of --slo, drawn as dashed lines."),
    "repeats": Term(
        name="Repeats",
        meaning="With --repeats, a point is measured several times. A mark is the mean of the repeats, and its error bar goes from the"
        " lowest to the highest.",
    ),
    "cdf": Term(
        name="Distribution",
        meaning="A line at 90 % and 120 ms says that 90 % of the requests took at most 120 ms. The steeper a line, the more alike its requests.",
    ),
    "offered": Term(
        name="Offered and achieved",
        meaning="Offered: requests sent per second. Achieved: complete answers per second, in the steady window where there is one. A server"
        " that keeps up is on the dashed line.",
    ),
    "cost": Term(name="Cost", meaning="Price per hour, divided by the output tokens of an hour at this throughput."),
    "kv": Term(
        name="KV, queue",
        meaning="The most that the server's metrics showed during the point: share of the KV cache in use, and requests waiting in its queue.",
    ),
    "kept": Term(name="Kept", meaning="Requests of a search that are complete and meet every limit of --slo."),
    "forecast": Term(
        name="Forecast", meaning="What the planner expects for this deployment: the rate that is asked for, at most the saturated rate."
    ),
    "interval": Term(
        name="Interval",
        meaning="The range that holds the true change with the stated confidence. A change counts only if its interval excludes zero and the"
        " figure moved beyond the threshold.",
    ),
}  # fmt: skip
