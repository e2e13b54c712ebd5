"""Compute Engine, beta and v1: networks, subnetworks, firewalls, routers and their operations; projects read-only."""

from typing import ClassVar

from localcloud.json_values import JsonObject
from localcloud.rest.call import Call, Handler, merged, without_nulls
from localcloud.rest.errors import CloudError
from localcloud.services import networks, tpu_stock
from localcloud.services.compute_operations import ComputeOperations, chosen_page, link_to, list_answer
from localcloud.services.networks import NetworkPlace
from localcloud.services.service import ApiService, method, visible
from localcloud.world.cloud import REGIONS, Cloud, random_id


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of the five collections, of operations and projects."""
    services = (_Networks, _Subnetworks, _Addresses, _Firewalls, _Routers, ComputeOperations, _Projects)
    return {name: handler for service in services for name, handler in service(cloud).handlers().items()}


def _place(call: Call) -> NetworkPlace:
    region = call.path.get("region")
    if region is not None and region not in REGIONS:
        raise CloudError.field("region", f"Invalid value for field 'region': '{region}'. Unknown region.")
    return NetworkPlace(project=call.path["project"], region=region)


class ComputeCollection(ApiService):
    """The methods of one collection. `prefix` is the kind of its stored documents too."""

    mutable: ClassVar[frozenset[str] | None] = None
    """The fields that PATCH can change; None: all of them."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Methods that Compute Engine does not offer for this collection."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._operations = ComputeOperations(cloud)
        self._collection = self.prefix.partition(".")[2]
        self._singular = self._collection.removesuffix("es" if self._collection == "addresses" else "s")

    def handlers(self) -> dict[str, Handler]:
        """Return the methods that Compute Engine offers."""
        return {name: found for name, found in super().handlers().items() if name.split(".")[2] not in self.lacks}

    def new(self, place: NetworkPlace, body: JsonObject) -> JsonObject:  # noqa: ARG002 - for subclasses
        """Return a new document with its defaults. Raise 400 if the body is invalid."""
        return body

    def changed(self, call: Call, document: JsonObject) -> JsonObject:  # noqa: ARG002 - for subclasses
        """Return a patched document with its defaults. Raise 400 if it is invalid."""
        return document

    def place(self, call: Call) -> NetworkPlace:
        """Return the place that a call names. Raise 400 if it does not exist."""
        return _place(call)

    def advance_all(self) -> None:
        """Apply the changes of resources that are due."""

    @method("insert")
    def insert(self, call: Call) -> JsonObject:
        """Create a resource."""
        place = self.place(call)
        body = without_nulls(call.body)
        if not body.get("name"):
            raise CloudError.required("Required field 'resource.name' not specified")
        name = place.name(self._collection, body["name"])
        if self._store.has(self.prefix, name):
            raise CloudError.already_exists(f"The resource '{name}' already exists")
        body.pop("selfLink", None)
        document = self.new(place, body)
        document.update(id=random_id(), creationTimestamp=self._cloud.timeline.stamp())
        return self.save(call, "insert", name, document)

    @method("get")
    def get(self, call: Call) -> JsonObject:
        """Return a resource."""
        return self.shown(call, *self.found(call))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return the resources of a place."""
        found = self._all_shown(call, self.place(call).name(self._collection, ""))
        return list_answer(call, f"compute#{self._singular}List", found)

    @method("aggregatedList")
    def list_aggregated(self, call: Call) -> JsonObject:
        """Return the resources of all places, in pages. Google's response has a warning for a place without any; here it is omitted."""
        project = call.path["project"]
        shown, following = chosen_page(call, self._all_shown(call, f"projects/{project}/"))
        scopes: JsonObject = {}
        for item in shown:
            scope = "/".join(str(item["selfLink"]).split("/")[-4:-2])
            scopes.setdefault(scope, {self._collection: []})[self._collection].append(item)
        answer: JsonObject = {
            "kind": f"compute#{self._singular}AggregatedList",
            "id": f"projects/{project}/aggregated/{self._collection}",
            "items": scopes,
        }
        return {**answer, "nextPageToken": following} if following else answer

    def is_shown(self, document: JsonObject) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the API shows a stored document."""
        return True

    def _all_shown(self, call: Call, prefix: str) -> list[tuple[str, JsonObject]]:
        self.advance_all()
        stored = self._store.under(self.prefix, prefix)
        return [(name, self.shown(call, name, document)) for name, document in stored if self.is_shown(document)]

    @method("patch", "update")
    def patch(self, call: Call) -> JsonObject:
        """Change fields of a resource."""
        name, document = self.found(call)
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
        return self.save(call, operation, name, self.changed(call, updated))

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        """Delete a resource that nothing uses."""
        name, document = self.found(call)
        users = networks.users_of(self._cloud, name)
        if users:
            raise CloudError.in_use(f"The {self._singular} resource '{name}' is already being used by '{users[0]}'")
        self._store.delete(self.prefix, name)
        return self._operations.new(call, "delete", name, document["id"])

    def shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        """Return the document as the API shows it."""
        shown: JsonObject = {"kind": f"compute#{self._singular}", **visible(document), "selfLink": link_to(call, name)}
        if "network" in shown:
            shown["network"] = link_to(call, shown["network"])
        if "region" in shown:
            shown["region"] = link_to(call, f"projects/{call.path['project']}/regions/{shown['region']}")
        if self.prefix != networks.SUBNETWORKS:
            shown.pop("fingerprint", None)
        return shown

    def found(self, call: Call) -> tuple[str, JsonObject]:
        """Return name and document of the resource that a call names. Raise 404 if it does not exist."""
        name = self.place(call).name(self._collection, call.path[self._singular])
        self.advance_all()
        document = self.stored(self.prefix, name, f"The resource '{name}' was not found")
        if not self.is_shown(document):
            raise CloudError.not_found(f"The resource '{name}' was not found")
        return name, document

    def save(self, call: Call, operation: str, name: str, document: JsonObject) -> JsonObject:
        """Store a document and return a new operation."""
        self._store.put(self.prefix, name, networks.stamped(document))
        return self._operations.new(call, operation, name, document["id"])


class _Networks(ComputeCollection):
    prefix = networks.NETWORKS
    mutable = frozenset({"routingConfig", "networkFirewallPolicyEnforcementOrder", "mtu"})
    lacks = frozenset({"aggregatedList", "update"})

    def new(self, place: NetworkPlace, body: JsonObject) -> JsonObject:
        if networks.network_count(self._cloud, place.project) >= networks.NETWORK_QUOTA:
            message = f"Quota 'NETWORKS' exceeded.  Limit: {networks.NETWORK_QUOTA:.1f} globally."
            raise CloudError(403, "PERMISSION_DENIED", message, reason="quotaExceeded")
        document = networks.new_network(body)
        if document["autoCreateSubnetworks"]:
            networks.add_auto_subnetworks(self._cloud, place.project, body["name"])
        return document

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        name, _ = self.found(call)
        operation = super().delete(call)
        for subnetwork in self._subnetworks(name):
            self._store.delete(networks.SUBNETWORKS, subnetwork)
        return operation

    def shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        shown = super().shown(call, name, document)
        shown["selfLinkWithId"] = link_to(call, f"{name.rpartition('/')[0]}/{document['id']}")
        links = [link_to(call, subnetwork) for subnetwork in self._subnetworks(name)]
        return {**shown, "subnetworks": links} if links else shown

    def _subnetworks(self, network: str) -> list[str]:
        stored = self._store.under(networks.SUBNETWORKS, "/".join(network.split("/")[:2]) + "/")
        return [name for name, document in stored if document["network"] == network]


class _Subnetworks(ComputeCollection):
    prefix = networks.SUBNETWORKS
    mutable = frozenset(
        {"secondaryIpRanges", "logConfig", "enableFlowLogs", "stackType", "privateIpv6GoogleAccess", "description"}
    )
    lacks = frozenset({"update"})

    def new(self, place: NetworkPlace, body: JsonObject) -> JsonObject:
        return networks.new_subnetwork(self._cloud, place, body)

    @method("setPrivateIpGoogleAccess")
    def set_private_access(self, call: Call) -> JsonObject:
        name, document = self.found(call)
        document["privateIpGoogleAccess"] = bool(call.body.get("privateIpGoogleAccess", False))
        return self.save(call, "setPrivateIpGoogleAccess", name, document)

    @method("expandIpCidrRange")
    def expand(self, call: Call) -> JsonObject:
        name, document = self.found(call)
        self._store.delete(self.prefix, name)
        try:
            wider = self.new(_place(call), {**document, "ipCidrRange": call.body.get("ipCidrRange")})
        except CloudError:
            self._store.put(self.prefix, name, document)
            raise
        return self.save(call, "expandIpCidrRange", name, wider)


class _Addresses(ComputeCollection):
    """The ranges that Cloud Run reserves, read-only: no call releases them (assumed), and the local cloud has no other addresses."""

    prefix = networks.ADDRESSES
    lacks = frozenset({"insert", "patch", "update", "delete"})

    def is_shown(self, document: JsonObject) -> bool:
        return not networks.is_free(self._cloud, document)

    def shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        shown = {**super().shown(call, name, document), "name": name.rpartition("/")[2]}
        return {**shown, "subnetwork": link_to(call, document["subnetwork"])}


class _Firewalls(ComputeCollection):
    prefix = networks.FIREWALLS
    lacks = frozenset({"aggregatedList"})

    def new(self, place: NetworkPlace, body: JsonObject) -> JsonObject:
        return networks.new_firewall(self._cloud, place, body)

    def changed(self, call: Call, document: JsonObject) -> JsonObject:
        networks.check_firewall(document)
        network = networks.reference(
            self._cloud, call.path["project"], networks.NETWORKS, document["network"], "resource.network"
        )
        return {**document, "network": network}


class _Routers(ComputeCollection):
    prefix = networks.ROUTERS

    def new(self, place: NetworkPlace, body: JsonObject) -> JsonObject:
        return networks.new_router(self._cloud, place, body)

    def changed(self, call: Call, document: JsonObject) -> JsonObject:  # noqa: ARG002 - the signature of the base class
        return networks.with_nats(document)


class _Projects(ApiService):
    """Projects, read-only."""

    prefix = "compute.projects"

    @method("get")
    def get(self, call: Call) -> JsonObject:
        document = self._store.get("projects", call.path["project"]) or {}
        number, project = document["projectNumber"], document["projectId"]
        return {
            "kind": "compute#project",
            "id": number,
            "name": project,
            "creationTimestamp": document["createTime"],
            "defaultServiceAccount": self._cloud.default_account(project),
            "defaultNetworkTier": "PREMIUM",
            "quotas": [
                {
                    "metric": "NETWORKS",
                    "limit": networks.NETWORK_QUOTA,
                    "usage": networks.network_count(self._cloud, project),
                },
                {
                    "metric": "GPUS_ALL_REGIONS",
                    "limit": self._cloud.scenario.tpu.compute.all_regions_quota_chips,
                    "usage": tpu_stock.instance_chips(self._cloud, project),
                },
            ],
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": link_to(call, f"projects/{project}"),
        }
