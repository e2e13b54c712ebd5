"""Alerts and metrics of a stack, for either target."""

from collections.abc import Mapping

import pulumi

from gemma_serving.contracts.alerts import AlertValues, alerts_of
from gemma_serving.contracts.collector import (
    AGENT_METRICS_PORT,
    COLLECTOR_IMAGE,
    CollectorSettings,
    collector_config,
)
from gemma_serving.contracts.machine_log import MACHINE_RESOURCE, machine_log_name
from gemma_serving.planning.cost.running_costs import daily_limit_usd
from gemma_serving.planning.settings.secrets import API_KEY
from gemma_serving.stacks.base import Context, Foundation, ServerParts
from gemma_serving.stacks.server_command import PORT

METRICS_ROLE = "roles/monitoring.metricWriter"
"""Role of the server's account with which the collector writes."""
_CLUSTERS: Mapping[str, str] = {"tpu": "tpu", "cloud-run": "__run__"}
"""Label `cluster`. `__run__` is the value that Google's own sidecar writes (GoogleCloudPlatform/run-gmp-sidecar)."""


def declare_alerts(context: Context, foundation: Foundation) -> None:
    """Declare the alerts of the stack, if it has any."""
    settings = context.settings
    if not settings.alerts.enabled:
        return
    from gemma_serving.components.observability import Observability, ObservabilityArgs  # noqa: PLC0415 - few stacks need it

    target, alerts = settings.target, settings.alerts
    Observability(
        "alerts",
        ObservabilityArgs(
            project=settings.project,
            ownership=context.ownership,
            labels=settings.labels,
            values=alert_values(context),
            alerts=list(
                alerts_of(
                    target,
                    collects=settings.collects_metrics,
                    has_budget=alerts.daily_cost is not None,
                    has_all=alerts.has_all,
                )
            ),
            log_filter=_log_filter(context),
            has_dashboard=settings.collects_metrics and alerts.has_all,
            email=alerts.email,
            webhook=alerts.webhook,
        ),
        foundation.options,
    )


def alert_values(context: Context) -> AlertValues:
    """Return the values in the expressions of the stack's alerts."""
    alerts, tpu = context.settings.alerts, context.settings.tpu
    return AlertValues(
        stack=context.names.stack,
        name=context.names.base,
        ttft_s=alerts.ttft_s,
        ttft_goal=alerts.ttft_goal,
        idle_s=alerts.idle_s,
        ready_s=0 if tpu is None else tpu.ready_timeout_s,
        usd_per_hour=context.subject.cost.most_usd_per_hour,
        daily_usd=daily_limit_usd(context.subject) or 0,
    )


def collector_text(context: Context) -> str | None:
    """Return the collector's configuration, or None without metrics."""
    settings = context.settings
    if not settings.collects_metrics:
        return None
    return collector_config(
        project=settings.project,
        namespace=context.names.base,
        cluster=_CLUSTERS[settings.target],
        ports=(PORT, AGENT_METRICS_PORT) if settings.tpu is not None else (PORT,),
        has_api_key=settings.has_secret(API_KEY.key),
    )


def machine_collector(context: Context, parts: ServerParts) -> pulumi.Input[str] | None:
    """Return the metadata with the collector of a TPU machine, or None without metrics."""
    config = collector_text(context)
    key = parts.secrets.get(API_KEY.variable)
    if config is None:
        return None
    if key is None:
        return CollectorSettings(COLLECTOR_IMAGE, config).text()
    return key.version_name.apply(lambda version: CollectorSettings(COLLECTOR_IMAGE, config, version).text())


def _log_filter(context: Context) -> str:
    """Return the filter for the log lines of the stack's server."""
    if context.settings.cloud_run is not None:
        return f'resource.type="cloud_run_revision" AND resource.labels.service_name="{context.names.base}"'
    return (
        f'logName="{machine_log_name(context.settings.project)}" AND resource.type="{MACHINE_RESOURCE}" AND '
        f'resource.labels.namespace="{context.names.account_id}"'
    )
