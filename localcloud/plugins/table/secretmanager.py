"""Secrets and their versions."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.plugins.labels import ANNOTATION_FIELDS, LABEL_FIELDS
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType, UpdateRequest, settled
from localcloud.plugins.resource import Mask, RestResource
from localcloud.plugins.rest import GoogleApiError, PluginError
from localcloud.plugins.schema import (
    Object,
    PropertySpec,
    block,
    flag,
    last_segment,
    listing,
    outputs,
    text,
    texts_by_key,
)
from localcloud.plugins.table.common import COMMON
from localcloud.plugins.values import Properties, text_of

_API: Final = "secretmanager/v1"
_ENCRYPTION: Final = block({"kmsKeyName": text(required=True)})

_SECRET_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    **LABEL_FIELDS,
    **ANNOTATION_FIELDS,
    "secretId": text(autoname=True, force_new=True, local=True),
    "replication": block(
        {
            "auto": block({"customerManagedEncryption": _ENCRYPTION}, api="automatic", send_zero=True),
            "userManaged": block(
                {
                    "replicas": listing(
                        block({"location": text(required=True), "customerManagedEncryption": _ENCRYPTION}),
                        required=True,
                    )
                },
            ),
        },
        required=True,
        force_new=True,
    ),
    "expireTime": text(computed=True),
    "ttl": text(sparse=True),
    "rotation": block({"nextRotationTime": text(), "rotationPeriod": text()}),
    "topics": listing(block({"name": text(required=True)})),
    "versionAliases": texts_by_key(),
    "versionDestroyTtl": text(),
    "tags": texts_by_key(force_new=True, create_only=True),
    "deletionProtection": flag(local=True),
    **outputs(createTime=text(), name=text()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret(RestResource):
    """A secret: an ordinary resource that may be protected."""

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Refuse where the secret is protected."""
        if state.get("deletionProtection") is True:
            raise PluginError("cannot destroy secret without setting deletion_protection=false and running `pulumi up`")
        await RestResource.delete(self, context, resource_id, state)


_VERSION_FIELDS: Final[Mapping[str, PropertySpec]] = {
    "project": text(computed=True, force_new=True, local=True),
    "secret": text(required=True, force_new=True, same=last_segment),
    "secretData": text(secret=True, force_new=True),
    "isSecretDataBase64": flag(force_new=True),
    "enabled": flag(default=True),
    "deletionPolicy": text(local=True, default="DELETE"),
    **outputs(name=text(), version=text(), createTime=text(), destroyTime=text()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVersion:
    """A version of a secret: its payload is written once and never sent again."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Add the version, then enable or disable it."""
        secret = text_of(inputs, "secret")
        if "/" not in secret:
            secret = f"projects/{context.scope(inputs).project}/secrets/{secret}"
        data = text_of(inputs, "secretData")
        encoded = data if inputs.get("isSecretDataBase64") is True else base64.b64encode(data.encode()).decode()
        body: Object = {"payload": {"data": encoded}}
        try:
            answer = await context.rest.call("POST", f"{_API}/{secret}:addVersion", body=body)
        except GoogleApiError as error:
            raise PluginError(f"Error creating SecretVersion: {error}") from error
        name = str(answer.get("name", ""))
        return await settled(name, inputs, self._finish(context, name, inputs))

    async def _finish(self, context: OperationContext, name: str, inputs: Properties) -> Created:
        await _switch(context, name, on=inputs.get("enabled") is not False)
        found = await self.read(context, name, inputs)
        if found is None:
            raise PluginError(f"Error reading SecretVersion {name!r}: it is gone right after it was added")
        return found

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET; an import reads the payload too. A destroyed version is gone."""
        body = await context.rest.find(f"{_API}/{resource_id}")
        if body is None or body.get("state") == "DESTROYED":
            return None
        name = str(body.get("name", resource_id))
        state: Properties = {
            "name": name,
            "version": last_segment(name),
            "secret": text_of(given, "secret") or name.partition("/versions/")[0],
            "enabled": body.get("state") == "ENABLED",
            "createTime": str(body.get("createTime", "")),
            "destroyTime": str(body.get("destroyTime", "")),
        }
        state |= {
            each: given[each]
            for each in ("project", "deletionPolicy", "isSecretDataBase64", "secretData")
            if each in given
        }
        if not given and state["enabled"]:
            state["secretData"] = await _payload(context, resource_id)
        return Created(id=name, state=state)

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Enable or disable."""
        if "enabled" in wanted.changed:
            await _switch(context, wanted.id, on=wanted.inputs.get("enabled") is not False)
        found = await self.read(context, wanted.id, wanted.inputs)
        if found is None:
            raise PluginError(f"Error updating SecretVersion {wanted.id!r}: it is gone")
        return found

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Destroy the payload, or disable the version, or leave it, as `deletionPolicy` says."""
        action = {"DELETE": "destroy", "DISABLE": "disable"}.get(text_of(state, "deletionPolicy") or "DELETE")
        if action is None:
            return
        try:
            await context.rest.call("POST", f"{_API}/{resource_id}:{action}")
        except GoogleApiError as error:
            if not error.is_missing:
                raise PluginError(f"Error deleting SecretVersion {resource_id!r}: {error}") from error


async def _switch(context: OperationContext, name: str, *, on: bool) -> None:
    await context.rest.call("POST", f"{_API}/{name}:{'enable' if on else 'disable'}")


async def _payload(context: OperationContext, name: str) -> str:
    answer = await context.rest.get(f"{_API}/{name}:access")
    payload = answer.get("payload")
    data = str(payload.get("data", "")) if isinstance(payload, dict) else ""
    return base64.b64decode(data).decode(errors="replace")


SECRETMANAGER: Final = (
    ResourceType(
        type_name="gcp:secretmanager/secret:Secret",
        fields=_SECRET_FIELDS,
        lifecycle=Secret(
            noun="Secret",
            fields=_SECRET_FIELDS,
            collection=f"{_API}/projects/{{project}}/secrets",
            item=f"{_API}/projects/{{project}}/secrets/{{secretId}}",
            id_template="projects/{project}/secrets/{secretId}",
            create_query={"secretId": "{secretId}"},
            mask=Mask.CHANGED,
        ),
    ),
    ResourceType(
        type_name="gcp:secretmanager/secretVersion:SecretVersion",
        fields=_VERSION_FIELDS,
        lifecycle=SecretVersion(),
    ),
)
