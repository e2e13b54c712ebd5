"""Compute Engine, beta and v1: instances with TPUs. They wait for capacity, run and expire on the accelerated clock, and boot in the machine runtime.

States: Compute Engine, "Instance lifecycle", 2026-04. A flex-start request is PENDING until it gets capacity and quota. If it gets neither in
time, its operation fails and the instance is deleted. A request that does not wait fails within seconds if the zone has no capacity: its
instance is PROVISIONING, then STOPPING, then gone. RUNNING means that the machine boots, not that a server is ready.
"""

import asyncio
from collections import defaultdict
from dataclasses import asdict
from datetime import timedelta
from typing import Final

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.call import Call, Handler, without_nulls
from localcloud.rest.errors import CloudError
from localcloud.services import instance_requests, networks, tpu_stock
from localcloud.services.capacity_words import instance_over_quota, instance_without_stock
from localcloud.services.checks import check_labels, require_act_as
from localcloud.services.compute import ComputeCollection
from localcloud.services.compute_operations import link_to
from localcloud.services.instance_requests import FLEX_START, PREEMPTIBLE, InstanceRequest
from localcloud.services.networks import NetworkPlace
from localcloud.services.service import method
from localcloud.services.tpu_requests import chips_of
from localcloud.services.tpu_stock import INSTANCES, USES_QUOTA
from localcloud.world.cloud import Cloud, fingerprint, random_id
from localcloud.world.runtime import MachineFailedError, MachineSpec
from localcloud.world.timeline import rfc3339

_TICK_S: Final = 0.02
_IDLE_TICK_S: Final = 0.25
_ENDED: Final = frozenset({"RUNNING", "TERMINATED"})
"""States that do not change soon."""
_GUEST_ATTRIBUTES: Final = "enable-guest-attributes"
_STOCKOUT: Final = "ZONE_RESOURCE_POOL_EXHAUSTED"
_QUOTA: Final = "QUOTA_EXCEEDED"


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of instances."""
    return _Instances(cloud).handlers()


async def resume(cloud: Cloud) -> None:
    """Start to advance the instances. After a restart, boot the machines that ran."""
    instances = _Instances(cloud)
    for name, document in cloud.store.under(INSTANCES):
        if document["status"] == "RUNNING":
            instances.boot(name)
    cloud.spawn(instances.run())


def preempt(cloud: Cloud, name: str) -> bool:
    """Preempt a running spot instance. Return False if it does not exist."""
    return _Instances(cloud).preempt(name)


def metadata_of(document: JsonObject) -> dict[str, str]:
    """Return an instance's metadata."""
    return {str(item["key"]): str(item.get("value") or "") for item in parts(part(document, "metadata"), "items")}


class _Instances(ComputeCollection):
    prefix = INSTANCES
    lacks = frozenset({"patch", "update"})

    def place(self, call: Call) -> NetworkPlace:
        instance_requests.zone_facts(self._cloud, call.path["zone"])
        return NetworkPlace(project=call.path["project"], region=None, zone=call.path["zone"])

    # Methods of the API

    @method("insert")
    def insert(self, call: Call) -> JsonObject:
        """Accept or reject a request. Without a wait, quota counts immediately."""
        place, body = self.place(call), without_nulls(call.body)
        project = place.project
        zone = place.zone or ""
        wanted = instance_requests.check(self._cloud, project, zone, body)
        require_act_as(self._cloud, call.caller, wanted.account, project)
        name = place.name("instances", body["name"])
        known = self._operations.again(call, name)
        if known is not None:
            return known
        self.advance_all()
        if self._store.has(INSTANCES, name):
            raise CloudError.already_exists(f"The resource '{name}' already exists")
        if not wanted.wait_s and (lacking := self._lacking_quota(name, wanted)):
            raise CloudError(403, "PERMISSION_DENIED", lacking, reason="quotaExceeded")
        now_s, stamp = self._cloud.timeline.simulated_s(), self._cloud.timeline.stamp()
        document: JsonObject = {
            **{key: value for key, value in body.items() if key not in {"params", "selfLink"}},
            "id": random_id(),
            "creationTimestamp": stamp,
            **self._interface(project, zone, body, list(wanted.networks)),
            "status": "PENDING" if wanted.wait_s else "PROVISIONING",
            "_request": asdict(wanted),
            "_networks": list(wanted.networks),
            "_since_s": now_s,
            "_until_s": now_s + wanted.wait_s,
            "_without_stock": not wanted.wait_s and not self._has_capacity(name, wanted),
        }
        operation = self._operations.new(call, "insert", name, document["id"], pending=True)
        self._store.put(INSTANCES, name, {**document, "_insertion": _operation_name(name, operation)})
        self._cloud.changed.set()
        return operation

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        """Start to delete an instance, in any state. The boot disk is deleted with it."""
        known = self._operations.again(call, self.place(call).name("instances", call.path["instance"]))
        if known is not None:
            return known
        name, document = self.found(call)
        if document.get("_deletion"):
            raise _not_ready(name)
        if document.get("deletionProtection"):
            raise CloudError.invalid("Invalid resource usage: 'Resource cannot be deleted if it's protected'.")
        zone, model = name.split("/")[3], str(document["_request"]["model"])
        operation = self._operations.new(call, "delete", name, document["id"], pending=True)
        if document["status"] == "PENDING" and tpu_stock.loses_deletion(self._cloud, zone, model):
            self._hide(name, document, _operation_name(name, operation))
        else:
            self._end(name, document, deletion=_operation_name(name, operation))
        return operation

    @method("stop")
    def stop(self, call: Call) -> JsonObject:
        """Stop a running instance. It keeps its name and disk."""
        name, document = self.found(call)
        if document["status"] != "RUNNING":
            raise _not_ready(name)
        operation = self._operations.new(call, "stop", name, document["id"], pending=True)
        self._end(name, document, stop=_operation_name(name, operation))
        return operation

    @method("setMetadata")
    def set_metadata(self, call: Call) -> JsonObject:
        """Replace all metadata. A startup script in it runs as the machine's account, so the caller must be able to act as that account."""
        name, document = self.found(call)
        require_act_as(self._cloud, call.caller, str(document["_request"]["account"]), call.path["project"])
        _require_current("metadata", call.body.get("fingerprint"), part(document, "metadata"))
        instance_requests.check_metadata(call.body)
        document["metadata"] = {"items": [dict(item) for item in parts(call.body, "items")]}
        operation = self.save(call, "setMetadata", name, document)
        self._cloud.runtimes.machines.set_metadata(name, metadata_of(document))
        return operation

    @method("setLabels")
    def set_labels(self, call: Call) -> JsonObject:
        name, document = self.found(call)
        _require_current("label", call.body.get("labelFingerprint"), part(document, "labels"))
        check_labels(call.body.get("labels"), "labels")
        return self.save(call, "setLabels", name, {**document, "labels": part(call.body, "labels")})

    @method("setTags")
    def set_tags(self, call: Call) -> JsonObject:
        name, document = self.found(call)
        _require_current("tags", call.body.get("fingerprint"), part(document, "tags"))
        instance_requests.check_tags(call.body)
        return self.save(call, "setTags", name, {**document, "tags": {"items": strings(call.body, "items")}})

    @method("addAccessConfig")
    def add_access_config(self, call: Call) -> JsonObject:
        name, document = self.found(call)
        interface = parts(document, "networkInterfaces")[0]
        if parts(interface, "accessConfigs"):
            raise CloudError.invalid("At most one access config currently supported.")
        interface["accessConfigs"] = [self._external(call.body)]
        return self.save(call, "addAccessConfig", name, document)

    @method("deleteAccessConfig")
    def delete_access_config(self, call: Call) -> JsonObject:
        name, document = self.found(call)
        interface = parts(document, "networkInterfaces")[0]
        named = [item for item in parts(interface, "accessConfigs") if item["name"] == call.query["accessConfig"]]
        if not named:
            raise CloudError.invalid(f"Invalid value for field 'accessConfig': '{call.query['accessConfig']}'.")
        interface.pop("accessConfigs")
        return self.save(call, "deleteAccessConfig", name, document)

    @method("getGuestAttributes")
    def get_guest_attributes(self, call: Call) -> JsonObject:
        """Return the guest attributes that the machine has published. An empty path is 404."""
        name, document = self.found(call)
        if metadata_of(document).get(_GUEST_ATTRIBUTES, "").upper() != "TRUE":
            raise CloudError.invalid("Guest attributes endpoint access is disabled.")
        path = str(call.query.get("queryPath") or call.query.get("variableKey") or "")
        namespace, _, key = path.strip("/").partition("/")
        items = [
            {"namespace": space, "key": entry, "value": value}
            for space, entries in sorted(self._cloud.runtimes.machines.guest_attributes(name).items())
            for entry, value in sorted(entries.items())
            if namespace in {"", space} and key in {"", entry}
        ]
        if not items:
            raise CloudError.not_found(f"The resource '{path}' of type 'Guest Attribute' was not found.")
        return {
            "kind": "compute#guestAttributes",
            "queryPath": path,
            "queryValue": {"items": items},
            "selfLink": link_to(call, f"{name}/guestAttributes/{path}"),
        }

    # Time

    async def run(self) -> None:
        while True:
            self.advance_all()
            moving = any(document["status"] not in _ENDED for _, document in self._store.under(INSTANCES))
            await asyncio.sleep(_TICK_S if moving else _IDLE_TICK_S)

    def advance_all(self) -> None:
        for name, _ in self._store.under(INSTANCES):
            while self._advance(name):
                pass

    def _advance(self, name: str) -> bool:  # noqa: PLR0911 - one return per state
        """Do one transition that is due. Return whether one was due."""
        document = self._store.get(INSTANCES, name)
        if document is None:
            return False
        durations, status = self._cloud.scenario.tpu.durations_s, document["status"]
        past_s = self._cloud.timeline.simulated_s() - document["_since_s"]
        match status:
            case _ if "_hidden_until_s" in document:
                return self._reappear(name, document)
            case "PENDING":
                return self._leave_the_queue(name, document, past_s)
            case "PROVISIONING" if document.get("_without_stock"):
                return past_s >= self._cloud.duration_s(durations.stockout) and self._fail(name, document)
            case "PROVISIONING" if past_s >= self._cloud.duration_s(durations.provisioning):
                return self._move(name, document, "STAGING")
            case "STAGING":
                self._start(name, document)
                return True
            case "RUNNING" if self._run_is_over(document):
                self._end(name, document)
                return True
            case "STOPPING" if past_s >= self._cloud.duration_s(durations.deleting):
                self._stopped(name, document)
                return document.get("_deletion") is None
            case _:
                return False

    def _leave_the_queue(self, name: str, document: JsonObject, past_s: float) -> bool:
        wanted = _request(document)
        lacking, capacity = self._lacking_quota(name, wanted), self._has_capacity(name, wanted)
        if not lacking and capacity and past_s >= self._wait_s(name, wanted):
            return self._move(name, document, "PROVISIONING")
        if self._cloud.timeline.simulated_s() < document["_until_s"]:
            return False
        code, message = (_QUOTA, lacking) if lacking else (_STOCKOUT, _no_stock(name))
        self._operations.finish(document["_insertion"], code=code, message=message)
        self._store.delete(INSTANCES, name)
        return False

    def _wait_s(self, name: str, wanted: InstanceRequest) -> float:
        durations = self._cloud.scenario.tpu.durations_s
        least_s = self._cloud.duration_s(durations.accepted + durations.waiting_for_resources)
        return max(least_s, tpu_stock.stock_of(self._cloud, name.split("/")[3], wanted.model).after_s)

    def _fail(self, name: str, document: JsonObject) -> bool:
        """Take back an instance that got no capacity."""
        self._operations.finish(document["_insertion"], code=_STOCKOUT, message=_no_stock(name))
        return self._move(name, {**document, "_deletion": "no capacity"}, "STOPPING")

    def _hide(self, name: str, document: JsonObject, deletion: str) -> None:
        """Answer a deletion that comes too late: the instance is gone until it appears with its capacity."""
        zone, model = name.split("/")[3], str(document["_request"]["model"])
        until_s = self._cloud.timeline.simulated_s() + tpu_stock.stock_of(self._cloud, zone, model).late_s
        self._operations.finish(document["_insertion"], code="RESOURCE_NOT_READY", message=f"'{name}' was deleted")
        self._operations.finish(deletion)
        self._store.put(INSTANCES, name, {**document, "_hidden_until_s": until_s})

    def _reappear(self, name: str, document: JsonObject) -> bool:
        if self._cloud.timeline.simulated_s() < document["_hidden_until_s"]:
            return False
        shown = {key: value for key, value in document.items() if key != "_hidden_until_s"}
        return self._move(name, shown, "PROVISIONING")

    def _move(self, name: str, document: JsonObject, status: str) -> bool:
        now_s = self._cloud.timeline.simulated_s()
        self._store.put(INSTANCES, name, {**document, "status": status, "_since_s": now_s})
        return True

    def _start(self, name: str, document: JsonObject) -> None:
        now, run_s = self._cloud.timeline.now(), document["_request"]["run_s"]
        document["lastStartTimestamp"] = self._cloud.timeline.stamp()
        document["_life_s"] = self._cloud.machine_life_s()
        if run_s is not None:
            ends = rfc3339(now + timedelta(seconds=run_s))
            document["resourceStatus"] = {"scheduling": {"terminationTimestamp": ends}}
        self._move(name, document, "RUNNING")
        self._operations.finish(document["_insertion"])
        self.boot(name)

    def _run_is_over(self, document: JsonObject) -> bool:
        run_s = document["_request"]["run_s"]
        return run_s is not None and self._cloud.machine_life_s() >= document["_life_s"] + run_s

    def preempt(self, name: str) -> bool:
        document = self._store.get(INSTANCES, name)
        if document is None or document["status"] != "RUNNING" or document["_request"]["model"] != "SPOT":
            return False
        self._end(name, document)
        return True

    def _end(self, name: str, document: JsonObject, *, deletion: str | None = None, stop: str | None = None) -> None:
        """Power the machine off; then delete the instance or keep it stopped, as requested."""
        keeps = stop is not None or (deletion is None and bool(document["_request"]["ends_with_stop"]))
        marks = {"_deletion": deletion or ("" if keeps else "end of run"), "_stop": stop or document.get("_stop")}
        self._operations.finish(document["_insertion"], code="RESOURCE_NOT_READY", message=f"'{name}' was deleted")
        self._move(name, {**document, **marks}, "STOPPING")
        self._cloud.spawn(self._cloud.power_off(name))
        self._cloud.changed.set()

    def _stopped(self, name: str, document: JsonObject) -> None:
        for operation in filter(None, (document.get("_deletion"), document.get("_stop"))):
            self._operations.finish(operation)
        if document.get("_deletion"):
            self._store.delete(INSTANCES, name)
        else:
            kept = {key: value for key, value in document.items() if key not in {"_stop", "_deletion"}}
            self._move(name, {**kept, "lastStopTimestamp": self._cloud.timeline.stamp()}, "TERMINATED")

    def boot(self, name: str) -> None:
        """Boot the machine of an instance, after an earlier boot or power-off has finished."""
        self._cloud.spawn(self._boot(name))

    async def _boot(self, name: str) -> None:
        async with self._cloud.machine_locks[name]:
            document = self._store.get(INSTANCES, name)
            if document is None or document["status"] != "RUNNING":
                return
            spec = MachineSpec(
                name=name,
                project=name.split("/")[1],
                zone=name.split("/")[3],
                accelerator_type=document["_request"]["accelerator"],
                metadata=metadata_of(document),
                service_account=document["_request"]["account"],
                machine_type=_machine_type(document),
                has_docker=False,
                devices=self._cloud.scenario.tpu.devices,
                egress=networks.egress_of(
                    self._cloud,
                    document["_subnetwork"],
                    strings(part(document, "tags"), "items"),
                    external=parts(parts(document, "networkInterfaces")[0], "accessConfigs"),
                    port=80,  # of package archives
                ),
            )
            try:
                await self._cloud.runtimes.machines.boot(spec)
            except MachineFailedError as error:
                current = self._store.get(INSTANCES, name)  # it may have been changed or deleted during the boot
                if current is not None and current["id"] == document["id"]:
                    self._store.put(INSTANCES, name, {**current, "statusMessage": str(error)})

    # Capacity, quota, addresses

    def _has_capacity(self, name: str, wanted: InstanceRequest) -> bool:
        """Return whether the zone has hardware for the request.

        Assumed: flex-start has no capacity in zones in which the Cloud TPU API rejects it. In the field report such requests waited indefinitely.
        """
        zone = name.split("/")[3]
        if wanted.model == FLEX_START and not tpu_stock.zone_of(self._cloud, zone).flex_start:
            return False
        return tpu_stock.has_capacity(self._cloud, zone, wanted.model, [wanted.accelerator], waits=bool(wanted.wait_s))

    def _lacking_quota(self, name: str, wanted: InstanceRequest) -> str:
        """Return why a quota does not suffice, or an empty text. Preemptible requests use the family's quota once their own is used up."""
        facts, region = self._cloud.scenario.tpu.compute, name.split("/")[3].rpartition("-")[0]
        own = facts.preemptible_quota_overrides.get(region, facts.preemptible_quota_chips)
        used: dict[bool, int] = defaultdict(int)
        for other, document in self._store.under(INSTANCES, f"projects/{name.split('/')[1]}/"):
            same_region = other.split("/")[3].rpartition("-")[0] == region
            if other != name and same_region and document["status"] in USES_QUOTA:
                request = _request(document)
                used[request.model in PREEMPTIBLE] += chips_of(request.accelerator)
        chips, project = chips_of(wanted.accelerator), name.split("/")[1]
        if tpu_stock.instance_chips(self._cloud, project, besides=name) + chips > facts.all_regions_quota_chips:
            return instance_over_quota("GPUS_ALL_REGIONS", facts.all_regions_quota_chips)
        preemptible = wanted.model in PREEMPTIBLE
        beyond = max(used[True] - own, 0)
        if (preemptible and used[True] + chips <= own) or used[False] + beyond + chips <= facts.family_quota_chips:
            return ""
        limit = own if preemptible else facts.family_quota_chips
        return instance_over_quota(instance_requests.quota_name(wanted.model, wanted.accelerator), limit, region)

    def _interface(self, project: str, zone: str, body: JsonObject, used: list[str]) -> JsonObject:
        """Return the fields of an instance that have its network interface and the interface's address."""
        region, given = zone.rpartition("-")[0], parts(body, "networkInterfaces")[0]
        name = networks.subnetwork_of(self._cloud, project, region, used)
        if name is None:
            raise networks.invalid_value(
                "networkInterfaces[0].subnetwork", given.get("subnetwork", ""), f"The network has none in {region}."
            )
        held = networks.machine_address(self._cloud, name)
        root = "https://www.googleapis.com/compute/v1/"
        shown: JsonObject = {
            "name": "nic0",
            "network": root + (self._store.get(networks.SUBNETWORKS, name) or {})["network"],
            "subnetwork": root + name,
            "networkIP": held["_addresses"][0],
        }
        if parts(given, "accessConfigs"):
            shown["accessConfigs"] = [self._external(parts(given, "accessConfigs")[0])]
        return {"networkInterfaces": [shown], **held}

    def _external(self, given: JsonObject) -> JsonObject:
        address = f"203.0.113.{self._store.count_up('tpu.external') % 254 + 1}"
        return {"name": "external-nat", "type": "ONE_TO_ONE_NAT", **given, "natIP": address}

    # Showing

    def is_shown(self, document: JsonObject) -> bool:
        return "_hidden_until_s" not in document

    def shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        project, _, zone = name.split("/")[1:4]
        metadata = part(document, "metadata")
        labels = part(document, "labels")
        tags = part(document, "tags")
        size_gb = part(next(disk for disk in parts(document, "disks") if disk.get("boot")), "initializeParams").get(
            "diskSizeGb"
        )
        boot = {"boot": True, "autoDelete": True, "type": "PERSISTENT", "index": 0, "deviceName": "persistent-disk-0"}
        return {
            **super().shown(call, name, document),
            "zone": link_to(call, f"projects/{project}/zones/{zone}"),
            "machineType": link_to(call, f"projects/{project}/zones/{zone}/machineTypes/{_machine_type(document)}"),
            "metadata": {"kind": "compute#metadata", **metadata, "fingerprint": fingerprint(metadata)},
            "labelFingerprint": fingerprint(labels),
            "tags": {**tags, "fingerprint": fingerprint(tags)},
            "disks": [
                {
                    **boot,
                    "source": link_to(call, f"projects/{project}/zones/{zone}/disks/{name.rpartition('/')[2]}"),
                    "diskSizeGb": str(size_gb or self._cloud.scenario.tpu.compute.image_size_gb),
                }
            ],
        }


def _not_ready(name: str) -> CloudError:
    return CloudError(400, "FAILED_PRECONDITION", f"The resource '{name}' is not ready", reason="resourceNotReady")


def _machine_type(document: JsonObject) -> str:
    return str(document["machineType"]).rpartition("/")[2]


def _request(document: JsonObject) -> InstanceRequest:
    fields = dict(document["_request"])
    fields["networks"] = tuple(fields["networks"])
    return InstanceRequest(**fields)


def _require_current(what: str, given: object, current: JsonObject) -> None:
    """Raise 412 if a change has no fingerprint or an outdated one. That a missing one is rejected is assumed."""
    if given != fingerprint(current):
        raise CloudError.condition_not_met(
            f"Supplied fingerprint does not match current {what} fingerprint. Retrieve the resource and try again."
        )


def _operation_name(instance: str, operation: JsonObject) -> str:
    return f"{instance.rpartition('/instances/')[0]}/operations/{operation['name']}"


def _no_stock(name: str) -> str:
    return instance_without_stock("/".join(name.split("/")[:4]))
