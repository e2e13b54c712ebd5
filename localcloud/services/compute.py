"""Compute Engine, beta and v1: networks, subnetworks, firewalls, routers and their operations; regions, zones and projects read-only."""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from localcloud.json_values import JsonObject
from localcloud.rest import filters
from localcloud.rest.call import Call, Handler, merged, page, without_nulls
from localcloud.rest.errors import CloudError
from localcloud.services import networks
from localcloud.services.networks import Place
from localcloud.services.service import ApiService, method, visible
from localcloud.world.cloud import REGIONS, Cloud, random_id

_OPERATIONS = "compute.operations"
_WAIT_LIMIT_S = 120
_POLL_S = 0.01


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of the four collections, of operations and of places."""
    services = (_Networks, _Subnetworks, _Firewalls, _Routers, _ComputeOperations, _Places)
    return {name: handler for service in services for name, handler in service(cloud).handlers().items()}


def _link(call: Call, name: str) -> str:
    return f"https://www.googleapis.com/compute/{call.document.version}/{name}"


def _place(call: Call) -> Place:
    region = call.path.get("region")
    if region is not None and region not in REGIONS:
        raise CloudError.field("region", f"Invalid value for field 'region': '{region}'. Unknown region.")
    return Place(project=call.path["project"], region=region)


class _ComputeCollection(ApiService, ABC):
    """The methods of one collection. `prefix` is also the kind under which its documents are stored."""

    mutable: ClassVar[frozenset[str] | None] = None
    """The fields that PATCH may change; None: all of them."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Methods that Compute Engine does not offer for this collection."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._operations = _ComputeOperations(cloud)
        self._collection = self.prefix.partition(".")[2]
        self._singular = self._collection.removesuffix("s")

    def handlers(self) -> dict[str, Handler]:
        return {name: found for name, found in super().handlers().items() if name.split(".")[2] not in self.lacks}

    @abstractmethod
    def new(self, place: Place, body: JsonObject) -> JsonObject:
        """Return a new document with its defaults. Raise 400 if the body is wrong."""

    def changed(self, call: Call, document: JsonObject) -> JsonObject:  # noqa: ARG002 - for subclasses
        """Return a patched document with its defaults. Raise 400 if it is wrong."""
        return document

    @method("insert")
    def insert(self, call: Call) -> JsonObject:
        place = _place(call)
        body = without_nulls(call.body)
        if not body.get("name"):
            raise CloudError.required("Required field 'resource.name' not specified")
        name = place.name(self._collection, body["name"])
        if self._store.has(self.prefix, name):
            raise CloudError.already_exists(f"The resource '{name}' already exists")
        body.pop("selfLink", None)
        document = self.new(place, body)
        document.update(id=random_id(), creationTimestamp=self._cloud.timeline.stamp())
        return self._save(call, "insert", name, document)

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return self.shown(call, *self._found(call))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        prefix = _place(call).name(self._collection, "")
        found = [(name, self.shown(call, name, document)) for name, document in self._store.under(self.prefix, prefix)]
        return _list_answer(call, f"compute#{self._singular}List", found)

    @method("aggregatedList")
    def list_aggregated(self, call: Call) -> JsonObject:
        project = call.path["project"]
        scopes: JsonObject = {}
        for name, document in self._store.under(self.prefix, f"projects/{project}/"):
            scope = scopes.setdefault("/".join(name.split("/")[2:4]), {self._collection: []})
            scope[self._collection].append(self.shown(call, name, document))
        return {
            "kind": f"compute#{self._singular}AggregatedList",
            "id": f"projects/{project}/aggregated/{self._collection}",
            "items": scopes,
        }

    @method("patch", "update")
    def patch(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        given = call.body.pop("fingerprint", None)
        if given and given != document["fingerprint"]:
            raise CloudError.condition_not_met(
                f"Supplied fingerprint '{given}' does not match current metadata fingerprint '{document['fingerprint']}'."
            )
        updated = merged(document, call.body)
        for key in updated:
            if self.mutable is not None and key not in self.mutable and updated[key] != document.get(key):
                raise networks.invalid_value(key, updated[key], "The field cannot be changed.")
        operation = "patch" if call.method.verb == "PATCH" else "update"
        return self._save(call, operation, name, self.changed(call, updated))

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        users = networks.users_of(self._cloud, name)
        if users:
            raise CloudError.in_use(f"The {self._singular} resource '{name}' is already being used by '{users[0]}'")
        self._store.delete(self.prefix, name)
        return self._operations.new(call, "delete", name, document["id"])

    def shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        """Return the document as the API shows it."""
        shown: JsonObject = {"kind": f"compute#{self._singular}", **visible(document), "selfLink": _link(call, name)}
        if "network" in shown:
            shown["network"] = _link(call, shown["network"])
        if "region" in shown:
            shown["region"] = _link(call, f"projects/{call.path['project']}/regions/{shown['region']}")
        if self.prefix != networks.SUBNETWORKS:
            shown.pop("fingerprint", None)
        return shown

    def _found(self, call: Call) -> tuple[str, JsonObject]:
        name = _place(call).name(self._collection, call.path[self._singular])
        return name, self.stored(self.prefix, name, f"The resource '{name}' was not found")

    def _save(self, call: Call, operation: str, name: str, document: JsonObject) -> JsonObject:
        self._store.put(self.prefix, name, networks.stamped(document))
        return self._operations.new(call, operation, name, document["id"])


class _Networks(_ComputeCollection):
    prefix = networks.NETWORKS
    mutable = frozenset({"routingConfig", "networkFirewallPolicyEnforcementOrder", "mtu"})
    lacks = frozenset({"aggregatedList", "update"})

    def new(self, place: Place, body: JsonObject) -> JsonObject:
        document = networks.new_network(body)
        if document["autoCreateSubnetworks"]:
            networks.add_auto_subnetworks(self._cloud, place.project, body["name"])
        return document

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        name, _ = self._found(call)
        operation = super().delete(call)
        for subnetwork in self._subnetworks(name):
            self._store.delete(networks.SUBNETWORKS, subnetwork)
        return operation

    def shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        shown = super().shown(call, name, document)
        shown["selfLinkWithId"] = _link(call, f"{name.rpartition('/')[0]}/{document['id']}")
        links = [_link(call, subnetwork) for subnetwork in self._subnetworks(name)]
        return {**shown, "subnetworks": links} if links else shown

    def _subnetworks(self, network: str) -> list[str]:
        stored = self._store.under(networks.SUBNETWORKS, "/".join(network.split("/")[:2]) + "/")
        return [name for name, document in stored if document["network"] == network]


class _Subnetworks(_ComputeCollection):
    prefix = networks.SUBNETWORKS
    mutable = frozenset(
        {"secondaryIpRanges", "logConfig", "enableFlowLogs", "stackType", "privateIpv6GoogleAccess", "description"}
    )
    lacks = frozenset({"update"})

    def new(self, place: Place, body: JsonObject) -> JsonObject:
        return networks.new_subnetwork(self._cloud, place, body)

    @method("setPrivateIpGoogleAccess")
    def set_private_access(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        document["privateIpGoogleAccess"] = bool(call.body.get("privateIpGoogleAccess", False))
        return self._save(call, "setPrivateIpGoogleAccess", name, document)

    @method("expandIpCidrRange")
    def expand(self, call: Call) -> JsonObject:
        name, document = self._found(call)
        self._store.delete(self.prefix, name)
        try:
            wider = self.new(_place(call), {**document, "ipCidrRange": call.body.get("ipCidrRange")})
        except CloudError:
            self._store.put(self.prefix, name, document)
            raise
        return self._save(call, "expandIpCidrRange", name, wider)


class _Firewalls(_ComputeCollection):
    prefix = networks.FIREWALLS
    lacks = frozenset({"aggregatedList"})

    def new(self, place: Place, body: JsonObject) -> JsonObject:
        return networks.new_firewall(self._cloud, place, body)

    def changed(self, call: Call, document: JsonObject) -> JsonObject:
        networks.check_firewall(document)
        network = networks.reference(
            self._cloud, call.path["project"], networks.NETWORKS, document["network"], "resource.network"
        )
        return {**document, "network": network}


class _Routers(_ComputeCollection):
    prefix = networks.ROUTERS

    def new(self, place: Place, body: JsonObject) -> JsonObject:
        return networks.new_router(self._cloud, place, body)

    def changed(self, call: Call, document: JsonObject) -> JsonObject:  # noqa: ARG002 - the signature of the base class
        return networks.with_nats(document)


def _list_answer(call: Call, kind: str, items: list[tuple[str, JsonObject]]) -> JsonObject:
    found = filters.chosen(items, call.query.get("filter"))
    shown, following = page(
        found, size=call.query.get("maxResults"), token=call.query.get("pageToken"), default=500, maximum=500
    )
    answer: JsonObject = {
        "kind": kind,
        "id": call.http.path.split("/compute/", 1)[-1],
        "selfLink": _link(call, call.http.path.split("/projects/", 1)[-1]),
    }
    if shown:
        answer["items"] = shown
    if following:
        answer["nextPageToken"] = following
    return answer


def _in_each_scope(verb: str) -> tuple[str, ...]:
    return tuple(f"{scope}Operations.{verb}" for scope in ("global", "region", "zone"))


class _ComputeOperations(ApiService):
    """Compute Engine's operations: `status` PENDING, RUNNING, DONE."""

    prefix = "compute"

    def new(self, call: Call, what: str, target: str, target_id: str) -> JsonObject:
        region = call.path.get("region")
        project = call.path["project"]
        short = f"operation-{time.time_ns() // 10**6}-{secrets.token_hex(8)}"
        name = Place(project=project, region=region).name("operations", short)
        now = self._cloud.timeline.stamp()
        document: JsonObject = {
            "id": random_id(),
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
        self._store.put(_OPERATIONS, name, document)
        return self._shown(call, name, document)

    @method(*_in_each_scope("get"))
    def get(self, call: Call) -> JsonObject:
        name = self._name(call)
        return self._shown(call, name, self.stored(_OPERATIONS, name, f"The resource '{name}' was not found"))

    @method(*_in_each_scope("wait"))
    async def wait(self, call: Call) -> JsonObject:
        loop = asyncio.get_running_loop()
        end = loop.time() + _WAIT_LIMIT_S
        operation = self.get(call)
        while operation["status"] != "DONE" and loop.time() < end:
            await asyncio.sleep(_POLL_S)
            operation = self.get(call)
        return operation

    @method(*_in_each_scope("list"))
    def list_all(self, call: Call) -> JsonObject:
        stored = self._store.under(_OPERATIONS, self._name(call, short=""))
        found = [(name, self._shown(call, name, document)) for name, document in stored]
        return _list_answer(call, "compute#operationList", found)

    @method(*_in_each_scope("delete"))
    def delete(self, call: Call) -> JsonObject:
        self.get(call)
        self._store.delete(_OPERATIONS, self._name(call))
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


class _Places(ApiService):
    """Projects, regions and zones, to read only."""

    prefix = "compute"

    @method("projects.get")
    def get_project(self, call: Call) -> JsonObject:
        document = self._store.get("projects", call.path["project"]) or {}
        number, project = document["projectNumber"], document["projectId"]
        return {
            "kind": "compute#project",
            "id": number,
            "name": project,
            "creationTimestamp": document["createTime"],
            "defaultServiceAccount": self._cloud.default_account(project),
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": _link(call, f"projects/{project}"),
        }

    @method("regions.get")
    def get_region(self, call: Call) -> JsonObject:
        return self._region(call, _place(call).region or "")

    @method("regions.list")
    def list_regions(self, call: Call) -> JsonObject:
        found = [(region, self._region(call, region)) for region in sorted(REGIONS)]
        return _list_answer(call, "compute#regionList", found)

    @method("zones.get")
    def get_zone(self, call: Call) -> JsonObject:
        zone = call.path["zone"]
        region, _, letter = zone.rpartition("-")
        if letter not in tuple(REGIONS.get(region, "")):
            raise CloudError.not_found(f"The resource 'projects/{call.path['project']}/zones/{zone}' was not found")
        return self._zone(call, zone)

    @method("zones.list")
    def list_zones(self, call: Call) -> JsonObject:
        names = [f"{region}-{letter}" for region in sorted(REGIONS) for letter in REGIONS[region]]
        found = [(zone, self._zone(call, zone)) for zone in names]
        return _list_answer(call, "compute#zoneList", found)

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
