"""Networks, subnetworks, firewalls and routers, all through Compute Engine's beta API, which the real provider uses."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from localcloud.plugins.coding import encode_field, put
from localcloud.plugins.diffing import META, Detail, Details, DiffKind
from localcloud.plugins.facts import Overlay, Recorded
from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay, UpdateRequest
from localcloud.plugins.resource import RestResource, Wait
from localcloud.plugins.schema import ABSENT, Json, Object, ResourceScope, last_segment, relative
from localcloud.plugins.values import Value, text_of

API: Final = "compute/compute/beta"
_GLOBAL: Final = "projects/{project}/global"
_REGIONAL: Final = "projects/{project}/regions/{region}"


def v1_link(raw: Json) -> Value:
    """Return a link of the v1 API, which the real provider shows for every version."""
    return str(raw).replace("/compute/beta/", "/compute/v1/")


def same_resource(path: str) -> str:
    """Return the part that two names of one resource share: their last segments. A change of project replaces more than this one anyway."""
    return last_segment(relative(path))


def _network_path(value: Value, scope: ResourceScope) -> Json:
    written = relative(str(value))
    return written if written.startswith("projects/") else f"projects/{scope.project}/global/networks/{written}"


def _region_path(value: Value, scope: ResourceScope) -> Json:
    return f"projects/{scope.project}/global/regions/{last_segment(str(value))}"


def _region_name(raw: Json) -> Value:
    return last_segment(str(raw))


_LINK: Final[Recorded] = {"decode": v1_link}
_NETWORK: Final[Recorded] = {"encode": _network_path, "decode": v1_link, "same": same_resource}
_REGION: Final[Recorded] = {"encode": _region_path, "decode": _region_name, "same": last_segment}
_EMPTY: Final[Recorded] = {"unset_update": []}
# A missing log configuration is sent as disabled.
_LOG: Final[Recorded] = {"switch": "enable", "unset": {"enable": False}}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnUpdate:
    """Properties that the real provider changes with separate requests.

    `action` is appended to the resource's path, empty for the resource itself. `fingerprint`: the request contains the state's.
    """

    names: tuple[str, ...]
    method: str = "PATCH"
    action: str = ""
    fingerprint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeResource(RestResource):
    """A resource of Compute Engine. `own` are the properties with separate update requests."""

    own: tuple[OwnUpdate, ...] = ()

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
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

    def _own_body(self, context: OperationContext, wanted: UpdateRequest, own: OwnUpdate, changed: list[str]) -> Object:
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


def _compute(noun: str, collection: str, properties: Overlay, *own: OwnUpdate) -> TypeOverlay:
    lifecycle = partial(
        ComputeResource,
        noun=noun,
        api=API,
        id_template=f"{collection}/{{name}}",
        wait=Wait.COMPUTE,
        own=own,
    )
    foresee = _shrunk_range if noun == "Subnetwork" else None
    return TypeOverlay(message=f"compute.beta#{noun}", properties=properties, lifecycle=lifecycle, foresee=foresee)


COMPUTE: Final[Mapping[str, TypeOverlay]] = {
    "gcp:compute/network:Network": _compute(
        "Network",
        f"{_GLOBAL}/networks",
        _NETWORK_PROPERTIES,
        OwnUpdate(names=("mtu",), fingerprint=True),
        OwnUpdate(names=("enableUlaInternalIpv6",)),
    ),
    "gcp:compute/subnetwork:Subnetwork": _compute(
        "Subnetwork",
        f"{_REGIONAL}/subnetworks",
        _SUBNETWORK_PROPERTIES,
        OwnUpdate(names=("ipCidrRange",), method="POST", action="/expandIpCidrRange"),
        OwnUpdate(names=("privateIpGoogleAccess",), method="POST", action="/setPrivateIpGoogleAccess"),
        OwnUpdate(
            names=("logConfig", "secondaryIpRanges", "role", "stackType", "ipv6AccessType", "privateIpv6GoogleAccess"),
            fingerprint=True,
        ),
    ),
    "gcp:compute/firewall:Firewall": _compute("Firewall", f"{_GLOBAL}/firewalls", _FIREWALL_PROPERTIES),
    "gcp:compute/router:Router": _compute("Router", f"{_REGIONAL}/routers", _ROUTER_PROPERTIES),
}
