"""Cloud Monitoring: notification channels, alert policies, incidents and one metric (v3), dashboards and PromQL queries (v1).

Policies are checked and stored, and no condition is evaluated: incidents and results of queries are those that the admin API sets.
"""

from aiohttp import web

from localcloud.json_values import JsonObject, strings
from localcloud.rest.call import Call, Handler, masked
from localcloud.rest.errors import CloudError
from localcloud.services.billable_time import UseOfInstances
from localcloud.services.incidents import ALERTS, results
from localcloud.services.incidents import POLICIES as _POLICIES
from localcloud.services.monitoring_rules import (
    ExpressionError,
    check_channel,
    check_dashboard_name,
    check_policy,
    metrics_in,
)
from localcloud.services.service import ApiService, listing, method, visible
from localcloud.world.cloud import Cloud

_CHANNELS = "monitoring.notificationChannels"
_DASHBOARDS = "monitoring.dashboards"
_ORDER_FIELDS = {"open_time": "openTime", "close_time": "closeTime"}


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of all collections."""
    served = (each(cloud) for each in (_Channels, _Policies, _Dashboards, _Alerts, _Queries, UseOfInstances))
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


class _Policies(_MonitoringCollection):
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

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return visible(self.stored(ALERTS, call.name, f"Cannot find '{call.name}'."))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        results(self._cloud, call.name.split("/")[1])
        found = [incident for _, incident in self.visible_under(ALERTS, f"{call.name}/alerts/")]
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
        if call.query.get("validateOnly"):
            return document
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
