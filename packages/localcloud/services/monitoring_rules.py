"""Rules of Cloud Monitoring about a whole alert policy, channel or dashboard. Rules about one message are in `localcloud.rest.stated_rules`.

Messages that were seen: hashicorp/terraform-provider-google#5499 and #16914 (labels of channels), chainguard-dev/terraform-infra-common#352
(limit of notifications without log condition), #384 (conditions next to a log condition) and #211 (filter), nomadkaraoke/karaoke-gen#788
(autoClose). The others are assumed.
"""

from collections.abc import Mapping
from typing import Final

import promql_parser

from localcloud.json_values import JsonObject, packaged, part, parts, strings
from localcloud.rest import filters
from localcloud.rest.errors import CloudError
from localcloud.services.checks import Rules, check_labels, obey
from localcloud.world.timeline import seconds

_MAX_CONDITIONS: Final = 6
_INTERVAL_S: Final = 30
"""Seconds of which each evaluationInterval is a multiple."""
_SHORTEST_AUTO_CLOSE_S: Final = 1800
_EQUAL: Final = promql_parser.MatchOp.Equal
_RESOURCE: Final = "monitored_resource"
_TABLES: Final = packaged("localcloud.services", "monitoring.json")
PLATFORM_METRICS: Final = part(_TABLES, "metrics")
"""Monitored resource types of metrics of Google's platform (docs.cloud.google.com/run/docs/monitoring, table of metrics, 2026-11; the TPU metric's is
assumed). A selector of a metric with several must name one (cloud.google.com/monitoring/promql/promql-mapping).
Metrics that are not listed are not checked."""
_CHANNELS: Final = part(_TABLES, "channels")
"""Labels by type of channel. Google lists them in notificationChannelDescriptors."""
_ALONE: Final[Mapping[str, str]] = {
    "conditionMatchedLog": "Alert policies with a log matching condition can only have a single condition.",
    "conditionMonitoringQueryLanguage": "If condition_monitoring_query_language is present, it must be the only condition.",
}
"""Kinds of conditions that exclude others, with Google's message."""


class ExpressionError(Exception):
    """An expression is not PromQL, or Google does not evaluate it. The message states why."""


def _said(path: str, value: object, reason: str) -> str:
    """Return Google's sentence about a field's value."""
    return f'Field {path} had an invalid value of "{value}": {reason}.'


def check_channel(channel: JsonObject) -> None:
    """Reject a channel whose type is unknown or has other labels."""
    obey(_of_channel(str(channel.get("type") or ""), part(channel, "labels")))
    check_labels(channel.get("userLabels"), "notification_channel.user_labels")


def _of_channel(kind: str, labels: JsonObject) -> Rules:
    path = "notification_channel.type"
    yield bool(kind), path, f"Field {path} must be set, such as email."
    yield kind in _CHANNELS, path, _said(path, kind, f"expected one of {', '.join(_CHANNELS)}")
    required = set(strings(_CHANNELS[kind], "required"))
    optional = set(strings(_CHANNELS[kind], "optional"))
    for name in sorted(required):
        path = f"notification_channel.labels[{name}]"
        empty = f"Field {path} had an invalid value: Value must NOT be empty if provided."
        yield name in labels, path, f"Request was missing field {path}."
        yield bool(labels[name]), path, empty
    path = "notification_channel.labels"
    for name in sorted(labels):
        known = name in required | optional
        yield known, path, _said(path, name, f"a channel of type {kind} has no such label")
    path, address = "labels[email_address]", str(labels.get("email_address", "@"))
    yield "@" in address, path, _said(path, address, "Email address is not valid")


def check_policy(policy: JsonObject) -> None:
    """Reject a policy by its conditions, combiner, limit of notifications and labels."""
    obey(_of_policy(policy, parts(policy, "conditions")))
    check_labels(policy.get("userLabels"), "alert_policy.user_labels")


def _of_policy(policy: JsonObject, conditions: list[JsonObject]) -> Rules:
    path, many = "alert_policy.conditions", len(conditions)
    yield many > 0, path, f"Field {path} must hold at least one condition."
    sentence = f"Field {path} has {many} conditions; at most {_MAX_CONDITIONS} are allowed."
    yield many <= _MAX_CONDITIONS, path, sentence
    combiner = "alert_policy.combiner"
    yield bool(policy.get("combiner")), combiner, f"Field {combiner} must be set, such as OR."
    for kind, message in _ALONE.items():
        yield many == 1 or not any(kind in condition for condition in conditions), path, message
    field = "alertStrategy.autoClose"
    close_s = seconds(str(part(policy, "alertStrategy").get("autoClose") or "1800s"))
    sentence = _said(field, f"seconds: {close_s:.0f}", "the autoclose duration should be at least 30 minutes")
    yield close_s >= _SHORTEST_AUTO_CLOSE_S, field, sentence
    for index, condition in enumerate(conditions):
        at = f"{path}[{index}]"
        yield any(key.startswith("condition") for key in condition), at, f"Field {at} must hold a condition."
        if "conditionPrometheusQueryLanguage" in condition:
            promql = part(condition, "conditionPrometheusQueryLanguage")
            yield from _of_promql(promql, f"{at}.condition_prometheus_query_language")
    yield from _of_log_condition(policy, part(conditions[0], "conditionMatchedLog"))


def _of_promql(promql: JsonObject, path: str) -> Rules:
    """Yield the rules of a PromQL condition (discovery: monitoring.v3, PrometheusQueryLanguageCondition)."""
    field = f"{path}.duration"
    duration = str(promql.get("duration") or "0s")
    yield seconds(duration) >= 0, field, _said(field, duration, "must not be negative")
    field = f"{path}.evaluation_interval"
    interval = str(promql.get("evaluationInterval") or f"{_INTERVAL_S}s")
    sentence = _said(field, interval, f"must be a positive multiple of {_INTERVAL_S} seconds")
    yield seconds(interval) > 0 and not seconds(interval) % _INTERVAL_S, field, sentence
    field = f"{path}.query"
    expression = str(promql.get("query") or "")
    try:
        # Google's own metrics exist before their first point. Here, nothing writes others.
        unknown = [metric for metric in metrics_in(expression) if "_googleapis_com:" not in metric]
    except ExpressionError as error:
        yield False, field, _said(field, expression, str(error))
        return
    sentence = _said(field, expression, f"no such metric: {', '.join(unknown)}")
    yield not unknown or bool(promql.get("disableMetricValidation")), field, sentence


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


def _of_log_condition(policy: JsonObject, matched: JsonObject) -> Rules:
    """Yield the rules of a log condition, which needs a limit of notifications and a filter that can be read. Other conditions have no such limit."""
    path = "alertStrategy.notificationRateLimit"
    period = part(part(policy, "alertStrategy"), "notificationRateLimit").get("period")
    only = "only log-based alert policies may specify a notification rate limit"
    yield bool(matched) or not period, path, _said(path, f"period {period}", only)
    if not matched:
        return
    required = f"Field {path} must be set: log-based alert policies must specify a notification rate limit."
    yield bool(period), path, required
    expression, path = str(matched["filter"]), "alert_policy.conditions[0].filter"
    try:
        filters.matcher(expression)
    except CloudError as error:
        yield False, path, _said(path, expression, error.message.rstrip("."))


def check_dashboard_name(name: str, projects: tuple[str, ...]) -> None:
    """Reject a dashboard named in another project than the request's. `projects`: its id and number."""
    if name.startswith("projects/") and name.split("/")[1] not in projects:
        reason = f"The project must match that of the request, {projects[0]}"
        raise CloudError.field("dashboard.name", _said("dashboard.name", name, reason))
