"""Cloud TPU v2alpha1: nodes (the virtual machines with TPUs), their updates and guest attributes; and the catalogs of a zone."""

from collections.abc import Callable
from datetime import timedelta

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, Handler, masked
from localcloud.rest.errors import CloudError
from localcloud.services import networks, tpu_requests
from localcloud.services.checks import require_act_as, required_mask
from localcloud.services.service import ApiService, listing, method, name_prefix, visible
from localcloud.services.tpu_stock import NODES
from localcloud.world.cloud import Cloud, random_id
from localcloud.world.timeline import rfc3339

_PATCHABLE = {"description", "tags", "labels", "metadata", "networkConfig"}
_CHANGEABLE_NETWORK_FIELD = "networkConfig.enableExternalIps"
_PORT = 8470
"""The port of a TPU worker (Cloud TPU's network endpoints)."""
_GUEST_ATTRIBUTES = "enable-guest-attributes"


def metadata_of(document: JsonObject) -> dict[str, str]:
    """Return a node's instance metadata."""
    return {key: str(value) for key, value in part(document, "metadata").items()}


class Nodes:
    """The records of nodes, which the queue creates and removes."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def create(self, name: str, owner: str, node: JsonObject, queued: JsonObject) -> None:
        """Create a node in state CREATING."""
        project, zone = name.split("/")[1], name.split("/")[3]
        accelerator = tpu_requests.accelerator_of(node)
        used = tpu_requests.networks_of(self._cloud, project, zone, node)
        subnetwork = networks.subnetwork_of(self._cloud, project, zone.rpartition("-")[0], used)
        flex_or_spot = tpu_requests.preemptible(queued)
        document: JsonObject = {
            **node,
            "name": name,
            "acceleratorType": accelerator,
            "acceleratorConfig": tpu_requests.accelerator_document("", accelerator)["acceleratorConfigs"][0],
            "networkConfig": {"enableExternalIps": False, **part(node, "networkConfig")},
            "state": "CREATING",
            "health": "HEALTH_UNSPECIFIED",
            "createTime": self._cloud.timeline.stamp(),
            "apiVersion": "V2_ALPHA1",
            "queuedResource": owner,
            "id": random_id(),
            "schedulingConfig": {
                **part(node, "schedulingConfig"),
                **({"preemptible": True} if flex_or_spot else {}),
            },
            "_networks": used,
            "_model": tpu_requests.model_of(queued),
            **networks.machine_address(self._cloud, subnetwork or ""),
        }
        document["networkEndpoints"] = [self._endpoint(document)]
        self._store.put(NODES, name, document)

    def mark_ready(self, name: str, *, run_duration_s: float | None) -> None:
        """Set the node to READY; its run duration starts now."""
        document = self._store.get(NODES, name)
        if document is None:
            return
        document.update(state="READY", health="HEALTHY")
        if run_duration_s is not None:
            document["schedulingConfig"]["terminationTimestamp"] = rfc3339(
                self._cloud.timeline.now() + timedelta(seconds=run_duration_s)
            )
        self._store.put(NODES, name, document)

    def mark_deleting(self, name: str, *, owner: str) -> None:
        """Set the node to DELETING."""
        document = self._store.get(NODES, name)
        if document is not None and document["queuedResource"] == owner and document["state"] != "PREEMPTED":
            self._store.put(NODES, name, {**document, "state": "DELETING"})

    def remove(self, name: str, *, owner: str) -> None:
        """Remove the node."""
        document = self._store.get(NODES, name)
        if document is not None and document["queuedResource"] == owner:
            self._store.delete(NODES, name)

    def _endpoint(self, document: JsonObject) -> JsonObject:
        """Return an endpoint with the node's address."""
        endpoint: JsonObject = {"ipAddress": document["_addresses"][0], "port": _PORT}
        if document["networkConfig"].get("enableExternalIps"):
            endpoint["accessConfig"] = {"externalIp": f"203.0.113.{self._store.count_up('tpu.external') % 254 + 1}"}
        return endpoint


def operation_metadata(cloud: Cloud, verb: str, target: str) -> JsonObject:
    """Return the metadata of a Cloud TPU operation, with the type from its published protocol buffers: clients can parse no other."""
    return {
        "@type": "type.googleapis.com/google.cloud.tpu.v2alpha1.OperationMetadata",
        "createTime": cloud.timeline.stamp(),
        "target": target,
        "verb": verb,
        "cancelRequested": False,
        "apiVersion": "v2alpha1",
    }


def handlers(cloud: Cloud, advance: Callable[[], None], suspend: Callable[[str], None]) -> dict[str, Handler]:
    """Return the methods of nodes and catalogs. `advance` runs due transitions of the queue; `suspend` suspends a node's queued resource."""
    return {**_NodeMethods(cloud, advance, suspend).handlers(), **_Catalog(cloud).handlers()}


class _NodeMethods(ApiService):
    prefix = "tpu.projects.locations.nodes"

    def __init__(self, cloud: Cloud, advance: Callable[[], None], suspend: Callable[[str], None]) -> None:
        super().__init__(cloud)
        self._advance = advance
        self._suspend = suspend

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return visible(self._found(call))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        self._advance()
        if not call.name.endswith("/locations/-"):
            tpu_requests.zone_of(self._cloud, call.name)
        return listing(call.query, "nodes", self.visible_under(NODES, name_prefix(call.name, "nodes")))

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        document = self._found(call)
        mask = required_mask(call.query.get("updateMask"))
        fields = {path.split(".")[0] for path in mask.split(",")}
        for path in mask.split(","):
            if path.split(".")[0] not in _PATCHABLE or (
                path.startswith("networkConfig") and path != _CHANGEABLE_NETWORK_FIELD
            ):
                raise CloudError.field(
                    "update_mask",
                    f"Invalid update mask: field '{path}' cannot be updated; description, tags, labels, metadata and network_config.enable_external_ips can.",
                )
        if document["state"] != "READY":
            raise CloudError.precondition(
                f"The node '{call.name}' is in state {document['state']}; it can be updated in READY only."
            )
        if "metadata" in fields:
            # A startup script in the metadata runs as the machine's account (Compute Engine requires actAs in setMetadata; assumed for Cloud TPU).
            project = call.name.split("/")[1]
            require_act_as(self._cloud, call.caller, tpu_requests.account_of(self._cloud, project, document), project)
        tpu_requests.check_changeable(call.body)
        updated = masked(document, call.body, mask)
        self._store.put(NODES, call.name, updated)
        if "metadata" in fields:
            self._cloud.runtimes.machines.set_metadata(call.name, metadata_of(updated))
        response = {"@type": "type.googleapis.com/google.cloud.tpu.v2alpha1.Node", **visible(updated)}
        return self._operation(call, "update", self._cloud.scenario.tpu.durations_s.node_update, response)

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        document = self._found(call)
        if document["state"] not in {"READY", "PREEMPTED"}:
            raise CloudError.precondition(
                f"The node '{call.name}' is in state {document['state']}; it can be deleted in READY or PREEMPTED only."
            )
        self._suspend(call.name)
        return self._operation(call, "delete", self._cloud.scenario.tpu.durations_s.suspending, None)

    @method("getGuestAttributes")
    def get_guest_attributes(self, call: Call) -> JsonObject:
        document = self._found(call)
        if str(part(document, "metadata").get(_GUEST_ATTRIBUTES, "")).upper() != "TRUE":
            raise CloudError.precondition(
                f"Guest attributes are not enabled on '{call.name}': its metadata needs {_GUEST_ATTRIBUTES}=TRUE."
            )
        workers = call.body.get("workerIds") or ["0"]
        if workers != ["0"]:
            raise CloudError.field(
                "worker_ids", f"The node '{call.name}' has one worker, 0; given {', '.join(workers)}."
            )
        namespace, _, key = str(call.body.get("queryPath") or "").strip("/").partition("/")
        items = [
            {"namespace": name, "key": entry, "value": value}
            for name, entries in sorted(self._cloud.runtimes.machines.guest_attributes(call.name).items())
            for entry, value in sorted(entries.items())
            if namespace in {"", name} and key in {"", entry}
        ]
        return {"guestAttributes": [{"queryPath": call.body.get("queryPath", ""), "queryValue": {"items": items}}]}

    def _found(self, call: Call) -> JsonObject:
        tpu_requests.zone_of(self._cloud, call.name)
        self._advance()
        return self.stored(NODES, call.name, f"Resource '{call.name}' was not found.")

    def _operation(self, call: Call, verb: str, duration_s: float, response: JsonObject | None) -> JsonObject:
        return self._cloud.operations.timed(
            "tpu",
            call.location,
            duration_s=self._cloud.duration_s(duration_s),
            response=response,
            metadata=operation_metadata(self._cloud, verb, call.name),
        )


class _Catalog(ApiService):
    prefix = "tpu.projects.locations"

    @method("list")
    def list_locations(self, call: Call) -> JsonObject:
        return _listed(call, "locations", [_location(call, zone) for zone in self._cloud.scenario.tpu.zones])

    @method("acceleratorTypes.list")
    def list_accelerator_types(self, call: Call) -> JsonObject:
        return _listed(call, "acceleratorTypes", self._accelerator_types(call))

    @method("runtimeVersions.list")
    def list_runtime_versions(self, call: Call) -> JsonObject:
        return _listed(call, "runtimeVersions", self._runtime_versions(call))

    @method("reservations.list")
    def list_reservations(self, call: Call) -> JsonObject:
        tpu_requests.zone_of(self._cloud, call.name)
        return {}

    def _accelerator_types(self, call: Call) -> list[JsonObject]:
        _, zone = tpu_requests.zone_of(self._cloud, call.name)
        return [tpu_requests.accelerator_document(call.location, kind) for kind in zone.accelerator_types]

    def _runtime_versions(self, call: Call) -> list[JsonObject]:
        tpu_requests.zone_of(self._cloud, call.name)
        return [
            {"name": f"{call.location}/runtimeVersions/{version}", "version": version}
            for version in self._cloud.scenario.tpu.runtime_versions
        ]


def _location(call: Call, zone: str) -> JsonObject:
    return {"name": f"projects/{call.name.split('/')[1]}/locations/{zone}", "locationId": zone}


def _listed(call: Call, key: str, items: list[JsonObject]) -> JsonObject:
    return listing(call.query, key, sorted(((str(item["name"]), item) for item in items), key=lambda pair: pair[0]))
