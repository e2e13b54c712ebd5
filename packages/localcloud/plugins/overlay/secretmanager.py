"""Secrets and their versions."""

import base64
from collections.abc import Mapping
from functools import partial
from typing import Final

from localcloud.plugins.lifecycle import CreatedResource, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.resource import Mask, RestResource
from localcloud.plugins.schema import Object, last_segment
from localcloud.plugins.values import Properties, text_of

_API: Final = "secretmanager/v1"


class _SecretVersionLifecycle(RestResource):
    """A version of a secret. Its payload is sent once, at creation."""

    async def create(self, context: OperationContext, inputs: Properties) -> CreatedResource:
        secret = text_of(inputs, "secret")
        if "/" not in secret:
            secret = f"projects/{context.scope(inputs).project}/secrets/{secret}"
        data = text_of(inputs, "secretData")
        encoded = data if inputs.get("isSecretDataBase64") is True else base64.b64encode(data.encode()).decode()
        body: Object = {"payload": {"data": encoded}}
        answer = await context.rest.call(
            "POST", f"{_API}/{secret}:addVersion", body=body, doing="creating SecretVersion"
        )
        name = str(answer.get("name", ""))
        return await settled(name, inputs, self._finish(context, name, inputs))

    async def _finish(self, context: OperationContext, name: str, inputs: Properties) -> CreatedResource:
        await _switch(context, name, on=inputs.get("enabled") is not False)
        return await self.must_read(context, name, inputs)

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource | None:
        """Read the version; an import also reads its payload. A destroyed version is gone."""
        body = await context.rest.find(f"{_API}/{resource_id}")
        if body is None or body.get("state") == "DESTROYED":
            return None
        name = str(body.get("name", resource_id))
        known: Properties = {"secret": name.partition("/versions/")[0], "isSecretDataBase64": False, **given}
        known |= {"enabled": body.get("state") == "ENABLED", "version": last_segment(name)}
        state = {**self.state(context, body, known), "project": given.get("project")}
        if not given and known["enabled"]:
            state["secretData"] = await _payload(context, resource_id)
        return CreatedResource(id=name, state={each: value for each, value in state.items() if value is not None})

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> CreatedResource:
        if "enabled" in wanted.changed:
            await _switch(context, wanted.id, on=wanted.inputs.get("enabled") is not False)
        return await self.must_read(context, wanted.id, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Destroy the payload, disable the version, or leave it, depending on `deletionPolicy`."""
        action = {"DELETE": "destroy", "DISABLE": "disable"}.get(text_of(state, "deletionPolicy") or "DELETE")
        if action is not None:
            doing = f"deleting SecretVersion {resource_id!r}"
            await context.rest.drop(f"{_API}/{resource_id}:{action}", method="POST", doing=doing)


async def _switch(context: OperationContext, name: str, *, on: bool) -> None:
    await context.rest.call("POST", f"{_API}/{name}:{'enable' if on else 'disable'}")


async def _payload(context: OperationContext, name: str) -> str:
    answer = await context.rest.get(f"{_API}/{name}:access")
    payload = answer.get("payload")
    data = str(payload.get("data", "")) if isinstance(payload, dict) else ""
    return base64.b64decode(data).decode(errors="replace")


SECRETMANAGER: Final[Mapping[str, TypeOverlay]] = {
    "gcp:secretmanager/secret:Secret": TypeOverlay(
        message="secretmanager.v1#Secret",
        properties={
            "replication": {"create_only": False},
            "replication.auto": {"api": "automatic", "send_zero": True},
            "secretId": {"autoname": True},
            "ttl": {"absent": None},
        },
        lifecycle=partial(
            RestResource,
            noun="Secret",
            api=_API,
            id_template="projects/{project}/secrets/{secretId}",
            create_query={"secretId": "{secretId}"},
            mask=Mask.CHANGED,
        ),
    ),
    "gcp:secretmanager/secretVersion:SecretVersion": TypeOverlay(
        message="secretmanager.v1#SecretVersion",
        properties={"secret": {"same": last_segment}},
        lifecycle=partial(_SecretVersionLifecycle, noun="SecretVersion"),
    ),
}
