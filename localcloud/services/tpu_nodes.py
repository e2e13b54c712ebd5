"""Cloud TPU v2alpha1: nodes (the virtual machines with TPUs), what may be changed on them, guest attributes, and the catalogs of a zone."""

import ipaddress
import secrets
from collections.abc import Callable
from datetime import timedelta

from localcloud.json_values import JsonObject, part, parts
from localcloud.rest import filters
from localcloud.rest.call import Call, Handler, masked, page
from localcloud.rest.errors import CloudError
from localcloud.services import networks, tpu_requests
from localcloud.services.common import visible, with_token
from localcloud.world.cloud import Cloud
from localcloud.world.timeline import rfc3339

NODES = "tpu.nodes"
_PATCHABLE = {"description", "tags", "labels", "metadata", "networkConfig"}
_CHANGEABLE_NETWORK_FIELD = "networkConfig.enableExternalIps"
_PORT = 8470
"""The port of a TPU worker (Cloud TPU's network endpoints)."""
_GUEST_ATTRIBUTES = "enable-guest-attributes"


def metadata_of(document: JsonObject) -> dict[str, str]:
    """A node's instance metadata."""
    return {key: str(value) for key, value in part(document, "metadata").items()}


class Nodes:
    """Nodes as the queue makes and unmakes them."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def create(self, name: str, owner: str, node: JsonObject, queued: JsonObject) -> None:
        """A node in state CREATING."""
        project, zone = name.split("/")[1], name.split("/")[3]
        accelerator = tpu_requests.accelerator_of(node)
        used = tpu_requests.networks_of(self._cloud, project, zone, node)
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
            "id": str(secrets.randbelow(9 * 10**18) + 10**18),
            "schedulingConfig": {
                **part(node, "schedulingConfig"),
                **({"preemptible": True} if flex_or_spot else {}),
            },
            "_networks": used,
        }
        document["networkEndpoints"] = [self._endpoint(project, zone, used, document)]
        self._store.put(NODES, name, document)

    def ready(self, name: str, *, run_duration_s: float | None) -> None:
        """The node is up; from now on its run duration counts."""
        document = self._store.get(NODES, name)
        if document is None:
            return
        document.update(state="READY", health="HEALTHY")
        if run_duration_s is not None:
            document["schedulingConfig"]["terminationTimestamp"] = rfc3339(
                self._cloud.timeline.now() + timedelta(seconds=run_duration_s)
            )
        self._store.put(NODES, name, document)

    def going(self, name: str, *, owner: str) -> None:
        """The node is being deleted."""
        document = self._store.get(NODES, name)
        if document is not None and document["queuedResource"] == owner and document["state"] != "PREEMPTED":
            self._store.put(NODES, name, {**document, "state": "DELETING"})

    def forget(self, name: str, *, owner: str) -> None:
        """The node is gone."""
        document = self._store.get(NODES, name)
        if document is not None and document["queuedResource"] == owner:
            self._store.delete(NODES, name)

    def _endpoint(self, project: str, zone: str, used: list[str], document: JsonObject) -> JsonObject:
        """An address of the node's subnetwork, or of the network's subnetwork in the region."""
        region = zone.rpartition("-")[0]
        subnetworks = [
            (name, found)
            for name, found in self._store.under(networks.SUBNETWORKS, f"projects/{project}/regions/{region}/")
            if name in used or found["network"] in used
        ]
        block = ipaddress.ip_network(subnetworks[0][1]["ipCidrRange"] if subnetworks else "10.128.0.0/20")
        taken = {
            endpoint["ipAddress"]
            for _, node in self._store.under(NODES)
            for endpoint in parts(node, "networkEndpoints")
        }
        address = next(str(host) for index, host in enumerate(block.hosts()) if index > 0 and str(host) not in taken)
        endpoint: JsonObject = {"ipAddress": address, "port": _PORT}
        if document["networkConfig"].get("enableExternalIps"):
            endpoint["accessConfig"] = {"externalIp": f"203.0.113.{self._store.count_up('tpu.external') % 254 + 1}"}
        return endpoint


def handlers(cloud: Cloud, advance: Callable[[], None], suspend: Callable[[str], None]) -> dict[str, Handler]:  # noqa: C901 - small functions side by side, one a method
    """Methods of nodes. `advance` does what is due in the queue; `suspend` ends a node with its queued resource."""
    store = cloud.store

    def found(call: Call) -> JsonObject:
        tpu_requests.zone_of(cloud, call.name)
        advance()
        document = store.get(NODES, call.name)
        if document is None:
            raise CloudError.not_found(f"Resource '{call.name}' was not found.")
        return document

    def read(call: Call) -> JsonObject:
        return visible(found(call))

    def listed(call: Call) -> JsonObject:
        advance()
        prefix = call.name.removesuffix("-") if call.name.endswith("/locations/-") else call.name + "/nodes/"
        if not call.name.endswith("/locations/-"):
            tpu_requests.zone_of(cloud, call.name)
        nodes, following = page(
            [(name, visible(document)) for name, document in store.under(NODES, prefix)],
            size=call.query.get("pageSize"),
            token=call.query.get("pageToken"),
        )
        return with_token({"nodes": nodes}, following)

    def operation(call: Call, verb: str, duration_s: float, response: JsonObject | None) -> JsonObject:
        metadata: JsonObject = {
            "@type": "type.googleapis.com/google.cloud.common.OperationMetadata",
            "createTime": cloud.timeline.stamp(),
            "target": call.name,
            "verb": verb,
            "cancelRequested": False,
            "apiVersion": "v2alpha1",
        }
        typed = (
            None if response is None else {"@type": "type.googleapis.com/google.cloud.tpu.v2alpha1.Node", **response}
        )
        return cloud.operations.timed(
            "tpu",
            "/".join(call.name.split("/")[:4]),
            duration_s=cloud.duration_s(duration_s),
            response=typed,
            metadata=metadata,
        )

    def patch(call: Call) -> JsonObject:
        document = found(call)
        mask = call.query.get("updateMask")
        if not mask:
            raise CloudError.field("update_mask", "The update mask is required and must not be empty.")
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
        tpu_requests.check_changeable(call.body)
        updated = masked(document, call.body, mask)
        store.put(NODES, call.name, updated)
        if "metadata" in {path.split(".")[0] for path in mask.split(",")}:
            cloud.runtimes.machines.set_metadata(call.name, metadata_of(updated))
        return operation(call, "update", cloud.scenario.tpu.durations_s.node_update, visible(updated))

    def delete(call: Call) -> JsonObject:
        document = found(call)
        if document["state"] not in {"READY", "PREEMPTED"}:
            raise CloudError.precondition(
                f"The node '{call.name}' is in state {document['state']}; it can be deleted in READY or PREEMPTED only."
            )
        suspend(call.name)
        return operation(call, "delete", cloud.scenario.tpu.durations_s.suspending, None)

    def guest_attributes(call: Call) -> JsonObject:
        document = found(call)
        if str(part(document, "metadata").get(_GUEST_ATTRIBUTES, "")).upper() != "TRUE":
            raise CloudError.precondition(
                f"Guest attributes are not enabled on '{call.name}': its metadata needs {_GUEST_ATTRIBUTES}=TRUE."
            )
        workers = call.body.get("workerIds") or ["0"]
        if workers != ["0"]:
            raise CloudError.field(
                "worker_ids", f"The node '{call.name}' has one worker, 0; given {', '.join(workers)}."
            )
        path = str(call.body.get("queryPath") or "").strip("/")
        namespace, _, key = path.partition("/")
        items = [
            {"namespace": name, "key": entry, "value": value}
            for name, entries in sorted(cloud.runtimes.machines.guest_attributes(call.name).items())
            for entry, value in sorted(entries.items())
            if namespace in {"", name} and key in {"", entry}
        ]
        return {"guestAttributes": [{"queryPath": call.body.get("queryPath", ""), "queryValue": {"items": items}}]}

    prefix = "tpu.projects.locations.nodes"
    return {
        f"{prefix}.get": read,
        f"{prefix}.list": listed,
        f"{prefix}.patch": patch,
        f"{prefix}.delete": delete,
        f"{prefix}.getGuestAttributes": guest_attributes,
    }


def catalog_handlers(cloud: Cloud) -> dict[str, Handler]:
    """Locations, accelerator types, runtime versions, reservations."""

    def answer(call: Call, key: str, items: list[JsonObject]) -> JsonObject:
        chosen = filters.chosen([(item["name"], item) for item in items], call.query.get("filter"))
        shown, following = page(
            sorted(chosen, key=lambda pair: pair[0]), size=call.query.get("pageSize"), token=call.query.get("pageToken")
        )
        return with_token({key: shown}, following)

    def only(items: list[JsonObject], name: str) -> JsonObject:
        for item in items:
            if item["name"] == name:
                return item
        raise CloudError.not_found(f"Resource '{name}' was not found.")

    def locations(project: str) -> list[JsonObject]:
        return [
            {"name": f"projects/{project}/locations/{zone}", "locationId": zone}
            for zone in sorted(cloud.scenario.tpu.zones)
        ]

    def accelerators(name: str) -> list[JsonObject]:
        _, facts = tpu_requests.zone_of(cloud, name)
        parent = "/".join(name.split("/")[:4])
        return [tpu_requests.accelerator_document(parent, kind) for kind in facts.accelerator_types]

    def runtimes(name: str) -> list[JsonObject]:
        tpu_requests.zone_of(cloud, name)
        parent = "/".join(name.split("/")[:4])
        return [
            {"name": f"{parent}/runtimeVersions/{version}", "version": version}
            for version in cloud.scenario.tpu.runtime_versions
        ]

    def location(call: Call) -> JsonObject:
        zone, _ = tpu_requests.zone_of(cloud, call.name)
        return only(locations(call.name.split("/")[1]), f"projects/{call.name.split('/')[1]}/locations/{zone}")

    def reservations(call: Call) -> JsonObject:
        tpu_requests.zone_of(cloud, call.name)
        return {}

    prefix = "tpu.projects.locations"
    return {
        f"{prefix}.get": location,
        f"{prefix}.list": lambda call: answer(call, "locations", locations(call.name.split("/")[1])),
        f"{prefix}.acceleratorTypes.get": lambda call: only(accelerators(call.name), call.name),
        f"{prefix}.acceleratorTypes.list": lambda call: answer(call, "acceleratorTypes", accelerators(call.name)),
        f"{prefix}.runtimeVersions.get": lambda call: only(runtimes(call.name), call.name),
        f"{prefix}.runtimeVersions.list": lambda call: answer(call, "runtimeVersions", runtimes(call.name)),
        f"{prefix}.reservations.list": reservations,
    }
