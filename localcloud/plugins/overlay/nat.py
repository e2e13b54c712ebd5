"""Cloud NAT: an entry in its router's list, changed by a PATCH of the router."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from localcloud.plugins.facts import Recorded
from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.overlay.compute import API, same_resource, v1_link
from localcloud.plugins.resource import RestResource, Wait
from localcloud.plugins.rest import GoogleApiError, OperationError, PluginError
from localcloud.plugins.schema import Json, Object, last_segment
from localcloud.plugins.values import Properties, Value, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterNatLifecycle(RestResource):
    """A NAT configuration of a router, which is `item`."""

    def _router(self, context: OperationContext, values: Mapping[str, Value]) -> str:
        named = {**values, "router": last_segment(text_of(dict(values), "router"))}
        return self.path(self.item, context, named, "")

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Add the entry to the router's list."""
        entry = self.body(context, inputs, {}, update=False)
        await self._change(context, inputs, "Creating", entry, replace=False)
        named: Properties = {**inputs, "router": last_segment(text_of(inputs, "router"))}
        resource_id = self.path(self.id_template, context, named, "")
        return await settled(resource_id, inputs, self.must_read(context, resource_id, inputs))

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """Look the entry up in the router's list."""
        values = given or self.import_values(resource_id)
        router = await context.rest.find(self._router(context, values))
        entry = next((each for each in _nats(router or {}) if each.get("name") == values.get("name")), None)
        if entry is None:
            return None
        state = self.state(context, entry, values)
        region = last_segment(context.scope(values).region)
        state.update({"region": region, "router": last_segment(text_of(values, "router"))})
        return Created(id=resource_id, state=state)

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Change the entry in the router's list."""
        # The real provider sends an empty list back as it was answered, and null where there was none.
        inputs = {"initialNatIps": wanted.state.get("initialNatIps"), **wanted.inputs}
        entry = self.body(context, inputs, wanted.state, update=True)
        await self._change(context, wanted.inputs, "Updating", entry, replace=True)
        return await self.must_read(context, wanted.id, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Take the entry out of the router's list; a router that is gone took it along."""
        del resource_id
        path = self._router(context, state)
        async with context.locks.of(path):
            router = await context.rest.find(path)
            nats = _nats(router or {})
            left = [each for each in nats if each.get("name") != state.get("name")]
            if len(left) != len(nats):
                await self._patch(context, path, left, "Deleting")

    async def _change(
        self, context: OperationContext, values: Properties, doing: str, entry: Object, *, replace: bool
    ) -> None:
        path = self._router(context, values)
        async with context.locks.of(path):
            try:
                nats = _nats(await context.rest.get(path))
            except GoogleApiError as error:
                raise PluginError(f"Error {doing.lower()} RouterNat {entry.get('name')!r}: {error}") from error
            names = [each.get("name") for each in nats]
            if not replace and entry.get("name") in names:
                raise PluginError(
                    f"Error creating RouterNat: the router {text_of(values, 'router')!r} has a NAT {entry.get('name')!r} already"
                )
            changed = [entry if each.get("name") == entry.get("name") else each for each in nats]
            await self._patch(context, path, changed if entry.get("name") in names else [*nats, entry], doing)

    async def _patch(self, context: OperationContext, path: str, nats: list[Object], doing: str) -> None:
        try:
            answer = await context.rest.call("PATCH", path, body={"nats": [*nats]})
            await self.follow(context, answer, path)
        except GoogleApiError as error:
            raise PluginError(f"Error {doing.lower()} RouterNat: {error}") from error
        except OperationError as error:
            raise PluginError(f"Error waiting for {doing} RouterNat: {error}") from error


def _nats(router: Object) -> list[Object]:
    nats = router.get("nats")
    return [each for each in nats if isinstance(each, dict)] if isinstance(nats, list) else []


def _even_empty(raw: Json) -> Value:
    return [str(each) for each in raw] if isinstance(raw, list) else None


_SENT: Final[Recorded] = {"create_only": False}
_LISTED: Final[Recorded] = {"unset": []}

NAT: Final[Mapping[str, TypeOverlay]] = {
    "gcp:compute/routerNat:RouterNat": TypeOverlay(
        message="compute.beta#RouterNat",
        properties={
            # In the API's answer, but neither in the state nor in an update of the real provider unless the program gives it.
            "autoNetworkTier": {"decode": lambda _: None, "absent": None},
            "drainNatIps": {"same": same_resource, **_LISTED},
            "enableDynamicPortAllocation": {"send_zero": True},
            "enableEndpointIndependentMapping": {"send_zero": True},
            "endpointTypes": {"create_only": False, "unset_update": None},
            "initialNatIps": {
                "api": "initialNatIps",
                "decode": _even_empty,
                "send_zero": True,
                "unset": [],
                "unset_update": None,
            },
            "logConfig": {"unset": None},
            "logConfig.enable": {"send_zero": True},
            "name": _SENT,
            "nat64Subnetworks": _LISTED,
            "nat64Subnetworks.name": {"same": same_resource},
            "natIps": {"same": same_resource, **_LISTED},
            "region": {"same": last_segment},
            "router": {"same": last_segment},
            "rules": _LISTED,
            "rules.ruleNumber": {"send_zero": True},
            "subnetworks": _LISTED,
            "subnetworks.name": {"decode": v1_link, "same": same_resource},
            "type": _SENT,
        },
        lifecycle=partial(
            RouterNatLifecycle,
            noun="RouterNat",
            collection="",
            item=f"{API}/projects/{{project}}/regions/{{region}}/routers/{{router}}",
            id_template="{project}/{region}/{router}/{name}",
            wait=Wait.COMPUTE,
        ),
    )
}
