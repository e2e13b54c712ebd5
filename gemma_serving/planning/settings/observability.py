"""Alerts, and the collector of metrics."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

from gemma_serving.planning.settings.annotations import Matching, matching
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.text import DURATION, PositiveNumber
from gemma_serving.planning.settings.words import AfterValidator, BeforeValidator, Field

TtftBound = Literal["250ms", "500ms", "750ms", "1s", "2500ms", "5s", "7500ms", "10s", "20s", "40s", "80s", "160s"]
AlertPolicies = Literal["main", "all"]
EMAIL: Final = Matching(r"^[^@\s,]+@[^@\s,]+\.[^@\s,]+$", "an e-mail address", "name@example.com")
Email = Annotated[str, AfterValidator(EMAIL)]
Webhook = Annotated[str, matching(r"^https?://[^\s/]+(/\S*)?$", "a URL", "https://alerts.example.com/gemma")]

_MIN_IDLE_S: Final = 300
_MAX_IDLE_S: Final = 86_400
"""Cloud Monitoring evaluates PromQL over at most 25 hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings(Block):
    """Alerts in Cloud Monitoring."""

    enabled: bool = True
    """Create alert policies.

    The account that runs `gemma up` needs `roles/monitoring.editor` and `roles/logging.configWriter`.
    """
    email: Email | None = None
    """E-mail address that alerts are sent to.

    Without `email` and `webhook`, only the console and `gemma alerts` show alerts.
    """
    webhook: Webhook | None = None
    """URL that alerts are posted to.

    Any user who can read the stack's state or settings can read the URL, including a token in it.
    """
    policies: AlertPolicies = "main"
    """`main`: the server is not ready, is under pressure, or costs money and serves no requests. `all`: every alert, and a dashboard of the metrics."""
    ttft: TtftBound = "2500ms"
    """Limit of the time to first token on a TPU, for `policies` all. Only bounds of vLLM's histogram are possible."""
    ttft_goal: Annotated[float, Field(ge=0.94, le=0.9999)] = 0.99
    """Fraction of requests that should meet `ttft` in a month, from 0.94 to 0.9999, for `policies` all.

    An alert fires if 14.4 times (1 - goal) of the requests miss `ttft`. With a goal below 0.94 it could never fire.
    """
    idle_s: Annotated[int, Field(ge=_MIN_IDLE_S, le=_MAX_IDLE_S), BeforeValidator(DURATION)] = 3_600
    """Time without a request after which the idle alert of a TPU VM fires. From 5m to 1d."""
    daily_cost: PositiveNumber | None = None
    """US dollars per day, at the planner's prices, above which an alert fires.

    The alert counts the time that instances run, not the bill. The default on Cloud Run is one day of the instances that always run, or eight
    hours of one if none does. On a TPU there is no such alert by default.
    """

    @property
    def has_all(self) -> bool:
        """True if the stack has every alert and the dashboard."""
        return self.policies == "all"

    @property
    def ttft_s(self) -> float:
        """Limit of the time to first token in seconds."""
        from gemma_serving.contracts.alerts import TTFT_BUCKETS_S  # noqa: PLC0415 - 4 ms, and a plan has no limit of the time

        return dict(zip(get_args(TtftBound), TTFT_BUCKETS_S, strict=True))[self.ttft]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings(Block):
    """The OpenTelemetry collector next to the server, which writes its metrics to Managed Service for Prometheus."""

    enabled: bool | None = None
    """Run the collector. Default: true on a TPU with `alerts.enabled`, otherwise false.

    On Cloud Run the collector takes 2 vCPU and at least 512Mi of each instance. Turning it on or off creates a revision.
    """


OBSERVABILITY_PLATFORMS: Final = frozenset({"tpu-vm", "cloud-run"})
"""Platforms of stacks, which can have alerts and a collector."""
COLLECTS_BY_DEFAULT: Final = frozenset({"tpu-vm"})
"""Platforms on which a stack with alerts has a collector by default (dev/docs/decisions/0040-watched-by-default.md). A Cloud Run revision whose
collector's image cannot be pulled never starts; the server of a TPU VM does."""


def collects(alerts: AlertSettings, metrics: MetricsSettings, platform: str) -> bool:
    """Return whether a collector runs next to the server on a platform."""
    if metrics.enabled is None:
        return alerts.enabled and platform in COLLECTS_BY_DEFAULT
    return metrics.enabled and platform in OBSERVABILITY_PLATFORMS


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeSettings(Block):
    """A custom threshold of the smoke checks (`contracts.outputs.SmokeThresholds`). All others come from the plan."""

    min_decode_tok_per_s: PositiveNumber | None = None
    """Minimum output rate of a single stream."""
