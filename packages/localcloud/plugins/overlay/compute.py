"""Networks, subnetworks, firewalls, routers and Cloud NAT, all through Compute Engine's beta API, which the real provider uses."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from localcloud.plugins.coding import encode_field, put
from localcloud.plugins.diffing import META, Detail, Details, DiffKind
from localcloud.plugins.facts import Overlay, Recorded
from localcloud.plugins.lifecycle import CreatedResource, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.resource import OperationWait, RestResource
from localcloud.plugins.rest import PluginError
from localcloud.plugins.schema import ABSENT, Json, Object, ResourceScope, last_segment, relative
from localcloud.plugins.values import Properties, Value, text_of

_API: Final = "compute/compute/beta"
_GLOBAL: Final = "projects/{project}/global"
_REGIONAL: Final = "projects/{project}/regions/{region}"


def _v1_link(raw: Json) -> Value:
    """Return a link of the v1 API, which the real provider shows for every version."""
    return str(raw).replace("/compute/beta/", "/compute/v1/")


def _same_resource(path: str) -> str:
    """Return the part that two names of one resource share: their last segments. A change of project replaces more than this one anyway."""
    return last_segment(relative(path))


def _network_path(value: Value, scope: ResourceScope) -> Json:
    written = relative(str(value))
    return written if written.startswith("projects/") else f"projects/{scope.project}/global/networks/{written}"


def _region_path(value: Value, scope: ResourceScope) -> Json:
    return f"projects/{scope.project}/global/regions/{last_segment(str(value))}"


def _region_name(raw: Json) -> Value:
    return last_segment(str(raw))


_LINK: Final[Recorded] = {"decode": _v1_link}
_NETWORK: Final[Recorded] = {"encode": _network_path, "decode": _v1_link, "same": _same_resource}
_REGION: Final[Recorded] = {"encode": _region_path, "decode": _region_name, "same": last_segment}
_EMPTY: Final[Recorded] = {"unset_update": []}
# A missing log configuration is sent as disabled.
_LOG: Final[Recorded] = {"switch": "enable", "unset": {"enable": False}}


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnUpdate:
    """Properties that the real provider changes with separate requests.

    `action` is appended to the resource's path, empty for the resource itself. `fingerprint`: the request contains the state's.
    """

    names: tuple[str, ...]
    method: str = "PATCH"
    action: str = ""
    fingerprint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComputeResource(RestResource):
    """A resource of Compute Engine. `own` are the properties with separate update requests."""

    own: tuple[_OwnUpdate, ...] = ()

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> CreatedResource:
        """Send the changes: first those without a separate request together, then the rest."""
        separate = {name for each in self.own for name in each.names}
        if wanted.changed - separate:
            await RestResource.update(self, context, wanted)
        path = self.item_path(context, {**wanted.state, **wanted.inputs}, wanted.id)
        for each in self.own:
            changed = [name for name in each.names if name in wanted.changed]
            if changed:
                body = self._own_body(context, wanted, each, changed)
                doing = f"updating {self.noun} {wanted.id!r}"
                answer = await context.rest.call(each.method, path + each.action, body=body, doing=doing)
                await self.finish(context, "Updating", answer, path)
        return await self.must_read(context, wanted.id, wanted.inputs)

    def _own_body(
        self, context: OperationContext, wanted: UpdateRequest, own: _OwnUpdate, changed: list[str]
    ) -> Object:
        body: Object = {"fingerprint": text_of(wanted.state, "fingerprint") or None} if own.fingerprint else {}
        for name in changed:
            each = self.fields[name]
            encoded = encode_field(each, wanted.inputs.get(name), context.scope(wanted.inputs), update=True)
            if encoded is not ABSENT or own.fingerprint:
                put(body, each.api, None if encoded is ABSENT else encoded)
        return body


def _shrunk_range(details: Details, state: Mapping[str, Value], inputs: Mapping[str, Value]) -> Details:
    """Replace the subnetwork if its range changes in any way other than growing."""
    old, new = state.get("ipCidrRange"), inputs.get("ipCidrRange")
    if ("ipCidrRange",) not in details or not isinstance(old, str) or not isinstance(new, str):
        return details
    try:
        grows = ipaddress.ip_network(old).subnet_of(ipaddress.ip_network(new))  # type: ignore[arg-type] - mixed versions raise TypeError, caught below
    except (TypeError, ValueError):
        grows = False
    if grows or any(detail.replaces for detail in details.values()):
        return details
    return {**details, META: Detail(change=DiffKind.UPDATE, replaces=True)}


_NETWORK_PROPERTIES: Final[Overlay] = {
    "autoCreateSubnetworks": {"send_zero": True},
    "bgpAlwaysCompareMed": {"api": "routingConfig.bgpAlwaysCompareMed", "absent": None},
    "bgpBestPathSelectionMode": {"api": "routingConfig.bgpBestPathSelectionMode", "absent": None},
    "bgpInterRegionCost": {"api": "routingConfig.bgpInterRegionCost", "absent": None},
    "deleteBgpAlwaysCompareMed": {"api": "routingConfig.deleteBgpAlwaysCompareMed", "unset_update": False},
    "enableUlaInternalIpv6": {"create_only": True},
    "mtu": {"create_only": True},
    "networkId": {"api": "id"},
    "numericId": {"api": "id"},
    "routingMode": {"api": "routingConfig.routingMode", "absent": None},
    "selfLink": _LINK,
}
_SUBNETWORK_PROPERTIES: Final[Overlay] = {
    "logConfig": _LOG,
    "network": _NETWORK,
    "region": _REGION,
    "secondaryIpRanges": _EMPTY,
    "selfLink": _LINK,
    "subnetworkId": {"api": "id"},
}
_FIREWALL_PROPERTIES: Final[Overlay] = {
    "allows": {"api": "allowed", **_EMPTY},
    "allows.protocol": {"api": "IPProtocol", "same": str.lower},
    "denies": {"api": "denied", **_EMPTY},
    "denies.protocol": {"api": "IPProtocol", "same": str.lower},
    "description": {"unset_update": ""},
    "destinationRanges": _EMPTY,
    "disabled": {"unset_update": False},
    "logConfig": _LOG,
    "network": _NETWORK,
    "priority": {"send_zero": True},
    "selfLink": _LINK,
    "sourceRanges": _EMPTY,
    "sourceServiceAccounts": _EMPTY,
    "sourceTags": _EMPTY,
    "targetServiceAccounts": _EMPTY,
    "targetTags": _EMPTY,
}
_ROUTER_PROPERTIES: Final[Overlay] = {
    "bgp": {"unset": None},
    "bgp.advertisedGroups": {"unset": []},
    "bgp.advertisedIpRanges": {"unset": []},
    "description": {"unset_update": ""},
    "network": _NETWORK,
    "region": _REGION,
    "selfLink": _LINK,
}


def _compute(noun: str, collection: str, properties: Overlay, *own: _OwnUpdate) -> TypeOverlay:
    lifecycle = partial(
        _ComputeResource,
        noun=noun,
        api=_API,
        id_template=f"{collection}/{{name}}",
        wait=OperationWait.COMPUTE,
        own=own,
    )
    foresee = _shrunk_range if noun == "Subnetwork" else None
    return TypeOverlay(message=f"compute.beta#{noun}", properties=properties, lifecycle=lifecycle, foresee=foresee)


class _RouterNatLifecycle(RestResource):
    """Cloud NAT: an entry in the list of its router, which is `item`, changed by a PATCH of the router."""

    def path(self, template: str, context: OperationContext, values: Mapping[str, Value], resource_id: str) -> str:
        """Return a path template filled with the resource's properties. The router can be given by its path."""
        named = {**values, "router": last_segment(text_of(values, "router"))}
        return super().path(template, context, named, resource_id)

    async def create(self, context: OperationContext, inputs: Properties) -> CreatedResource:
        entry = self.body(context, inputs, {}, update=False)
        await self._change(context, inputs, "Creating", entry)
        resource_id = self.path(self.id_template, context, inputs, "")
        return await settled(resource_id, inputs, self.must_read(context, resource_id, inputs))

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource | None:
        named = self.named(resource_id)
        router = await context.rest.find(self.item_path(context, named, ""))
        entry = next((each for each in _nats(router or {}) if each.get("name") == named["name"]), None)
        if entry is None:
            return None
        return CreatedResource(id=resource_id, state={**self.state(context, entry, given or named), **named})

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> CreatedResource:
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

_NAT: Final = TypeOverlay(
    message="compute.beta#RouterNat",
    properties={
        # In the API's response, but neither in the state nor in an update of the real provider unless the program sets it.
        "autoNetworkTier": {"decode": lambda _: None, "absent": None},
        "drainNatIps": {"same": _same_resource, **_LISTED},
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
        "nat64Subnetworks.name": {"same": _same_resource},
        "natIps": {"same": _same_resource, **_LISTED},
        "region": {"same": last_segment},
        "router": {"same": last_segment},
        "rules": _LISTED,
        "rules.ruleNumber": {"send_zero": True},
        "subnetworks": _LISTED,
        "subnetworks.name": {"decode": _v1_link, "same": _same_resource},
        "type": _SENT,
    },
    lifecycle=partial(
        _RouterNatLifecycle,
        noun="RouterNat",
        item=f"{_API}/projects/{{project}}/regions/{{region}}/routers/{{router}}",
        id_template="{project}/{region}/{router}/{name}",
        wait=OperationWait.COMPUTE,
    ),
)

COMPUTE: Final[Mapping[str, TypeOverlay]] = {
    "gcp:compute/network:Network": _compute(
        "Network",
        f"{_GLOBAL}/networks",
        _NETWORK_PROPERTIES,
        _OwnUpdate(names=("mtu",), fingerprint=True),
        _OwnUpdate(names=("enableUlaInternalIpv6",)),
    ),
    "gcp:compute/subnetwork:Subnetwork": _compute(
        "Subnetwork",
        f"{_REGIONAL}/subnetworks",
        _SUBNETWORK_PROPERTIES,
        _OwnUpdate(names=("ipCidrRange",), method="POST", action="/expandIpCidrRange"),
        _OwnUpdate(names=("privateIpGoogleAccess",), method="POST", action="/setPrivateIpGoogleAccess"),
        _OwnUpdate(
            names=("logConfig", "secondaryIpRanges", "role", "stackType", "ipv6AccessType", "privateIpv6GoogleAccess"),
            fingerprint=True,
        ),
    ),
    "gcp:compute/firewall:Firewall": _compute("Firewall", f"{_GLOBAL}/firewalls", _FIREWALL_PROPERTIES),
    "gcp:compute/router:Router": _compute("Router", f"{_REGIONAL}/routers", _ROUTER_PROPERTIES),
    "gcp:compute/routerNat:RouterNat": _NAT,
}
