"""Alerts of a stack: metrics and log lines that open an incident, with the first command of each runbook.

Expressions are PromQL over the metrics of vLLM 0.28 to 0.32, of the machine's agent, and of Google's platform. `$stack`, `$server` and the names of
`AlertValues` are placeholders; `$server` selects the series of one server by the label that the collector sets (contracts.collector).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import Template
from typing import Final, Literal

from contracts.collector import SHORTEST_INTERVAL_S
from contracts.outputs import Target

Severity = Literal["page", "ticket"]
"""`page`: users are affected now. `ticket`: look at it during the day."""
Needs = Literal["collector", "platform"]
"""Origin of the metrics: the collector beside the server, or Google's platform, which always writes its own."""
Condition = Literal["always", "always-on", "budget"]
"""`always-on`: an instance that runs, and costs money, without requests: `cloudRun.minInstances` above 0, or a TPU machine. `budget`: a daily limit
that the stack can exceed."""

RUNBOOK: Final = "docs/observability.md"
EVALUATION_S: Final = SHORTEST_INTERVAL_S
"""Interval of evaluation. Google accepts positive multiples of 30 s (discovery: monitoring.v3, PrometheusQueryLanguageCondition)."""
LOG_RATE_LIMIT_S: Final = 300
"""Minimum time between two notifications of a log alert, which Google requires for this kind of condition."""

TTFT_BUCKETS_S: Final = (0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
"""Bounds of vLLM's histogram of the time to first token that are useful as a limit. Another value would match no series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertValues:
    """Values of one stack that replace placeholders."""

    stack: str
    name: str
    """Name of the service, or of the queued resource: the label `namespace` of the server's series."""
    ttft_s: float
    """Bound of the TTFT alerts; one of TTFT_BUCKETS_S."""
    ttft_goal: float
    """Fraction of requests whose first token should come within the bound."""
    idle_s: int
    """Seconds without a request until the idle alert."""
    usd_per_hour: float
    """Price of one running instance or machine."""
    daily_usd: float
    """Maximum cost per day."""

    def replace_in(self, template: str) -> str:
        """Return a text with these values."""
        return Template(template).substitute(
            stack=self.stack,
            name=self.name,
            server=f'namespace="{self.name}"',
            ttft=_le(self.ttft_s),
            budget=f"{1 - self.ttft_goal:.6g}",
            idle=f"{self.idle_s}s" if self.idle_s % 60 else f"{self.idle_s // 60}m",
            price=f"{self.usd_per_hour:.6g}",
            daily=f"{self.daily_usd:.6g}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricAlert:
    """An alert on metrics."""

    name: str
    """Identifier. Unique for each target."""
    title: str
    meaning: str
    """One sentence for the notification."""
    expression: str
    """PromQL with placeholders. The alert fires for each series in its result."""
    hold_s: int = 0
    """Seconds for which the expression must have a result."""
    severity: Severity
    targets: Sequence[Target] = ("tpu", "cloud-run")
    needs: Needs = "collector"
    condition: Condition = "always"
    command: str = "python -m scripts.status --stack $stack"
    """First command of the runbook."""

    @property
    def anchor(self) -> str:
        """Heading of the runbook page."""
        return _anchor(self.title)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAlert:
    """An alert on log lines, which needs no collector."""

    name: str
    title: str
    meaning: str
    pattern: str
    """RE2 pattern of the line."""
    severity: Severity = "page"
    targets: Sequence[Target] = ("tpu", "cloud-run")
    command: str = "python -m scripts.logs --stack $stack"

    @property
    def anchor(self) -> str:
        """Heading of the runbook page."""
        return _anchor(self.title)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _le(bound_s: float) -> str:
    """Return the matcher of a histogram's bound. Whole bounds are written with or without a decimal place, depending on the exporter."""
    return f'le=~"{bound_s:g}|{bound_s:.1f}"' if bound_s == int(bound_s) else f'le="{bound_s:g}"'


def _burn(window: str, factor: str) -> str:
    """Return the condition that errors of the TTFT goal in a window use up the error budget `factor` times too fast."""
    good = f"sum by (namespace) (rate(vllm:time_to_first_token_seconds_bucket{{$server,$ttft}}[{window}]))"
    every = f"sum by (namespace) (rate(vllm:time_to_first_token_seconds_count{{$server}}[{window}]))"
    return f"(1 - {good} / {every}) > {factor} * $budget"


_WAS_UP: Final = "on (namespace) max by (namespace) (up{$server} offset 5m) == 1"
"""Without it, the window of a server that has just started counts as five minutes."""
_ENGINE: Final = "(namespace, engine)"
"""With data parallelism, each replica is an engine with series of its own: the tokens of the others would hide one that hangs."""
_LOGS: Final = "python -m scripts.logs --stack $stack"
_PLAN: Final = "python -m scripts.plan --stack $stack"
_WAITING: Final = "vllm:num_requests_waiting{$server}"
_BY_REASON: Final = "vllm:num_requests_waiting_by_reason"

ALERTS: Final[Sequence[MetricAlert]] = (
    MetricAlert(
        name="QueueWaiting",
        title="Queue waiting",
        meaning="Requests wait because the server has no capacity for them.",
        expression=(
            f'sum by (namespace) ({_BY_REASON}{{$server,reason="capacity"}} or {_WAITING} unless on (namespace, instance) '
            f"{_BY_REASON}{{$server}}) > 0"
        ),
        hold_s=30,
        severity="ticket",
    ),
    MetricAlert(
        name="QueueStuck",
        title="Queue stuck",
        meaning="Requests have waited for five minutes and the server produces no tokens.",
        expression=(
            f"min by {_ENGINE} (min_over_time({_WAITING}[5m])) > 0 and on {_ENGINE} "
            f"sum by {_ENGINE} (rate(vllm:generation_tokens_total{{$server}}[5m])) == 0 and {_WAS_UP}"
        ),
        severity="page",
        command=_LOGS,
    ),
    MetricAlert(
        name="NotServing",
        title="Up but not serving",
        meaning="The server answers /health and has running requests, but has produced no tokens for five minutes.",
        expression=(
            f"max by {_ENGINE} (vllm:num_requests_running{{$server}}) > 0 and on {_ENGINE} "
            f"sum by {_ENGINE} (increase(vllm:generation_tokens_total{{$server}}[5m])) == 0 and "
            f"on (namespace) max by (namespace) (up{{$server}}) == 1 and {_WAS_UP}"
        ),
        hold_s=60,
        severity="page",
        command=_LOGS,
    ),
    MetricAlert(
        name="KvCacheNearlyFull",
        title="KV cache nearly full",
        meaning="The KV cache has been over 85% full for two minutes; more requests will wait or be preempted.",
        expression="max by (namespace) (vllm:kv_cache_usage_perc{$server}) > 0.85",
        hold_s=120,
        severity="ticket",
        command=_PLAN,
    ),
    MetricAlert(
        name="Preemptions",
        title="Preemptions",
        meaning="The server preempted more than 10 requests in ten minutes and computes their prompts again.",
        expression="sum by (namespace) (increase(vllm:num_preemptions_total{$server}[10m])) > 10",
        severity="ticket",
        command=_PLAN,
    ),
    MetricAlert(
        name="EngineErrors",
        title="Engine errors",
        meaning="Requests ended with an error of the engine in the last five minutes.",
        expression='sum by (namespace) (increase(vllm:request_success_total{$server,finished_reason="error"}[5m])) > 0',
        severity="page",
        command=_LOGS,
    ),
    MetricAlert(
        name="HttpErrors",
        title="HTTP errors",
        meaning="More than 5% of the responses in the last five minutes were server errors (5xx).",
        expression=(
            'sum by (namespace) (rate(http_requests_total{$server,status="5xx"}[5m])) / '
            "sum by (namespace) (rate(http_requests_total{$server}[5m])) > 0.05"
        ),
        severity="page",
        command=_LOGS,
    ),
    MetricAlert(
        name="TtftFastBurn",
        title="TTFT fast burn",
        meaning="Slow first tokens use up the month's error budget in two days.",
        expression=f"{_burn('1h', '14.4')} and {_burn('5m', '14.4')}",
        severity="page",
    ),
    MetricAlert(
        name="TtftSlowBurn",
        title="TTFT slow burn",
        meaning="Slow first tokens use up the month's error budget in five days.",
        expression=f"{_burn('6h', '6')} and {_burn('30m', '6')}",
        severity="ticket",
    ),
    MetricAlert(
        name="Idle",
        title="Idle",
        meaning="The server costs money and has served no request for the time in `alerts.idle`.",
        expression=(
            "sum by (namespace) (increase(vllm:request_success_total{$server}[$idle])) == 0 and on (namespace) "
            "max by (namespace) (max_over_time(vllm:num_requests_running{$server}[$idle])) == 0 and on (namespace) "
            # A server without metrics in the hour before is new, not idle. An hour, so that a restart at that time closes no incident.
            "max by (namespace) (max_over_time(up{$server}[1h] offset $idle))"
        ),
        severity="ticket",
        condition="always-on",
        command="python -m scripts.teardown --stack $stack --dry-run",
    ),
    MetricAlert(
        name="RestartLoop",
        title="Restart loop",
        meaning="The server has restarted at least three times in 30 minutes.",
        # With data parallelism vLLM has several API servers, which export no start time; the agent of a TPU machine counts restarts.
        expression=(
            "changes(max by (namespace) (process_start_time_seconds{$server})[30m:30s]) >= 3 or on (namespace) "
            "sum by (namespace) (increase(gemma_serving_restarts_total{$server}[30m])) >= 3"
        ),
        severity="page",
        command=_LOGS,
    ),
    MetricAlert(
        name="TpuDeadline",
        title="TPU deadline",
        meaning="Google deletes the machine in less than 30 minutes, at the end of `tpu.maxRunDuration`.",
        expression="min by (namespace) (gemma_serving_deadline_timestamp_seconds{$server}) - time() < 1800",
        severity="ticket",
        targets=("tpu",),
    ),
    MetricAlert(
        name="InstanceDown",
        title="Instance down",
        meaning="No instance of the server has answered the collector for two minutes.",
        expression=(
            'max by (namespace) (up{$server,job!="agent"}) == 0 and on (namespace) '
            # A machine's collector starts before its server, which loads for minutes: the first start is not an outage.
            'max by (namespace) (max_over_time(up{$server,job!="agent"}[1d])) == 1'
        ),
        hold_s=120,
        severity="page",
        command=_LOGS,
    ),
    MetricAlert(
        name="MetricsGone",
        title="Metrics gone",
        meaning="The collector has sent nothing for five minutes: the machine, the instance or the collector is gone.",
        # Not absent(): a stack that waits for capacity, or whose first server still starts, has not lost anything.
        expression="max by (namespace) (last_over_time(up{$server}[1d])) unless on (namespace) up{$server}",
        hold_s=300,
        severity="page",
        condition="always-on",
    ),
    MetricAlert(
        name="DailyCost",
        title="Daily cost",
        meaning="The instances that ran in the last 24 hours cost more than `alerts.dailyCost` at the planner's prices.",
        expression='sum(increase(run_googleapis_com:container_billable_instance_time{service_name="$name"}[1d])) / 3600 * $price > $daily',
        severity="ticket",
        targets=("cloud-run",),
        needs="platform",
        condition="budget",
    ),
    MetricAlert(
        name="DailyCost",
        title="Daily cost",
        meaning="The time that the machine ran in the last 24 hours costs more than `alerts.dailyCost` at the planner's prices.",
        expression="count_over_time(max by (namespace) (up{$server})[1d:1m]) / 60 * $price > $daily",
        severity="ticket",
        targets=("tpu",),
        condition="budget",
    ),
)
"""Alerts on metrics, with those that affect users first."""

LOG_ALERTS: Final[Sequence[LogAlert]] = (
    LogAlert(
        name="OutOfMemory",
        title="Out of memory",
        meaning="Cloud Run terminated an instance because it exceeded its memory limit.",
        pattern="Memory limit of .* exceeded",
        targets=("cloud-run",),
        command=_PLAN,
    ),
    LogAlert(
        name="StartFailed",
        title="Start failed",
        meaning="An instance did not pass its startup probe in time.",
        pattern="STARTUP (TCP|HTTP) probe failed",
        targets=("cloud-run",),
    ),
    LogAlert(
        name="EngineFatal",
        title="Engine fatal",
        meaning="The engine logged an error after which it does not serve.",
        pattern=(
            "OutOfMemoryError|CUDA error|CUDA out of memory|EngineDeadError|EngineCore failed|EngineCore encountered|RESOURCE_EXHAUSTED|"
            "XlaRuntimeError|Ran out of memory in memory space hbm"
        ),
    ),
)
"""Alerts on log lines."""

PLATFORM_METRICS: Final = ("run_googleapis_com:container_billable_instance_time",)
"""Metrics that Google's platform writes, by their PromQL names (run.googleapis.com/container/billable_instance_time)."""
AGENT_METRICS: Final = (
    "gemma_serving_phase",
    "gemma_serving_restarts_total",
    "gemma_serving_deadline_timestamp_seconds",
    "gemma_serving_info",
)
"""Metrics that the agent of a TPU machine serves itself."""


def alerts_of(target: Target, *, collects: bool, always_on: bool, has_budget: bool) -> Iterator[MetricAlert]:
    """Yield the alerts that can ring for a stack. `collects`: its collector is on."""
    holds = {"always": True, "always-on": always_on, "budget": has_budget}
    for alert in ALERTS:
        if target in alert.targets and holds[alert.condition] and (collects or alert.needs == "platform"):
            yield alert


def log_alerts_of(target: Target) -> Iterator[LogAlert]:
    """Yield the alerts on log lines of a target."""
    return (alert for alert in LOG_ALERTS if target in alert.targets)


def row_of(title: str) -> MetricAlert | LogAlert | None:
    """Return the first row with a title; None for a title of another release."""
    return next((row for row in (*ALERTS, *LOG_ALERTS) if row.title == title), None)


def first_command(row: MetricAlert | LogAlert, stack: str) -> str:
    """Return the first command of a row's runbook for a stack."""
    return Template(row.command).substitute(stack=stack)
