"""Cloud Monitoring: notification channels, alert policies and one metric (v3), dashboards (v1). Nothing is evaluated; no alert ever fires."""

from localcloud.json_values import JsonObject, part, strings
from localcloud.rest.call import Call, Handler, masked
from localcloud.rest.errors import CloudError
from localcloud.services.billable_time import UseOfInstances
from localcloud.services.service import ApiService, listing, method
from localcloud.world.cloud import Cloud

_CHANNELS, _POLICIES, _DASHBOARDS = (
    "monitoring.notificationChannels",
    "monitoring.alertPolicies",
    "monitoring.dashboards",
)


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of all four collections."""
    served = (_Channels(cloud), _Policies(cloud), _Dashboards(cloud), UseOfInstances(cloud))
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
        document = {**_checked_channel(call.body), "name": name, "creationRecord": self._record(call)}
        return self._store.put(_CHANNELS, name, document)

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        updated = {**self._patched(call), "mutationRecords": [self._record(call)]}
        return self._store.put(_CHANNELS, call.name, {**_checked_channel(updated), "name": call.name})

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
        document = {**self._checked(name, call.body), "name": name, "creationRecord": record, "mutationRecord": record}
        return self._store.put(_POLICIES, name, document)

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        updated = {**self._patched(call), "mutationRecord": self._record(call)}
        return self._store.put(_POLICIES, call.name, {**self._checked(call.name, updated), "name": call.name})

    def _checked(self, name: str, body: JsonObject) -> JsonObject:
        """Return an alert policy with ids for its conditions. Raise 404 if a channel does not exist."""
        if not body.get("conditions"):
            raise CloudError.field(
                "alert_policy.conditions", "Field alert_policy.conditions must hold at least one condition."
            )
        if not body.get("combiner"):
            raise CloudError.field("alert_policy.combiner", "Field alert_policy.combiner must be set, such as OR.")
        for channel in strings(body, "notificationChannels"):
            if not self._store.has(_CHANNELS, channel):
                raise CloudError.not_found(f"Cannot find the notification channel '{channel}'.")
        conditions: list[JsonObject] = []
        for condition in body["conditions"]:
            given = str(condition.get("name") or "")
            own = given if given.startswith(name + "/") else f"{name}/conditions/{self._cloud.ids.number()}"
            conditions.append({**condition, "name": own})
        return {"enabled": True, **body, "conditions": conditions}


class _Dashboards(_MonitoringCollection):
    prefix, kind = "monitoring.projects.dashboards", _DASHBOARDS

    @method("create")
    def create(self, call: Call) -> JsonObject:
        project = call.name.split("/")[1]
        given = str(call.body.get("name") or "")
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
        if not call.body.get("displayName"):
            raise CloudError.field("dashboard.display_name", "Field displayName must be set.")
        document = {**call.body, "name": name, "etag": self._cloud.ids.etag()}
        if call.query.get("validateOnly"):
            return document
        return self._store.put(_DASHBOARDS, name, document)


def _checked_channel(body: JsonObject) -> JsonObject:
    if not body.get("type"):
        raise CloudError.field(
            "notification_channel.type", "Field notification_channel.type must be set, such as email."
        )
    if body["type"] == "email" and not part(body, "labels").get("email_address"):
        raise CloudError.field(
            "notification_channel.labels",
            'Field "notification_channel.labels[email_address]" must be set for a channel of type email.',
        )
    return {"enabled": True, **body}
