"""Capacity as Compute Engine instances: ct6e machine types with flex-start, spot or on-demand.

Names, paths and fields follow Google's discovery document `compute.v1`, revision 20261106. An instance is both the request and the TPU VM.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

from gcp_tpu_provider.compute_request import INSTANCE_STATES, REQUEST_KEY, access_config
from gcp_tpu_provider.errors import CannotWaitError, ConflictError, GoogleError, ProjectError, TpuProviderError
from gcp_tpu_provider.json_parts import object_of, objects_of, text_of
from gcp_tpu_provider.machines import MACHINE_TYPES
from gcp_tpu_provider.resource_record import owner_labels
from gcp_tpu_provider.tpu_api import (
    ABORTED,
    GuestReport,
    LongRunningOperation,
    NodeInfo,
    NodeRequest,
    OwnCapacity,
    QueuedResourceInfo,
    guest_report,
)
from gcp_tpu_provider.transport import TpuTransport, find, pages

_ROOT: Final = "compute/v1/"
_NODE_STATES: Final[Mapping[str, str]] = {
    "PENDING": "CREATING",
    "PROVISIONING": "CREATING",
    "STAGING": "CREATING",
    "RUNNING": "READY",
    "TERMINATED": "TERMINATED",
    "STOPPED": "TERMINATED",
    "SUSPENDED": "TERMINATED",
}
"""Status of an instance -> state of a node. Other statuses are used unchanged."""
_LINK: Final = re.compile(r"^https?://[^/]+/compute/[a-z0-9]+/")
_FINGERPRINT_IS_OLD: Final = "CONDITION_NOT_MET"
"""Error code of an operation if Compute Engine detected the conflict after it had accepted the change."""
_NOT_READY: Final = "resourceNotReady"
"""Compute Engine's reason while another operation on the instance is in progress."""
_PROTECTED: Final = "cannot be deleted if it's protected"
"""Compute Engine's message about an instance with `deletionProtection`."""
_OPERATION_LIMIT_S: Final = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


@dataclass(slots=True)
class ComputeApi:
    """API calls of the provider. Each raises GoogleError or NoAnswerError."""

    one_at_a_time: ClassVar[bool] = True
    """True if `patch_node` takes one property, and the next one when Google has changed it."""

    vanished: ClassVar[str] = (
        "The instance is gone: Google granted no quota or no capacity within the request's time, or another user deleted it."
    )

    lost: ClassVar[str] = "Google preempted it, its run duration expired, or another user deleted it."

    transport: TpuTransport
    _seen: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Instances as last read. Their fingerprints reject a change after another client's."""

    async def zones_to_search(self, project: str, identifier: str) -> tuple[str, ...]:
        """Return every zone that has an instance of this name."""
        path, query = f"{_ROOT}projects/{project}/aggregated/instances", {"filter": f"name={identifier}"}
        scopes = [object_of(page, "items") for page in await pages(self.transport, path, query)]
        return tuple(
            name.removeprefix("zones/") for scope in scopes for name, found in scope.items() if found.get("instances")
        )

    async def create_queued_resource(self, name: str, body: Mapping[str, Any], request_id: str) -> LongRunningOperation:
        """Request an instance with this full name. Repeating a request id has no further effect."""
        path = f"{_ROOT}{name.rpartition('/')[0]}"
        query = {"requestId": request_id}
        return _operation(await self.transport.call("POST", path, query=query, body=body, creation=True), name)

    async def find_queued_resource(self, name: str) -> QueuedResourceInfo | None:
        """Return the instance as a request, or None if none has this name."""
        raw = await self._find(name)
        return None if raw is None else _request(raw, name)

    async def delete_queued_resource(self, own: OwnCapacity, *, force: bool, request_id: str) -> LongRunningOperation:  # noqa: ARG002 - the seam's
        """Request the deletion. Compute Engine deletes in every state, so `force` has no effect."""
        name = own.name
        try:
            answer = await self.transport.call("DELETE", f"{_ROOT}{name}", query={"requestId": request_id})
        except GoogleError as error:
            if _PROTECTED not in error.message:
                raise
            _, project, _, zone, _, instance = name.split("/")
            command = (
                f"gcloud compute instances update {instance} --no-deletion-protection --zone={zone} --project={project}"
            )
            raise CannotWaitError(f"{name} is protected against deletion. Run `{command}` and retry.") from None
        return _operation(answer, name)

    async def find_node(self, name: str) -> NodeInfo | None:
        """Return the instance as a node, or None if none has this name."""
        raw = await self._find(name)
        if raw is None:
            return None
        self._seen[name] = raw
        return _node(raw, name)

    async def patch_node(self, name: str, changes: Mapping[str, Any], mask: str) -> LongRunningOperation:  # noqa: ARG002 - the seam's
        """Change labels, metadata, tags or the external address of the instance last returned by `find_node`.

        Raises ConflictError if another client has changed it since.
        """
        ((what, value),) = changes.items()
        if what == "networkConfig":
            return await self._set_external(name, wanted=bool(value["enableExternalIps"]))
        verb, body = _change(what, value, self._seen[name])
        try:
            return await self._post(name, verb, {}, body)
        except GoogleError as error:
            # An organization policy also returns 412, and every attempt gets the same response.
            if error.status != HTTPStatus.PRECONDITION_FAILED or isinstance(error, ProjectError):
                raise
            raise ConflictError(str(error)) from None

    async def find_guest_report(self, node: str, namespace: str) -> GuestReport | None:
        """Return the TPU VM's latest report in a namespace of its guest attributes, or None if it has published nothing."""
        path, query = f"{_ROOT}{node}/getGuestAttributes", {"queryPath": f"{namespace}/"}
        return await guest_report(self.transport.call("GET", path, query=query), node, namespace)

    async def get_operation(self, name: str) -> LongRunningOperation:
        """Return an operation. Treat one that Google no longer has as done."""
        raw = await self._find(name)
        return LongRunningOperation(name=name, done=True, error="") if raw is None else _operation(raw, name)

    async def _find(self, name: str) -> dict[str, Any] | None:
        return await find(self.transport, f"{_ROOT}{name}")

    async def _set_external(self, name: str, *, wanted: bool) -> LongRunningOperation:
        if wanted:
            return await self._post(name, "addAccessConfig", {"networkInterface": "nic0"}, access_config())
        given = objects_of(_interface(self._seen[name]), "accessConfigs") or [access_config()]
        query = {"networkInterface": "nic0", "accessConfig": str(given[0]["name"])}
        return await self._post(name, "deleteAccessConfig", query, None)

    async def _post(
        self, name: str, verb: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> LongRunningOperation:
        """Request a change of an instance. Retry while another operation on it is in progress."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_PAUSE_S
        end_s = loop.time() + _OPERATION_LIMIT_S
        while True:
            try:
                answer = await self.transport.call("POST", f"{_ROOT}{name}/{verb}", query=query, body=body)
                return _operation(answer, name)
            except GoogleError as error:
                if error.reason != _NOT_READY or loop.time() >= end_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _change(what: str, value: Any, raw: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:  # noqa: ANN401 - a property's value
    """Return the verb and the body of a change to a property of an instance as it was read."""
    if what == "labels":
        return "setLabels", {"labels": dict(value), "labelFingerprint": text_of(raw, "labelFingerprint")}
    if what == "tags":
        return "setTags", {"items": list(value), "fingerprint": text_of(object_of(raw, "tags"), "fingerprint")}
    if what == "metadata":
        note = _all_metadata(raw).get(REQUEST_KEY)
        items = {**value, **({REQUEST_KEY: note} if note is not None else {})}
        fingerprint = text_of(object_of(raw, "metadata"), "fingerprint")
        pairs = [{"key": key, "value": text} for key, text in items.items()]
        return "setMetadata", {"items": pairs, "fingerprint": fingerprint}
    raise TpuProviderError(f"Compute Engine cannot change {what} of an instance. Revert the change.")


def _all_metadata(raw: Mapping[str, Any]) -> dict[str, str]:
    items = objects_of(object_of(raw, "metadata"), "items")
    return {text_of(item, "key"): text_of(item, "value") for item in items}


def _metadata(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata without the provider's key."""
    return {key: value for key, value in _all_metadata(raw).items() if key != REQUEST_KEY}


def _labels(raw: Mapping[str, Any]) -> dict[str, str]:
    return dict(object_of(raw, "labels"))


def _interface(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    interfaces = objects_of(raw, "networkInterfaces")
    return interfaces[0] if interfaces else {}


def _operation(raw: Mapping[str, Any], name: str) -> LongRunningOperation:
    """Return an operation. `name` is the full name of the instance, or of the operation."""
    zone = "/".join(name.split("/")[:4])
    errors = objects_of(object_of(raw, "error"), "errors")
    text = "; ".join(f"{error.get('message') or 'no explanation'} ({error.get('code', '?')})" for error in errors)
    full = f"{zone}/operations/{raw['name']}" if raw.get("name") else ""
    code = ABORTED if any(error.get("code") == _FINGERPRINT_IS_OLD for error in errors) else 0
    return LongRunningOperation(name=full, done=raw.get("status") == "DONE", error=text, error_code=code)


def _request(raw: Mapping[str, Any], name: str) -> QueuedResourceInfo:
    scheduling = object_of(raw, "scheduling")
    status = text_of(raw, "status") or "PROVISIONING"
    run_s = text_of(object_of(scheduling, "maxRunDuration"), "seconds")
    return QueuedResourceInfo(
        name=name,
        state=INSTANCE_STATES.get(status, status),
        state_initiator="",
        error=text_of(raw, "statusMessage"),
        create_time=text_of(raw, "creationTimestamp"),
        provisioning_model=text_of(scheduling, "provisioningModel") or "STANDARD",
        reservation_name="",
        max_run_duration_s=int(run_s) if run_s else None,
        valid_until_duration_s=None,
        nodes=(NodeRequest(node_id=name.rpartition("/")[2], config=_config(raw)),),
    )


def _config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the request in terms of the Cloud TPU API, with the declared labels and metadata and the owner label."""
    labels = _labels(raw)
    metadata = _metadata(raw)
    note = _note(raw)
    interface = _interface(raw)
    account = next(iter(objects_of(raw, "serviceAccounts")), None)
    size_gb = next((text_of(disk, "diskSizeGb") for disk in objects_of(raw, "disks") if disk.get("boot")), "")
    machine = text_of(raw, "machineType").rpartition("/")[2]
    config: dict[str, Any] = {
        "acceleratorType": next((kind for kind, name in MACHINE_TYPES.items() if name == machine), machine),
        "runtimeVersion": note.get("image"),
        "labels": {**_declared(labels, note.get("labels")), **owner_labels(labels)},
        "metadata": _declared(metadata, note.get("metadata")),
        "tags": list(object_of(raw, "tags").get("items") or ()),
        "networkConfig": {
            "network": _LINK.sub("", text_of(interface, "network")) or None,
            "subnetwork": text_of(interface, "subnetwork").rpartition("/")[2] or None,
            "enableExternalIps": bool(objects_of(interface, "accessConfigs")),
        },
    }
    if account is not None:
        config["serviceAccount"] = {"email": text_of(account, "email"), "scope": list(account.get("scopes") or ())}
    return config | ({"bootDiskConfig": {"diskSizeGb": size_gb}} if size_gb else {})


def _note(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the provider's note about the request. Empty for another owner's instance."""
    try:
        found: object = json.loads(_all_metadata(raw).get(REQUEST_KEY) or "{}")
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _declared(values: Mapping[str, str], keys: Sequence[str] | None) -> dict[str, str]:
    """Return the declared part of the request, or the whole request if no note exists."""
    return {key: value for key, value in values.items() if keys is None or key in keys}


def _node(raw: Mapping[str, Any], name: str) -> NodeInfo:
    interface, status = _interface(raw), text_of(raw, "status")
    external = objects_of(interface, "accessConfigs")
    return NodeInfo(
        name=name,
        state=_NODE_STATES.get(status, status),
        health="",
        description=text_of(raw, "description"),
        labels=_labels(raw),
        tags=tuple(object_of(raw, "tags").get("items") or ()),
        metadata=_metadata(raw),
        enable_external_ips=bool(external),
        ips=tuple(filter(None, [text_of(interface, "networkIP")])),
        external_ips=tuple(filter(None, (text_of(item, "natIP") for item in external))),
        deadline=text_of(object_of(object_of(raw, "resourceStatus"), "scheduling"), "terminationTimestamp"),
    )
