"""Alerts of a stack (alerts.toml)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from gemma_serving.contracts.outputs import Target

Severity = Literal["page", "ticket"]
"""`page`: users are affected now. `ticket`: investigate it during the day."""

RUNBOOK: Final = "docs/observability.md"
NOT_READY: Final = "Not ready"
LOG_RATE_LIMIT_S: Final = 300
"""Minimum time between two notifications, which Google requires for a log alert."""

TTFT_BUCKETS_S: Final = (0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
"""Useful bounds of vLLM's histogram of the time to first token."""

_HOLD: Final = re.compile(r"\d+s|\$ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertValues:
    """Values of one stack that replace placeholders."""

    stack: str
    name: str
    """Name of the service, or of the queued resource: the label `namespace` of the server's series."""
    ttft_s: float
    """Bound of the time to first token; one of TTFT_BUCKETS_S."""
    ttft_goal: float
    """Fraction of requests whose first token should come within the bound."""
    idle_s: int
    """Seconds without a request until the idle alert."""
    ready_s: int
    """Seconds for which a machine may be not ready: `tpu.readyTimeout`."""
    usd_per_hour: float
    """Price of an instance or slice; with an order of forms, of the most expensive one that may be requested."""
    daily_usd: float

    def replace_in(self, template: str) -> str:
        """Return a text with these values. Exporters write whole bounds with or without a decimal place."""
        whole = f'le=~"{self.ttft_s:g}|{self.ttft_s:.1f}"'
        return Template(template).substitute(
            stack=self.stack,
            name=self.name,
            server=f'namespace="{self.name}"',
            ttft=whole if self.ttft_s == int(self.ttft_s) else f'le="{self.ttft_s:g}"',
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
    """Time for which the expression must have a result: seconds, or `$ready`."""
    title: str

    def require_hold(self) -> None:
        """Raise ValueError for a time that Google rejects."""
        if not _HOLD.fullmatch(self.hold):
            raise ValueError(
                f'hold of "{self.title}" in alerts.toml is "{self.hold}": it must be seconds, such as "600s", or "$ready".'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """It fires if an expression has a result, or if a log line has the pattern."""

    title: str
    """Identifier, unique for each target."""
    meaning: str
    """One sentence for the notification."""
    severity: Severity = "page"
    targets: "Sequence[Target]" = ("tpu",)
    command: str = "gemma logs $stack"
    """First command of the runbook."""
    expression: str = ""
    hold: str = "0s"
    several: Sequence[MetricCondition] = ()
    pattern: str = ""
    """RE2 pattern of a log line, which needs no collector; empty for an alert on metrics."""
    by_default: bool = True
    """False if only a stack with `alerts.policies: all` has the alert."""
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


@cache
def every_alert() -> Sequence[Alert]:
    """Return the alerts of all targets (alerts.toml). Raises ValueError for a time that Google rejects."""
    # This package is checked as Python 3.10, which a machine has. No machine runs this module.
    tomllib: Any = import_module("tomllib")
    raw = tomllib.loads(Path(__file__).with_name("alerts.toml").read_text(encoding="utf-8"))
    fragments: dict[str, str] = {}
    for name, text in raw["fragments"].items():
        fragments[name] = Template(text).safe_substitute(fragments)

    def filled(row: Mapping[str, Any]) -> dict[str, Any]:
        texts = {key: value for key, value in row.items() if isinstance(value, str)}
        return {**row, **{key: Template(text).safe_substitute(fragments) for key, text in texts.items()}}

    rows = [
        {**row, "several": [MetricCondition(**filled(one)) for one in row.get("several", ())]} for row in raw["alerts"]
    ]
    alerts = [Alert(**filled(row)) for row in rows]
    for condition in (each for alert in alerts for each in alert.conditions):
        condition.require_hold()
    return alerts


def alerts_of(
    target: "Target", *, collects: bool = False, has_budget: bool = False, has_all: bool = False
) -> Iterator[Alert]:
    """Yield the alerts of a stack that can fire. `collects`: its collector is on; without it, the log lines say that a server ended."""
    for alert in every_alert():
        is_wanted = has_all or alert.by_default or (bool(alert.pattern) and not collects)
        has_metrics = collects or not alert.needs_collector
        if target in alert.targets and is_wanted and has_metrics and (has_budget or not alert.needs_budget):
            yield alert


def row_of(title: str) -> Alert | None:
    """Return the first row with a title; None for a title of another release."""
    return next((row for row in every_alert() if row.title == title), None)
