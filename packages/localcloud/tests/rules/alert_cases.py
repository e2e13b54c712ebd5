"""The alert expressions of a serving stack, each with a series that rings and one that does not.

A part of a series is scraped every 30 seconds from its first to its last minute. A case lasts until its last minute; then its alert fires, or
does not.
"""

from dataclasses import dataclass, field

S = '{namespace="g"}'
START_S = 1_800_000_000
"""Time of the first scrape of each case, on the grid of 30 seconds."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one target answers during some minutes: samples by name, each as (first value, growth per scrape)."""

    minutes: tuple[float, float]
    samples: dict[str, tuple[float, float]] = field(default_factory=dict)
    up: bool | None = True
    """None: not a scrape; only the clock goes on."""
    instance: str = "i1"


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    expression: str
    for_s: float
    rings: list[Part]
    silent: list[Part]


def _burn(long: str, short: str, factor: float) -> str:
    def errors(window: str) -> str:
        bucket = (
            f'sum by (namespace) (rate(vllm:time_to_first_token_seconds_bucket{{namespace="g",le="2.5"}}[{window}]))'
        )
        return f"(1 - {bucket} / sum by (namespace) (rate(vllm:time_to_first_token_seconds_count{S}[{window}]))) > {factor} * 0.01"

    return f"{errors(long)} and {errors(short)}"


_CAPACITY = 'vllm:num_requests_waiting_by_reason{reason="capacity"}'
_DEFERRED = 'vllm:num_requests_waiting_by_reason{reason="deferred"}'
_WAITING, _RUNNING, _TOKENS = "vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:generation_tokens_total"
_GOOD, _ALL = 'vllm:time_to_first_token_seconds_bucket{le="2.5"}', "vllm:time_to_first_token_seconds_count"
_STOPPED, _FAILED = (
    'vllm:request_success_total{finished_reason="stop"}',
    'vllm:request_success_total{finished_reason="error"}',
)
_OK, _5XX = 'http_requests_total{status="2xx"}', 'http_requests_total{status="5xx"}'
_BILLED = 'run_googleapis_com:container_billable_instance_time{service_name="g"}'
"""Seconds. Google writes it with its own labels; the collector's are not in it."""
_RESTARTS = "gemma_serving_restarts_total"
_STARTED, _DEADLINE = "process_start_time_seconds", "gemma_serving_deadline_timestamp_seconds"

WAS_UP = f"on (namespace) max by (namespace) (up{S} offset 5m) == 1"
QUEUE_WAITING = (
    'sum by (namespace) (vllm:num_requests_waiting_by_reason{namespace="g",reason="capacity"} or '
    f"vllm:num_requests_waiting{S} unless on (namespace, instance) vllm:num_requests_waiting_by_reason{S}) > 0"
)
QUEUE_STUCK = (
    f"min by (namespace, engine) (min_over_time(vllm:num_requests_waiting{S}[5m])) > 0 and on (namespace, engine) "
    f"sum by (namespace, engine) (rate(vllm:generation_tokens_total{S}[5m])) == 0 and {WAS_UP}"
)
IDLE = (
    f"sum by (namespace) (increase(vllm:request_success_total{S}[30m])) == 0 and on (namespace) "
    f"max by (namespace) (max_over_time(vllm:num_requests_running{S}[30m])) == 0 and on (namespace) "
    f"max by (namespace) (max_over_time(up{S}[1h] offset 30m))"
)
RESTART_LOOP = (
    f"changes(max by (namespace) (process_start_time_seconds{S})[30m:30s]) >= 3 or on (namespace) "
    f"sum by (namespace) (increase(gemma_serving_restarts_total{S}[30m])) >= 3"
)
"""The largest start time of all instances: an instance that Cloud Run replaces is a new series."""
INSTANCE_DOWN = (
    'max by (namespace) (up{namespace="g",job!="agent"}) == 0 and on (namespace) '
    'max by (namespace) (max_over_time(up{namespace="g",job!="agent"}[1d])) == 1'
)
METRICS_GONE = f"max by (namespace) (last_over_time(up{S}[1d])) unless on (namespace) up{S}"
NOT_SERVING = (
    f"max by (namespace, engine) (vllm:num_requests_running{S}) > 0 and on (namespace, engine) "
    f"sum by (namespace, engine) (increase(vllm:generation_tokens_total{S}[5m])) == 0 and "
    f"on (namespace) max by (namespace) (up{S}) == 1 and {WAS_UP}"
)
"""The server answers, requests of an engine run, and none of its tokens come."""


def engines(samples: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return the samples of engine 1, beside engine 0 that has no queue and serves."""
    healthy = {_WAITING: (0, 0), _RUNNING: (1, 0), _TOKENS: (900, 3)}
    return {
        f'{name}{{engine="{engine}"}}': values
        for engine, found in enumerate((healthy, samples))
        for name, values in found.items()
    }


CASES = [
    Case(
        name="QueueWaiting",
        expression=QUEUE_WAITING,
        for_s=30,
        rings=[Part(minutes=(0, 2), samples={_CAPACITY: (3, 0), _WAITING: (3, 0)})],
        silent=[Part(minutes=(0, 2), samples={_CAPACITY: (0, 0), _DEFERRED: (3, 0), _WAITING: (3, 0)})],
    ),
    Case(
        name="QueueWaiting without reasons",
        expression=QUEUE_WAITING,
        for_s=30,
        rings=[Part(minutes=(0, 2), samples={_WAITING: (3, 0)})],
        silent=[Part(minutes=(0, 2), samples={_WAITING: (0, 0)})],
    ),
    Case(
        name="QueueWaiting, a burst",
        expression=QUEUE_WAITING,
        for_s=30,
        rings=[Part(minutes=(0, 0.5), samples={_WAITING: (3, 0)})],
        silent=[Part(minutes=(0, 0.5), samples={_WAITING: (0, 3)})],
    ),
    Case(
        name="QueueStuck",
        expression=QUEUE_STUCK,
        for_s=0,
        rings=[Part(minutes=(0, 6), samples=engines({_WAITING: (2, 0), _TOKENS: (900, 0)}))],
        silent=[Part(minutes=(0, 6), samples=engines({_WAITING: (2, 0), _TOKENS: (900, 1)}))],
    ),
    Case(
        name="QueueStuck, a new server",
        expression=QUEUE_STUCK,
        for_s=0,
        rings=[Part(minutes=(0, 5), samples={_WAITING: (2, 0), _TOKENS: (0, 0)})],
        silent=[Part(minutes=(0, 4.5), samples={_WAITING: (2, 0), _TOKENS: (0, 0)})],
    ),
    Case(
        name="KvCacheNearlyFull",
        expression=f"max by (namespace) (vllm:kv_cache_usage_perc{S}) > 0.85",
        for_s=120,
        rings=[Part(minutes=(0, 3), samples={"vllm:kv_cache_usage_perc": (0.95, 0)})],
        silent=[Part(minutes=(0, 3), samples={"vllm:kv_cache_usage_perc": (0.85, 0)})],
    ),
    Case(
        name="KvCacheNearlyFull, a burst",
        expression=f"max by (namespace) (vllm:kv_cache_usage_perc{S}) > 0.85",
        for_s=120,
        rings=[Part(minutes=(0, 2), samples={"vllm:kv_cache_usage_perc": (0.95, 0)})],
        silent=[Part(minutes=(0, 1.5), samples={"vllm:kv_cache_usage_perc": (0.95, 0)})],
    ),
    Case(
        name="Preemptions",
        expression=f"sum by (namespace) (increase(vllm:num_preemptions_total{S}[10m])) > 10",
        for_s=0,
        rings=[Part(minutes=(0, 12), samples={"vllm:num_preemptions_total": (0, 1)})],
        silent=[Part(minutes=(0, 12), samples={"vllm:num_preemptions_total": (500, 0.4)})],
    ),
    Case(
        name="EngineErrors",
        expression='sum by (namespace) (increase(vllm:request_success_total{namespace="g",finished_reason="error"}[5m])) > 0',
        for_s=0,
        rings=[Part(minutes=(0, 6), samples={_FAILED: (0, 0.2), _STOPPED: (0, 5)})],
        silent=[Part(minutes=(0, 6), samples={_FAILED: (7, 0), _STOPPED: (0, 5)})],
    ),
    Case(
        name="HttpErrors",
        expression='sum by (namespace) (rate(http_requests_total{namespace="g",status="5xx"}[5m])) / '
        f"sum by (namespace) (rate(http_requests_total{S}[5m])) > 0.05",
        for_s=0,
        rings=[Part(minutes=(0, 6), samples={_OK: (0, 90), _5XX: (0, 10)})],
        silent=[Part(minutes=(0, 6), samples={_OK: (0, 96), _5XX: (0, 4)})],
    ),
    Case(
        name="TtftFastBurn",
        expression=_burn("1h", "5m", 14.4),
        for_s=0,
        rings=[Part(minutes=(0, 65), samples={_GOOD: (0, 80), _ALL: (0, 100)})],
        silent=[  # the budget burned for most of the hour, and no longer does
            Part(minutes=(0, 55), samples={_GOOD: (0, 80), _ALL: (0, 100)}),
            Part(minutes=(55.5, 65), samples={_GOOD: (8880, 100), _ALL: (11100, 100)}),
        ],
    ),
    Case(
        name="TtftSlowBurn",
        expression=_burn("6h", "30m", 6),
        for_s=0,
        rings=[Part(minutes=(0, 361), samples={_GOOD: (0, 92), _ALL: (0, 100)})],
        silent=[Part(minutes=(0, 361), samples={_GOOD: (0, 95), _ALL: (0, 100)})],
    ),
    Case(
        name="Idle",
        expression=IDLE,
        for_s=0,
        rings=[Part(minutes=(0, 32), samples={_STOPPED: (40, 0), _RUNNING: (0, 0)})],
        silent=[Part(minutes=(0, 32), samples={_STOPPED: (40, 0), _RUNNING: (1, 0)})],
    ),
    Case(
        name="Idle, a new server",
        expression=IDLE,
        for_s=0,
        rings=[Part(minutes=(0, 30), samples={_STOPPED: (0, 0), _RUNNING: (0, 0)})],
        silent=[Part(minutes=(0, 29), samples={_STOPPED: (0, 0), _RUNNING: (0, 0)})],
    ),
    Case(
        name="Idle, down for a while",
        expression=IDLE,
        for_s=0,
        rings=[
            Part(minutes=(0, 9.5), samples={_STOPPED: (40, 0), _RUNNING: (0, 0)}),
            Part(minutes=(10, 25), up=False),
            Part(minutes=(25.5, 50), samples={_STOPPED: (0, 0), _RUNNING: (0, 0)}),
        ],
        silent=[
            Part(minutes=(0, 9.5), samples={_STOPPED: (40, 0), _RUNNING: (0, 0)}),
            Part(minutes=(10, 25), up=False),
            Part(minutes=(25.5, 50), samples={_STOPPED: (0, 0.1), _RUNNING: (0, 0)}),
        ],
    ),
    Case(
        name="RestartLoop on one machine",
        expression=RESTART_LOOP,
        for_s=0,
        rings=[Part(minutes=(n * 5, n * 5 + 4), samples={_STARTED: (START_S + n * 300, 0)}) for n in range(4)],
        silent=[Part(minutes=(n * 5, n * 5 + 4), samples={_STARTED: (START_S + n * 300, 0)}) for n in range(3)],
    ),
    Case(
        name="RestartLoop of replaced instances",
        expression=RESTART_LOOP,
        for_s=0,
        rings=[
            Part(minutes=(n * 5, n * 5 + 4), samples={_STARTED: (START_S + n * 300, 0)}, instance=f"i{n}")
            for n in range(4)
        ],
        silent=[Part(minutes=(0, 20), samples={_STARTED: (START_S + n * 300, 0)}, instance=f"i{n}") for n in range(3)],
    ),
    Case(
        name="RestartLoop of replicas, which export no start time",
        expression=RESTART_LOOP,
        for_s=0,
        rings=[Part(minutes=(0, 30), samples={_RESTARTS: (0, 0.06)})],
        silent=[Part(minutes=(0, 30), samples={_RESTARTS: (0, 0.04)})],
    ),
    Case(
        name="TpuDeadline",
        expression=f"min by (namespace) (gemma_serving_deadline_timestamp_seconds{S}) - time() < 1800",
        for_s=0,
        rings=[Part(minutes=(0, 2), samples={_DEADLINE: (START_S + 1900, 0)})],
        silent=[Part(minutes=(0, 2), samples={_DEADLINE: (START_S + 1930, 0)})],
    ),
    Case(
        name="InstanceDown",
        expression=INSTANCE_DOWN,
        for_s=120,
        rings=[Part(minutes=(0, 1)), Part(minutes=(1.5, 4), up=False)],
        silent=[Part(minutes=(0, 4), up=False), Part(minutes=(0, 4), instance="i2")],
    ),
    Case(
        name="InstanceDown, a short restart",
        expression=INSTANCE_DOWN,
        for_s=120,
        rings=[Part(minutes=(0, 0)), Part(minutes=(0.5, 2.5), up=False)],
        silent=[Part(minutes=(0, 0)), Part(minutes=(0.5, 2), up=False)],
    ),
    Case(
        name="InstanceDown, the first start",
        expression=INSTANCE_DOWN,
        for_s=120,
        rings=[Part(minutes=(0, 0)), Part(minutes=(0.5, 10), up=False)],
        silent=[Part(minutes=(0, 10), up=False)],
    ),
    Case(
        name="MetricsGone",
        expression=METRICS_GONE,
        for_s=300,
        rings=[Part(minutes=(0, 1)), Part(minutes=(11.5, 11.5), up=None)],
        silent=[Part(minutes=(0, 7)), Part(minutes=(11.5, 11.5), up=None)],
    ),
    Case(
        name="MetricsGone, a short gap",
        expression=METRICS_GONE,
        for_s=300,
        rings=[Part(minutes=(0, 1)), Part(minutes=(11, 11), up=None)],
        silent=[Part(minutes=(0, 1)), Part(minutes=(10.5, 10.5), up=None)],
    ),
    Case(
        name="MetricsGone, before the first start",
        expression=METRICS_GONE,
        for_s=300,
        rings=[Part(minutes=(0, 0), up=False), Part(minutes=(11.5, 11.5), up=None)],
        silent=[Part(minutes=(0, 0), up=None), Part(minutes=(11.5, 11.5), up=None)],
    ),
    Case(
        name="DailyCost of a service",
        expression=f"sum(increase({_BILLED}[1d])) / 3600 * 1.5 > 3",
        for_s=0,
        rings=[Part(minutes=(0, 125), samples={_BILLED: (5000, 30)})],
        silent=[Part(minutes=(0, 115), samples={_BILLED: (5000, 30)})],
    ),
    Case(
        name="DailyCost of a machine",
        expression=f"count_over_time(max by (namespace) (up{S})[1d:1m]) / 60 * 1.5 > 3",
        for_s=0,
        rings=[Part(minutes=(0, 125))],
        silent=[Part(minutes=(0, 115))],
    ),
    Case(
        name="up but not serving",
        expression=NOT_SERVING,
        for_s=60,
        rings=[Part(minutes=(0, 7), samples=engines({_RUNNING: (1, 0), _TOKENS: (900, 0)}))],
        silent=[Part(minutes=(0, 7), samples=engines({_RUNNING: (1, 0), _TOKENS: (900, 3)}))],
    ),
    Case(
        name="up but not serving, a new server",
        expression=NOT_SERVING,
        for_s=60,
        rings=[Part(minutes=(0, 6), samples={_RUNNING: (1, 0), _TOKENS: (0, 0)})],
        silent=[Part(minutes=(0, 5.5), samples={_RUNNING: (1, 0), _TOKENS: (0, 0)})],
    ),
]
