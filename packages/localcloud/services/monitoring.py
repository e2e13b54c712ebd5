"""Cloud Monitoring: notification channels, alert policies, incidents and one metric (v3), dashboards and PromQL queries (v1).

Policies are checked and stored, but conditions are not evaluated: the admin API sets incidents and results of queries.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from aiohttp import web

from localcloud.json_values import JsonObject, as_list, as_object, strings
from localcloud.rest.call import Call, Handler, masked
from localcloud.rest.errors import CloudError
from localcloud.services.monitoring_rules import (
    ExpressionError,
    check_channel,
    check_dashboard_name,
    check_policy,
    metrics_in,
)
from localcloud.services.run_deployments import SERVICES, USED, ready_since
from localcloud.services.service import ApiService, listing, method
from localcloud.world.cloud import Cloud
from localcloud.world.timeline import rfc3339

_ALERTS: Final = "monitoring.alerts"
_POLICIES: Final = "monitoring.alertPolicies"
_QUERIES: Final = "monitoring.queries"
_STATES: Final = ("OPEN", "CLOSED")
_NOT_EVALUATED: Final = (
    "The local cloud does not evaluate alert policies and queries. Set their results with POST /admin/alerts"
)
_CHANNELS = "monitoring.notificationChannels"
_DASHBOARDS = "monitoring.dashboards"
_ORDER_FIELDS = {"open_time": "openTime", "close_time": "closeTime"}
METRIC = "run.googleapis.com/container/billable_instance_time"
_LAG = timedelta(seconds=210)
"""Google samples most metrics once a minute and shows them some minutes later; this value is assumed."""
_COMPARED = re.compile(r'([a-z_.]+)\s*=\s*"([^"]*)"')
_KNOWN = {"metric.type", "resource.type", "resource.labels.service_name", "resource.labels.location"}


def set_alerts(cloud: Cloud, given: JsonObject) -> JsonObject:
    """Replace the incidents and results of a project, and return the incidents. Raises CloudError for a policy that does not exist."""
    project = str(given.get("project") or cloud.project)
    documents = [_incident(cloud, project, each) for each in map(as_object, as_list(given.get("alerts")))]
    for name, _ in cloud.store.under(_ALERTS, f"projects/{project}/alerts/"):
        cloud.store.delete(_ALERTS, name)
    for document in documents:
        cloud.store.put(_ALERTS, document["name"], document)
    cloud.store.put(_QUERIES, project, as_object(given.get("queries")))
    return {"alerts": documents}


def results(cloud: Cloud, project: str) -> JsonObject:
    """Return the results of a project by expression: a number, or None for none. Raises 501 until the admin API has set the project's alerts."""
    known = cloud.store.get(_QUERIES, project)
    if known is None:
        # An empty list states that no alert fires.
        raise CloudError.unimplemented(_NOT_EVALUATED)
    return known


def _incident(cloud: Cloud, project: str, given: JsonObject) -> JsonObject:
    policy, state = cloud.store.get(_POLICIES, str(given.get("policy"))), given.get("state", _STATES[0])
    if policy is None or not str(policy["name"]).startswith(f"projects/{project}/"):
        raise CloudError.not_found(f"Cannot find the alert policy '{given.get('policy')}' of project {project}.")
    if state not in _STATES:
        raise CloudError.invalid(f"POST /admin/alerts: state is {state!r}, expected one of {', '.join(_STATES)}.")
    snapshot = {key: policy[key] for key in ("name", "displayName", "userLabels", "severity") if key in policy}
    now = cloud.timeline.stamp()
    return {
        "name": f"projects/{project}/alerts/{cloud.ids.number()}",
        "state": state,
        "openTime": given.get("openTime") or now,
        **({"closeTime": given.get("closeTime") or now} if state == _STATES[1] else {}),
        "policy": snapshot,
        "resource": {"type": "prometheus_target", "labels": {"project_id": project}},
    }


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of all collections."""
    served = (each(cloud) for each in (_Channels, _AlertPolicies, _Dashboards, _Alerts, _Queries, _UseOfInstances))
    return {name: handler for service in served for name, handler in service.handlers().items()}


class _MonitoringCollection(ApiService):
    """The methods that the three collections share. `kind` is the kind of the stored documents."""

    kind: str

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return self.stored(self.kind, call.name, f"Cannot find '{call.name}'.")

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        collection = self.prefix.rpartition(".")[2]
        return listing(call.query, collection, self._store.under(self.kind, f"{call.name}/{collection}/"))

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        self.get(call)
        self._store.delete(self.kind, call.name)
        return {}

    def _new_name(self, call: Call) -> str:
        return f"{call.name}/{self.prefix.rpartition('.')[2]}/{self._cloud.ids.number()}"

    def _patched(self, call: Call) -> JsonObject:
        """Return the stored document with the call's changes: the fields of the mask, or everything without one."""
        document, mask = self.get(call), call.query.get("updateMask")
        if mask:
            return masked(document, call.body, mask)
        return {**call.body, "creationRecord": document["creationRecord"]}

    def _record(self, call: Call) -> JsonObject:
        return {"mutateTime": self._cloud.timeline.stamp(), "mutatedBy": call.caller.email}


class _Channels(_MonitoringCollection):
    prefix, kind = "monitoring.projects.notificationChannels", _CHANNELS

    @method("create")
    def create(self, call: Call) -> JsonObject:
        name = self._new_name(call)
        check_channel(call.body)
        document = {"enabled": True, **call.body, "name": name, "creationRecord": self._record(call)}
        return self._store.put(_CHANNELS, name, document)

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        updated = {"enabled": True, **self._patched(call), "mutationRecords": [self._record(call)]}
        check_channel(updated)
        return self._store.put(_CHANNELS, call.name, {**updated, "name": call.name})

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        self.get(call)
        users = [item for item in self._store.under(_POLICIES) if call.name in strings(item[1], "notificationChannels")]
        if users and not call.query.get("force"):
            raise CloudError.precondition(
                f"Cannot delete notification channel '{call.name}': it is used by the alerting policy '{users[0][0]}'; delete that first, or use force."
            )
        for name, policy in users:
            policy["notificationChannels"].remove(call.name)
            self._store.put(_POLICIES, name, policy)
        self._store.delete(_CHANNELS, call.name)
        return {}


class _AlertPolicies(_MonitoringCollection):
    prefix, kind = "monitoring.projects.alertPolicies", _POLICIES

    @method("create")
    def create(self, call: Call) -> JsonObject:
        name, record = self._new_name(call), self._record(call)
        checked = self._checked(name, call.body)
        return self._store.put(
            _POLICIES, name, {**checked, "name": name, "creationRecord": record, "mutationRecord": record}
        )

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        updated = {**self._patched(call), "mutationRecord": self._record(call)}
        return self._store.put(_POLICIES, call.name, {**self._checked(call.name, updated), "name": call.name})

    def _checked(self, name: str, body: JsonObject) -> JsonObject:
        """Return an alert policy with ids for its conditions. Raise 404 if a channel does not exist."""
        check_policy(body)
        for channel in strings(body, "notificationChannels"):
            if not self._store.has(_CHANNELS, channel):
                raise CloudError.not_found(f"Cannot find the notification channel '{channel}'.")
        conditions: list[JsonObject] = []
        for condition in body["conditions"]:
            given = str(condition.get("name") or "")
            own = given if given.startswith(name + "/") else f"{name}/conditions/{self._cloud.ids.number()}"
            conditions.append({**condition, "name": own})
        return {"enabled": True, **body, "conditions": conditions}


class _Alerts(ApiService):
    """Incidents. They cannot be changed."""

    prefix = "monitoring.projects.alerts"

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        results(self._cloud, call.name.split("/")[1])
        found = [incident for _, incident in self.visible_under(_ALERTS, f"{call.name}/alerts/")]
        for field, descending in reversed(_order(str(call.query.get("orderBy") or "open_time desc"))):
            found.sort(key=lambda incident: str(incident.get(field, "")), reverse=descending)
        # A page's key is its place in the order.
        keyed = [(f"{place:09d}", incident) for place, incident in enumerate(found)]
        return listing(call.query, "alerts", keyed, default=50)


class _Queries(ApiService):
    """Prometheus' HTTP API of a project, for the expressions whose results the admin API has set."""

    prefix = "monitoring.projects.location.prometheus.api.v1"

    @method("query")
    def query(self, call: Call) -> web.Response:
        expression = str(call.body.get("query") or "")
        if call.path["location"] != "global":
            return _bad_data(f"invalid location {call.path['location']}: only global is supported")
        try:
            metrics_in(expression)
        except ExpressionError as error:
            return _bad_data(f'invalid parameter "query": {error}')
        known = results(self._cloud, call.name.split("/")[1])
        if expression not in known:
            raise CloudError.unimplemented(f"The local cloud has no result of the query {expression}")
        at, value = self._cloud.timeline.now().timestamp(), known[expression]
        found: list[JsonObject] = [] if value is None else [{"metric": {}, "value": [at, str(value)]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": found}})


class _Dashboards(_MonitoringCollection):
    prefix, kind = "monitoring.projects.dashboards", _DASHBOARDS

    @method("create")
    def create(self, call: Call) -> JsonObject:
        project = call.name.split("/")[1]
        given = str(call.body.get("name") or "")
        check_dashboard_name(given, (project, self._cloud.project_number(project)))
        name = f"projects/{project}/dashboards/{given.rpartition('/')[2] or self._cloud.ids.number()}"
        if self._store.has(_DASHBOARDS, name):
            raise CloudError.already_exists(f"Dashboard '{name}' already exists.")
        return self._save(call, name)

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        document, given = self.get(call), call.body.get("etag")
        if given and given != document["etag"]:
            raise CloudError.aborted(
                f"The etag '{given}' of dashboard '{call.name}' does not match the current one, '{document['etag']}'."
            )
        return self._save(call, call.name)

    def _save(self, call: Call, name: str) -> JsonObject:
        document = {**call.body, "name": name, "etag": self._cloud.ids.etag()}
        return self._store.put(_DASHBOARDS, name, document)


def _order(text: str) -> list[tuple[str, bool]]:
    """Return the fields of an orderBy, each with whether it descends. Raise 400 for an unsupported one."""
    found: list[tuple[str, bool]] = []
    for word in text.split(","):
        name, _, direction = word.strip().partition(" ")
        if name not in _ORDER_FIELDS or direction.strip() not in {"", "asc", "desc"}:
            raise CloudError.field("order_by", f"Invalid order_by '{text}': supported are open_time and close_time.")
        found.append((_ORDER_FIELDS[name], direction.strip() == "desc"))
    return found


def _bad_data(message: str) -> web.Response:
    """Return an error in the form of Prometheus' HTTP API."""
    return web.json_response({"status": "error", "errorType": "bad_data", "error": message}, status=400)


class _UseOfInstances(ApiService):
    """Lists the metric. One instance runs from the time that a service's first revision is ready; the local cloud has no others."""

    prefix = "monitoring.projects.timeSeries"

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return a series for each service and each deleted one, with a point for each alignment period, newest first."""
        wanted, start, end, period = _read(call)
        end = min(end, self._cloud.timeline.now() - _LAG)
        found: list[tuple[str, JsonObject]] = []
        below = f"{call.name}/locations/"
        used = [(name, ready_since(self._cloud, name), end) for name, _ in self._store.under(SERVICES, below)]
        for name, past in self._store.under(USED, below):
            deleted = datetime.fromisoformat(past["deleted"])
            used.append((name.rpartition("/")[0], datetime.fromisoformat(past["ready"]), min(end, deleted)))
        for name, ready, until in used:
            _, project, _, location, _, service = name.split("/")
            labels = {"project_id": project, "location": location, "service_name": service}
            chosen = all(labels[key] == wanted.get(f"resource.labels.{key}", labels[key]) for key in labels)
            if chosen and ready is not None and max(ready, start) < until:
                points = _points(max(ready, start), start, until, period)
                resource = {"type": "cloud_run_revision", "labels": labels}
                series = {"metric": {"type": METRIC}, "resource": resource, "points": points}
                found.append((name, {**series, "metricKind": "DELTA", "valueType": "DOUBLE"}))
        return {**listing({}, "timeSeries", found), "unit": "s"}


def _read(call: Call) -> tuple[dict[str, str], datetime, datetime, timedelta]:
    """Return the filter, the interval and the period of a request. Raises CloudError for requests that Google or this local cloud rejects."""
    wanted = dict(_COMPARED.findall(str(call.query.get("filter") or "")))
    if "metric.type" not in wanted:
        raise CloudError.field("filter", "Field filter must hold a comparison of metric.type.")
    if wanted["metric.type"] != METRIC or not set(wanted) <= _KNOWN:
        raise CloudError.unimplemented(
            f"The local cloud only has the metric {METRIC}, with these filters: {', '.join(sorted(_KNOWN))}."
        )
    if call.query.get("aggregation.perSeriesAligner") != "ALIGN_SUM":
        raise CloudError.unimplemented("The local cloud only supports ALIGN_SUM.")
    if not call.query.get("interval.endTime"):
        raise CloudError.field("interval.end_time", "Field interval.endTime is required.")
    end = _moment(call, "interval.endTime")
    start = _moment(call, "interval.startTime") if call.query.get("interval.startTime") else end
    seconds = str(call.query.get("aggregation.alignmentPeriod") or "").removesuffix("s")
    if start > end or not seconds.isdecimal() or int(seconds) < 60:  # noqa: PLR2004 - discovery text of alignmentPeriod: "at least 60 seconds"
        raise CloudError.field(
            "aggregation.alignment_period",
            "The interval must not end before it starts, and the period be 60 s or more.",
        )
    return wanted, start, end, timedelta(seconds=int(seconds))


def _moment(call: Call, key: str) -> datetime:
    """Return the time in a query parameter. Raises CloudError unless it is an RFC 3339 time."""
    try:
        return datetime.fromisoformat(str(call.query[key])).astimezone(UTC)
    except ValueError:
        raise CloudError.field(key, f"Field {key} is not an RFC 3339 time.") from None


def _points(since: datetime, start: datetime, end: datetime, period: timedelta) -> list[JsonObject]:
    points: list[JsonObject] = []
    while end > start:
        begin = max(start, end - period)
        used_s = (end - max(begin, since)).total_seconds()
        if used_s > 0:
            interval = {"startTime": rfc3339(begin), "endTime": rfc3339(end)}
            points.append({"interval": interval, "value": {"doubleValue": used_s}})
        end = begin
    return points
