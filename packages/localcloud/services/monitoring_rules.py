"""Rules of Cloud Monitoring about a whole alert policy, channel or dashboard. Rules about one message are in `localcloud.rest.stated_rules`.

Messages that were seen: hashicorp/terraform-provider-google#5499 and #16914 (labels of channels), chainguard-dev/terraform-infra-common#352
(limit of notifications without log condition), #384 (conditions beside a log condition) and #211 (filter). The others are assumed.
"""

from collections.abc import Mapping
from typing import Final

from localcloud.json_values import JsonObject, part, parts
from localcloud.rest import log_filters
from localcloud.rest.errors import CloudError
from localcloud.services.checks import check_labels

_MAX_CONDITIONS: Final = 6
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
    check_labels(channel.get("userLabels"), "notification_channel.user_labels")


def check_policy(policy: JsonObject) -> None:
    """Reject a policy by its conditions, combiner, limit of notifications and labels. PromQL expressions are checked elsewhere."""
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
    _check_log_condition(policy, part(conditions[0], "conditionMatchedLog"))
    check_labels(policy.get("userLabels"), "alert_policy.user_labels")


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
