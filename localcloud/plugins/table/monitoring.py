"""Notification channels, alert policies, dashboards, and metrics taken from logs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from localcloud.plugins.diffing import Detail, Details, PropertyChange
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType, UpdateRequest, settled
from localcloud.plugins.resource import Mask, RestResource, known_project
from localcloud.plugins.rest import GoogleApiError, PluginError
from localcloud.plugins.schema import (
    Json,
    Object,
    PropertySpec,
    block,
    flag,
    listing,
    number,
    one_listed,
    outputs,
    text,
    texts_by_key,
    whole,
)
from localcloud.plugins.table.common import COMMON, DELETION_POLICY
from localcloud.plugins.values import Properties, Unknown, Value, text_of

_V3: Final = "monitoring/v3"
_V1: Final = "monitoring/v1"
_LOGGING: Final = "logging/v2"

_CHANNEL_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    "type": text(required=True),
    "displayName": text(),
    "description": text(),
    "enabled": flag(default=True, send_zero=True),
    "labels": texts_by_key(),
    "userLabels": texts_by_key(),
    "sensitiveLabels": block(
        # Google stores the three beside the plain labels and answers them masked; the state keeps what the program gave.
        {"authToken": text(secret=True), "password": text(secret=True), "serviceKey": text(secret=True)},
        local=True,
    ),
    "forceDelete": flag(local=True),
    **outputs(name=text(), verificationStatus=text()),
}
_SENSITIVE: Final[Mapping[str, str]] = {"authToken": "auth_token", "password": "password", "serviceKey": "service_key"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel(RestResource):
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


_TRIGGER: Final = block({"count": whole(), "percent": number()})
_AGGREGATIONS: Final = listing(
    block(
        {
            "alignmentPeriod": text(),
            "perSeriesAligner": text(),
            "crossSeriesReducer": text(),
            "groupByFields": listing(text()),
        }
    )
)
_PROMETHEUS: Final = block(
    {
        "query": text(required=True),
        "duration": text(),
        "evaluationInterval": text(computed=True),
        "labels": texts_by_key(),
        "ruleGroup": text(),
        "alertRule": text(),
        "disableMetricValidation": flag(),
    }
)

_ALERT_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    "displayName": text(required=True),
    "combiner": text(required=True),
    "enabled": flag(default=True, send_zero=True),
    "conditions": listing(
        block(
            {
                "name": text(computed=True),
                "displayName": text(required=True),
                "conditionAbsent": block(
                    {
                        "duration": text(required=True),
                        "filter": text(),
                        "aggregations": _AGGREGATIONS,
                        "trigger": _TRIGGER,
                    }
                ),
                "conditionMatchedLog": block({"filter": text(required=True), "labelExtractors": texts_by_key()}),
                "conditionPrometheusQueryLanguage": _PROMETHEUS,
                "conditionThreshold": block(
                    {
                        "comparison": text(required=True),
                        "duration": text(required=True),
                        "filter": text(),
                        "denominatorFilter": text(),
                        "aggregations": _AGGREGATIONS,
                        "denominatorAggregations": _AGGREGATIONS,
                        "thresholdValue": number(),
                        "evaluationMissingData": text(),
                        "trigger": _TRIGGER,
                    }
                ),
            }
        ),
        required=True,
    ),
    "alertStrategy": block(
        {
            "autoClose": text(),
            "notificationPrompts": listing(text()),
            "notificationRateLimit": block({"period": text()}),
            "notificationChannelStrategies": listing(
                block({"notificationChannelNames": listing(text()), "renotifyInterval": text()}),
                api="notificationChannelStrategy",
            ),
        }
    ),
    "documentation": block(
        {
            "content": text(),
            "mimeType": text(default="text/markdown"),
            "subject": text(),
            "links": listing(block({"displayName": text(), "url": text()})),
        }
    ),
    "notificationChannels": listing(text()),
    "severity": text(),
    "userLabels": texts_by_key(),
    **outputs(
        name=text(),
        creationRecords=listing(
            block({"mutateTime": text(), "mutatedBy": text()}),
            api="creationRecord",
            decode=one_listed,
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert(RestResource):
    """An alert policy: updates send its conditions with the names that Google gave them."""

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        """Fill the conditions' names in."""
        conditions, known = inputs.get("conditions"), state.get("conditions")
        if update and isinstance(conditions, list) and isinstance(known, list):
            inputs = {
                **inputs,
                "conditions": [
                    _named(each, known[index] if index < len(known) else None) for index, each in enumerate(conditions)
                ],
            }
        return RestResource.body(self, context, inputs, state, update=update)


def _named(condition: Value, known: Value) -> Value:
    if not isinstance(condition, dict) or not isinstance(known, dict) or condition.get("name"):
        return condition
    return {**condition, "name": known.get("name")}


_DASHBOARD_FIELDS: Final[Mapping[str, PropertySpec]] = {**COMMON, "dashboardJson": text(required=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard: a JSON text that is the body."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """POST, then read."""
        project = known_project(context, inputs).project
        try:
            answer = await context.rest.call("POST", f"{_V1}/projects/{project}/dashboards", body=_dashboard(inputs))
        except GoogleApiError as error:
            raise PluginError(f"Error creating Dashboard: {error}") from error
        name = str(answer.get("name", ""))
        return await settled(name, inputs, self._must_read(context, name, inputs))

    async def _must_read(self, context: OperationContext, name: str, inputs: Properties) -> Created:
        found = await self.read(context, name, inputs)
        if found is None:
            raise PluginError(
                f"Error reading Dashboard {name!r}: it is gone right after the request that made or changed it"
            )
        return found

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET; the state holds the whole text that Google answers."""
        body = await context.rest.find(f"{_V1}/{resource_id}")
        if body is None:
            return None
        state: Properties = {"dashboardJson": json.dumps(body, sort_keys=True), "project": context.scope(given).project}
        if "deletionPolicy" in given:
            state["deletionPolicy"] = given["deletionPolicy"]
        return Created(id=resource_id, state=state)

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
        return await self._must_read(context, wanted.id, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """DELETE; 404 is success."""
        del state
        try:
            await context.rest.call("DELETE", f"{_V1}/{resource_id}")
        except GoogleApiError as error:
            if not error.is_missing:
                raise PluginError(f"Error deleting Dashboard {resource_id!r}: {error}") from error


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


_METRIC_FIELDS: Final[Mapping[str, PropertySpec]] = {
    "project": COMMON["project"],
    "deletionPolicy": DELETION_POLICY,
    "name": text(autoname=True),
    "filter": text(required=True),
    "description": text(),
    "disabled": flag(),
    "bucketName": text(),
    "labelExtractors": texts_by_key(),
    "valueExtractor": text(),
    "metricDescriptor": block(
        {
            "metricKind": text(required=True),
            "valueType": text(required=True),
            "unit": text(default="1"),
            "displayName": text(),
            "labels": listing(
                block({"key": text(required=True), "valueType": text(default="STRING"), "description": text()})
            ),
        },
        computed=True,
    ),
    "bucketOptions": block(
        {
            "linearBuckets": block(
                {
                    "numFiniteBuckets": whole(required=True),
                    "width": number(required=True),
                    "offset": number(required=True, send_zero=True),
                }
            ),
            "exponentialBuckets": block(
                {
                    "numFiniteBuckets": whole(required=True),
                    "growthFactor": number(required=True),
                    "scale": number(required=True),
                }
            ),
            "explicitBuckets": block({"bounds": listing(number(), required=True)}),
        }
    ),
}

MONITORING: Final = (
    ResourceType(
        type_name="gcp:monitoring/notificationChannel:NotificationChannel",
        fields=_CHANNEL_FIELDS,
        lifecycle=Channel(
            noun="NotificationChannel",
            fields=_CHANNEL_FIELDS,
            collection=f"{_V3}/projects/{{project}}/notificationChannels",
            item=f"{_V3}/{{id}}",
            server_named=True,
            delete_query={"force": "{force}"},
        ),
    ),
    ResourceType(
        type_name="gcp:monitoring/alertPolicy:AlertPolicy",
        fields=_ALERT_FIELDS,
        lifecycle=Alert(
            noun="AlertPolicy",
            fields=_ALERT_FIELDS,
            collection=f"{_V3}/projects/{{project}}/alertPolicies",
            item=f"{_V3}/{{id}}",
            server_named=True,
            mask=Mask.CHANGED,
        ),
    ),
    ResourceType(
        type_name="gcp:monitoring/dashboard:Dashboard",
        fields=_DASHBOARD_FIELDS,
        lifecycle=Dashboard(),
        foresee=_same_dashboard,
    ),
    ResourceType(
        type_name="gcp:logging/metric:Metric",
        fields=_METRIC_FIELDS,
        lifecycle=RestResource(
            noun="Metric",
            fields=_METRIC_FIELDS,
            collection=f"{_LOGGING}/projects/{{project}}/metrics",
            item=f"{_LOGGING}/projects/{{project}}/metrics/{{name}}",
            id_template="{name}",
            update_method="PUT",
        ),
    ),
)
