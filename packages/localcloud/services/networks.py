"""Compute Engine's networks, subnetworks, firewalls and routers: defaults, checks and references."""

import ipaddress
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from localcloud.json_values import JsonObject, packaged, part, parts, strings
from localcloud.rest.errors import CloudError
from localcloud.world.cloud import REGIONS, Cloud, fingerprint, random_id
from localcloud.world.runtime import Egress

NETWORKS = "compute.networks"
SUBNETWORKS = "compute.subnetworks"
FIREWALLS = "compute.firewalls"
ROUTERS = "compute.routers"
ADDRESSES = "compute.addresses"
"""The ranges that Cloud Run reserves in a subnetwork for Direct VPC egress."""
_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_HOLD_ADDRESSES = (ADDRESSES, "tpu.nodes", "compute.instances")
HELD_S = 2 * 3600.0
"""Simulated seconds for which a subnetwork stays in use after its last service: "wait for 1-2 hours" (docs.cloud.google.com/run/docs/configuring/
vpc-direct-vpc, "Delete a subnet", 2026-11). This is the longest."""
_AUTO_RANGE = "10.128.0.0/9"
"""The range from which auto mode networks take /20 ranges (Virtual Private Cloud's documentation)."""
_NO_SUBNETWORK_RANGE = "10.128.0.0/20"
_SERVICE_ADDRESSES = 16
"""Number of addresses in a block that Cloud Run reserves (configuring/vpc-direct-vpc, "IP address allocation", 2026-11)."""


NETWORK_QUOTA = 15
"""Networks of a project; assumed. An older page names five by default (docs.ansible.com, gcp_compute_network, 2.7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlace:
    """The project of a resource, and the region of a regional one or the zone of a zonal one."""

    project: str
    region: str | None
    zone: str | None = None

    def name(self, collection: str, short: str) -> str:
        """Return the full name."""
        scope = "global" if self.region is None else f"regions/{self.region}"
        scope = scope if self.zone is None else f"zones/{self.zone}"
        return f"projects/{self.project}/{scope}/{collection}/{short}"


def add_default(cloud: Cloud, project: str) -> None:
    """Add the network `default` of a new project, with a subnetwork in each region."""
    stamp = cloud.timeline.stamp()
    network = NetworkPlace(project=project, region=None).name("networks", "default")
    cloud.store.put(
        NETWORKS,
        network,
        {
            **new_network({"name": "default", "autoCreateSubnetworks": True}),
            "id": _plain_id(network),
            "creationTimestamp": stamp,
        },
    )
    add_auto_subnetworks(cloud, project, "default")


def add_auto_subnetworks(cloud: Cloud, project: str, network: str) -> None:
    """Add a subnetwork in each region for an auto mode network."""
    ranges = ipaddress.ip_network(_AUTO_RANGE).subnets(new_prefix=20)
    for region, block in zip(sorted(REGIONS), ranges, strict=False):
        place = NetworkPlace(project=project, region=region)
        body: JsonObject = {
            "name": network,
            "network": NetworkPlace(project=project, region=None).name("networks", network),
            "ipCidrRange": str(block),
            "_auto": True,
        }
        name = place.name("subnetworks", network)
        document = {
            **new_subnetwork(cloud, place, body),
            "id": _plain_id(name),
            "creationTimestamp": cloud.timeline.stamp(),
        }
        cloud.store.put(SUBNETWORKS, name, document)


def _plain_id(name: str) -> str:
    return str(10**18 + int.from_bytes(name.encode()[-6:], "big"))


def network_count(cloud: Cloud, project: str) -> int:
    """Return the number of networks of a project."""
    return len(cloud.store.under(NETWORKS, f"projects/{project}/"))


def new_network(body: JsonObject) -> JsonObject:
    """Return a network with its defaults."""
    routing = {"routingMode": "REGIONAL", **part(body, "routingConfig")}
    return {
        "autoCreateSubnetworks": True,
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        "mtu": 1460,
        **body,
        "routingConfig": routing,
    }


def new_subnetwork(cloud: Cloud, place: NetworkPlace, body: JsonObject) -> JsonObject:
    """Return a subnetwork with its defaults. Raise 400 if its range is invalid or overlaps another range of the network."""
    network = reference(cloud, place.project, NETWORKS, body.get("network"), "resource.network")
    block = _block(body.get("ipCidrRange"))
    for other, document in cloud.store.under(SUBNETWORKS, f"projects/{place.project}/"):
        if document["network"] == network and ipaddress.ip_network(document["ipCidrRange"]).overlaps(block):
            raise CloudError.invalid(
                f"Invalid IPCidrRange: {block} conflicts with existing subnetwork '{other.rpartition('/')[2]}' in region '{document['region']}'."
            )
    if body.get("region") and str(body["region"]).rpartition("/")[2] != place.region:
        raise invalid_value("region", body["region"], f"It does not match the region in the path, '{place.region}'.")
    return {
        "privateIpGoogleAccess": False,
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
        "logConfig": {"enable": False},
        **body,
        "network": network,
        "region": place.region,
        "gatewayAddress": str(next(block.hosts())),
    }


def invalid_value(field: str, value: object, why: str) -> CloudError:
    """Return Compute Engine's 400 about a field of the resource."""
    return CloudError.field(field, f"Invalid value for field 'resource.{field}': '{value}'. {why}")


def check_tags(field: str, tags: Sequence[str]) -> None:
    """Raise 400 for a malformed network tag."""
    for index, tag in enumerate(tags):
        if _TAG.fullmatch(tag) is None:
            why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
            raise invalid_value(f"{field}[{index}]", tag, why)


def _block(text: object) -> ipaddress.IPv4Network:
    try:
        block = ipaddress.IPv4Network(str(text))
    except ValueError:
        why = "Must be a CIDR address range that is contained by valid subnetwork ranges."
        raise invalid_value("ipCidrRange", text, why) from None
    if block.prefixlen > 29:  # noqa: PLR2004 - the smallest subnetwork is a /29
        raise invalid_value("ipCidrRange", text, "A subnetwork needs at least a /29.")
    return block


def new_firewall(cloud: Cloud, place: NetworkPlace, body: JsonObject) -> JsonObject:
    """Return a firewall rule with its defaults."""
    check_firewall(body)
    given = body.get("network") or f"projects/{place.project}/global/networks/default"
    document: JsonObject = {
        "direction": "INGRESS",
        "priority": 1000,
        "disabled": False,
        "logConfig": {"enable": False},
        **body,
        "network": reference(cloud, place.project, NETWORKS, given, "resource.network"),
    }
    if document["direction"] == "INGRESS" and not any(
        document.get(key) for key in ("sourceRanges", "sourceTags", "sourceServiceAccounts")
    ):
        document["sourceRanges"] = ["0.0.0.0/0"]
    if document["direction"] == "EGRESS" and not document.get("destinationRanges"):
        document["destinationRanges"] = ["0.0.0.0/0"]
    return document


def check_firewall(body: JsonObject) -> None:
    """Raise 400 if a firewall rule contradicts itself or has an invalid range."""
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise CloudError.invalid(
            "Invalid value for field 'resource.allowed[]': ''. Exactly one of allowed and denied must be specified."
        )
    if body.get("direction") == "EGRESS" and (body.get("sourceRanges") or body.get("sourceTags")):
        raise CloudError.invalid(
            "Invalid value for field 'resource.sourceRanges': an EGRESS rule takes destinationRanges, not sourceRanges or sourceTags."
        )
    check_tags("targetTags", strings(body, "targetTags"))
    for field in ("sourceRanges", "destinationRanges"):
        for index, text in enumerate(strings(body, field)):
            try:
                ipaddress.ip_network(text)
            except ValueError:
                raise invalid_value(f"{field}[{index}]", text, "Must be a CIDR address range.") from None


def allows_egress(cloud: Cloud, network: str, tags: Collection[str], port: int) -> bool:
    """Return whether a machine with these tags can connect to a TCP port of any address under the network's rules.

    Without a rule everything is allowed. Rules for only some addresses, or by service account, are ignored here.
    """
    rules = [
        rule
        for rule in _egress_rules(cloud, network, tags, port)
        if "0.0.0.0/0" in strings(rule, "destinationRanges") and not rule.get("targetServiceAccounts")
    ]
    # The lowest priority number decides; of two rules with the same number, the one that denies (VPC firewall rules).
    first = min(rules, key=lambda rule: (int(rule["priority"]), bool(rule.get("allowed"))), default=None)
    return first is None or bool(first.get("allowed"))


def egress_of(
    cloud: Cloud, subnetwork: str, tags: Collection[str], *, external: object = False, port: int = 443
) -> Egress:
    """Return what a machine reaches from a subnetwork. `external`: true with an external address. `port`: TCP port of what it needs of the internet.

    A Cloud NAT opens the internet, and turns on Private Google Access on the subnetwork (docs.cloud.google.com/
    vpc-service-controls/docs/access-level-design, 2026-04).
    """
    document = cloud.store.get(SUBNETWORKS, subnetwork) or {}
    network = str(document.get("network"))
    leaves = bool(external) or _has_nat(cloud, subnetwork, network)
    to_google = leaves or bool(document.get("privateIpGoogleAccess"))
    return Egress(
        internet=leaves and allows_egress(cloud, network, tags, port),
        google=to_google and allows_egress(cloud, network, tags, 443),
    )


def _has_nat(cloud: Cloud, subnetwork: str, network: str) -> bool:
    """Return whether a router of the network and region has a NAT to the internet for the subnetwork's primary range."""
    routers = cloud.store.under(ROUTERS, f"{subnetwork.partition('/subnetworks/')[0]}/routers/")
    nats = [nat for _, router in routers if router["network"] == network for nat in parts(router, "nats")]
    return any(_translates(nat, subnetwork) for nat in nats if nat["type"] == "PUBLIC")


def _translates(nat: JsonObject, subnetwork: str) -> bool:
    if nat["sourceSubnetworkIpRangesToNat"] != "LIST_OF_SUBNETWORKS":
        return True
    return any(
        f"/{one.get('name')}".endswith(f"/{subnetwork}")
        and {"ALL_IP_RANGES", "PRIMARY_IP_RANGE"}.intersection(strings(one, "sourceIpRangesToNat"))
        for one in parts(nat, "subnetworks")
    )


def _egress_rules(cloud: Cloud, network: str, tags: Collection[str], port: int) -> list[JsonObject]:
    """Return the enabled egress rules of a network for a machine with these tags and a TCP port."""
    return [
        rule
        for _, rule in cloud.store.under(FIREWALLS)
        if rule["network"] == network and rule["direction"] == "EGRESS" and not rule["disabled"]
        if not rule.get("targetTags") or set(strings(rule, "targetTags")) & set(tags)
        if any(_names_port(part, port) for part in (*parts(rule, "allowed"), *parts(rule, "denied")))
    ]


def _names_port(traffic: JsonObject, port: int) -> bool:
    """Return whether one entry of `allowed` or `denied` covers a TCP port."""
    if str(traffic.get("IPProtocol")).lower() not in {"all", "tcp", "6"}:
        return False
    ranges = [text.partition("-") for text in strings(traffic, "ports")]
    return not ranges or any(int(first) <= port <= int(last or first) for first, _, last in ranges)


def new_router(cloud: Cloud, place: NetworkPlace, body: JsonObject) -> JsonObject:
    """Return a router with its defaults."""
    document = {
        **body,
        "network": reference(cloud, place.project, NETWORKS, body.get("network"), "resource.network"),
        "region": place.region,
    }
    return with_nats(document)


_NAT_DEFAULTS = packaged("localcloud.services", "router_nat.json")
"""Cloud NAT's defaults (Compute Engine's RouterNat reference)."""


def with_nats(document: JsonObject) -> JsonObject:
    """Return the router with the defaults of its NATs. Empty lists are omitted, as in Google's responses."""
    nats: list[JsonObject] = []
    for nat in parts(document, "nats"):
        if nat.get("sourceSubnetworkIpRangesToNat") is None:
            raise CloudError.required("Required field 'resource.nats[0].sourceSubnetworkIpRangesToNat' not specified")
        filled = {**_NAT_DEFAULTS, **{key: value for key, value in nat.items() if value not in (None, [])}}
        nats.append(filled)
    names = [nat.get("name") for nat in nats]
    if len(set(names)) != len(names):
        raise CloudError.invalid(
            f"Invalid value for field 'resource.nats': the names {names} are not unique within the router."
        )
    shown = {key: value for key, value in document.items() if key != "nats"}
    return {**shown, "nats": nats} if nats else shown


def reference(cloud: Cloud, project: str, kind: str, given: object, field: str) -> str:
    """Return the full name that a URL or partial URL refers to. Raise 400 if it is malformed or no such resource exists."""
    collection = kind.partition(".")[2]
    # A client that uses the local cloud as its endpoint names resources with the local cloud's URL.
    url = str(given or "").replace(f"{cloud.base_url}/compute/", "https://compute.googleapis.com/")
    text = re.sub(r"^https?://[^/]+/(compute/)?[a-z0-9]+/(?=projects/)", "", url)
    scope = "global" if kind == NETWORKS else "regions/[^/]+"
    found = re.fullmatch(rf"(?:projects/(?P<project>[^/]+)/)?(?P<rest>{scope}/{collection}/[^/]+)", text)
    if found is None:
        raise CloudError.field(field, f"Invalid value for field '{field}': '{given or ''}'. The URL is malformed.")
    owner = found["project"] or project
    name = f"projects/{cloud.project_id(owner) or owner}/{found['rest']}"
    if not cloud.store.has(kind, name):
        raise CloudError.field(
            field,
            f"Invalid value for field '{field}': '{given}'. The referenced {collection.removesuffix('s')} resource cannot be found.",
        )
    return name


def users_of(cloud: Cloud, name: str) -> list[str]:
    """Return the names of the resources that use a network or subnetwork."""
    users: list[str] = []
    for kind in (SUBNETWORKS, FIREWALLS, ROUTERS):
        users.extend(
            user
            for user, document in cloud.store.under(kind)
            if document.get("network") == name and not document.get("_auto")
        )
    for kind in _HOLD_ADDRESSES:
        users.extend(
            user
            for user, document in cloud.store.under(kind)
            if name in strings(document, "_networks") and not is_free(cloud, document)
        )
    return users


def reserve_addresses(cloud: Cloud, service: str, used: list[str]) -> None:
    """Reserve addresses for a service in the network and subnetwork of Direct VPC egress. Those in others are released."""
    release_addresses(cloud, service, keep=used)
    held = [document for _, document in cloud.store.under(ADDRESSES) if document["_service"] == service]
    if used and not any(document["_networks"] == used and "_freeAtS" not in document for document in held):
        _, project, _, region, *_ = service.split("/")
        subnetwork = subnetwork_of(cloud, project, region, used) or ""
        addresses = _free_addresses(cloud, subnetwork, _SERVICE_ADDRESSES)
        document = {
            **_reserved_range(cloud, region, subnetwork, addresses),
            "_service": service,
            "_networks": used,
            "_subnetwork": subnetwork,
            "_addresses": addresses,
        }
        name = f"projects/{project}/regions/{region}/addresses/serverless-ipv4-{random_id()}"
        cloud.store.put(ADDRESSES, name, document)


def _reserved_range(cloud: Cloud, region: str, subnetwork: str, addresses: list[str]) -> JsonObject:
    """Return what the API shows of a range (compute.v1, Address). That its status is RESERVED, without a user, is assumed."""
    prefix = ipaddress.IPV4LENGTH - int(math.log2(_SERVICE_ADDRESSES))
    return {
        "id": random_id(),
        "creationTimestamp": cloud.timeline.stamp(),
        "address": next(iter(addresses), ""),
        "prefixLength": prefix,
        "addressType": "INTERNAL",
        "purpose": "SERVERLESS",
        "status": "RESERVED",
        "subnetwork": subnetwork,
        "region": region,
    }


def release_addresses(cloud: Cloud, service: str, *, keep: list[str] | None = None) -> None:
    """Release a service's addresses, except those in `keep`. They stay in use for two simulated hours."""
    now_s = cloud.timeline.simulated_s()
    for name, document in cloud.store.under(ADDRESSES):
        if is_free(cloud, document):
            cloud.store.delete(ADDRESSES, name)
        elif document["_service"] == service and "_freeAtS" not in document and document["_networks"] != keep:
            cloud.store.put(ADDRESSES, name, {**document, "_freeAtS": now_s + HELD_S})


def subnetwork_of(cloud: Cloud, project: str, region: str, used: Sequence[str]) -> str | None:
    """Return the subnetwork of a machine: the one that it names, otherwise its network's in the region, otherwise None."""
    regional = cloud.store.under(SUBNETWORKS, f"projects/{project}/regions/{region}/")
    inside = (name for name, document in regional if document["network"] in used)
    return next((name for name in (*used, *inside) if "/subnetworks/" in name), None)


def machine_address(cloud: Cloud, subnetwork: str) -> JsonObject:
    """Return the fields of a new machine's document that hold its address until it is deleted. Raise 400 if the subnetwork has none left."""
    addresses = _free_addresses(cloud, subnetwork, 1)
    if not addresses:
        raise CloudError.invalid(f"IP space of '{subnetwork}' is exhausted.")
    return {"_subnetwork": subnetwork, "_addresses": addresses}


def _free_addresses(cloud: Cloud, subnetwork: str, count: int) -> list[str]:
    """Return the first free addresses of a subnetwork, aligned to their number. Return none if so many are not free.

    Google keeps the first two and the last two of a range (Virtual Private Cloud, "Subnets", unusable addresses).
    """
    block = _block((cloud.store.get(SUBNETWORKS, subnetwork) or {}).get("ipCidrRange", _NO_SUBNETWORK_RANGE))
    taken = {str(block[index]) for index in (0, 1, -2, -1)}
    for kind in _HOLD_ADDRESSES:
        for _, document in cloud.store.under(kind):
            if document.get("_subnetwork") == subnetwork and not is_free(cloud, document):
                taken.update(strings(document, "_addresses"))
    for start in range(0, block.num_addresses - count + 1, count):
        wanted = [str(block[start + index]) for index in range(count)]
        if taken.isdisjoint(wanted):
            return wanted
    return []


def is_free(cloud: Cloud, document: JsonObject) -> bool:
    """Return whether the addresses of a deleted service are no longer in use."""
    return bool(document.get("_freeAtS", math.inf) <= cloud.timeline.simulated_s())


def resolve_pair(cloud: Cloud, project: str, region: str, network: str | None, subnetwork: str | None) -> list[str]:
    """Return the full names of a network and subnetwork given by name or URL. Raise 404 if one does not exist."""
    if not network and not subnetwork:
        network = "default"
    resolved: list[str] = []
    for given, collection, scope in ((network, "networks", None), (subnetwork, "subnetworks", region)):
        if not given:
            continue
        short = given.rpartition("/")[2]
        full = (
            given
            if given.startswith("projects/")
            else NetworkPlace(project=project, region=scope).name(collection, short)
        )
        if not cloud.store.has(f"compute.{collection}", full):
            raise CloudError.not_found(f"The {collection.removesuffix('s')} '{full}' was not found.")
        resolved.append(full)
    return resolved


def stamped(document: JsonObject) -> JsonObject:
    """Return the document with a new fingerprint."""
    plain = {key: value for key, value in document.items() if key != "fingerprint"}
    return {**plain, "fingerprint": fingerprint(plain)}
