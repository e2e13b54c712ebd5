"""Secret Manager v1: secrets, versions, payloads, IAM. Names in responses contain the project's number, as Google's do."""

import base64

import google_crc32c

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, Handler, check_id, masked
from localcloud.rest.errors import CloudError
from localcloud.services.checks import check_labels, required_mask
from localcloud.services.service import PolicyService, listing, method, visible
from localcloud.world.cloud import Cloud

SECRETS, VERSIONS = "secretmanager.secrets", "secretmanager.versions"
_MAX_PAYLOAD_BYTES = 65_536
_MAX_PAGE = 25_000
_UPDATABLE = {
    "labels",
    "annotations",
    "topics",
    "expireTime",
    "ttl",
    "rotation",
    "versionAliases",
    "versionDestroyTtl",
    "customerManagedEncryption",
    "tags",
}


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of secrets and versions."""
    return _SecretResources(cloud).handlers()


def version_name(cloud: Cloud, name: str) -> str:
    """Return the full name of a version, with `latest` and aliases resolved. Raise 404 if it does not exist."""
    secret, _, number = name.rpartition("/versions/")
    document = cloud.store.get(SECRETS, secret)
    if document is None:
        raise CloudError.not_found(f"Secret [{secret}] not found or has no versions.")
    if number == "latest":
        numbers = [int(found.rpartition("/")[2]) for found, _ in cloud.store.under(VERSIONS, secret + "/versions/")]
        if not numbers:
            raise CloudError.not_found(f"Secret [{secret}] not found or has no versions.")
        number = str(max(numbers))
    number = str(part(document, "versionAliases").get(number, number))
    full = f"{secret}/versions/{number}"
    if not cloud.store.has(VERSIONS, full):
        raise CloudError.not_found(f"Secret Version [{full}] not found.")
    return full


class _SecretResources(PolicyService):
    prefix = "secretmanager.projects.secrets"

    def find(self, call: Call) -> JsonObject:
        return self.stored(SECRETS, call.name, f"Secret [{self._numbered(call.name)}] not found.")

    @method("create")
    def create(self, call: Call) -> JsonObject:
        secret_id = check_id(call.query.get("secretId"), "secretId", "[a-zA-Z0-9_-]{1,255}")
        name = f"{call.name}/secrets/{secret_id}"
        if self._store.has(SECRETS, name):
            raise CloudError.already_exists(f"Secret [{self._numbered(name)}] already exists.")
        replication = part(call.body, "replication")
        if len(replication) != 1:
            raise CloudError.field(
                "secret.replication", "Secret.replication must be set, to either automatic or user_managed."
            )
        check_labels(call.body.get("labels"), "secret.labels")
        document = {**call.body, "createTime": self._cloud.timeline.stamp(), "etag": self._cloud.ids.etag()}
        document.pop("name", None)
        return self._shown(name, self._store.put(SECRETS, name, document))

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return self._shown(call.name, self.find(call))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        stored = self._store.under(SECRETS, call.name + "/secrets/")
        found = [(name, self._shown(name, document)) for name, document in stored]
        return listing(call.query, "secrets", found, maximum=_MAX_PAGE, total=True)

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        document = self.find(call)
        mask = required_mask(call.query.get("updateMask"))
        self._same_etag(call.body, document)
        check_labels(call.body.get("labels"), "secret.labels")
        updated = masked(document, call.body, mask, allowed=_UPDATABLE)
        updated["etag"] = self._cloud.ids.etag()
        return self._shown(call.name, self._store.put(SECRETS, call.name, updated))

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        self._same_etag(call.query, self.find(call))
        for version, _ in self._store.under(VERSIONS, call.name + "/versions/"):
            self._store.delete(VERSIONS, version)
        self._store.delete(SECRETS, call.name)
        self._store.delete("counters", call.name)
        self._cloud.policies.forget(f"//secretmanager.googleapis.com/{call.name}")
        return {}

    @method("addVersion")
    def add_version(self, call: Call) -> JsonObject:
        self.find(call)
        payload = part(call.body, "payload")
        data = base64.b64decode(
            payload.get("data", ""), altchars=b"-_" if set(payload.get("data", "")) & {"-", "_"} else None
        )
        if len(data) > _MAX_PAYLOAD_BYTES:
            raise CloudError.field(
                "payload.data", f"The payload has {len(data)} bytes; at most {_MAX_PAYLOAD_BYTES} are allowed."
            )
        checksum = int.from_bytes(google_crc32c.Checksum(data).digest(), "big")
        if "dataCrc32c" in payload and int(payload["dataCrc32c"]) != checksum:
            raise CloudError.field("payload.data_crc32c", "The checksum of the payload does not match its data.")
        name = f"{call.name}/versions/{self._store.count_up(call.name)}"
        document: JsonObject = {
            "createTime": self._cloud.timeline.stamp(),
            "state": "ENABLED",
            "replicationStatus": {"automatic": {}},
            "etag": self._cloud.ids.etag(),
            "clientSpecifiedPayloadChecksum": "dataCrc32c" in payload,
            "_data": base64.b64encode(data).decode(),
            "_crc32c": str(checksum),
        }
        return self._shown(name, self._store.put(VERSIONS, name, document))

    @method("versions.get")
    def get_version(self, call: Call) -> JsonObject:
        name = version_name(self._cloud, call.name)
        return self._shown(name, self._store.get(VERSIONS, name) or {})

    @method("versions.list")
    def list_versions(self, call: Call) -> JsonObject:
        self.find(call)
        documents = self._store.under(VERSIONS, call.name + "/versions/")
        documents.sort(key=lambda pair: -int(pair[0].rpartition("/")[2]))
        found = [(f"{index:09}", self._shown(name, document)) for index, (name, document) in enumerate(documents)]
        return listing(call.query, "versions", found, maximum=_MAX_PAGE, total=True)

    @method("versions.access")
    def access(self, call: Call) -> JsonObject:
        name = version_name(self._cloud, call.name)
        document = self._store.get(VERSIONS, name) or {}
        if document["state"] != "ENABLED":
            raise CloudError.precondition(f"Secret Version [{self._numbered(name)}] is in {document['state']} state.")
        return {"name": self._numbered(name), "payload": {"data": document["_data"], "dataCrc32c": document["_crc32c"]}}

    @method("versions.enable")
    def enable(self, call: Call) -> JsonObject:
        return self._set_state(call, "ENABLED")

    @method("versions.disable")
    def disable(self, call: Call) -> JsonObject:
        return self._set_state(call, "DISABLED")

    @method("versions.destroy")
    def destroy(self, call: Call) -> JsonObject:
        return self._set_state(call, "DESTROYED")

    def _set_state(self, call: Call, state: str) -> JsonObject:
        name = version_name(self._cloud, call.name)
        document = self._store.get(VERSIONS, name) or {}
        if document["state"] == "DESTROYED" and state != "DESTROYED":
            raise CloudError.precondition(f"Secret Version [{self._numbered(name)}] is in DESTROYED state.")
        if state == "DESTROYED" and document["state"] != state:
            document.update(destroyTime=self._cloud.timeline.stamp(), _data="", _crc32c="0")
        document["state"] = state
        return self._shown(name, self._store.put(VERSIONS, name, document))

    def _same_etag(self, given: JsonObject, document: JsonObject) -> None:
        if given.get("etag") and given["etag"] != document["etag"]:
            raise CloudError.precondition(
                f"The etag '{given['etag']}' does not match the current one, '{document['etag']}'."
            )

    def _numbered(self, name: str) -> str:
        project, rest = name.split("/", 2)[1:]
        return f"projects/{self._cloud.project_number(project)}/{rest}"

    def _shown(self, name: str, document: JsonObject) -> JsonObject:
        return {"name": self._numbered(name), **visible(document)}
