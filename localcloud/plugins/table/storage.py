"""Buckets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from localcloud.plugins import labels
from localcloud.plugins.coding import encode_field, put
from localcloud.plugins.labels import LABEL_FIELDS
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType, UpdateRequest
from localcloud.plugins.resource import RestResource, given_after
from localcloud.plugins.rest import GoogleApiError, PluginError
from localcloud.plugins.schema import (
    ABSENT,
    Json,
    Object,
    PropertySpec,
    ResourceScope,
    block,
    digits,
    flag,
    listing,
    long,
    outputs,
    text,
    whole,
)
from localcloud.plugins.table.common import COMMON
from localcloud.plugins.table.objects import OBJECTS
from localcloud.plugins.values import Properties, Value, is_object

_API: Final = "storage/storage/v1"


def _upper(value: Value, _scope: ResourceScope) -> Json:
    return str(value).upper()


def _state_to_json(value: Value, _scope: ResourceScope) -> Json:
    return {"LIVE": True, "ARCHIVED": False}.get(str(value))


def _state_from_json(raw: Json) -> Value:
    return "LIVE" if raw is True else "ARCHIVED"


_ENABLED: Final[Mapping[str, PropertySpec]] = {"enabled": flag(required=True, send_zero=True)}

_CONDITION: Final = block(
    {
        "age": whole(),
        "createdBefore": text(),
        "customTimeBefore": text(),
        "daysSinceCustomTime": whole(),
        "daysSinceNoncurrentTime": whole(api="daysSinceNoncurrentTime"),
        "matchesPrefixes": listing(text(), api="matchesPrefix"),
        "matchesStorageClasses": listing(text(), api="matchesStorageClass"),
        "matchesSuffixes": listing(text(), api="matchesSuffix"),
        "noncurrentTimeBefore": text(),
        "numNewerVersions": whole(),
        "withState": text(
            api="isLive",
            encode=_state_to_json,
            decode=_state_from_json,
            send_zero=True,
        ),
    },
    required=True,
)

# The real provider's own bucket fields; updates send only what changes, with `_UNSET` where a setting is taken back.
_BUCKET_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    **LABEL_FIELDS,
    "name": text(autoname=True, force_new=True),
    "location": text(required=True, force_new=True, encode=_upper, same=str.upper),
    "storageClass": text(default="STANDARD"),
    "forceDestroy": flag(local=True, default=False),
    "uniformBucketLevelAccess": flag(api="iamConfiguration.uniformBucketLevelAccess.enabled", computed=True),
    "publicAccessPrevention": text(api="iamConfiguration.publicAccessPrevention", computed=True),
    "lifecycleRules": listing(
        block(
            {
                "action": block({"type": text(required=True), "storageClass": text()}, required=True),
                "condition": _CONDITION,
            }
        ),
        api="lifecycle.rule",
    ),
    "softDeletePolicy": block(
        {"retentionDurationSeconds": long(send_zero=True), **outputs(effectiveTime=text())}, computed=True
    ),
    "versioning": block(_ENABLED),
    "cors": listing(
        block(
            {
                "origins": listing(text(), api="origin"),
                "methods": listing(text(), api="method"),
                "responseHeaders": listing(text(), api="responseHeader"),
                "maxAgeSeconds": whole(),
            }
        )
    ),
    "website": block({"mainPageSuffix": text(), "notFoundPage": text()}, computed=True),
    "logging": block({"logBucket": text(required=True), "logObjectPrefix": text(computed=True)}),
    "retentionPolicy": block({"retentionPeriod": text(required=True), "isLocked": flag()}),
    "autoclass": block(
        {"enabled": flag(required=True, send_zero=True), "terminalStorageClass": text(computed=True)}, computed=True
    ),
    "hierarchicalNamespace": block(_ENABLED, force_new=True, computed=True),
    "encryption": block({"defaultKmsKeyName": text(required=True)}),
    "defaultEventBasedHold": flag(),
    "requesterPays": flag(api="billing.requesterPays"),
    "rpo": text(computed=True),
    **outputs(
        projectNumber=whole(api="projectNumber", decode=digits),
        selfLink=text(),
        timeCreated=text(),
        updated=text(),
        url=text(),
    ),
}

_UNSET: Final[Mapping[str, Json]] = {
    "lifecycle.rule": [],
    "versioning": {"enabled": False},
    "cors": [],
    "billing.requesterPays": False,
    "defaultEventBasedHold": False,
}
_IAM_FIELDS: Final = ("uniformBucketLevelAccess", "publicAccessPrevention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket(RestResource):
    """A bucket: updates send what changes, deletion looks for objects first."""

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET, and the `gs://` address that the service does not answer."""
        found = await RestResource.read(self, context, resource_id, given)
        if found is not None:
            found.state["url"] = f"gs://{resource_id}"
        return found

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """PATCH what changes."""
        body: Object = {}
        scope = context.scope(wanted.inputs)
        changed = set(wanted.changed)
        if changed & set(_IAM_FIELDS):
            changed |= set(_IAM_FIELDS)
        for name, each in self.fields.items():
            if name not in changed or each.local or each.output or name == labels.LABELS.written:
                continue
            path = each.api or name
            value = wanted.inputs.get(name)
            if name in _IAM_FIELDS and value is None:
                value = wanted.state.get(name)
            encoded = encode_field(each, value, scope)
            if encoded is ABSENT:
                encoded = False if value is False else _UNSET.get(path)
            put(body, path, encoded)
        if labels.LABELS.effective in changed or labels.LABELS.written in changed:
            body["labels"] = _changed_labels(context, wanted)
        try:
            await context.rest.call("PATCH", f"{_API}/b/{wanted.id}", body=body)
        except GoogleApiError as error:
            raise PluginError(f"Error updating Bucket {wanted.id!r}: {error}") from error
        return await self.must_read(context, wanted.id, given_after(wanted))

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Refuse where there are objects and `forceDestroy` is not set; else delete them, then the bucket."""
        bucket = f"{_API}/b/{resource_id}"
        await context.rest.find(f"{bucket}/anywhereCaches/")
        objects = await _objects(context, bucket)
        if objects and state.get("forceDestroy") is not True:
            raise PluginError(
                f"Error trying to delete bucket {resource_id} containing objects without `force_destroy` set to true "
                "(forceDestroy here; set it and run `pulumi up` first, or delete the objects)"
            )
        for name, generation in objects:
            await _delete_quietly(
                context, f"{bucket}/o/{quote(name, safe='')}", {"generation": generation} if generation else {}
            )
        await _delete_quietly(context, bucket, {})


def _changed_labels(context: OperationContext, wanted: UpdateRequest) -> Object:
    """Labels of a PATCH: those wanted, and null for those that go."""
    send = labels.to_send(labels.LABELS, context.settings, wanted.inputs, wanted.state)
    before = wanted.state.get(labels.LABELS.effective)
    gone = [name for name in before if name not in send] if is_object(before) else []
    return {**{name: str(value) for name, value in send.items()}, **dict.fromkeys(gone)}


async def _objects(context: OperationContext, bucket: str) -> list[tuple[str, str]]:
    """Names and generations of all objects; none where the bucket is gone."""
    found: list[tuple[str, str]] = []
    query = {"versions": "true"}
    while True:
        page = await context.rest.find(f"{bucket}/o", query)
        items = page.get("items") if page else None
        listed = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        found.extend((str(item.get("name", "")), str(item.get("generation", ""))) for item in listed)
        token = page.get("nextPageToken") if page else None
        if not isinstance(token, str) or not token:
            return found
        query["pageToken"] = token


async def _delete_quietly(context: OperationContext, path: str, query: Mapping[str, str]) -> None:
    try:
        await context.rest.call("DELETE", path, query=query)
    except GoogleApiError as error:
        if not error.is_missing:
            raise PluginError(f"Error deleting {path.removeprefix(_API + '/')}: {error}") from error


STORAGE: Final = (
    ResourceType(
        type_name="gcp:storage/bucket:Bucket",
        fields=_BUCKET_FIELDS,
        lifecycle=Bucket(
            noun="Bucket",
            fields=_BUCKET_FIELDS,
            collection=f"{_API}/b",
            item=f"{_API}/b/{{id}}",
            id_template="{name}",
            create_query={"project": "{project}"},
        ),
    ),
    *OBJECTS,
)
