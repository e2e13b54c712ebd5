"""Cloud NAT: an entry in its router's list, changed by a PATCH of the router."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.plugins.coding import decode_body, encode_body
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType, UpdateRequest, settled
from localcloud.plugins.resource import Wait, follow, parse_id
from localcloud.plugins.rest import GoogleApiError, OperationError, PluginError
from localcloud.plugins.schema import Object, PropertySpec, block, choice, flag, last_segment, listing, text, whole
from localcloud.plugins.table.common import COMMON
from localcloud.plugins.table.compute import API, same_resource, v1_link
from localcloud.plugins.values import Properties, Value, text_of

_ID: Final = "{project}/{region}/{router}/{name}"
_ADDRESSES: Final = choice(text(same=same_resource), unset=[])

_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    "name": text(autoname=True, force_new=True),
    "router": text(required=True, force_new=True, local=True, same=last_segment),
    "region": text(computed=True, force_new=True, local=True, same=last_segment),
    "sourceSubnetworkIpRangesToNat": text(required=True),
    "natIpAllocateOption": text(),
    "natIps": _ADDRESSES,
    "initialNatIps": choice(text(same=same_resource), unset=[], force_new=True),
    "drainNatIps": _ADDRESSES,
    "subnetworks": choice(
        block(
            {
                "name": text(required=True, decode=v1_link, same=same_resource),
                "sourceIpRangesToNats": choice(text(), api="sourceIpRangesToNat", required=True),
                "secondaryIpRangeNames": choice(text()),
            }
        ),
        unset=[],
    ),
    "nat64Subnetworks": choice(block({"name": text(required=True, same=same_resource)}), unset=[]),
    "rules": choice(
        block(
            {
                "ruleNumber": whole(required=True, send_zero=True),
                "match": text(required=True),
                "description": text(),
                "action": block(
                    {name: choice(text(same=same_resource)) for name in ("sourceNatActiveIps", "sourceNatDrainIps")}
                ),
            }
        ),
        unset=[],
    ),
    "logConfig": block({"enable": flag(required=True, send_zero=True), "filter": text(required=True)}, unset=None),
    "minPortsPerVm": whole(computed=True),
    "maxPortsPerVm": whole(),
    "enableDynamicPortAllocation": flag(computed=True, send_zero=True),
    "enableEndpointIndependentMapping": flag(computed=True, send_zero=True),
    "endpointTypes": listing(text(), computed=True, force_new=True, unset_update=None),
    "autoNetworkTier": text(computed=True),
    "type": text(force_new=True, default="PUBLIC"),
    "udpIdleTimeoutSec": whole(default=30),
    "icmpIdleTimeoutSec": whole(default=30),
    "tcpEstablishedIdleTimeoutSec": whole(default=1200),
    "tcpTransitoryIdleTimeoutSec": whole(default=30),
    "tcpTimeWaitTimeoutSec": whole(default=120),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterNat:
    """A NAT configuration of a router."""

    def _router(self, context: OperationContext, values: Mapping[str, Value]) -> str:
        scope = context.scope(values)
        router = last_segment(text_of(dict(values), "router"))
        return f"{API}/projects/{scope.project}/regions/{last_segment(scope.region)}/routers/{router}"

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Add the entry to the router's list."""
        scope = context.scope(inputs)
        entry = encode_body(_FIELDS, inputs, scope)
        await self._change(context, inputs, "Creating", entry, replace=False)
        region, router = last_segment(scope.region), last_segment(text_of(inputs, "router"))
        resource_id = _ID.format(project=scope.project, region=region, router=router, name=text_of(inputs, "name"))
        return await settled(resource_id, inputs, self._must_read(context, resource_id, inputs))

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """Look the entry up in the router's list."""
        values = given or parse_id(_ID, resource_id, "RouterNat")
        router = await context.rest.find(self._router(context, values))
        entry = next((each for each in _nats(router or {}) if each.get("name") == values.get("name")), None)
        if entry is None:
            return None
        scope = context.scope(values)
        state = decode_body(_FIELDS, entry, values)
        state |= {
            "project": scope.project,
            "region": last_segment(scope.region),
            "router": last_segment(text_of(values, "router")),
        }
        return Created(id=resource_id, state=state)

    async def _must_read(self, context: OperationContext, resource_id: str, given: Properties) -> Created:
        found = await self.read(context, resource_id, given)
        if found is None:
            raise PluginError(
                f"Error reading RouterNat {resource_id!r}: it is gone right after the request that made or changed it"
            )
        return found

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Change the entry in the router's list."""
        values = dict(wanted.inputs)
        values.update(
            {
                name: wanted.state[name]
                for name, each in _FIELDS.items()
                if each.computed and name not in values and name in wanted.state
            }
        )
        entry = encode_body(_FIELDS, values, context.scope(wanted.inputs), update=True)
        await self._change(context, wanted.inputs, "Updating", entry, replace=True)
        return await self._must_read(context, wanted.id, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Take the entry out of the router's list; a router that is gone took it along."""
        del resource_id
        path = self._router(context, state)
        async with context.locks.of(path):
            router = await context.rest.find(path)
            if router is None:
                return
            nats = _nats(router)
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
            await follow(context, Wait.COMPUTE, answer, path)
        except GoogleApiError as error:
            raise PluginError(f"Error {doing.lower()} RouterNat: {error}") from error
        except OperationError as error:
            raise PluginError(f"Error waiting for {doing} RouterNat: {error}") from error


def _nats(router: Object) -> list[Object]:
    nats = router.get("nats")
    return [each for each in nats if isinstance(each, dict)] if isinstance(nats, list) else []


NAT: Final = (ResourceType(type_name="gcp:compute/routerNat:RouterNat", fields=_FIELDS, lifecycle=RouterNat()),)
