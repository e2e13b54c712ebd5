"""Cloud TPU v2alpha1: queued resources. The queue advances on the accelerated clock; nodes boot in the machine runtime."""

import asyncio
import hashlib
import json
from collections import defaultdict
from dataclasses import asdict, replace
from typing import Any

from localcloud.json_values import JsonObject, part, strings
from localcloud.rest.call import Call, Handler, check_id
from localcloud.rest.errors import CloudError
from localcloud.services import capacity_words, networks, tpu_nodes, tpu_queue, tpu_requests, tpu_stock
from localcloud.services.checks import require_act_as
from localcloud.services.service import ApiService, OperationsService, listing, method, name_prefix, visible
from localcloud.services.tpu_nodes import Nodes, metadata_of, operation_metadata
from localcloud.services.tpu_queue import Conditions, Effect, Queued, QueuedResourceState
from localcloud.services.tpu_requests import accelerator_of, chips_of, model_of
from localcloud.services.tpu_stock import NODES
from localcloud.world.catalog import generation_of_type, tpu_generations
from localcloud.world.cloud import Cloud
from localcloud.world.runtime import DeviceAccess, MachineFailedError, MachineSpec
from localcloud.world.scenario import OLDER_RUNTIME, Stock, TpuDurations
from localcloud.world.timeline import seconds

QUEUED = "tpu.queuedResources"
_TICK_S = 0.02
_IDLE_TICK_S = 0.25
_REQUESTS = "tpu.requests"
_INSTANT = TpuDurations(
    creating=0, accepted=0, waiting_for_resources=0, provisioning=0, suspending=0, deleting=0, node_update=0
)


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of queued resources, nodes, catalogs and operations."""
    queue = Queue(cloud)
    return {
        **queue.handlers(),
        **tpu_nodes.handlers(cloud, queue.advance_all, queue.suspend),
        **OperationsService(cloud, "tpu", "tpu.projects.locations.operations").handlers(),
    }


async def resume(cloud: Cloud) -> None:
    """Start to advance the queue. After a restart, boot the machines that ran."""
    queue = Queue(cloud)
    for name, document in cloud.store.under(NODES):
        if document["state"] == "READY":
            queue.boot(name)
    cloud.spawn(queue.run())


def preempt(cloud: Cloud, node: str) -> bool:
    """Preempt a running node: it becomes PREEMPTED, its queued resource SUSPENDED. Return False if it is not a running node."""
    return Queue(cloud).preempt(node)


class Queue(ApiService):
    """Queued resources of all zones."""

    prefix = "tpu.projects.locations.queuedResources"

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._nodes = Nodes(cloud)

    # Methods of the API

    @method("create")
    def create(self, call: Call) -> JsonObject:
        """Accept a request for a queued resource."""
        parent = call.name
        tpu_requests.zone_of(self._cloud, parent)
        queued_id = check_id(
            call.query.get("queuedResourceId") or f"queued-resource-{self._store.count_up('tpu.ids')}",
            "queuedResourceId",
            tpu_requests.QUEUED_ID,
        )
        name = f"{parent}/queuedResources/{queued_id}"
        known = self._repeated(call, name)
        if known is not None:
            return known
        if self._store.has(QUEUED, name):
            raise CloudError.already_exists(f"Resource '{name}' already exists.")
        nodes = tpu_requests.check(self._cloud, parent, call.body)
        project = parent.split("/")[1]
        for _, node in nodes:
            require_act_as(self._cloud, call.caller, tpu_requests.account_of(self._cloud, project, node), project)
        unsupported = tpu_requests.unsupported_model(self._cloud, parent, call.body)
        if unsupported is not None:
            return self._failed_operation(call, "create", name, unsupported)
        timeline = self._cloud.timeline
        after_s, until_s = tpu_requests.validity(
            part(call.body, "queueingPolicy"), simulated_s=timeline.simulated_s(), now=timeline.now()
        )
        run = part(call.body, "runDuration").get("maxRunDuration")
        machine = Queued(
            state=QueuedResourceState.CREATING,
            since_s=timeline.simulated_s(),
            valid_after_s=max(after_s, timeline.simulated_s() + self._delay_s(name, call.body)),
            valid_until_s=until_s,
            run_duration_s=None if run is None else seconds(run),
            initiator="USER",
        )
        document: JsonObject = {**call.body, "name": name, "createTime": timeline.stamp(), "_nodes": dict(nodes)}
        self._save(name, document, machine)
        metadata = operation_metadata(self._cloud, "create", name)
        response = {"@type": "type.googleapis.com/google.cloud.tpu.v2alpha1.QueuedResource", **self._shown(document)}
        operation = self._cloud.operations.timed(
            "tpu", parent, duration_s=self._durations().creating, response=response, metadata=metadata
        )
        self._remember(call, name, operation)
        self._cloud.changed.set()
        return operation

    @method("get")
    def get(self, call: Call) -> JsonObject:
        """Return a queued resource in its current state."""
        self.advance_all()
        return self._shown(self._found(call.name))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return the queued resources of a zone, or of all zones (`-`)."""
        self.advance_all()
        if not call.name.endswith("/locations/-"):
            tpu_requests.zone_of(self._cloud, call.name)
        stored = self._store.under(QUEUED, name_prefix(call.name, "queuedResources"))
        return listing(call.query, "queuedResources", [(name, self._shown(document)) for name, document in stored])

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        """Start to delete a queued resource. Reject it if its state needs force: with 400, or by an operation that fails."""
        self.advance_all()
        known = self._repeated(call, call.name)
        if known is not None:
            return known
        document = self._found(call.name)
        machine = _machine(document)
        if machine.state is QueuedResourceState.DELETING or _is_granted(machine):
            raise CloudError.precondition(f"The queued resource '{call.name}' is being deleted already.")
        if machine.state not in tpu_queue.DELETABLE and not call.query.get("force"):
            return self._refused_deletion(call, machine.state)
        parent = call.name.rpartition("/queuedResources/")[0]
        operation = self._cloud.operations.pending(
            "tpu", parent, metadata=operation_metadata(self._cloud, "delete", call.name)
        )
        document["_deletion"] = operation["name"]
        now_s, stock = self._cloud.timeline.simulated_s(), self._stock(call.name, document)
        zone = call.name.split("/")[3]
        if machine.state is QueuedResourceState.WAITING and tpu_stock.loses_deletion(
            self._cloud, zone, model_of(document)
        ):
            self._save(call.name, document, replace(machine, granted_s=now_s + stock.late_s))
        else:
            self._apply(call.name, document, *tpu_queue.delete(machine, now_s))
        self._remember(call, call.name, operation)
        self._cloud.changed.set()
        return operation

    def _failed_operation(self, call: Call, verb: str, name: str, error: CloudError) -> JsonObject:
        """Return an operation that fails. It changes nothing."""
        parent, metadata = name.rpartition("/queuedResources/")[0], operation_metadata(self._cloud, verb, name)
        operation = self._cloud.operations.pending("tpu", parent, metadata=metadata)
        self._cloud.operations.finish("tpu", operation["name"], error=error.rpc_status())
        self._remember(call, name, operation)
        return operation

    def _refused_deletion(self, call: Call, state: QueuedResourceState) -> JsonObject:
        """Reject a deletion without force if the scenario requires it: in the response, or in the operation.

        The messages are Google's, from public logs of gcloud: "DeleteQueuedResource is not supported when state is PROVISIONING" and
        "code 9: DeleteQueuedResource is not supported when state is ACTIVE (must be one of [...])". gcloud prints an operation's error
        as code 9.
        """
        refusal = _not_deletable(state)
        if self._cloud.scenario.tpu.refuses_deletion_in == "answer":
            raise refusal
        return self._failed_operation(call, "delete", call.name, refusal)

    # Time

    async def run(self) -> None:
        """Advance the queue while the cloud runs."""
        while True:
            self.advance_all()
            moving = any(
                _machine(document).state not in tpu_queue.RESTING | {QueuedResourceState.ACTIVE}
                for _, document in self._store.under(QUEUED)
            )
            self._cloud.changed.clear()
            try:
                await asyncio.wait_for(self._cloud.changed.wait(), _TICK_S if moving else _IDLE_TICK_S)
            except TimeoutError:
                continue

    def advance_all(self) -> None:
        """Advance all queued resources until nothing is due."""
        for name, _ in self._store.under(QUEUED):
            while self._advance(name):
                pass

    def _advance(self, name: str) -> bool:
        document = self._store.get(QUEUED, name)
        if document is None:
            return False
        machine = _machine(document)
        fails = self._cloud.scenario.tpu.without_quota == "fails" and machine.state is QueuedResourceState.ACCEPTED
        conditions = Conditions(
            durations=self._durations(),
            quota_error=self._quota_error(name, document) if fails else None,
            stockout=self._stockout(name, document),
            capacity=self._capacity(name, document) if machine.state is QueuedResourceState.WAITING else False,
            plenty=not self._scarce(name, document),
            now_s=self._cloud.timeline.simulated_s(),
            life_s=self._cloud.machine_life_s(),
        )
        moved, effects = tpu_queue.step(machine, conditions)
        if moved == machine and not effects:
            return False
        try:
            self._apply(name, document, moved, effects)
        except CloudError as error:
            self._fail(name, document, moved, error)
        return Effect.FORGET not in effects

    def _fail(self, name: str, document: JsonObject, machine: Queued, error: CloudError) -> None:
        """Fail the queued resource and remove its nodes if they cannot be created, for example because their network was deleted."""
        self._save(name, document, replace(machine, state=QueuedResourceState.FAILED, error=error.rpc_status()))
        parent = name.rpartition("/queuedResources/")[0]
        for node_id in document["_nodes"]:
            self._nodes.remove(f"{parent}/nodes/{node_id}", owner=name)

    def suspend(self, node: str) -> None:
        """Suspend the queued resource of a node that a user deletes."""
        self._end(node, initiator="USER")

    def preempt(self, node: str) -> bool:
        """Preempt a running node. Return False if it is not a running node."""
        document = self._store.get(NODES, node)
        if document is None or document["state"] != "READY":
            return False
        self._store.put(NODES, node, {**document, "state": "PREEMPTED"})
        self._end(node, initiator="SERVICE")
        return True

    def _end(self, node: str, *, initiator: str) -> None:
        owner = (self._store.get(NODES, node) or {}).get("queuedResource")
        document = self._store.get(QUEUED, owner) if owner else None
        if owner is not None and document is not None and _machine(document).state is QueuedResourceState.ACTIVE:
            self._apply(
                owner,
                document,
                *tpu_queue.suspend(_machine(document), self._cloud.timeline.simulated_s(), initiator=initiator),
            )
            self._cloud.changed.set()

    # Effects of transitions

    def _apply(self, name: str, document: JsonObject, machine: Queued, effects: list[Effect]) -> None:
        if Effect.CREATE_NODES in effects and document.get("_deletion"):
            refusal = _not_deletable(QueuedResourceState.PROVISIONING).rpc_status()
            self._cloud.operations.finish("tpu", document.pop("_deletion"), error=refusal)
            machine = replace(machine, granted_s=None)
        self._save(name, document, machine)
        for effect in effects:
            for node_id in document["_nodes"]:
                self._apply_to_node(effect, name, document, node_id)
            if effect is Effect.FORGET:
                self._store.delete(QUEUED, name)
                self._cloud.operations.finish("tpu", document["_deletion"])

    def _apply_to_node(self, effect: Effect, owner: str, document: JsonObject, node_id: str) -> None:
        node = f"{owner.rpartition('/queuedResources/')[0]}/nodes/{node_id}"
        match effect:
            case Effect.CREATE_NODES:
                self._nodes.create(node, owner, document["_nodes"][node_id], document)
            case Effect.BOOT_NODES:
                self._nodes.mark_ready(node, run_duration_s=self._run_duration_s(document))
                self.boot(node)
            case Effect.STOP_NODES:
                self._nodes.mark_deleting(node, owner=owner)
                self._stop(node, owner=owner)
            case Effect.DELETE_NODES:
                self._nodes.remove(node, owner=owner)
            case Effect.FORGET:
                pass

    def boot(self, node: str) -> None:
        """Boot the machine of a node, after an earlier boot or power-off has finished."""
        self._cloud.spawn(self._boot(node))

    async def _boot(self, node: str) -> None:
        async with self._cloud.machine_locks[node]:
            document = self._store.get(NODES, node)
            if document is None or document["state"] != "READY":
                return
            project, zone = node.split("/")[1], node.split("/")[3]
            account = part(document, "serviceAccount").get("email")
            spec = MachineSpec(
                name=node,
                project=project,
                zone=zone,
                accelerator_type=document["acceleratorType"],
                metadata=metadata_of(document),
                service_account=account or self._cloud.default_account(project),
                egress=networks.egress_of(
                    self._cloud,
                    document["_subnetwork"],
                    strings(document, "tags"),
                    external=document["networkConfig"].get("enableExternalIps"),
                ),
                devices=self._devices(document),
            )
            try:
                await self._cloud.runtimes.machines.boot(spec)
            except MachineFailedError as error:
                current = self._store.get(NODES, node)  # it may have been changed or deleted during the boot
                if current is not None and current.get("id") == document.get("id"):
                    ill = {"health": "UNHEALTHY_TENSORFLOW", "healthDescription": str(error)}
                    self._store.put(NODES, node, {**current, **ill})

    def _devices(self, node: JsonObject) -> DeviceAccess:
        """Return the access to a node's chips; none with a runtime version of other generations (github.com/pytorch/xla/issues/9753, 2026-02)."""
        own = generation_of_type(str(node["acceleratorType"]))
        others = {OLDER_RUNTIME, *(one.runtime_version for one in tpu_generations().values() if one is not own)}
        return "absent" if own and node["runtimeVersion"] in others else self._cloud.scenario.tpu.devices

    def _stop(self, node: str, *, owner: str) -> None:
        """Power off the machine if the node belongs to this queued resource."""
        document = self._store.get(NODES, node)
        if document is not None and document["queuedResource"] == owner:
            self._cloud.spawn(self._cloud.power_off(node))

    # Conditions of transitions

    def _durations(self) -> TpuDurations:
        return _INSTANT if self._cloud.scenario.operations.instant else self._cloud.scenario.tpu.durations_s

    def _run_duration_s(self, document: JsonObject) -> float | None:
        return document["_machine"]["run_duration_s"]

    def _quota_error(self, name: str, document: JsonObject) -> JsonObject | None:
        """Return a google.rpc.Status if the quota is exceeded. Chips of every accepted queued resource count until it is deleted."""
        parent = name.rpartition("/queuedResources/")[0]
        zone = name.split("/")[3]
        wants_preemptible = tpu_requests.preemptible(document)
        used: dict[bool, int] = defaultdict(int)
        waits = self._cloud.scenario.tpu.without_quota == "waits"
        without = {"CREATING", "ACCEPTED", *(("WAITING_FOR_RESOURCES",) if waits else ())}
        for other, record in self._store.under(QUEUED, parent + "/queuedResources/"):
            if other != name and record["_machine"]["state"] not in without:
                used[tpu_requests.preemptible(record)] += _chips(record)
        limit = self._cloud.scenario.tpu.chips_of(tpu_stock.zone_of(self._cloud, zone), preemptible=wants_preemptible)
        if used[wants_preemptible] + _chips(document) <= limit:
            return None
        accelerator = accelerator_of(next(iter(document["_nodes"].values())))
        quota = tpu_requests.quota_name(accelerator, preemptible=wants_preemptible)
        return {"code": 8, "message": capacity_words.over_quota(quota, limit, zone)}

    def _stock(self, name: str, document: JsonObject) -> Stock:
        return tpu_stock.stock_of(self._cloud, name.split("/")[3], model_of(document))

    def _delay_s(self, name: str, document: JsonObject) -> float:
        """Return after how many seconds the request's capacity is there if it waits for it."""
        stock = self._stock(name, document)
        return stock.after_s if stock.dry == "waits" else 0.0

    def _scarce(self, name: str, document: JsonObject) -> bool:
        """Return whether the scenario limits the capacity of a requested type."""
        facts = tpu_stock.zone_of(self._cloud, name.split("/")[3])
        limited = any(accelerator_of(node) in facts.capacity for node in document["_nodes"].values())
        waits = self._cloud.scenario.tpu.without_quota == "waits"
        return limited or waits or self._stock(name, document).chips is not None

    def _capacity(self, name: str, document: JsonObject) -> bool:
        if self._cloud.scenario.tpu.without_quota == "waits" and self._quota_error(name, document) is not None:
            return False
        wanted = [accelerator_of(node) for node in document["_nodes"].values()]
        waits = self._stock(name, document).dry == "waits"
        return tpu_stock.has_capacity(self._cloud, name.split("/")[3], model_of(document), wanted, waits=waits)

    def _stockout(self, name: str, document: JsonObject) -> JsonObject | None:
        """Return the google.rpc.Status of a zone that lets no request of this model wait."""
        if self._stock(name, document).dry == "waits":
            return None
        return {"code": 8, "message": capacity_words.zone_is_empty(name.split("/")[3])}

    # Storing and showing

    def _save(self, name: str, document: JsonObject, machine: Queued) -> None:
        document["_machine"] = {**asdict(machine), "state": machine.state.value}
        self._store.put(QUEUED, name, document)

    def _found(self, name: str) -> JsonObject:
        tpu_requests.zone_of(self._cloud, name)
        return self.stored(QUEUED, name, f"Resource '{name}' was not found.")

    def _shown(self, document: JsonObject) -> JsonObject:
        machine = _machine(document)
        state: JsonObject = {"state": machine.state.value, "stateInitiator": machine.initiator}
        details = {QueuedResourceState.WAITING: None, QueuedResourceState.FAILED: {"error": machine.error}}.get(
            machine.state, {}
        )
        if details is not None:
            state[f"{machine.state.value.lower()}Data"] = details
        return {**visible(document), "state": state}

    def _repeated(self, call: Call, name: str) -> JsonObject | None:
        """Return the operation of an earlier call with the same requestId. Raise 409 if that call was different."""
        known = self._store.get(_REQUESTS, f"{name}/{call.query['requestId']}") if call.query.get("requestId") else None
        if known is None:
            return None
        if known["digest"] != _digest(call):
            raise CloudError.already_exists(
                f"The requestId '{call.query['requestId']}' was used before for another request."
            )
        return self._cloud.operations.get("tpu", known["operation"])

    def _remember(self, call: Call, name: str, operation: JsonObject) -> None:
        if call.query.get("requestId"):
            self._store.put(
                _REQUESTS,
                f"{name}/{call.query['requestId']}",
                {"digest": _digest(call), "operation": operation["name"]},
            )


def _is_granted(machine: Queued) -> bool:
    """Return whether a deletion of the request is accepted and comes too late."""
    return machine.granted_s is not None


def _not_deletable(state: QueuedResourceState) -> CloudError:
    allowed = " ".join(item.value for item in tpu_queue.DELETABLE)
    return CloudError.precondition(
        f"DeleteQueuedResource is not supported when state is {state.value} (must be one of [{allowed}])"
    )


def _machine(document: JsonObject) -> Queued:
    fields: dict[str, Any] = dict(document["_machine"])
    fields["state"] = QueuedResourceState(fields["state"])
    return Queued(**fields)


def _chips(document: JsonObject) -> int:
    return sum(chips_of(accelerator_of(node)) for node in document["_nodes"].values())


def _digest(call: Call) -> str:
    return hashlib.sha256(json.dumps([call.method.id, call.body], sort_keys=True).encode()).hexdigest()
