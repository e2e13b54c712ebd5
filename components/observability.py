"""Alert policies of a stack, the channels that they notify, and a dashboard."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.dashboard import dashboard_json
from gemma_serving.contracts.alerts import LOG_RATE_LIMIT_S, RUNBOOK, Alert, AlertValues, MetricCondition, Severity
from gemma_serving.contracts.collector import SCRAPE_INTERVAL_S
from gemma_serving.contracts.installation import with_pages
from gemma_serving.contracts.labels import Ownership

_SEVERITIES: Final[Mapping[Severity, str]] = {"page": "CRITICAL", "ticket": "WARNING"}
_AUTO_CLOSE_S: Final = 1800
"""Time after which Google closes an incident without new data. The minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityArgs:
    """Alerts of one server."""

    project: str
    ownership: Ownership
    labels: Mapping[str, str]
    values: AlertValues
    alerts: Sequence[Alert]
    log_filter: str
    """Filter of Cloud Logging for the lines of this server."""
    has_dashboard: bool
    """True if a collector fills the dashboard."""
    email: str | None
    webhook: str | None


class Observability(pulumi.ComponentResource):
    """One policy for each alert. All notify the same channels. A policy without a channel still opens incidents, which the console shows."""

    policies: Sequence[pulumi.Output[str]]

    def __init__(self, name: str, args: ObservabilityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gemma-serving:index:Observability", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        labels = {**args.labels, **args.ownership.labels}
        channels = [
            gcp.monitoring.NotificationChannel(
                f"{name}-{key}",
                gcp.monitoring.NotificationChannelArgs(
                    project=args.project,
                    display_name=f"{args.values.name} {key}",
                    type=kind,
                    labels={field: value},
                    user_labels=labels,
                ),
                opts=child,
            )
            for key, kind, field, value in (
                ("email", "email", "email_address", args.email),
                ("webhook", "webhook_tokenauth", "url", args.webhook),
            )
            if value is not None
        ]
        told = [channel.name for channel in channels]
        declared = [
            gcp.monitoring.AlertPolicy(f"{name}-{alert.anchor}", _policy(alert, args, told, labels), child)
            for alert in args.alerts
        ]
        if args.has_dashboard:
            gcp.monitoring.Dashboard(
                f"{name}-dashboard",
                gcp.monitoring.DashboardArgs(
                    project=args.project,
                    dashboard_json=dashboard_json(title=args.values.name, namespace=args.values.name, labels=labels),
                ),
                opts=child,
            )
        self.policies = [policy.name for policy in declared]
        self.register_outputs({"policies": self.policies})


def _policy(
    alert: Alert,
    args: ObservabilityArgs,
    told: Sequence[pulumi.Input[str]],
    labels: Mapping[str, str],
) -> gcp.monitoring.AlertPolicyArgs:
    return gcp.monitoring.AlertPolicyArgs(
        project=args.project,
        display_name=f"{args.values.name}: {alert.title}",
        combiner="OR",
        severity=_SEVERITIES[alert.severity],
        conditions=[_log_line(alert, args.log_filter)]
        if alert.pattern
        else [_promql(alert.severity, each, args.values) for each in alert.conditions],
        notification_channels=list(told),
        user_labels=labels,
        alert_strategy=gcp.monitoring.AlertPolicyAlertStrategyArgs(
            auto_close=f"{_AUTO_CLOSE_S}s",
            # Google requires the limit for conditions on log lines and rejects it for others.
            notification_rate_limit=gcp.monitoring.AlertPolicyAlertStrategyNotificationRateLimitArgs(
                period=f"{LOG_RATE_LIMIT_S}s"
            )
            if alert.pattern
            else None,
        ),
        documentation=gcp.monitoring.AlertPolicyDocumentationArgs(
            subject=f"{args.values.name}: {alert.title}",
            content=documentation(alert, args.values),
            mime_type="text/markdown",
        ),
    )


def documentation(alert: Alert, values: AlertValues) -> str:
    """Return the text of a notification: meaning, first command, runbook."""
    command = values.replace_in(alert.command)
    return f"{alert.meaning}\n\nFirst command: `{command}`\n\nRunbook: {with_pages(RUNBOOK)}#{alert.anchor}"


def _promql(
    severity: Severity, condition: MetricCondition, values: AlertValues
) -> gcp.monitoring.AlertPolicyConditionArgs:
    return gcp.monitoring.AlertPolicyConditionArgs(
        display_name=condition.title,
        condition_prometheus_query_language=gcp.monitoring.AlertPolicyConditionConditionPrometheusQueryLanguageArgs(
            query=values.replace_in(condition.expression),
            duration=values.replace_in(condition.hold),
            evaluation_interval=f"{SCRAPE_INTERVAL_S}s",
            alert_rule=condition.title.title().replace(" ", ""),
            rule_group=re.sub(r"\W", "_", values.name),
            labels={"severity": severity},
            # At the first `up` none of the metrics exists yet.
            disable_metric_validation=True,
        ),
    )


def _log_line(alert: Alert, log_filter: str) -> gcp.monitoring.AlertPolicyConditionArgs:
    return gcp.monitoring.AlertPolicyConditionArgs(
        display_name=alert.title,
        condition_matched_log=gcp.monitoring.AlertPolicyConditionConditionMatchedLogArgs(
            filter=f'{log_filter} AND textPayload=~"{alert.pattern}"'
        ),
    )
