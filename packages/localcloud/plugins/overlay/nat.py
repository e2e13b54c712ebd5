"""Cloud NAT: an entry in its router's list, changed by a PATCH of the router."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from localcloud.plugins.facts import Recorded
from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.overlay.compute import API, same_resource, v1_link
from localcloud.plugins.resource import RestResource, Wait
from localcloud.plugins.rest import PluginError
from localcloud.plugins.schema import Json, Object, last_segment
from localcloud.plugins.values import Properties, Value, text_of


class RouterNatLifecycle(RestResource):
    """A NAT configuration of a router, which is `item`."""

    def path(self, template: str, context: OperationContext, values: Mapping[str, Value], resource_id: str) -> str:
        """Return a path template filled with the resource's properties. The router can be given by its path."""
        named = {**values, "router": last_segment(text_of(values, "router"))}
        return super().path(template, context, named, resource_id)

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Add the entry to the router's list."""
        entry = self.body(context, inputs, {}, update=False)
        await self._change(context, inputs, "Creating", entry)
        resource_id = self.path(self.id_template, context, inputs, "")
        return await settled(resource_id, inputs, self.must_read(context, resource_id, inputs))

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """Find the entry in the router's list."""
        named = self.named(resource_id)
        router = await context.rest.find(self.item_path(context, named, ""))
        entry = next((each for each in _nats(router or {}) if each.get("name") == named["name"]), None)
        if entry is None:
            return None
        return Created(id=resource_id, state={**self.state(context, entry, given or named), **named})

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Change the entry in the router's list."""
        # The real provider sends an empty list back unchanged, and null if there was none.
        inputs = {"initialNatIps": wanted.state.get("initialNatIps"), **wanted.inputs}
        await self._change(context, wanted.inputs, "Updating", self.body(context, inputs, wanted.state, update=True))
        return await self.must_read(context, wanted.id, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Remove the entry from the router's list. If the router is gone, the entry is too."""
        del resource_id
        path = self.item_path(context, state, "")
        async with context.locks.of(path):
            nats = _nats(await context.rest.find(path) or {})
            left = [each for each in nats if each.get("name") != state.get("name")]
            if len(left) != len(nats):
                await self._patch(context, path, left, "Deleting")

    async def _change(self, context: OperationContext, values: Properties, doing: str, entry: Object) -> None:
        path, name = self.item_path(context, values, ""), entry.get("name")
        async with context.locks.of(path):
            nats = _nats(await context.rest.call("GET", path, doing=f"{doing.lower()} RouterNat {name!r}"))
            exists = any(each.get("name") == name for each in nats)
            if doing == "Creating" and exists:
                router = text_of(values, "router")
                raise PluginError(f"Error creating RouterNat: the router {router!r} already has a NAT {name!r}")
            changed = [entry if each.get("name") == name else each for each in nats]
            await self._patch(context, path, changed if exists else [*nats, entry], doing)

    async def _patch(self, context: OperationContext, path: str, nats: list[Object], doing: str) -> None:
        body: Object = {"nats": [*nats]}
        answer = await context.rest.call("PATCH", path, body=body, doing=f"{doing.lower()} RouterNat")
        await self.finish(context, doing, answer, path)


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
            # In the API's response, but neither in the state nor in an update of the real provider unless the program sets it.
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
            item=f"{API}/projects/{{project}}/regions/{{region}}/routers/{{router}}",
            id_template="{project}/{region}/{router}/{name}",
            wait=Wait.COMPUTE,
        ),
    )
}
