"""Alerts of a stack: metrics and log lines that open an incident, with the first command of each runbook.

Expressions are PromQL over the metrics of vLLM 0.28 to 0.32, of the machine's agent, and of Google's platform. `$stack`, `$server` and the names of
`AlertValues` are placeholders; `$server` selects the series of one server by the label that the collector sets (contracts.collector).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import Template
from typing import Final, Literal

from contracts.outputs import Target

Severity = Literal["page", "ticket"]
"""`page`: users are affected now. `ticket`: look at it during the day."""

RUNBOOK: Final = "docs/observability.md"
NOT_READY: Final = "Not ready"
LOG_RATE_LIMIT_S: Final = 300
"""Minimum time between two notifications of a log alert, which Google requires for this kind of condition."""

TTFT_BUCKETS_S: Final = (0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
"""Bounds of vLLM's histogram of the time to first token that are useful as a limit. Others match no series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertValues:
    """Values of one stack that replace placeholders. The alert of a gateway has the first two."""

    stack: str
    name: str
    """Name of the service, or of the queued resource: the label `namespace` of the server's series."""
    ttft_s: float = 0
    """Bound of the time to first token; one of TTFT_BUCKETS_S."""
    ttft_goal: float = 0
    """Fraction of requests whose first token should come within the bound."""
    idle_s: int = 0
    """Seconds without a request until the idle alert."""
    ready_s: int = 0
    """Seconds for which a machine may be not ready: `tpu.readyTimeout`."""
    usd_per_hour: float = 0
    daily_usd: float = 0

    def replace_in(self, template: str) -> str:
        """Return a text with these values."""
        return Template(template).substitute(
            stack=self.stack,
            name=self.name,
            server=f'namespace="{self.name}"',
            ttft=_le(self.ttft_s),
            budget=f"{1 - self.ttft_goal:.6g}",
            ready=f"{self.ready_s}s",
            idle=f"{self.idle_s}s" if self.idle_s % 60 else f"{self.idle_s // 60}m",
            idle_seconds=self.idle_s,
            price=f"{self.usd_per_hour:.6g}",
            daily=f"{self.daily_usd:.6g}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCondition:
    """A condition on metrics. Its policy fires for each series in the result."""

    expression: str
    """PromQL with placeholders."""
    hold: str = "0s"
    """Time for which the expression must have a result, with placeholders."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert: it fires if its expression has a result, if one of several conditions holds, or if a log line has its pattern."""

    title: str
    """Identifier. Unique for each target; rows with one title differ only in the expression and its conditions."""
    meaning: str
    """One sentence for the notification."""
    severity: Severity = "page"
    targets: Sequence[Target] = ("tpu",)
    command: str = "gemma logs $stack"
    """First command of the runbook."""
    expression: str = ""
    hold: str = "0s"
    several: Sequence[MetricCondition] = ()
    pattern: str = ""
    """RE2 pattern of a log line, which needs no collector; empty for an alert on metrics."""
    needs_budget: bool = False
    """True if only a stack with `alerts.dailyCost` has the alert."""

    @property
    def anchor(self) -> str:
        """Heading of the runbook page."""
        return self.title.lower().replace(" ", "-")

    @property
    def conditions(self) -> Sequence[MetricCondition]:
        """Conditions of its policy; one without an expression for an alert on log lines."""
        return self.several or (MetricCondition(title=self.title, expression=self.expression, hold=self.hold),)

    @property
    def needs_collector(self) -> bool:
        """True if it reads metrics of the server, and not those that Google's platform always writes."""
        return any("$server" in condition.expression for condition in self.conditions)


def _le(bound_s: float) -> str:
    """Return the matcher of a histogram's bound. Exporters write whole bounds with or without a decimal place."""
    return f'le=~"{bound_s:g}|{bound_s:.1f}"' if bound_s == int(bound_s) else f'le="{bound_s:g}"'


def _burn(window: str) -> str:
    """Return the condition that slow first tokens in a window use up the error budget of a month in two days."""
    good = f"sum by (namespace) (rate(vllm:time_to_first_token_seconds_bucket{{$server,$ttft}}[{window}]))"
    every = f"sum by (namespace) (rate(vllm:time_to_first_token_seconds_count{{$server}}[{window}]))"
    return f"(1 - {good} / {every}) > 14.4 * $budget"


def _of_service(metric: str, **labels: str) -> str:
    """Return the selector of a metric of Cloud Run for a service. Google rejects one without a resource type."""
    selected = {"monitored_resource": "cloud_run_revision", "service_name": "$name", **labels}
    matchers = ",".join(f'{name}="{value}"' for name, value in selected.items())
    return f"run_googleapis_com:{metric}{{{matchers}}}"


def _requests(**labels: str) -> str:
    """Return the requests of a service in five minutes as Cloud Run counts them."""
    return f"sum(increase({_of_service('request_count', **labels)}[5m]))"


_ENGINE: Final = "(namespace, engine)"
"""With data parallelism, each replica is an engine with series of its own: the tokens of the others would hide one that hangs."""
_STATUS: Final = "gemma status $stack"
_PLAN: Final = "gemma plan $stack"
_WAITING: Final = "vllm:num_requests_waiting{$server}"
_RUNNING: Final = "vllm:num_requests_running{$server}"
_BY_REASON: Final = "vllm:num_requests_waiting_by_reason"
_REPORTS: Final = "max by (namespace) (up{$server})"
_LAST_REPORT: Final = f"max_over_time((0 * {_REPORTS} + time())[1d:5m])"
_LOST: Final = (
    "max by (namespace) (last_over_time(up{$server}[1d])) unless on (namespace) "
    f"max by (namespace) (last_over_time(gemma_serving_deadline_timestamp_seconds{{$server}}[1d])) - {_LAST_REPORT} < 600"
)
"""A machine that has reported within a day, except one that reported until its planned end."""
_EXISTS: Final = (
    'label_replace(max(last_over_time(tpu_googleapis_com:cpu_utilization{monitored_resource="tpu_worker",'
    'node_id=~"$name(-b)?-node"}[10m])), "namespace", "$name", "", "")'
)
"""A machine by Google's own metric, for one that has never reported."""
_SERVES: Final = 'gemma_serving_phase{$server,phase="ready"} or gemma_serving_phase{$server} and on (namespace) up{$server,job="vllm"} == 1'
"""A ready server. After a failed change the phase is `failed`, and the former document serves."""
_ENGINE_FATAL: Final = (
    "OutOfMemoryError|CUDA error|CUDA out of memory|EngineDeadError|EngineCore failed|EngineCore encountered|RESOURCE_EXHAUSTED|"
    "XlaRuntimeError|Ran out of memory in memory space hbm"
)

ALERTS: Final[Sequence[Alert]] = (
    Alert(
        title=NOT_READY,
        meaning="The machine has not been ready, or has reported nothing, for the time in `tpu.readyTimeout`.",
        # Not absent(): a stack that waits for capacity has no machine.
        expression=f"({_REPORTS} or {_LOST} or {_EXISTS}) unless on (namespace) ({_SERVES})",
        hold="$ready",
        command=_STATUS,
    ),
    Alert(
        title="No tokens while requests wait",
        meaning="Requests have waited or run for five minutes and the server produces no tokens.",
        expression=(
            f"max by {_ENGINE} (min_over_time({_WAITING}[5m]) > 0 or min_over_time({_RUNNING}[5m]) > 0) and on {_ENGINE} "
            f"sum by {_ENGINE} (rate(vllm:generation_tokens_total{{$server}}[5m])) == 0 and "
            # Without it, the window of a server that has just started counts as five minutes.
            "on (namespace) max by (namespace) (up{$server} offset 5m) == 1"
        ),
    ),
    Alert(
        title="Restart loop",
        meaning="The server has restarted at least three times in 30 minutes.",
        expression="sum by (namespace) (increase(gemma_serving_restarts_total{$server}[30m])) >= 3",
    ),
    Alert(
        title="HTTP errors",
        meaning="More than 5% of at least 20 responses in the last five minutes were server errors (5xx).",
        expression=(
            'sum by (namespace) (rate(http_requests_total{$server,status="5xx"}[5m])) / '
            "sum by (namespace) (rate(http_requests_total{$server}[5m])) > 0.05 and "
            "sum by (namespace) (increase(http_requests_total{$server}[5m])) >= 20"
        ),
    ),
    Alert(
        title="Slow first token",
        meaning="Slow first tokens of at least 50 requests use up the month's error budget in two days.",
        expression=(
            f"{_burn('1h')} and {_burn('5m')} and "
            "sum by (namespace) (increase(vllm:time_to_first_token_seconds_count{$server}[1h])) >= 50"
        ),
        command=_STATUS,
    ),
    Alert(
        title="Pressure",
        meaning="The KV cache has been over 85% full for two minutes, or requests have waited for 30 seconds because the server has no capacity for them.",
        several=(
            MetricCondition(
                title="KV cache nearly full",
                expression="max by (namespace) (vllm:kv_cache_usage_perc{$server}) > 0.85",
                hold="120s",
            ),
            MetricCondition(
                title="Requests waiting",
                expression=(
                    f'sum by (namespace) ({_BY_REASON}{{$server,reason="capacity"}} or {_WAITING} unless on (namespace, instance) '
                    f"{_BY_REASON}{{$server}}) > 0"
                ),
                hold="30s",
            ),
        ),
        severity="ticket",
        targets=("tpu", "cloud-run"),
        command=_PLAN,
    ),
    Alert(
        title="Idle",
        meaning="The server costs money and has served no request for the time in `alerts.idle`.",
        expression=(
            "sum by (namespace) (increase(vllm:request_success_total{$server}[$idle])) == 0 and on (namespace) "
            f"max by (namespace) (max_over_time({_RUNNING}[$idle])) == 0 and on (namespace) {_REPORTS} and on (namespace) "
            # A server that answered for less of the time is new, not idle. A restart in the meantime closes no incident.
            'count_over_time((max by (namespace) (up{$server,job="vllm"}) == 1)[$idle:1m]) * 60 > 0.75 * $idle_seconds'
        ),
        severity="ticket",
        command="gemma teardown $stack --dry-run",
    ),
    Alert(
        title="Server errors",
        meaning="More than 5% of at least 20 responses in the last five minutes were server errors (5xx).",
        expression=f"{_requests(response_code_class='5xx')} / {_requests()} > 0.05 and {_requests()} >= 20",
        targets=("cloud-run",),
    ),
    Alert(
        title="No server answers",
        meaning="The gateway answered requests with 503 in the last five minutes.",
        expression=f"{_requests(response_code='503')} > 0",
        targets=("gateway",),
        command=_STATUS,
    ),
    Alert(
        title="Daily cost",
        meaning="What ran in the last 24 hours costs more than `alerts.dailyCost` at the planner's prices.",
        expression=f"sum(increase({_of_service('container_billable_instance_time')}[1d])) / 3600 * $price > $daily",
        severity="ticket",
        targets=("cloud-run",),
        command=_STATUS,
    ),
    Alert(
        title="Daily cost",
        meaning="What ran in the last 24 hours costs more than `alerts.dailyCost` at the planner's prices.",
        expression="count_over_time(max by (namespace) (up{$server})[1d:1m]) / 60 * $price > $daily",
        severity="ticket",
        needs_budget=True,
        command=_STATUS,
    ),
    Alert(
        title="Engine fatal",
        meaning="The engine logged an error after which it does not serve.",
        pattern=_ENGINE_FATAL,
    ),
    Alert(
        title="Does not start or engine fatal",
        meaning="An instance did not start in time, exceeded its memory limit, or its engine logged an error after which it does not serve.",
        pattern=f"STARTUP (TCP|HTTP) probe failed|Memory limit of .* exceeded|{_ENGINE_FATAL}",
        targets=("cloud-run",),
    ),
)
"""Those that affect users first, and those on log lines last."""


def alerts_of(target: Target, *, collects: bool = False, has_budget: bool = False) -> Iterator[Alert]:
    """Yield the alerts that can fire for a stack. `collects`: its collector is on."""
    for alert in ALERTS:
        has_metrics = collects or not alert.needs_collector
        if target in alert.targets and has_metrics and (has_budget or not alert.needs_budget):
            yield alert


def row_of(title: str) -> Alert | None:
    """Return the first row with a title; None for a title of another release."""
    return next((row for row in ALERTS if row.title == title), None)
