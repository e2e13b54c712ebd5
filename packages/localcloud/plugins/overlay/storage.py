"""Buckets."""

from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import quote

from localcloud.plugins import labels
from localcloud.plugins.coding import encode_field, put
from localcloud.plugins.lifecycle import CreatedResource, OperationContext, TypeOverlay, UpdateRequest
from localcloud.plugins.resource import RestResource, given_after
from localcloud.plugins.rest import PluginError
from localcloud.plugins.schema import ABSENT, Json, Object, ResourceScope
from localcloud.plugins.values import Properties, Value, is_object

_API: Final = "storage/storage/v1"
_IAM_FIELDS: Final = frozenset({"uniformBucketLevelAccess", "publicAccessPrevention"})


def _upper(value: Value, _scope: ResourceScope) -> Json:
    return str(value).upper()


def _any_is_none(state: str) -> str:
    return "" if state == "ANY" else state


def _state_to_json(value: Value, _scope: ResourceScope) -> Json:
    return {"LIVE": True, "ARCHIVED": False}.get(str(value))


def _state_from_json(raw: Json) -> Value:
    return "LIVE" if raw is True else "ARCHIVED"


class _BucketLifecycle(RestResource):
    """A bucket: updates send the changes; deletion first checks for objects."""

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource | None:
        found = await super().read(context, resource_id, given)
        if found is not None:
            found.state["url"] = f"gs://{resource_id}"
        return found

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> CreatedResource:
        body: Object = {}
        scope = context.scope(wanted.inputs)
        changed = (wanted.changed | _IAM_FIELDS) if wanted.changed & _IAM_FIELDS else wanted.changed
        for name, each in self.fields.items():
            if name not in changed or each.local or each.output or name == labels.LABELS.written:
                continue
            value = wanted.inputs.get(name)
            if name in _IAM_FIELDS and value is None:
                value = wanted.state.get(name)
            encoded = encode_field(each, value, scope, update=True)
            put(body, each.api, (False if value is False else None) if encoded is ABSENT else encoded)
        if labels.LABELS.effective in changed or labels.LABELS.written in changed:
            body["labels"] = _changed_labels(context, wanted)
        await context.rest.call("PATCH", f"{_API}/b/{wanted.id}", body=body, doing=f"updating Bucket {wanted.id!r}")
        return await self.must_read(context, wanted.id, given_after(wanted))

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Delete all objects and the bucket. Raises PluginError if it has objects and `forceDestroy` is not set."""
        bucket = f"{_API}/b/{resource_id}"
        await context.rest.find(f"{bucket}/anywhereCaches/")
        objects = [each async for each in context.rest.pages(f"{bucket}/o", "items", {"versions": "true"})]
        if objects and state.get("forceDestroy") is not True:
            raise PluginError(
                f"Error trying to delete bucket {resource_id} containing objects without `force_destroy` set to true "
                "(forceDestroy here; set it and run `pulumi up` first, or delete the objects)"
            )
        for each in objects:
            name, generation = str(each.get("name", "")), str(each.get("generation", ""))
            query = {"generation": generation} if generation else {}
            path = f"{bucket}/o/{quote(name, safe='')}"
            await context.rest.drop(path, query=query, doing=f"deleting object {name} of bucket {resource_id}")
        await context.rest.drop(bucket, doing=f"deleting bucket {resource_id}")


def _changed_labels(context: OperationContext, wanted: UpdateRequest) -> Object:
    """Return the labels of a PATCH: the wanted ones, and null for removed ones."""
    send = labels.to_send(labels.LABELS, context.settings, wanted.inputs, wanted.state)
    before = wanted.state.get(labels.LABELS.effective)
    gone = [name for name in before if name not in send] if is_object(before) else []
    return {**{name: str(value) for name, value in send.items()}, **dict.fromkeys(gone)}


STORAGE: Final[Mapping[str, TypeOverlay]] = {
    "gcp:storage/bucket:Bucket": TypeOverlay(
        message="storage.v1#Bucket",
        properties={
            "autoclass": {"unset_update": {"enabled": False}},
            "autoclass.enabled": {"send_zero": True},
            "defaultEventBasedHold": {"unset_update": False},
            "hierarchicalNamespace": {"absent": {"enabled": False}},
            "hierarchicalNamespace.enabled": {"send_zero": True},
            "lifecycleRules": {"api": "lifecycle.rule", "unset_update": []},
            "lifecycleRules.condition.withState": {
                "api": "isLive",
                "encode": _state_to_json,
                "decode": _state_from_json,
                "send_zero": True,
                "absent": "ANY",
                "same": _any_is_none,
            },
            "location": {"encode": _upper, "same": str.upper},
            "publicAccessPrevention": {"api": "iamConfiguration.publicAccessPrevention"},
            "requesterPays": {"api": "billing.requesterPays", "unset_update": False},
            "softDeletePolicy.retentionDurationSeconds": {"send_zero": True},
            "uniformBucketLevelAccess": {"api": "iamConfiguration.uniformBucketLevelAccess.enabled"},
            "versioning.enabled": {"send_zero": True},
        },
        lifecycle=partial(
            _BucketLifecycle,
            noun="Bucket",
            api=f"{_API}/b",
            id_template="{name}",
            create_query={"project": "{project}"},
        ),
    )
}
