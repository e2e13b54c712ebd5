"""The alert expressions of a serving stack, each with a series on which it fires and one on which it does not.

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
    job: str = "vllm"


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    expression: str
    for_s: float
    fires: list[Part]
    silent: list[Part]


def _burn(window: str) -> str:
    bucket = f'sum by (namespace) (rate(vllm:time_to_first_token_seconds_bucket{{namespace="g",le="2.5"}}[{window}]))'
    return (
        f"(1 - {bucket} / sum by (namespace) (rate(vllm:time_to_first_token_seconds_count{S}[{window}]))) > 14.4 * 0.01"
    )


def _requests(labels: str = "") -> str:
    service = 'monitored_resource="cloud_run_revision",service_name="g"'
    return f"sum(increase(run_googleapis_com:request_count{{{service}{labels}}}[5m]))"


_CAPACITY = 'vllm:num_requests_waiting_by_reason{reason="capacity"}'
_DEFERRED = 'vllm:num_requests_waiting_by_reason{reason="deferred"}'
_WAITING, _RUNNING, _TOKENS = "vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:generation_tokens_total"
_GOOD, _ALL = 'vllm:time_to_first_token_seconds_bucket{le="2.5"}', "vllm:time_to_first_token_seconds_count"
_STOPPED = 'vllm:request_success_total{finished_reason="stop"}'
_OK, _5XX = 'http_requests_total{status="2xx"}', 'http_requests_total{status="5xx"}'
_BILLED = (
    'run_googleapis_com:container_billable_instance_time{monitored_resource="cloud_run_revision",service_name="g"}'
)
"""Seconds. Google writes it with its own labels; the collector's are not in it."""
_COUNTED = 'run_googleapis_com:request_count{{monitored_resource="cloud_run_revision",service_name="g",response_code="{0}",response_code_class="{1}"}}'
_ANSWERED, _UNAVAILABLE = _COUNTED.format("200", "2xx"), _COUNTED.format("503", "5xx")
_RESTARTS = "gemma_serving_restarts_total"
_READY, _STARTING = 'gemma_serving_phase{phase="ready"}', 'gemma_serving_phase{phase="starting"}'
_DEADLINE = "gemma_serving_deadline_timestamp_seconds"
_CPU = 'tpu_googleapis_com:cpu_utilization{{monitored_resource="tpu_worker",node_id="{0}"}}'
"""Percent, by Google's agent on the machine."""

NOT_READY = (
    f"(max by (namespace) (up{S}) or max by (namespace) (last_over_time(up{S}[1d])) unless on (namespace) "
    f"max by (namespace) (last_over_time({_DEADLINE}{S}[1d])) - "
    f"max_over_time((0 * max by (namespace) (up{S}) + time())[1d:5m]) < 600 or "
    f'label_replace(max(last_over_time(tpu_googleapis_com:cpu_utilization{{monitored_resource="tpu_worker",'
    'node_id=~"g(-b)?-node"}[10m])), "namespace", "g", "", "")) unless on (namespace) '
    f'(gemma_serving_phase{{namespace="g",phase="ready"}} or gemma_serving_phase{S} and on (namespace) '
    'up{namespace="g",job="vllm"} == 1)'
)
NO_TOKENS = (
    f"max by (namespace, engine) (min_over_time(vllm:num_requests_waiting{S}[5m]) > 0 or "
    f"min_over_time(vllm:num_requests_running{S}[5m]) > 0) and on (namespace, engine) "
    f"sum by (namespace, engine) (rate(vllm:generation_tokens_total{S}[5m])) == 0 and "
    f"on (namespace) max by (namespace) (up{S} offset 5m) == 1"
)
HTTP_ERRORS = (
    'sum by (namespace) (rate(http_requests_total{namespace="g",status="5xx"}[5m])) / '
    f"sum by (namespace) (rate(http_requests_total{S}[5m])) > 0.05 and "
    f"sum by (namespace) (increase(http_requests_total{S}[5m])) >= 20"
)
SLOW_FIRST_TOKEN = (
    f"{_burn('1h')} and {_burn('5m')} and "
    f"sum by (namespace) (increase(vllm:time_to_first_token_seconds_count{S}[1h])) >= 50"
)
WAITING = (
    'sum by (namespace) (vllm:num_requests_waiting_by_reason{namespace="g",reason="capacity"} or '
    f"vllm:num_requests_waiting{S} unless on (namespace, instance) vllm:num_requests_waiting_by_reason{S}) > 0"
)
KV_CACHE = f"max by (namespace) (vllm:kv_cache_usage_perc{S}) > 0.85"
IDLE = (
    f"sum by (namespace) (increase(vllm:request_success_total{S}[30m])) == 0 and on (namespace) "
    f"max by (namespace) (max_over_time(vllm:num_requests_running{S}[30m])) == 0 and on (namespace) "
    f"max by (namespace) (up{S}) and on (namespace) "
    'count_over_time((max by (namespace) (up{namespace="g",job="vllm"}) == 1)[30m:1m]) * 60 > 0.75 * 1800'
)
_CLASS, _CODE = ',response_code_class="5xx"', ',response_code="503"'
SERVER_ERRORS = f"{_requests(_CLASS)} / {_requests()} > 0.05 and {_requests()} >= 20"
NO_SERVER = f"{_requests(_CODE)} > 0"


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
        name="Not ready, the first start",
        expression=NOT_READY,
        for_s=3600,
        fires=[Part(minutes=(0, 61), samples={_STARTING: (1, 0)}, job="agent")],
        silent=[
            Part(minutes=(0, 50), samples={_STARTING: (1, 0)}, job="agent"),
            Part(minutes=(50.5, 61), samples={_READY: (1, 0)}, job="agent"),
        ],
    ),
    Case(
        name="Not ready, nothing reported",
        expression=NOT_READY,
        for_s=3600,
        fires=[
            Part(minutes=(0, 1), samples={_READY: (1, 0)}, job="agent"),
            Part(minutes=(66.5, 66.5), up=None),
        ],
        silent=[
            Part(minutes=(0, 7), samples={_READY: (1, 0)}, job="agent"),
            Part(minutes=(66.5, 66.5), up=None),
        ],
    ),
    Case(
        name="Not ready, no machine yet",
        expression=NOT_READY,
        for_s=3600,
        fires=[Part(minutes=(0, 0), up=False), Part(minutes=(66.5, 66.5), up=None)],
        silent=[Part(minutes=(0, 0), up=None), Part(minutes=(66.5, 66.5), up=None)],
    ),
    Case(
        name="Not ready, a machine that never reported",
        expression=NOT_READY,
        for_s=3600,
        fires=[Part(minutes=(0, 61), samples={_CPU.format("g-b-node"): (2.5, 0)}, up=None)],
        silent=[Part(minutes=(0, 61), samples={_CPU.format("g2-node"): (2.5, 0)}, up=None)],
    ),
    Case(
        name="No tokens while requests wait",
        expression=NO_TOKENS,
        for_s=0,
        fires=[Part(minutes=(0, 6), samples=engines({_WAITING: (2, 0), _TOKENS: (900, 0)}))],
        silent=[Part(minutes=(0, 6), samples=engines({_WAITING: (2, 0), _TOKENS: (900, 1)}))],
    ),
    Case(
        name="No tokens while requests run",
        expression=NO_TOKENS,
        for_s=0,
        fires=[Part(minutes=(0, 6), samples=engines({_RUNNING: (1, 0), _TOKENS: (900, 0)}))],
        silent=[Part(minutes=(0, 6), samples=engines({_RUNNING: (1, 0), _TOKENS: (900, 3)}))],
    ),
    Case(
        name="No tokens, a new server",
        expression=NO_TOKENS,
        for_s=0,
        fires=[Part(minutes=(0, 5), samples={_WAITING: (2, 0), _TOKENS: (0, 0)})],
        silent=[Part(minutes=(0, 4.5), samples={_WAITING: (2, 0), _TOKENS: (0, 0)})],
    ),
    Case(
        name="Restart loop",
        expression=f"sum by (namespace) (increase(gemma_serving_restarts_total{S}[30m])) >= 3",
        for_s=0,
        fires=[Part(minutes=(0, 30), samples={_RESTARTS: (0, 0.06)})],
        silent=[Part(minutes=(0, 30), samples={_RESTARTS: (0, 0.04)})],
    ),
    Case(
        name="HTTP errors",
        expression=HTTP_ERRORS,
        for_s=0,
        fires=[Part(minutes=(0, 6), samples={_OK: (0, 90), _5XX: (0, 10)})],
        silent=[Part(minutes=(0, 6), samples={_OK: (0, 96), _5XX: (0, 4)})],
    ),
    Case(
        name="HTTP errors of few requests",
        expression=HTTP_ERRORS,
        for_s=0,
        fires=[Part(minutes=(0, 6), samples={_OK: (0, 1), _5XX: (0, 1.1)})],
        silent=[Part(minutes=(0, 6), samples={_OK: (0, 1), _5XX: (0, 0.9)})],
    ),
    Case(
        name="Slow first token",
        expression=SLOW_FIRST_TOKEN,
        for_s=0,
        fires=[Part(minutes=(0, 65), samples={_GOOD: (0, 80), _ALL: (0, 100)})],
        silent=[  # the budget burned for most of the hour, and no longer does
            Part(minutes=(0, 55), samples={_GOOD: (0, 80), _ALL: (0, 100)}),
            Part(minutes=(55.5, 65), samples={_GOOD: (8880, 100), _ALL: (11100, 100)}),
        ],
    ),
    Case(
        name="Slow first token of few requests",
        expression=SLOW_FIRST_TOKEN,
        for_s=0,
        fires=[Part(minutes=(0, 65), samples={_GOOD: (0, 0.2), _ALL: (0, 0.5)})],
        silent=[Part(minutes=(0, 65), samples={_GOOD: (0, 0.2), _ALL: (0, 0.4)})],
    ),
    Case(
        name="Pressure, KV cache",
        expression=KV_CACHE,
        for_s=120,
        fires=[Part(minutes=(0, 3), samples={"vllm:kv_cache_usage_perc": (0.95, 0)})],
        silent=[Part(minutes=(0, 3), samples={"vllm:kv_cache_usage_perc": (0.85, 0)})],
    ),
    Case(
        name="Pressure, KV cache in a burst",
        expression=KV_CACHE,
        for_s=120,
        fires=[Part(minutes=(0, 2), samples={"vllm:kv_cache_usage_perc": (0.95, 0)})],
        silent=[Part(minutes=(0, 1.5), samples={"vllm:kv_cache_usage_perc": (0.95, 0)})],
    ),
    Case(
        name="Pressure, requests waiting",
        expression=WAITING,
        for_s=30,
        fires=[Part(minutes=(0, 2), samples={_CAPACITY: (3, 0), _WAITING: (3, 0)})],
        silent=[Part(minutes=(0, 2), samples={_CAPACITY: (0, 0), _DEFERRED: (3, 0), _WAITING: (3, 0)})],
    ),
    Case(
        name="Pressure, requests waiting without reasons",
        expression=WAITING,
        for_s=30,
        fires=[Part(minutes=(0, 2), samples={_WAITING: (3, 0)})],
        silent=[Part(minutes=(0, 2), samples={_WAITING: (0, 0)})],
    ),
    Case(
        name="Pressure, requests waiting in a burst",
        expression=WAITING,
        for_s=30,
        fires=[Part(minutes=(0, 0.5), samples={_WAITING: (3, 0)})],
        silent=[Part(minutes=(0, 0.5), samples={_WAITING: (0, 3)})],
    ),
    Case(
        name="Idle",
        expression=IDLE,
        for_s=0,
        fires=[Part(minutes=(0, 32), samples={_STOPPED: (40, 0), _RUNNING: (0, 0)})],
        silent=[Part(minutes=(0, 32), samples={_STOPPED: (40, 0), _RUNNING: (1, 0)})],
    ),
    Case(
        name="Idle, a new server",
        expression=IDLE,
        for_s=0,
        fires=[Part(minutes=(0, 22), samples={_STOPPED: (0, 0), _RUNNING: (0, 0)})],
        silent=[Part(minutes=(0, 21), samples={_STOPPED: (0, 0), _RUNNING: (0, 0)})],
    ),
    Case(
        name="Idle, the machine is gone",
        expression=IDLE,
        for_s=0,
        fires=[
            Part(minutes=(0, 32), samples={_STOPPED: (40, 0), _RUNNING: (0, 0)}),
            Part(minutes=(36.5, 36.5), up=None),
        ],
        silent=[
            Part(minutes=(0, 32), samples={_STOPPED: (40, 0), _RUNNING: (0, 0)}),
            Part(minutes=(37, 37), up=None),
        ],
    ),
    Case(
        name="Idle, down for a while",
        expression=IDLE,
        for_s=0,
        fires=[
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
        name="Server errors",
        expression=SERVER_ERRORS,
        for_s=0,
        fires=[Part(minutes=(0, 6), samples={_ANSWERED: (0, 90), _UNAVAILABLE: (0, 10)})],
        silent=[Part(minutes=(0, 6), samples={_ANSWERED: (0, 96), _UNAVAILABLE: (0, 4)})],
    ),
    Case(
        name="Server errors of few requests",
        expression=SERVER_ERRORS,
        for_s=0,
        fires=[Part(minutes=(0, 6), samples={_ANSWERED: (0, 1), _UNAVAILABLE: (0, 1.1)})],
        silent=[Part(minutes=(0, 6), samples={_ANSWERED: (0, 1), _UNAVAILABLE: (0, 0.9)})],
    ),
    Case(
        name="No server answers",
        expression=NO_SERVER,
        for_s=0,
        fires=[Part(minutes=(0, 6), samples={_ANSWERED: (0, 90), _UNAVAILABLE: (0, 1)})],
        silent=[Part(minutes=(0, 6), samples={_ANSWERED: (0, 90), _UNAVAILABLE: (7, 0)})],
    ),
    Case(
        name="Daily cost of a service",
        expression=f"sum(increase({_BILLED}[1d])) / 3600 * 1.5 > 3",
        for_s=0,
        fires=[Part(minutes=(0, 125), samples={_BILLED: (5000, 30)})],
        silent=[Part(minutes=(0, 115), samples={_BILLED: (5000, 30)})],
    ),
    Case(
        name="Daily cost of a machine",
        expression=f"count_over_time(max by (namespace) (up{S})[1d:1m]) / 60 * 1.5 > 3",
        for_s=0,
        fires=[Part(minutes=(0, 125))],
        silent=[Part(minutes=(0, 115))],
    ),
]
