"""Rules of Cloud Monitoring about a whole alert policy, channel or dashboard. Rules about one message are in `localcloud.rest.stated_rules`.

Messages that were seen: hashicorp/terraform-provider-google#5499 and #16914 (labels of channels), chainguard-dev/terraform-infra-common#352
(limit of notifications without log condition), #384 (conditions beside a log condition) and #211 (filter), nomadkaraoke/karaoke-gen#788
(autoClose). The others are assumed.
"""

from collections.abc import Mapping
from typing import Final

import promql_parser

from localcloud.json_values import JsonObject, part, parts
from localcloud.rest import log_filters
from localcloud.rest.errors import CloudError
from localcloud.services.checks import check_labels
from localcloud.world.timeline import seconds

_MAX_CONDITIONS: Final = 6
_INTERVAL_S: Final = 30
"""Seconds of which each evaluationInterval is a multiple."""
_SHORTEST_AUTO_CLOSE_S: Final = 1800
_EQUAL: Final = promql_parser.MatchOp.Equal
_RESOURCE: Final = "monitored_resource"
_SERVICES: Final = ("cloud_run_revision", "cloud_run_instance")
_EVERYWHERE: Final = (*_SERVICES, "cloud_run_job", "cloud_run_worker_pool")
PLATFORM_METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "run_googleapis_com:container_billable_instance_time": _EVERYWHERE,
    "run_googleapis_com:container_instance_count": ("cloud_run_revision", "cloud_run_job", "cloud_run_worker_pool"),
    "run_googleapis_com:request_count": _SERVICES,
    "run_googleapis_com:request_latencies": _SERVICES,
    "tpu_googleapis_com:cpu_utilization": ("tpu_worker",),
}
"""Monitored resource types of metrics of Google's platform (docs.cloud.google.com/run/docs/monitoring, table of metrics, 2026-11; that of the TPU
metric is an assumption of the ledger). A selector of a metric with several must name one (cloud.google.com/monitoring/promql/promql-mapping).
Metrics that are not listed are not checked."""
_CHANNEL_LABELS: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "email": (frozenset({"email_address"}), frozenset()),
    "google_chat": (frozenset({"space"}), frozenset()),
    "pagerduty": (frozenset({"service_key"}), frozenset()),
    "pubsub": (frozenset({"topic"}), frozenset()),
    "slack": (frozenset({"auth_token", "channel_name"}), frozenset({"team"})),
    "sms": (frozenset({"number"}), frozenset()),
    "webhook_basicauth": (frozenset({"url", "username", "password"}), frozenset()),
    "webhook_tokenauth": (frozenset({"url"}), frozenset()),
}
"""Labels by type of channel: required ones, then optional ones. Google lists them in notificationChannelDescriptors."""
_ALONE: Final[Mapping[str, str]] = {
    "conditionMatchedLog": "Alert policies with a log matching condition can only have a single condition.",
    "conditionMonitoringQueryLanguage": "If condition_monitoring_query_language is present, it must be the only condition.",
}
"""Kinds of conditions that exclude others, with Google's message."""


class ExpressionError(Exception):
    """An expression is not PromQL, or Google does not evaluate it. The message states why."""


def invalid(path: str, value: object, reason: str) -> CloudError:
    """Return the error of a field whose value Google rejects."""
    return CloudError.field(path, f'Field {path} had an invalid value of "{value}": {reason}.')


def check_channel(channel: JsonObject) -> None:
    """Reject a channel whose type is unknown or has other labels."""
    kind = channel.get("type")
    if not kind:
        raise CloudError.field(
            "notification_channel.type", "Field notification_channel.type must be set, such as email."
        )
    if kind not in _CHANNEL_LABELS:
        raise invalid("notification_channel.type", kind, f"expected one of {', '.join(_CHANNEL_LABELS)}")
    required, optional = _CHANNEL_LABELS[kind]
    labels = part(channel, "labels")
    for name in sorted(required):
        path = f"notification_channel.labels[{name}]"
        if name not in labels:
            raise CloudError.field(path, f"Request was missing field {path}.")
        if not labels[name]:
            raise CloudError.field(path, f"Field {path} had an invalid value: Value must NOT be empty if provided.")
    for name in sorted(labels.keys() - required - optional):
        raise invalid("notification_channel.labels", name, f"a channel of type {kind} has no such label")
    address = labels.get("email_address", "@")
    if "@" not in address:
        raise invalid("labels[email_address]", address, "Email address is not valid")
    check_labels(channel.get("userLabels"), "notification_channel.user_labels")


def check_policy(policy: JsonObject) -> None:
    """Reject a policy by its conditions, combiner, limit of notifications and labels."""
    conditions = parts(policy, "conditions")
    path = "alert_policy.conditions"
    if not conditions:
        raise CloudError.field(path, f"Field {path} must hold at least one condition.")
    if len(conditions) > _MAX_CONDITIONS:
        raise CloudError.field(
            path, f"Field {path} has {len(conditions)} conditions; at most {_MAX_CONDITIONS} are allowed."
        )
    if not policy.get("combiner"):
        raise CloudError.field("alert_policy.combiner", "Field alert_policy.combiner must be set, such as OR.")
    for kind, message in _ALONE.items():
        if len(conditions) > 1 and any(kind in condition for condition in conditions):
            raise CloudError.field(path, message)
    auto_close = str(part(policy, "alertStrategy").get("autoClose") or "")
    if auto_close and seconds(auto_close) < _SHORTEST_AUTO_CLOSE_S:
        value = f"seconds: {seconds(auto_close):.0f}"
        raise invalid("alertStrategy.autoClose", value, "the autoclose duration should be at least 30 minutes")
    for index, condition in enumerate(conditions):
        if not any(key.startswith("condition") for key in condition):
            raise CloudError.field(f"{path}[{index}]", f"Field {path}[{index}] must hold a condition.")
        if "conditionPrometheusQueryLanguage" in condition:
            promql = part(condition, "conditionPrometheusQueryLanguage")
            _check_promql(promql, f"{path}[{index}].condition_prometheus_query_language")
    _check_log_condition(policy, part(conditions[0], "conditionMatchedLog"))
    check_labels(policy.get("userLabels"), "alert_policy.user_labels")


def _check_promql(promql: JsonObject, path: str) -> None:
    """Reject a PromQL condition as Google does (discovery: monitoring.v3, PrometheusQueryLanguageCondition)."""
    expression = str(promql.get("query") or "")
    if seconds(str(promql.get("duration") or "0s")) < 0:
        raise invalid(f"{path}.duration", promql["duration"], "must not be negative")
    interval = str(promql.get("evaluationInterval") or f"{_INTERVAL_S}s")
    if seconds(interval) <= 0 or seconds(interval) % _INTERVAL_S:
        raise invalid(f"{path}.evaluation_interval", interval, f"must be a positive multiple of {_INTERVAL_S} seconds")
    try:
        metrics = metrics_in(expression)
    except ExpressionError as error:
        raise invalid(f"{path}.query", expression, str(error)) from None
    # Google's own metrics exist before their first point. Here, nothing writes others.
    unknown = [metric for metric in metrics if "_googleapis_com:" not in metric]
    if unknown and not promql.get("disableMetricValidation"):
        raise invalid(f"{path}.query", expression, f"no such metric: {', '.join(unknown)}")


def metrics_in(expression: str) -> list[str]:
    """Return the metrics that a PromQL expression selects by name. Raises ExpressionError if it does not parse or a selector is ambiguous."""
    found: set[str] = set()
    ambiguous: set[str] = set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            named = [each.value for each in node.matchers.matchers if each.name == "__name__" and each.op == _EQUAL]
            selected = [node.name] if node.name else named
            found.update(selected)
            if not any(each.name == _RESOURCE and each.op == _EQUAL for each in node.matchers.matchers):
                ambiguous.update(name for name in selected if len(PLATFORM_METRICS.get(name, ())) > 1)

    try:
        promql_parser.walk(promql_parser.parse(expression), visit)
    except ValueError as error:
        raise ExpressionError(f"parse error: {error}") from None
    if ambiguous:
        raise ExpressionError("series selector must specify a label matcher on monitored resource name")
    return sorted(found)


def _check_log_condition(policy: JsonObject, matched: JsonObject) -> None:
    """Reject a log condition without a limit of notifications or with a filter that cannot be read, and the limit without such a condition."""
    path = "alertStrategy.notificationRateLimit"
    period = part(part(policy, "alertStrategy"), "notificationRateLimit").get("period")
    if not matched:
        if period:
            reason = "only log-based alert policies may specify a notification rate limit"
            raise invalid(path, f"period {period}", reason)
        return
    if not period:
        raise CloudError.field(
            path, f"Field {path} must be set: log-based alert policies must specify a notification rate limit."
        )
    expression = str(matched["filter"])
    try:
        log_filters.matcher(expression)
    except CloudError as error:
        raise invalid("alert_policy.conditions[0].filter", expression, error.message.rstrip(".")) from None


def check_dashboard_name(name: str, projects: tuple[str, ...]) -> None:
    """Reject a dashboard named in another project than the request's. `projects`: its id and number."""
    if name.startswith("projects/") and name.split("/")[1] not in projects:
        raise invalid("dashboard.name", name, f"The project must match that of the request, {projects[0]}")
