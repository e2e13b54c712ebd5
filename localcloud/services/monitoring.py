"""Cloud Monitoring: notification channels and alert policies (v3), dashboards (v1). Nothing is evaluated; no alert ever fires."""

from localcloud.json_values import JsonObject, part, strings
from localcloud.rest import filters
from localcloud.rest.call import Call, Handler, masked, page
from localcloud.rest.errors import CloudError
from localcloud.services.common import with_token
from localcloud.world.cloud import Cloud

_CHANNELS, _POLICIES, _DASHBOARDS = (
    "monitoring.notificationChannels",
    "monitoring.alertPolicies",
    "monitoring.dashboards",
)


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Methods of all three."""
    service = _Monitoring(cloud)
    found: dict[str, Handler] = {}
    for collection, kind in (
        ("notificationChannels", _CHANNELS),
        ("alertPolicies", _POLICIES),
        ("dashboards", _DASHBOARDS),
    ):
        prefix = f"monitoring.projects.{collection}"
        found[f"{prefix}.get"] = service.reader(kind)
        found[f"{prefix}.list"] = service.lister(kind, collection)
    found.update(
        {
            "monitoring.projects.notificationChannels.create": service.create_channel,
            "monitoring.projects.notificationChannels.patch": service.patch_channel,
            "monitoring.projects.notificationChannels.delete": service.delete_channel,
            "monitoring.projects.alertPolicies.create": service.create_policy,
            "monitoring.projects.alertPolicies.patch": service.patch_policy,
            "monitoring.projects.alertPolicies.delete": service.deleter(_POLICIES),
            "monitoring.projects.dashboards.create": service.create_dashboard,
            "monitoring.projects.dashboards.patch": service.patch_dashboard,
            "monitoring.projects.dashboards.delete": service.deleter(_DASHBOARDS),
        }
    )
    return found


class _Monitoring:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def reader(self, kind: str) -> Handler:
        def read(call: Call) -> JsonObject:
            return self._found(kind, call.name)

        return read

    def lister(self, kind: str, collection: str) -> Handler:
        def listed(call: Call) -> JsonObject:
            parent = call.name
            found = filters.chosen(self._store.under(kind, f"{parent}/{collection}/"), call.query.get("filter"))
            items, following = page(found, size=call.query.get("pageSize"), token=call.query.get("pageToken"))
            return with_token({collection: items}, following)

        return listed

    def deleter(self, kind: str) -> Handler:
        def delete(call: Call) -> JsonObject:
            self._found(kind, call.name)
            self._store.delete(kind, call.name)
            return {}

        return delete

    def create_channel(self, call: Call) -> JsonObject:
        name = f"{call.name}/notificationChannels/{self._cloud.ids.number()}"
        return self._store.put(
            _CHANNELS, name, {**self._channel(call.body), "name": name, "creationRecord": self._record(call)}
        )

    def patch_channel(self, call: Call) -> JsonObject:
        document = self._found(_CHANNELS, call.name)
        mask = call.query.get("updateMask")
        updated = (
            masked(document, call.body, mask) if mask else {**call.body, "creationRecord": document["creationRecord"]}
        )
        updated["mutationRecords"] = [self._record(call)]
        return self._store.put(_CHANNELS, call.name, {**self._channel(updated), "name": call.name})

    def delete_channel(self, call: Call) -> JsonObject:
        self._found(_CHANNELS, call.name)
        users = [
            name
            for name, policy in self._store.under(_POLICIES)
            if call.name in strings(policy, "notificationChannels")
        ]
        if users and not call.query.get("force"):
            raise CloudError.precondition(
                f"Cannot delete notification channel '{call.name}': it is used by the alerting policy '{users[0]}'; delete that first, or use force."
            )
        for name in users:
            policy = self._found(_POLICIES, name)
            policy["notificationChannels"].remove(call.name)
            self._store.put(_POLICIES, name, policy)
        self._store.delete(_CHANNELS, call.name)
        return {}

    def create_policy(self, call: Call) -> JsonObject:
        name = f"{call.name}/alertPolicies/{self._cloud.ids.number()}"
        record = self._record(call)
        return self._store.put(
            _POLICIES,
            name,
            {**self._policy(name, call.body), "name": name, "creationRecord": record, "mutationRecord": record},
        )

    def patch_policy(self, call: Call) -> JsonObject:
        document = self._found(_POLICIES, call.name)
        mask = call.query.get("updateMask")
        updated = (
            masked(document, call.body, mask) if mask else {**call.body, "creationRecord": document["creationRecord"]}
        )
        updated["mutationRecord"] = self._record(call)
        return self._store.put(_POLICIES, call.name, {**self._policy(call.name, updated), "name": call.name})

    def create_dashboard(self, call: Call) -> JsonObject:
        project = call.name.split("/")[1]
        given = str(call.body.get("name") or "")
        name = f"projects/{project}/dashboards/{given.rpartition('/')[2] or self._cloud.ids.number()}"
        if self._store.has(_DASHBOARDS, name):
            raise CloudError.already_exists(f"Dashboard '{name}' already exists.")
        return self._dashboard(call, name)

    def patch_dashboard(self, call: Call) -> JsonObject:
        document = self._found(_DASHBOARDS, call.name)
        given = call.body.get("etag")
        if given and given != document["etag"]:
            raise CloudError.aborted(
                f"The etag '{given}' of dashboard '{call.name}' does not match the current one, '{document['etag']}'."
            )
        return self._dashboard(call, call.name)

    def _dashboard(self, call: Call, name: str) -> JsonObject:
        if not call.body.get("displayName"):
            raise CloudError.field("dashboard.display_name", "Field displayName must be set.")
        document = {**call.body, "name": name, "etag": self._cloud.ids.etag()}
        if call.query.get("validateOnly"):
            return document
        return self._store.put(_DASHBOARDS, name, document)

    def _channel(self, body: JsonObject) -> JsonObject:
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

    def _policy(self, name: str, body: JsonObject) -> JsonObject:
        """An alert policy with ids for its conditions and channels that exist."""
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
            conditions.append(
                {
                    **condition,
                    "name": given if given.startswith(name + "/") else f"{name}/conditions/{self._cloud.ids.number()}",
                }
            )
        return {"enabled": True, **body, "conditions": conditions}

    def _found(self, kind: str, name: str) -> JsonObject:
        document = self._store.get(kind, name)
        if document is None:
            raise CloudError.not_found(f"Cannot find '{name}'.")
        return document

    def _record(self, call: Call) -> JsonObject:
        return {"mutateTime": self._cloud.timeline.stamp(), "mutatedBy": call.caller.email}
