"""Alerts, and the collector of metrics."""

from typing import Annotated, Final, Literal, get_args

from pydantic import Field, field_validator

from contracts.alerts import TTFT_BUCKETS_S
from contracts.collector import LONGEST_INTERVAL_S, SHORTEST_INTERVAL_S
from stacks.settings.block import Block, Judged
from stacks.settings.text import DurationS, Matching, PositiveNumber

TtftBound = Literal["250ms", "500ms", "750ms", "1s", "2500ms", "5s", "7500ms", "10s", "20s", "40s", "80s", "160s"]
Email = Annotated[str, Matching(r"^[^@\s,]+@[^@\s,]+\.[^@\s,]+$", "an e-mail address", "name@example.com")]
Webhook = Annotated[str, Matching(r"^https?://[^\s/]+(/\S*)?$", "a URL", "https://alerts.example.com/gemma")]

_BOUNDS_S: Final = dict(zip(get_args(TtftBound), TTFT_BUCKETS_S, strict=True))
_MIN_IDLE_S: Final = 300
_MAX_IDLE_S: Final = 86_400
"""Cloud Monitoring evaluates PromQL over at most 25 hours."""


class AlertRecipients(Block):
    """Alerts in Cloud Monitoring."""

    enabled: Annotated[bool, Judged("watch.alerts_enabled")] = True
    """Create alert policies and, with metrics, a dashboard. The account that runs `gemma up` needs `roles/monitoring.editor` and
    `roles/logging.configWriter`."""
    email: Annotated[Email | None, Judged("watch.email")] = None
    """E-mail address that alerts are sent to. Without `email` and `webhook`, only the console and `gemma alerts` show them."""
    webhook: Annotated[Webhook | None, Judged("watch.webhook")] = None
    """URL that alerts are posted to. Any user who can read the stack's state or settings can read it, including a token in it."""


class AlertSettings(AlertRecipients):
    """Alerts in Cloud Monitoring. Without metrics only log lines and, on Cloud Run, server errors and the daily cost can fire."""

    ttft: TtftBound = "2500ms"
    """Limit of the time to first token on a TPU. Only bounds of vLLM's histogram are possible."""
    ttft_goal: Annotated[float, Field(ge=0.94, le=0.9999)] = 0.99
    """Fraction of requests that should meet `ttft` in a month. An alert fires if 14.4 times the rest misses it, which a goal below 0.94 makes
    impossible."""
    idle_s: DurationS = Field(default="1h", alias="idle", validate_default=True)
    """Time without a request after which the idle alert of a TPU machine fires. From 5m to 1d."""
    daily_cost: Annotated[PositiveNumber | None, Judged("watch.daily_cost_usd")] = None
    """US dollars per day, at the planner's prices, above which an alert fires. It counts the time that instances run, not the bill. Default on Cloud
    Run: one day of the instances that always run, or eight hours of one if none does; no alert on TPU."""

    @field_validator("idle_s")
    @classmethod
    def _idle_can_be_evaluated(cls, idle_s: int) -> int:
        if not _MIN_IDLE_S <= idle_s <= _MAX_IDLE_S:
            raise ValueError(f"idle is {idle_s}s; expected 5m to 1d")
        return idle_s

    @property
    def ttft_s(self) -> float:
        """Limit of the time to first token in seconds."""
        return _BOUNDS_S[self.ttft]


class MetricsSettings(Block):
    """The OpenTelemetry collector next to the server, which writes its metrics to Managed Service for Prometheus."""

    enabled: Annotated[bool | None, Judged("watch.metrics_enabled")] = None
    """Run the collector. Default: true on a TPU with `alerts.enabled`, otherwise false. On Cloud Run it takes 2 vCPU and at least 512Mi of each
    instance, and turning it on or off creates a revision."""
    interval_s: DurationS = Field(default="30s", alias="interval", validate_default=True)
    """Time between two scrapes, from 30s to 2m. On Cloud Run a change creates a revision."""

    @field_validator("interval_s")
    @classmethod
    def _interval_is_useful(cls, interval_s: int) -> int:
        if not SHORTEST_INTERVAL_S <= interval_s <= LONGEST_INTERVAL_S:
            raise ValueError(f"interval is {interval_s}s; expected {SHORTEST_INTERVAL_S}s to {LONGEST_INTERVAL_S}s")
        return interval_s
