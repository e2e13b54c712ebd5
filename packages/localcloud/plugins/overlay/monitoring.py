"""Notification channels, alert policies and dashboards."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Final, cast

from localcloud.plugins.diffing import Detail, Details, DiffKind
from localcloud.plugins.facts import Recorded
from localcloud.plugins.lifecycle import OperationContext, TypeOverlay
from localcloud.plugins.resource import Mask, RestResource
from localcloud.plugins.rest import PluginError
from localcloud.plugins.schema import Json, Object
from localcloud.plugins.values import Properties, UnknownValue, Value, text_of

_V3: Final = "monitoring/v3"
_V1: Final = "monitoring/v1"
_SENSITIVE: Final[Mapping[str, str]] = {"authToken": "auth_token", "password": "password", "serviceKey": "service_key"}


class _ChannelLifecycle(RestResource):
    """A notification channel: secret labels are sent with the others."""

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        body = super().body(context, inputs, state, update=update)
        sensitive = inputs.get("sensitiveLabels")
        if isinstance(sensitive, dict) and sensitive:
            plain = body.get("labels")
            secret: Object = {_SENSITIVE[name]: str(value) for name, value in sensitive.items() if name in _SENSITIVE}
            body["labels"] = {**(plain if isinstance(plain, dict) else {}), **secret}
        return body

    def state(
        self, context: OperationContext, body: Object, given: Properties, *, imported: bool = False
    ) -> Properties:
        labels = body.get("labels")
        if isinstance(labels, dict):
            shown = {name: value for name, value in labels.items() if name not in _SENSITIVE.values()}
            body = {**body, "labels": shown}
        return super().state(context, body, given, imported=imported)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        force = "true" if state.get("forceDelete") is True else "false"
        await super().delete(context, resource_id, {**state, "force": force})


class _AlertLifecycle(RestResource):
    """An alert policy: updates send its conditions with the names that Google assigned them."""

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        body = super().body(context, inputs, state, update=update)
        conditions, known = body.get("conditions"), state.get("conditions")
        if update and isinstance(conditions, list) and isinstance(known, list):
            for condition, before in zip(conditions, known, strict=False):
                if isinstance(condition, dict) and isinstance(before, dict) and before.get("name"):
                    condition["name"] = str(before["name"])
        return body


class _DashboardLifecycle(RestResource):
    """A dashboard, whose body is one JSON text."""

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        """Return the text as an object, with the etag of the state's text."""
        del context, update
        body, known = _parsed(inputs), _parsed(state)
        if not isinstance(body, dict):
            raise PluginError('"dashboardJson" contains an invalid JSON: it has to be the JSON text of one object')
        return {**body, "etag": known["etag"]} if isinstance(known, dict) and "etag" in known else body

    def state(
        self, context: OperationContext, body: Object, given: Properties, *, imported: bool = False
    ) -> Properties:
        """Return the state, which contains the whole text of Google's response."""
        state = super().state(context, body, given, imported=imported)
        return {**state, "dashboardJson": json.dumps(body, sort_keys=True)}

    def sent(self, changed: frozenset[str]) -> list[str]:
        """Return the body of an update: the text, or nothing."""
        return [name for name in changed if name == "dashboardJson"]


def _parsed(values: Mapping[str, Value]) -> Json:
    try:
        return cast("Json", json.loads(text_of(values, "dashboardJson")))
    except ValueError:
        return None


def _same_dashboard(details: Details, state: Mapping[str, Value], inputs: Mapping[str, Value]) -> Details:
    """Compare only the program's values because Google's additions to the text are not differences."""
    if isinstance(inputs.get("dashboardJson"), UnknownValue):
        return details
    left = {path: detail for path, detail in details.items() if path != ("dashboardJson",)}
    wanted = _parsed(inputs)
    if _reduced(_parsed(state), wanted) != wanted:
        left["dashboardJson",] = Detail(change=DiffKind.UPDATE)
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
            _ChannelLifecycle,
            noun="NotificationChannel",
            api=_V3,
            collection=f"{_V3}/projects/{{project}}/notificationChannels",
            server_named=True,
            delete_query={"force": "{force}"},
        ),
    ),
    "gcp:monitoring/alertPolicy:AlertPolicy": TypeOverlay(
        message="monitoring.v3#AlertPolicy",
        properties={"enabled": _ZERO},
        lifecycle=partial(
            _AlertLifecycle,
            noun="AlertPolicy",
            api=_V3,
            collection=f"{_V3}/projects/{{project}}/alertPolicies",
            server_named=True,
            mask=Mask.CHANGED,
        ),
    ),
    "gcp:monitoring/dashboard:Dashboard": TypeOverlay(
        lifecycle=partial(
            _DashboardLifecycle,
            noun="Dashboard",
            api=_V1,
            collection=f"{_V1}/projects/{{project}}/dashboards",
            server_named=True,
        ),
        foresee=_same_dashboard,
    ),
}
