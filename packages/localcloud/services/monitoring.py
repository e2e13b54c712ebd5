"""Cloud Monitoring: notification channels, alert policies, incidents and one metric (v3), dashboards and PromQL queries (v1).

Only PromQL conditions are evaluated (localcloud.services.evaluating), and only if the evaluator is built. Other conditions are stored.
"""

from datetime import UTC, datetime

from aiohttp import web

from localcloud.json_values import JsonObject, part, strings
from localcloud.rest.call import Call, Handler, masked
from localcloud.rest.errors import CloudError
from localcloud.rules.evaluator import ExpressionError
from localcloud.services.billable_time import UseOfInstances
from localcloud.services.evaluating import EVALUATED, ROUND_S, Monitor, NotEvaluatedError
from localcloud.services.evaluating import POLICIES as _POLICIES
from localcloud.services.incidents import ALERTS
from localcloud.services.monitoring_rules import check_channel, check_dashboard_name, check_policy, invalid
from localcloud.services.notifying import CHANNELS as _CHANNELS
from localcloud.services.service import ApiService, listing, method, visible
from localcloud.world.cloud import Cloud
from localcloud.world.timeline import seconds

_DASHBOARDS = "monitoring.dashboards"
_ORDER_FIELDS = {"open_time": "openTime", "close_time": "closeTime"}


def handlers(cloud: Cloud, monitor: Monitor) -> dict[str, Handler]:
    """Return the methods of all collections. `monitor` evaluates expressions."""
    served = (
        _Channels(cloud),
        _Policies(cloud, monitor),
        _Dashboards(cloud),
        _Alerts(cloud, monitor),
        _Queries(cloud, monitor),
        UseOfInstances(cloud),
    )
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

    def __init__(self, cloud: Cloud, monitor: Monitor) -> None:
        super().__init__(cloud)
        self._monitor = monitor

    @method("create")
    async def create(self, call: Call) -> JsonObject:
        name, record = self._new_name(call), self._record(call)
        checked = await self._checked(name, call.body)
        return self._store.put(
            _POLICIES, name, {**checked, "name": name, "creationRecord": record, "mutationRecord": record}
        )

    @method("patch")
    async def patch(self, call: Call) -> JsonObject:
        updated = {**self._patched(call), "mutationRecord": self._record(call)}
        checked = await self._checked(call.name, updated)
        self.get(call)  # it may have been deleted while the expression was checked
        return self._store.put(_POLICIES, call.name, {**checked, "name": call.name})

    async def _checked(self, name: str, body: JsonObject) -> JsonObject:
        """Return an alert policy with ids for its conditions. Raise 404 if a channel does not exist."""
        check_policy(body)
        for channel in strings(body, "notificationChannels"):
            if not self._store.has(_CHANNELS, channel):
                raise CloudError.not_found(f"Cannot find the notification channel '{channel}'.")
        conditions: list[JsonObject] = []
        for index, condition in enumerate(body["conditions"]):
            if "conditionPrometheusQueryLanguage" in condition:
                promql = part(condition, "conditionPrometheusQueryLanguage")
                path = f"alert_policy.conditions[{index}].condition_prometheus_query_language"
                await self._check_promql(name.split("/")[1], promql, path)
            given = str(condition.get("name") or "")
            own = given if given.startswith(name + "/") else f"{name}/conditions/{self._cloud.ids.number()}"
            conditions.append({**condition, "name": own})
        return {"enabled": True, **body, "conditions": conditions}

    async def _check_promql(self, project: str, promql: JsonObject, path: str) -> None:
        """Reject a PromQL condition as Google does (discovery: monitoring.v3, PrometheusQueryLanguageCondition)."""
        expression = str(promql.get("query") or "")
        if seconds(str(promql.get("duration") or "0s")) < 0:
            raise invalid(f"{path}.duration", promql["duration"], "must not be negative")
        interval = str(promql.get("evaluationInterval") or f"{ROUND_S}s")
        if seconds(interval) <= 0 or seconds(interval) % ROUND_S:
            raise invalid(f"{path}.evaluation_interval", interval, f"must be a positive multiple of {ROUND_S} seconds")
        try:
            checked = await self._monitor.check(project, expression)
        except ExpressionError as error:
            raise invalid(f"{path}.query", expression, str(error)) from None
        if checked is None or promql.get("disableMetricValidation"):
            return
        # Google's own metrics exist before their first point.
        unknown = [metric for metric in checked.unknown if "_googleapis_com:" not in metric]
        if unknown:
            raise invalid(f"{path}.query", expression, f"no such metric: {', '.join(unknown)}")


class _Alerts(ApiService):
    """Incidents. They cannot be changed."""

    prefix = "monitoring.projects.alerts"

    def __init__(self, cloud: Cloud, monitor: Monitor) -> None:
        super().__init__(cloud)
        self._monitor = monitor

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return visible(self.stored(ALERTS, call.name, f"Cannot find '{call.name}'."))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        if (status := self._monitor.status) != EVALUATED:
            # An empty list would say that nothing rings.
            raise CloudError.unimplemented(f"Alert policies are {status}")
        found = [incident for _, incident in self.visible_under(ALERTS, f"{call.name}/alerts/")]
        for field, descending in reversed(_order(str(call.query.get("orderBy") or "open_time desc"))):
            found.sort(key=lambda incident: str(incident.get(field, "")), reverse=descending)
        # A page's key is its place in the order.
        keyed = [(f"{place:09d}", incident) for place, incident in enumerate(found)]
        return listing(call.query, "alerts", keyed, default=50)


class _Queries(ApiService):
    """Prometheus' HTTP API of a project."""

    prefix = "monitoring.projects.location.prometheus.api.v1"

    def __init__(self, cloud: Cloud, monitor: Monitor) -> None:
        super().__init__(cloud)
        self._monitor = monitor

    @method("query")
    async def query(self, call: Call) -> web.Response:
        expression, given = str(call.body.get("query") or ""), str(call.body.get("time") or "")
        if call.path["location"] != "global":
            return _bad_data(f"invalid location {call.path['location']}: only global is supported")
        if not expression:
            return _bad_data('invalid parameter "query": unknown position: parse error: no expression found in input')
        try:
            at = _moment(given) if given else None
        except ValueError:
            return _bad_data(f'invalid parameter "time": cannot parse "{given}" to a valid timestamp')
        try:
            data = await self._monitor.query(call.name.split("/")[1], expression, at)
        except ExpressionError as error:
            return _bad_data(f'invalid parameter "query": {error}')
        except NotEvaluatedError as error:
            raise CloudError.unimplemented(f"PromQL is {error}") from None
        return web.json_response({"status": "success", "data": data})


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


def _moment(text: str) -> datetime:
    """Return the time of a query: seconds since 1970, or an RFC 3339 stamp. Raises ValueError."""
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromisoformat(text)


def _bad_data(message: str) -> web.Response:
    """Return an error in the form of Prometheus' HTTP API."""
    return web.json_response({"status": "error", "errorType": "bad_data", "error": message}, status=400)
