"""Cloud Storage v1: buckets, their IAM policies, and the wiring of objects and uploads."""

import re

from aiohttp import web

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.call import Call, Handler, merged, page, without_nulls
from localcloud.rest.errors import CloudError
from localcloud.services import storage_objects, storage_uploads
from localcloud.services.common import check_labels, held, visible
from localcloud.world.cloud import REGIONS, Cloud

BUCKETS = "storage.buckets"
_MULTI_REGIONS = {"US", "EU", "ASIA"}
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_CLASSES = {"STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"}
_FIXED = ("name", "location", "hierarchicalNamespace")
_PUBLIC = {"allUsers", "allAuthenticatedUsers"}


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Methods of buckets and objects."""
    buckets = _Buckets(cloud)
    return {
        "storage.buckets.insert": buckets.insert,
        "storage.buckets.get": buckets.read,
        "storage.buckets.list": buckets.listed,
        "storage.buckets.patch": buckets.patch,
        "storage.buckets.update": buckets.update,
        "storage.buckets.delete": buckets.delete,
        "storage.buckets.getIamPolicy": buckets.read_policy,
        "storage.buckets.setIamPolicy": buckets.write_policy,
        "storage.buckets.testIamPermissions": buckets.test_permissions,
        "storage.buckets.getStorageLayout": buckets.layout,
        "storage.anywhereCaches.list": buckets.caches,
        "storage.folders.list": buckets.folders,
        "storage.managedFolders.list": buckets.managed_folders,
        **storage_objects.handlers(cloud),
        "storage.objects.insert": storage_uploads.Uploads(cloud).insert,
    }


class _Buckets:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def insert(self, call: Call) -> JsonObject:
        body = without_nulls(call.body)
        name = str(body.get("name", ""))
        if _BUCKET_NAME.fullmatch(name) is None or name.startswith("goog"):
            raise CloudError.invalid(f"Invalid bucket name: '{name}'")
        if self._store.has(BUCKETS, name):
            raise CloudError.conflict(
                "Your previous request to create the named bucket succeeded and you already own it."
            )
        check_labels(body.get("labels"), "labels")
        project = self._cloud.project_id(call.query["project"]) or ""
        now = self._cloud.timeline.stamp()
        document: JsonObject = {
            "storageClass": "STANDARD",
            "rpo": "DEFAULT",
            **body,
            **_location(str(body.get("location", "US"))),
            "projectNumber": self._cloud.project_number(project),
            "metageneration": "1",
            "timeCreated": now,
            "updated": now,
            "_project": project,
        }
        soft_delete = {"retentionDurationSeconds": "604800", **part(body, "softDeletePolicy")}
        document["softDeletePolicy"] = {**soft_delete, "effectiveTime": now}
        return self._shown(self._store.put(BUCKETS, name, _completed(document)))

    def read(self, call: Call) -> JsonObject:
        document = bucket_of(self._cloud, call.path["bucket"])
        _conditions(call, document)
        return self._shown(document)

    def listed(self, call: Call) -> JsonObject:
        project = self._cloud.project_id(call.query["project"])
        found = [
            (name, self._shown(document))
            for name, document in self._store.under(BUCKETS, call.query.get("prefix") or "")
            if document["_project"] == project
        ]
        items, following = page(
            found, size=call.query.get("maxResults"), token=call.query.get("pageToken"), default=1000
        )
        return {"kind": "storage#buckets", "items": items, **({"nextPageToken": following} if following else {})}

    def patch(self, call: Call) -> JsonObject:
        document = bucket_of(self._cloud, call.path["bucket"])
        return self._change(call, document, merged(document, call.body))

    def update(self, call: Call) -> JsonObject:
        document = bucket_of(self._cloud, call.path["bucket"])
        kept = {
            key: value
            for key, value in document.items()
            if key.startswith("_")
            or key in {"projectNumber", "metageneration", "timeCreated", "locationType", "location", "rpo"}
        }
        return self._change(
            call,
            document,
            {
                **kept,
                "storageClass": document["storageClass"],
                "softDeletePolicy": document["softDeletePolicy"],
                **without_nulls(call.body),
            },
        )

    def delete(self, call: Call) -> web.Response:
        name = call.path["bucket"]
        _conditions(call, bucket_of(self._cloud, name))
        if self._store.under(storage_objects.OBJECTS, name + "/"):
            raise CloudError.conflict("The bucket you tried to delete is not empty.")
        self._store.delete(BUCKETS, name)
        self._cloud.policies.forget(f"//storage.googleapis.com/{name}")
        return web.Response(status=204)

    def read_policy(self, call: Call) -> JsonObject:
        bucket_of(self._cloud, call.path["bucket"])
        return self._policy(call, self._cloud.policies.get(f"//storage.googleapis.com/{call.path['bucket']}"))

    def write_policy(self, call: Call) -> JsonObject:
        document = bucket_of(self._cloud, call.path["bucket"])
        members = {member for binding in parts(call.body, "bindings") for member in strings(binding, "members")}
        if document["iamConfiguration"]["publicAccessPrevention"] == "enforced" and members & _PUBLIC:
            raise CloudError.condition_not_met(
                "The member bindings allUsers and allAuthenticatedUsers are not allowed since public access prevention is enforced."
            )
        try:
            policy = self._cloud.policies.replace(f"//storage.googleapis.com/{call.path['bucket']}", call.body)
        except CloudError as error:
            if error.status == "ABORTED":
                raise CloudError.condition_not_met(
                    "At least one of the pre-conditions you specified did not hold."
                ) from None
            raise
        return self._policy(call, policy)

    def test_permissions(self, call: Call) -> JsonObject:
        name = call.path["bucket"]
        bucket_of(self._cloud, name)
        return {
            "kind": "storage#testIamPermissionsResponse",
            "permissions": held(self._cloud, call, [f"//storage.googleapis.com/{name}"]),
        }

    def layout(self, call: Call) -> JsonObject:
        document = bucket_of(self._cloud, call.path["bucket"])
        return {
            "kind": "storage#storageLayout",
            "bucket": call.path["bucket"],
            "location": document["location"],
            "locationType": document["locationType"],
            "hierarchicalNamespace": {"enabled": False},
        }

    def caches(self, call: Call) -> JsonObject:
        bucket_of(self._cloud, call.path["bucket"])
        return {"kind": "storage#anywhereCaches", "items": []}

    def folders(self, call: Call) -> JsonObject:
        bucket_of(self._cloud, call.path["bucket"])
        return {"kind": "storage#folders", "items": []}

    def managed_folders(self, call: Call) -> JsonObject:
        bucket_of(self._cloud, call.path["bucket"])
        return {"kind": "storage#managedFolders", "items": []}

    def _policy(self, call: Call, policy: JsonObject) -> JsonObject:
        return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{call.path['bucket']}", **policy}

    def _change(self, call: Call, document: JsonObject, updated: JsonObject) -> JsonObject:
        _conditions(call, document)
        for key in _FIXED:
            if str(updated.get(key, document.get(key))).upper() != str(document.get(key)).upper():
                raise CloudError.invalid(f"The field '{key}' of a bucket cannot be changed.")
            updated[key] = document.get(key)
        check_labels(updated.get("labels"), "labels")
        updated["metageneration"] = str(int(document["metageneration"]) + 1)
        updated["updated"] = self._cloud.timeline.stamp()
        return self._shown(self._store.put(BUCKETS, document["name"], _completed(without_nulls(updated))))

    def _shown(self, document: JsonObject) -> JsonObject:
        metageneration = int(document["metageneration"])
        return {
            "kind": "storage#bucket",
            "id": document["name"],
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{document['name']}",
            "etag": storage_objects.etag(metageneration),
            **visible(document),
        }


def bucket_of(cloud: Cloud, name: str) -> JsonObject:
    """A bucket's document; 404 where there is none."""
    document = cloud.store.get(BUCKETS, name)
    if document is None:
        raise CloudError.not_found("The specified bucket does not exist.")
    return document


def _completed(document: JsonObject) -> JsonObject:
    """The bucket with its IAM configuration spelled out, and a storage class that exists."""
    if document["storageClass"] not in _CLASSES:
        raise CloudError.invalid(
            f"Invalid argument: storageClass '{document['storageClass']}' is not one of {', '.join(sorted(_CLASSES))}."
        )
    given = part(document, "iamConfiguration")
    uniform = {"enabled": False, **(part(given, "uniformBucketLevelAccess") or part(given, "bucketPolicyOnly"))}
    document["iamConfiguration"] = {
        "publicAccessPrevention": given.get("publicAccessPrevention", "inherited"),
        "uniformBucketLevelAccess": uniform,
        "bucketPolicyOnly": dict(uniform),
    }
    if not document.get("labels"):
        document.pop("labels", None)
    return document


def _location(given: str) -> JsonObject:
    location = given.upper()
    if location in _MULTI_REGIONS:
        return {"location": location, "locationType": "multi-region"}
    if location.lower() in REGIONS:
        return {"location": location, "locationType": "region"}
    raise CloudError.invalid(f"The specified location constraint is not valid: '{given}'.")


def _conditions(call: Call, document: JsonObject) -> None:
    wanted, unwanted = call.query.get("ifMetagenerationMatch"), call.query.get("ifMetagenerationNotMatch")
    current = int(document["metageneration"])
    if (wanted is not None and wanted != current) or (unwanted is not None and unwanted == current):
        raise CloudError.condition_not_met("At least one of the pre-conditions you specified did not hold.")
