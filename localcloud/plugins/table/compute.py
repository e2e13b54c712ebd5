"""Networks, subnetworks, firewalls and routers; all of Compute Engine's beta API, which is what the real provider speaks."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from localcloud.plugins.coding import encode_field
from localcloud.plugins.diffing import META, Detail, Details, PropertyChange
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType, UpdateRequest
from localcloud.plugins.resource import RestResource, Wait
from localcloud.plugins.rest import GoogleApiError, OperationError, PluginError
from localcloud.plugins.schema import (
    ABSENT,
    Json,
    Object,
    PropertySpec,
    ResourceScope,
    block,
    choice,
    digits,
    flag,
    last_segment,
    listing,
    number,
    outputs,
    relative,
    text,
    whole,
)
from localcloud.plugins.table.common import COMMON
from localcloud.plugins.values import Value, is_object, text_of

API: Final = "compute/compute/beta"
_GLOBAL: Final = "projects/{project}/global"
_REGIONAL: Final = "projects/{project}/regions/{region}"


def v1_link(raw: Json) -> Value:
    """The real provider shows links of the v1 API, whichever version answered."""
    return str(raw).replace("/compute/beta/", "/compute/v1/")


def same_resource(path: str) -> str:
    """Two ways of naming a resource are equal when their last segments are; a change of project replaces more than this one anyway."""
    return last_segment(relative(path))


def _network_path(value: Value, scope: ResourceScope) -> Json:
    written = relative(str(value))
    return written if written.startswith("projects/") else f"projects/{scope.project}/global/networks/{written}"


def _region_path(value: Value, scope: ResourceScope) -> Json:
    return f"projects/{scope.project}/global/regions/{last_segment(str(value))}"


def region_name(raw: Json) -> Value:
    """The region's name, out of its URL."""
    return last_segment(str(raw))


def network_field(**options: bool) -> PropertySpec:
    """A reference to a network: a name, a path or a URL."""
    return text(encode=_network_path, decode=v1_link, same=same_resource, **options)


def region_field(**options: bool) -> PropertySpec:
    """The region of a regional resource; the provider's where the program says nothing."""
    return text(computed=True, force_new=True, encode=_region_path, decode=region_name, same=last_segment, **options)


_SELF_LINK: Final = text(decode=v1_link)

_NETWORK_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    "name": text(autoname=True, force_new=True, create_only=True),
    "autoCreateSubnetworks": flag(default=True, force_new=True, create_only=True, send_zero=True),
    "description": text(force_new=True, create_only=True),
    "deleteDefaultRoutesOnCreate": flag(local=True, force_new=True),
    "enableUlaInternalIpv6": flag(computed=True, force_new=True, create_only=True),
    "internalIpv6Range": text(computed=True, force_new=True, create_only=True),
    "mtu": whole(computed=True, force_new=True, create_only=True),
    "networkFirewallPolicyEnforcementOrder": text(default="AFTER_CLASSIC_FIREWALL"),
    "networkProfile": text(force_new=True, create_only=True),
    "routingMode": text(api="routingConfig.routingMode", computed=True, sparse=True),
    "bgpBestPathSelectionMode": text(api="routingConfig.bgpBestPathSelectionMode", computed=True, sparse=True),
    "bgpInterRegionCost": text(api="routingConfig.bgpInterRegionCost", computed=True, sparse=True),
    "bgpAlwaysCompareMed": flag(api="routingConfig.bgpAlwaysCompareMed", computed=True, sparse=True),
    "deleteBgpAlwaysCompareMed": flag(api="routingConfig.deleteBgpAlwaysCompareMed", unset_update=False),
    **outputs(
        gatewayIpv4=text(api="gatewayIPv4"),
        networkId=text(api="id", decode=str),
        numericId=text(api="id", decode=str),
        selfLink=_SELF_LINK,
    ),
}

_SUBNET_LOG: Final = block(
    {
        "aggregationInterval": text(computed=True),
        "flowSampling": number(computed=True),
        "metadata": text(computed=True),
        "metadataFields": choice(text()),
        "filterExpr": text(computed=True),
    }
)


def _subnet_log_to_json(value: Value, scope: ResourceScope) -> Json:
    if not is_object(value):
        return {"enable": False}
    encoded = encode_field(_SUBNET_LOG, value, scope)
    return {"enable": True, **(encoded if isinstance(encoded, dict) else {})}


def _log_from_json(raw: Json) -> Value:
    """A log configuration that is switched off is none."""
    if not isinstance(raw, dict) or raw.get("enable") is not True:
        return None
    return {name: cast("Value", value) for name, value in raw.items() if name != "enable"}


_SUBNETWORK_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    "name": text(autoname=True, force_new=True),
    "network": network_field(required=True, force_new=True),
    "region": region_field(),
    "ipCidrRange": text(computed=True),
    "description": text(force_new=True),
    "privateIpGoogleAccess": flag(computed=True),
    "privateIpv6GoogleAccess": text(computed=True),
    "purpose": text(computed=True, force_new=True),
    "role": text(),
    "stackType": text(computed=True),
    "ipv6AccessType": text(),
    "logConfig": block(
        _SUBNET_LOG.fields,
        encode=_subnet_log_to_json,
        decode=_log_from_json,
        unset={"enable": False},
    ),
    "secondaryIpRanges": listing(
        block({"rangeName": text(required=True), "ipCidrRange": text(computed=True)}),
        computed=True,
    ),
    **outputs(
        creationTimestamp=text(),
        fingerprint=text(),
        gatewayAddress=text(),
        ipv6CidrRange=text(),
        ipv6GceEndpoint=text(),
        selfLink=_SELF_LINK,
        state=text(),
        subnetworkId=whole(api="id", decode=digits),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnetwork(RestResource):
    """A subnetwork: two of its properties have methods of their own, the rest takes a PATCH with the fingerprint."""

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Send each change by its own method."""
        path = self.path(self.item, context, {**wanted.state, **wanted.inputs}, wanted.id)
        changed = set(wanted.changed)
        if "ipCidrRange" in changed:
            await self._change(
                context,
                wanted,
                "POST",
                f"{path}/expandIpCidrRange",
                {"ipCidrRange": text_of(wanted.inputs, "ipCidrRange")},
            )
        if "privateIpGoogleAccess" in changed:
            on = wanted.inputs.get("privateIpGoogleAccess") is True
            body: Object = {"privateIpGoogleAccess": True} if on else {}
            await self._change(context, wanted, "POST", f"{path}/setPrivateIpGoogleAccess", body)
        rest = [
            name
            for name in (
                "logConfig",
                "secondaryIpRanges",
                "role",
                "stackType",
                "ipv6AccessType",
                "privateIpv6GoogleAccess",
            )
            if name in changed
        ]
        if rest:
            patch: Object = {"fingerprint": text_of(wanted.state, "fingerprint")}
            for name in rest:
                encoded = encode_field(self.fields[name], wanted.inputs.get(name), context.scope(wanted.inputs))
                patch[name] = (
                    [] if encoded is ABSENT and name == "secondaryIpRanges" else None if encoded is ABSENT else encoded
                )
            await self._change(context, wanted, "PATCH", path, patch)
        return await self.must_read(context, wanted.id, wanted.inputs)

    async def _change(
        self, context: OperationContext, wanted: UpdateRequest, method: str, path: str, body: Object
    ) -> None:
        try:
            answer = await context.rest.call(method, path, body=body)
            await self.follow(context, answer, path)
        except (GoogleApiError, OperationError) as error:
            raise PluginError(f"Error updating {self.noun} {wanted.id!r}: {error}") from error


def _shrunk_range(details: Details, state: Mapping[str, Value], inputs: Mapping[str, Value]) -> Details:
    """A range can only grow: any other change of it replaces the subnetwork."""
    old, new = state.get("ipCidrRange"), inputs.get("ipCidrRange")
    if ("ipCidrRange",) not in details or not isinstance(old, str) or not isinstance(new, str):
        return details
    try:
        grows = ipaddress.ip_network(old).subnet_of(ipaddress.ip_network(new))  # type: ignore[arg-type] - mixed versions raise TypeError, caught below
    except (TypeError, ValueError):
        grows = False
    return details if grows else {**details, META: Detail(change=PropertyChange.UPDATE, replaces=True)}


_RULE: Final = block({"protocol": text(required=True, api="IPProtocol", same=str.lower), "ports": listing(text())})


def _firewall_log_to_json(value: Value, _scope: ResourceScope) -> Json:
    return {"enable": True, "metadata": text_of(value, "metadata")} if is_object(value) else {"enable": False}


def _firewall_list(name: str = "", item: PropertySpec | None = None, **options: bool) -> PropertySpec:
    return choice(item or text(), api=name, unset_update=[], **options)


_FIREWALL_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    "name": text(autoname=True, force_new=True, create_only=True),
    "network": network_field(required=True),
    "direction": text(computed=True, force_new=True, create_only=True),
    "priority": whole(default=1000, send_zero=True),
    "allows": _firewall_list("allowed", _RULE),
    "denies": _firewall_list("denied", _RULE),
    "description": text(unset_update=""),
    "destinationRanges": _firewall_list(computed=True),
    "disabled": flag(unset_update=False),
    "logConfig": block(
        {"metadata": text(required=True)},
        encode=_firewall_log_to_json,
        decode=_log_from_json,
        unset={"enable": False},
    ),
    "sourceRanges": _firewall_list(computed=True),
    "sourceServiceAccounts": _firewall_list(),
    "sourceTags": _firewall_list(),
    "targetServiceAccounts": _firewall_list(),
    "targetTags": _firewall_list(),
    **outputs(creationTimestamp=text(), selfLink=_SELF_LINK),
}

_ROUTER_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    "name": text(autoname=True, force_new=True, create_only=True),
    # Optional in the SDK for routers of a Network Connectivity Center gateway, which are not covered here.
    "network": network_field(required=True, force_new=True, create_only=True),
    "region": region_field(create_only=True),
    "description": text(),
    "encryptedInterconnectRouter": flag(force_new=True, create_only=True),
    "bgp": block(
        {
            "asn": whole(required=True),
            "advertiseMode": text(default="DEFAULT"),
            "advertisedGroups": listing(text()),
            "advertisedIpRanges": choice(block({"range": text(required=True), "description": text()})),
            "keepaliveInterval": whole(default=20),
            "identifierRange": text(computed=True),
        },
        unset=None,
    ),
    **outputs(creationTimestamp=text(), selfLink=_SELF_LINK),
}


def _resource(
    noun: str, fields: Mapping[str, PropertySpec], collection: str, kind: type[RestResource] = RestResource
) -> RestResource:
    return kind(
        noun=noun,
        fields=fields,
        collection=f"{API}/{collection}",
        item=f"{API}/{collection}/{{name}}",
        id_template=f"{collection}/{{name}}",
        wait=Wait.COMPUTE,
    )


COMPUTE: Final = (
    ResourceType(
        type_name="gcp:compute/network:Network",
        fields=_NETWORK_FIELDS,
        lifecycle=_resource("Network", _NETWORK_FIELDS, f"{_GLOBAL}/networks"),
    ),
    ResourceType(
        type_name="gcp:compute/subnetwork:Subnetwork",
        fields=_SUBNETWORK_FIELDS,
        lifecycle=_resource("Subnetwork", _SUBNETWORK_FIELDS, f"{_REGIONAL}/subnetworks", Subnetwork),
        foresee=_shrunk_range,
    ),
    ResourceType(
        type_name="gcp:compute/firewall:Firewall",
        fields=_FIREWALL_FIELDS,
        lifecycle=_resource("Firewall", _FIREWALL_FIELDS, f"{_GLOBAL}/firewalls"),
    ),
    ResourceType(
        type_name="gcp:compute/router:Router",
        fields=_ROUTER_FIELDS,
        lifecycle=_resource("Router", _ROUTER_FIELDS, f"{_REGIONAL}/routers"),
    ),
)
