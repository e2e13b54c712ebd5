"""Compute Engine, beta and v1: networks, subnetworks, firewalls, routers, their operations; regions, zones and projects to look at."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from localcloud.json_values import JsonObject
from localcloud.rest import filters
from localcloud.rest.call import Call, Handler, merged, page, without_nulls
from localcloud.rest.errors import CloudError
from localcloud.services import networks
from localcloud.services.common import visible
from localcloud.services.networks import Place
from localcloud.world.cloud import REGIONS, Cloud

_OPERATIONS = "compute.operations"
_WAIT_LIMIT_S = 120
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Type:
    """One collection: how a new one is completed, and which fields a PATCH may change (None: all)."""

    collection: str
    path_key: str
    new: Callable[[Cloud, Place, JsonObject], JsonObject]
    mutable: frozenset[str] | None = None

    @property
    def kind(self) -> str:
        return f"compute.{self.collection}"


def _network(_cloud: Cloud, _place: Place, body: JsonObject) -> JsonObject:
    return networks.new_network(body)


_TYPES = (
    _Type(
        collection="networks",
        path_key="network",
        new=_network,
        mutable=frozenset({"routingConfig", "networkFirewallPolicyEnforcementOrder", "mtu"}),
    ),
    _Type(
        collection="subnetworks",
        path_key="subnetwork",
        new=networks.new_subnetwork,
        mutable=frozenset(
            {"secondaryIpRanges", "logConfig", "enableFlowLogs", "stackType", "privateIpv6GoogleAccess", "description"}
        ),
    ),
    _Type(collection="firewalls", path_key="firewall", new=networks.new_firewall),
    _Type(collection="routers", path_key="router", new=networks.new_router),
)


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Methods of all four collections and of what stands around them."""
    found: dict[str, Handler] = {}
    for kind in _TYPES:
        model = _Collection(cloud, kind)
        prefix = f"compute.{kind.collection}"
        found.update(
            {
                f"{prefix}.insert": model.insert,
                f"{prefix}.get": model.read,
                f"{prefix}.list": model.listed,
                f"{prefix}.patch": model.patch,
                f"{prefix}.delete": model.delete,
            }
        )
        if kind.kind in {networks.SUBNETWORKS, networks.ROUTERS}:
            found[f"{prefix}.aggregatedList"] = model.aggregated
        if kind.kind in {networks.FIREWALLS, networks.ROUTERS}:
            found[f"{prefix}.update"] = model.patch
    subnetworks = _Collection(cloud, _TYPES[1])
    found["compute.subnetworks.setPrivateIpGoogleAccess"] = subnetworks.set_private_access
    found["compute.subnetworks.expandIpCidrRange"] = subnetworks.expand
    operations = _ComputeOperations(cloud)
    for scope in ("global", "region", "zone"):
        found[f"compute.{scope}Operations.get"] = operations.read
        found[f"compute.{scope}Operations.wait"] = operations.wait
        found[f"compute.{scope}Operations.list"] = operations.listed
        found[f"compute.{scope}Operations.delete"] = operations.delete
    places = _Places(cloud)
    found.update(
        {
            "compute.projects.get": places.project,
            "compute.regions.get": places.region,
            "compute.regions.list": places.regions,
            "compute.zones.get": places.zone,
            "compute.zones.list": places.zones,
        }
    )
    return found


def _link(call: Call, name: str) -> str:
    return f"https://www.googleapis.com/compute/{call.document.version}/{name}"


def _place(call: Call) -> Place:
    region = call.path.get("region")
    if region is not None and region not in REGIONS:
        raise CloudError.field("region", f"Invalid value for field 'region': '{region}'. Unknown region.")
    return Place(project=call.path["project"], region=region)


class _Collection:
    """The methods of one collection."""

    def __init__(self, cloud: Cloud, kind: _Type) -> None:
        self._cloud = cloud
        self._store = cloud.store
        self._type = kind
        self._operations = _ComputeOperations(cloud)

    def insert(self, call: Call) -> JsonObject:
        place = _place(call)
        body = without_nulls(call.body)
        if not body.get("name"):
            raise CloudError.required("Required field 'resource.name' not specified")
        name = place.name(self._type.collection, body["name"])
        if self._store.has(self._type.kind, name):
            raise CloudError.already_exists(f"The resource '{name}' already exists")
        body.pop("selfLink", None)
        document = self._type.new(self._cloud, place, body)
        document["id"] = str(secrets.randbelow(9 * 10**18) + 10**18)
        document["creationTimestamp"] = self._cloud.timeline.stamp()
        self._store.put(self._type.kind, name, networks.stamped(document))
        if self._type.kind == networks.NETWORKS and document["autoCreateSubnetworks"]:
            networks.add_auto_subnetworks(self._cloud, place.project, body["name"])
        return self._operations.new(call, "insert", name, document["id"])

    def read(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        return self._shown(call, name, document)

    def listed(self, call: Call) -> JsonObject:
        prefix = _place(call).name(self._type.collection, "")
        found = [
            (name, self._shown(call, name, document)) for name, document in self._store.under(self._type.kind, prefix)
        ]
        return _list_answer(call, f"compute#{self._singular}List", filters.chosen(found, call.query.get("filter")))

    def aggregated(self, call: Call) -> JsonObject:
        project = call.path["project"]
        scopes: JsonObject = {}
        for name, document in self._store.under(self._type.kind, f"projects/{project}/"):
            scope = "/".join(name.split("/")[2:4])
            scopes.setdefault(scope, {self._type.collection: []})[self._type.collection].append(
                self._shown(call, name, document)
            )
        return {
            "kind": f"compute#{self._singular}AggregatedList",
            "id": f"projects/{project}/aggregated/{self._type.collection}",
            "items": scopes,
        }

    def patch(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        given = call.body.pop("fingerprint", None)
        if given and given != document["fingerprint"]:
            raise CloudError.condition_not_met(
                f"Supplied fingerprint '{given}' does not match current metadata fingerprint '{document['fingerprint']}'."
            )
        updated = merged(document, call.body)
        for key in self._frozen(document, updated):
            raise CloudError.field(
                key, f"Invalid value for field 'resource.{key}': '{updated.get(key)}'. The field cannot be changed."
            )
        if self._type.kind == networks.FIREWALLS:
            networks.check_firewall(updated)
            updated["network"] = networks.reference(
                self._cloud, call.path["project"], networks.NETWORKS, updated["network"], "resource.network"
            )
        if self._type.kind == networks.ROUTERS:
            updated = networks.with_nats(updated)
        self._store.put(self._type.kind, name, networks.stamped(updated))
        return self._operations.new(call, "patch" if call.method.verb == "PATCH" else "update", name, document["id"])

    def _frozen(self, document: JsonObject, updated: JsonObject) -> list[str]:
        if self._type.mutable is None:
            return []
        changed = [key for key in updated if updated[key] != document.get(key)]
        return [key for key in changed if key not in self._type.mutable]

    def set_private_access(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        document["privateIpGoogleAccess"] = bool(call.body.get("privateIpGoogleAccess", False))
        self._store.put(self._type.kind, name, networks.stamped(document))
        return self._operations.new(call, "setPrivateIpGoogleAccess", name, document["id"])

    def expand(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        self._store.delete(self._type.kind, name)
        try:
            wider = networks.new_subnetwork(
                self._cloud, _place(call), {**document, "ipCidrRange": call.body.get("ipCidrRange")}
            )
        except CloudError:
            self._store.put(self._type.kind, name, document)
            raise
        self._store.put(self._type.kind, name, networks.stamped(wider))
        return self._operations.new(call, "expandIpCidrRange", name, document["id"])

    def delete(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        users = networks.users_of(self._cloud, name)
        if users:
            raise CloudError.in_use(f"The {self._singular} resource '{name}' is already being used by '{users[0]}'")
        self._store.delete(self._type.kind, name)
        if self._type.kind == networks.NETWORKS:
            for subnetwork, below in self._store.under(networks.SUBNETWORKS, f"projects/{call.path['project']}/"):
                if below["network"] == name:
                    self._store.delete(networks.SUBNETWORKS, subnetwork)
        return self._operations.new(call, "delete", name, document["id"])

    @property
    def _singular(self) -> str:
        return self._type.collection.removesuffix("s")

    def _found(self, call: Call) -> tuple[str, JsonObject]:
        name = _place(call).name(self._type.collection, call.path[self._type.path_key])
        document = self._store.get(self._type.kind, name)
        if document is None:
            raise CloudError.not_found(f"The resource '{name}' was not found")
        return name, document

    def _shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        shown: JsonObject = {"kind": f"compute#{self._singular}", **visible(document), "selfLink": _link(call, name)}
        if "network" in shown:
            shown["network"] = _link(call, shown["network"])
        if "region" in shown:
            shown["region"] = _link(call, f"projects/{call.path['project']}/regions/{shown['region']}")
        if self._type.kind == networks.NETWORKS:
            shown["selfLinkWithId"] = _link(call, f"{name.rpartition('/')[0]}/{document['id']}")
            shown.pop("fingerprint", None)
            users = [
                user
                for user, below in self._store.under(networks.SUBNETWORKS, f"projects/{call.path['project']}/")
                if below["network"] == name
            ]
            if users:
                shown["subnetworks"] = [_link(call, user) for user in users]
        if self._type.kind in {networks.FIREWALLS, networks.ROUTERS}:
            shown.pop("fingerprint", None)
        return shown


def _list_answer(call: Call, kind: str, found: list[tuple[str, JsonObject]]) -> JsonObject:
    items, following = page(
        found, size=call.query.get("maxResults"), token=call.query.get("pageToken"), default=500, maximum=500
    )
    answer: JsonObject = {
        "kind": kind,
        "id": call.http.path.split("/compute/", 1)[-1],
        "selfLink": _link(call, call.http.path.split("/projects/", 1)[-1]),
    }
    if items:
        answer["items"] = items
    if following:
        answer["nextPageToken"] = following
    return answer


class _ComputeOperations:
    """Compute Engine's operations: `status` PENDING, RUNNING, DONE."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def new(self, call: Call, what: str, target: str, target_id: str) -> JsonObject:
        region = call.path.get("region")
        project = call.path["project"]
        short = f"operation-{time.time_ns() // 10**6}-{secrets.token_hex(8)}"
        name = Place(project=project, region=region).name("operations", short)
        now = self._cloud.timeline.stamp()
        document: JsonObject = {
            "id": str(secrets.randbelow(9 * 10**18) + 10**18),
            "name": short,
            "operationType": what,
            "targetId": target_id,
            "user": call.caller.email,
            "insertTime": now,
            "startTime": now,
            "_target": target,
            "_due_s": self._cloud.timeline.simulated_s()
            + self._cloud.duration_s(self._cloud.scenario.operations.compute_s),
        }
        if region is not None:
            document["_region"] = region
        self._cloud.store.put(_OPERATIONS, name, document)
        return self._shown(call, name, document)

    def read(self, call: Call) -> JsonObject:
        name = self._name(call)
        document = self._cloud.store.get(_OPERATIONS, name)
        if document is None:
            raise CloudError.not_found(f"The resource '{name}' was not found")
        return self._shown(call, name, document)

    async def wait(self, call: Call) -> JsonObject:
        loop = asyncio.get_running_loop()
        end = loop.time() + _WAIT_LIMIT_S
        operation = self.read(call)
        while operation["status"] != "DONE" and loop.time() < end:
            await asyncio.sleep(_POLL_S)
            operation = self.read(call)
        return operation

    def listed(self, call: Call) -> JsonObject:
        prefix = self._name(call, short="")
        found = [
            (name, self._shown(call, name, document)) for name, document in self._cloud.store.under(_OPERATIONS, prefix)
        ]
        return _list_answer(call, "compute#operationList", filters.chosen(found, call.query.get("filter")))

    def delete(self, call: Call) -> JsonObject:
        self.read(call)
        self._cloud.store.delete(_OPERATIONS, self._name(call))
        return {}

    def _name(self, call: Call, short: str | None = None) -> str:
        short = call.path["operation"] if short is None else short
        if "zone" in call.path:
            return f"projects/{call.path['project']}/zones/{call.path['zone']}/operations/{short}"
        return Place(project=call.path["project"], region=call.path.get("region")).name("operations", short)

    def _shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        done = self._cloud.timeline.simulated_s() >= document["_due_s"]
        shown: JsonObject = {
            "kind": "compute#operation",
            **visible(document),
            "status": "DONE" if done else "RUNNING",
            "progress": 100 if done else 0,
            "targetLink": _link(call, document["_target"]),
            "selfLink": _link(call, name),
        }
        if "_region" in document:
            shown["region"] = _link(call, f"projects/{call.path['project']}/regions/{document['_region']}")
        if done:
            shown["endTime"] = self._cloud.timeline.stamp()
        return shown


class _Places:
    """Projects, regions and zones, to read only."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def project(self, call: Call) -> JsonObject:
        document = self._cloud.store.get("projects", call.path["project"]) or {}
        number, project = document["projectNumber"], document["projectId"]
        return {
            "kind": "compute#project",
            "id": number,
            "name": project,
            "creationTimestamp": document["createTime"],
            "defaultServiceAccount": f"{number}-compute@developer.gserviceaccount.com",
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": _link(call, f"projects/{project}"),
        }

    def region(self, call: Call) -> JsonObject:
        return self._region(call, _place(call).region or "")

    def regions(self, call: Call) -> JsonObject:
        found = [(region, self._region(call, region)) for region in sorted(REGIONS)]
        return _list_answer(call, "compute#regionList", filters.chosen(found, call.query.get("filter")))

    def zone(self, call: Call) -> JsonObject:
        zone = call.path["zone"]
        region, _, letter = zone.rpartition("-")
        if letter not in tuple(REGIONS.get(region, "")):
            raise CloudError.not_found(f"The resource 'projects/{call.path['project']}/zones/{zone}' was not found")
        return self._zone(call, zone)

    def zones(self, call: Call) -> JsonObject:
        names = [f"{region}-{letter}" for region in sorted(REGIONS) for letter in REGIONS[region]]
        found = [(zone, self._zone(call, zone)) for zone in names]
        return _list_answer(call, "compute#zoneList", filters.chosen(found, call.query.get("filter")))

    def _region(self, call: Call, region: str) -> JsonObject:
        project = call.path["project"]
        zones = [_link(call, f"projects/{project}/zones/{region}-{letter}") for letter in REGIONS[region]]
        return {
            "kind": "compute#region",
            "name": region,
            "status": "UP",
            "zones": zones,
            "selfLink": _link(call, f"projects/{project}/regions/{region}"),
        }

    def _zone(self, call: Call, zone: str) -> JsonObject:
        project, region = call.path["project"], zone.rpartition("-")[0]
        return {
            "kind": "compute#zone",
            "name": zone,
            "status": "UP",
            "region": _link(call, f"projects/{project}/regions/{region}"),
            "selfLink": _link(call, f"projects/{project}/zones/{zone}"),
        }
