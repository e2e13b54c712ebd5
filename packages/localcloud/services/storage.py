"""Cloud Storage v1: buckets and their IAM policies. Objects, uploads and copies have separate modules."""

import re

from aiohttp import web

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.call import Call, Handler, merged, page, without_nulls
from localcloud.rest.errors import CloudError
from localcloud.services import storage_copies, storage_objects, storage_uploads
from localcloud.services.checks import check_labels
from localcloud.services.service import ApiService, held_permissions, method, requested_version, visible
from localcloud.world.cloud import REGIONS, Cloud

BUCKETS = "storage.buckets"
_MULTI_REGIONS = {"US", "EU", "ASIA"}
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_CLASSES = {"STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"}
_LIFECYCLE_ACTIONS = {"Delete", "SetStorageClass", "AbortIncompleteMultipartUpload"}
"""storage.v1, Bucket.lifecycle.rule.action.type."""
_WEEK_S, _NINETY_DAYS_S = 604_800, 7_776_000
"""Limits of the soft delete policy (the provider's page on google_storage_bucket; cloud.google.com/storage/docs/soft-delete)."""
_FIXED = ("name", "location", "hierarchicalNamespace")
_PUBLIC = {"allUsers", "allAuthenticatedUsers"}


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of buckets and objects."""
    return {
        **_Buckets(cloud).handlers(),
        **storage_objects.Objects(cloud).handlers(),
        **storage_uploads.Uploads(cloud).handlers(),
        **storage_copies.Copies(cloud).handlers(),
    }


class _Buckets(ApiService):
    prefix = "storage"

    @method("buckets.insert")
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

    @method("buckets.get")
    def get(self, call: Call) -> JsonObject:
        document = self._bucket(call)
        storage_objects.check_conditions(call.query, document)
        return self._shown(document)

    @method("buckets.list")
    def list_all(self, call: Call) -> JsonObject:
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

    @method("buckets.patch")
    def patch(self, call: Call) -> JsonObject:
        document = self._bucket(call)
        return self._change(call, document, merged(document, call.body))

    @method("buckets.delete")
    def delete(self, call: Call) -> web.Response:
        name = call.path["bucket"]
        storage_objects.check_conditions(call.query, self._bucket(call))
        if self._store.under(storage_objects.OBJECTS, name + "/"):
            raise CloudError.conflict("The bucket you tried to delete is not empty.")
        self._store.delete(BUCKETS, name)
        self._cloud.policies.forget(_resource(call))
        return web.Response(status=204)

    @method("buckets.getIamPolicy")
    def get_iam_policy(self, call: Call) -> JsonObject:
        self._bucket(call)
        return self._policy(call, self._cloud.policies.get(_resource(call), version=requested_version(call)))

    @method("buckets.setIamPolicy")
    def set_iam_policy(self, call: Call) -> JsonObject:
        document = self._bucket(call)
        members = {member for binding in parts(call.body, "bindings") for member in strings(binding, "members")}
        if document["iamConfiguration"]["publicAccessPrevention"] == "enforced" and members & _PUBLIC:
            raise CloudError.condition_not_met(
                "The member bindings allUsers and allAuthenticatedUsers are not allowed since public access prevention is enforced."
            )
        try:
            policy = self._cloud.policies.replace(_resource(call), call.body)
        except CloudError as error:
            if error.status == "ABORTED":
                raise CloudError.condition_not_met(storage_objects.NOT_HELD) from None
            raise
        return self._policy(call, policy)

    @method("buckets.testIamPermissions")
    def test_iam_permissions(self, call: Call) -> JsonObject:
        self._bucket(call)
        permissions = held_permissions(self._cloud, call, [_resource(call)])
        return {"kind": "storage#testIamPermissionsResponse", "permissions": permissions}

    @method("buckets.getStorageLayout")
    def get_storage_layout(self, call: Call) -> JsonObject:
        document = self._bucket(call)
        return {
            "kind": "storage#storageLayout",
            "bucket": call.path["bucket"],
            "location": document["location"],
            "locationType": document["locationType"],
            "hierarchicalNamespace": {"enabled": False},
        }

    @method("anywhereCaches.list", "folders.list", "managedFolders.list")
    def list_nothing(self, call: Call) -> JsonObject:
        self._bucket(call)
        return {"kind": f"storage#{call.method.id.split('.')[1]}", "items": []}

    def _bucket(self, call: Call) -> JsonObject:
        return self.stored(BUCKETS, call.path["bucket"], storage_objects.NO_BUCKET)

    def _policy(self, call: Call, policy: JsonObject) -> JsonObject:
        return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{call.path['bucket']}", **policy}

    def _change(self, call: Call, document: JsonObject, updated: JsonObject) -> JsonObject:
        storage_objects.check_conditions(call.query, document)
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


def _resource(call: Call) -> str:
    """Return the key of the bucket's stored policy."""
    return f"//storage.googleapis.com/{call.path['bucket']}"


def _completed(document: JsonObject) -> JsonObject:
    """Return the bucket with its full IAM configuration. Raise 400 for an unknown storage class."""
    if document["storageClass"] not in _CLASSES:
        raise CloudError.invalid(
            f"Invalid argument: storageClass '{document['storageClass']}' is not one of {', '.join(sorted(_CLASSES))}."
        )
    given = part(document, "iamConfiguration")
    _check_settings(document, str(given.get("publicAccessPrevention") or "inherited"))
    uniform = {"enabled": False, **(part(given, "uniformBucketLevelAccess") or part(given, "bucketPolicyOnly"))}
    document["iamConfiguration"] = {
        "publicAccessPrevention": given.get("publicAccessPrevention", "inherited"),
        "uniformBucketLevelAccess": uniform,
        "bucketPolicyOnly": dict(uniform),
    }
    if not document.get("labels"):
        document.pop("labels", None)
    return document


def _check_settings(document: JsonObject, prevention: str) -> None:
    """Raise 400 for values that Google's documents exclude. The messages are assumed."""
    if prevention not in {"inherited", "enforced"}:
        raise CloudError.invalid(
            f"Invalid argument: publicAccessPrevention '{prevention}' is not inherited or enforced."
        )
    kept_s = int(part(document, "softDeletePolicy").get("retentionDurationSeconds") or 0)
    if kept_s and not _WEEK_S <= kept_s <= _NINETY_DAYS_S:
        raise CloudError.invalid(
            f"Invalid argument: softDeletePolicy.retentionDurationSeconds {kept_s} is neither 0 nor from {_WEEK_S} to {_NINETY_DAYS_S}."
        )
    for rule in parts(part(document, "lifecycle"), "rule"):
        kind = part(rule, "action").get("type")
        if kind not in _LIFECYCLE_ACTIONS:
            raise CloudError.invalid(f"Invalid argument: '{kind}' is not a supported lifecycle action.")
        if not part(rule, "condition"):
            raise CloudError.invalid("Invalid argument: a lifecycle rule needs a condition.")


def _location(given: str) -> JsonObject:
    location = given.upper()
    if location in _MULTI_REGIONS:
        return {"location": location, "locationType": "multi-region"}
    if location.lower() in REGIONS:
        return {"location": location, "locationType": "region"}
    raise CloudError.invalid(f"The specified location constraint is not valid: '{given}'.")
