"""Notification channels, alert policies, dashboards, and metrics taken from logs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from localcloud.plugins.diffing import Detail, Details, PropertyChange
from localcloud.plugins.facts import Recorded
from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.resource import Mask, RestResource, known_project
from localcloud.plugins.rest import GoogleApiError, PluginError
from localcloud.plugins.schema import Json, Object
from localcloud.plugins.values import Properties, Unknown, Value, text_of

_V3: Final = "monitoring/v3"
_V1: Final = "monitoring/v1"
_LOGGING: Final = "logging/v2"
_SENSITIVE: Final[Mapping[str, str]] = {"authToken": "auth_token", "password": "password", "serviceKey": "service_key"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLifecycle(RestResource):
    """A notification channel: secret labels travel among the others."""

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        """Add the secret labels."""
        body = RestResource.body(self, context, inputs, state, update=update)
        sensitive = inputs.get("sensitiveLabels")
        if isinstance(sensitive, dict) and sensitive:
            plain = body.get("labels")
            secret: Object = {_SENSITIVE[name]: str(value) for name, value in sensitive.items() if name in _SENSITIVE}
            body["labels"] = {**(plain if isinstance(plain, dict) else {}), **secret}
        return body

    def state(
        self, context: OperationContext, body: Object, given: Properties, *, imported: bool = False
    ) -> Properties:
        """Take the masked secret labels out."""
        labels = body.get("labels")
        if isinstance(labels, dict):
            body = {
                **body,
                "labels": {name: value for name, value in labels.items() if name not in _SENSITIVE.values()},
            }
        return RestResource.state(self, context, body, given, imported=imported)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """DELETE, with `force` as the program says."""
        force = "true" if state.get("forceDelete") is True else "false"
        await RestResource.delete(self, context, resource_id, {**state, "force": force})


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertLifecycle(RestResource):
    """An alert policy: updates send its conditions with the names that Google gave them."""

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        """Add the conditions' names."""
        body = RestResource.body(self, context, inputs, state, update=update)
        conditions, known = body.get("conditions"), state.get("conditions")
        if update and isinstance(conditions, list) and isinstance(known, list):
            for condition, before in zip(conditions, known, strict=False):
                if isinstance(condition, dict) and isinstance(before, dict) and before.get("name"):
                    condition["name"] = str(before["name"])
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardLifecycle(RestResource):
    """A dashboard: a JSON text that is the body."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """POST, then read."""
        project = known_project(context, inputs).project
        try:
            answer = await context.rest.call("POST", f"{_V1}/projects/{project}/dashboards", body=_dashboard(inputs))
        except GoogleApiError as error:
            raise PluginError(f"Error creating Dashboard: {error}") from error
        name = str(answer.get("name", ""))
        return await settled(name, inputs, self.must_read(context, name, inputs))

    def state(
        self, context: OperationContext, body: Object, given: Properties, *, imported: bool = False
    ) -> Properties:
        """Return the state, which holds the whole text that Google answers."""
        state = RestResource.state(self, context, body, given, imported=imported)
        return {**state, "dashboardJson": json.dumps(body, sort_keys=True)}

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """PATCH the whole text with the etag of the state."""
        body = _dashboard(wanted.inputs)
        known = _parsed(wanted.state)
        if isinstance(known, dict) and "etag" in known:
            body["etag"] = known["etag"]
        if "dashboardJson" in wanted.changed:
            try:
                await context.rest.call("PATCH", f"{_V1}/{wanted.id}", body=body)
            except GoogleApiError as error:
                raise PluginError(f"Error updating Dashboard {wanted.id!r}: {error}") from error
        return await self.must_read(context, wanted.id, wanted.inputs)


def _parsed(values: Mapping[str, Value]) -> Json:
    try:
        return cast("Json", json.loads(text_of(dict(values), "dashboardJson")))
    except ValueError:
        return None


def _dashboard(inputs: Properties) -> Object:
    parsed = _parsed(inputs)
    if not isinstance(parsed, dict):
        raise PluginError('"dashboardJson" contains an invalid JSON: it has to be the JSON text of one object')
    return parsed


def _same_dashboard(details: Details, state: Mapping[str, Value], inputs: Mapping[str, Value]) -> Details:
    """What Google added to the text is no difference: only what the program wrote is compared."""
    if isinstance(inputs.get("dashboardJson"), Unknown):
        return details
    left = {path: detail for path, detail in details.items() if path != ("dashboardJson",)}
    wanted = _parsed(inputs)
    if _reduced(_parsed(state), wanted) != wanted:
        left["dashboardJson",] = Detail(change=PropertyChange.UPDATE)
    return left


def _reduced(answered: Json, wanted: Json) -> Json:
    if isinstance(answered, dict) and isinstance(wanted, dict):
        return {name: _reduced(value, wanted[name]) for name, value in answered.items() if name in wanted}
    if isinstance(answered, list) and isinstance(wanted, list) and len(answered) == len(wanted):
        return [_reduced(one, other) for one, other in zip(answered, wanted, strict=True)]
    return answered


_ZERO: Final[Recorded] = {"send_zero": True}

MONITORING: Final[Mapping[str, TypeOverlay]] = {
    "gcp:monitoring/notificationChannel:NotificationChannel": TypeOverlay(
        message="monitoring.v3#NotificationChannel",
        properties={"enabled": _ZERO},
        lifecycle=partial(
            ChannelLifecycle,
            noun="NotificationChannel",
            collection=f"{_V3}/projects/{{project}}/notificationChannels",
            item=f"{_V3}/{{id}}",
            server_named=True,
            delete_query={"force": "{force}"},
        ),
    ),
    "gcp:monitoring/alertPolicy:AlertPolicy": TypeOverlay(
        message="monitoring.v3#AlertPolicy",
        properties={"enabled": _ZERO},
        lifecycle=partial(
            AlertLifecycle,
            noun="AlertPolicy",
            collection=f"{_V3}/projects/{{project}}/alertPolicies",
            item=f"{_V3}/{{id}}",
            server_named=True,
            mask=Mask.CHANGED,
        ),
    ),
    "gcp:monitoring/dashboard:Dashboard": TypeOverlay(
        lifecycle=partial(DashboardLifecycle, noun="Dashboard", item=f"{_V1}/{{id}}", server_named=True),
        foresee=_same_dashboard,
    ),
    "gcp:logging/metric:Metric": TypeOverlay(
        message="logging.v2#LogMetric",
        properties={"bucketOptions.linearBuckets.offset": _ZERO},
        lifecycle=partial(
            RestResource,
            noun="Metric",
            collection=f"{_LOGGING}/projects/{{project}}/metrics",
            item=f"{_LOGGING}/projects/{{project}}/metrics/{{name}}",
            id_template="{name}",
            update_method="PUT",
        ),
    ),
}
