"""Compute Engine request for an instance with a TPU (Instance of compute.v1), built from checked inputs.

Fields follow Google's discovery document `compute.v1`, revision 20261106, and Compute Engine's pages "Create a Flex-start VM" and "TPU VMs".
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from gcp_tpu_provider.machines import MACHINE_TYPES

CLOUD_TPU, COMPUTE_ENGINE = "cloud-tpu", "compute-engine"
"""Values of the input `api`."""
INSTANCE_STATES: Final[Mapping[str, str]] = {
    "PENDING": "WAITING_FOR_RESOURCES",
    **dict.fromkeys(("PROVISIONING", "STAGING"), "PROVISIONING"),
    **dict.fromkeys(("RUNNING", "REPAIRING"), "ACTIVE"),
    **dict.fromkeys(("PENDING_STOP", "STOPPING", "SUSPENDING", "DEPROVISIONING"), "SUSPENDING"),
    **dict.fromkeys(("TERMINATED", "STOPPED", "SUSPENDED"), "SUSPENDED"),
}
"""Status of an instance (Compute Engine, "Instance lifecycle") -> state of a queued resource. The provider deletes a stopping or stopped
instance and requests a new one, so it never serves again."""
MODELS: Final[Mapping[str, str]] = {"flex-start": "FLEX_START", "spot": "SPOT", "standard": "STANDARD"}
MAX_REQUEST_VALID_S: Final = 7200
"""Maximum time that Compute Engine keeps a flex-start request (Google Cloud blog, "Introducing Flex-start VMs", 2025-09-25)."""
MIN_REQUEST_VALID_S: Final = 90
"""A request with a shorter time does not wait (Compute Engine, "Instance lifecycle", PENDING)."""
MIN_RUN_S: Final = 600
"""Minimum run duration of a flex-start instance (Compute Engine, "Provisioning models")."""
DEFAULT_BOOT_DISK_GB: Final = 100
"""Same size as the Cloud TPU API uses. Compute Engine's default is the image size, 10 GB, too small for a TPU container image."""
REQUEST_KEY: Final = "gcp-tpu-request"
"""Metadata key with request data that the instance does not show: the boot image and the declared keys. The provider keeps it
separate from the program's metadata."""


def instance_name(project: str, zone: str, identifier: str) -> str:
    """Return the full name of an instance."""
    return f"projects/{project}/zones/{zone}/instances/{identifier}"


def is_instance(name: str) -> bool:
    """Return whether a full name is a Compute Engine instance."""
    return "/instances/" in name


def request_note(image: str, labels: Mapping[str, str], metadata: Mapping[str, str]) -> str:
    """Return the value of `REQUEST_KEY`."""
    return json.dumps({"image": image, "labels": sorted(labels), "metadata": sorted(metadata)}, sort_keys=True)


def instance_body(
    inputs: Mapping[str, Any], zone: str, *, identifier: str, labels: Mapping[str, str], owner_labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the request body for a zone. `labels` are the program's."""
    project = str(inputs["project"])
    model = str(inputs["provisioningModel"])
    image = str(inputs["runtimeVersion"])
    metadata = cast("dict[str, str]", inputs.get("metadata") or {})
    items = {**metadata, REQUEST_KEY: request_note(image, labels, metadata)}
    account = cast("dict[str, Any]", inputs.get("serviceAccount") or {"email": "default"})
    place = f"projects/{project}/zones/{zone}"
    body: dict[str, Any] = {
        "name": identifier,
        "machineType": f"{place}/machineTypes/{MACHINE_TYPES[str(inputs['acceleratorType'])]}",
        "labels": {**labels, **owner_labels},
        "metadata": {"items": [{"key": key, "value": value} for key, value in items.items()]},
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": image,
                    "diskSizeGb": str(int(inputs.get("bootDiskSizeGb") or DEFAULT_BOOT_DISK_GB)),
                },
            }
        ],
        "networkInterfaces": [_interface(inputs, project, zone)],
        "serviceAccounts": [{"email": account["email"], "scopes": account.get("scopes") or [CLOUD_SCOPE]}],
        "scheduling": _scheduling(inputs, model),
    }
    if inputs.get("tags"):
        body["tags"] = {"items": list(inputs["tags"])}
    if model == "flex-start":
        body["params"] = {"requestValidForDuration": {"seconds": str(_valid_s(inputs))}}
        body["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    return body


CLOUD_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def access_config() -> dict[str, str]:
    """Return the access configuration that adds an external address to a network interface."""
    return {"type": "ONE_TO_ONE_NAT", "name": "external-nat"}


def _interface(inputs: Mapping[str, Any], project: str, zone: str) -> dict[str, Any]:
    interface: dict[str, Any] = {}
    network, subnetwork = inputs.get("network"), inputs.get("subnetwork")
    if network or not subnetwork:
        interface["network"] = _full(str(network or "default"), f"projects/{project}/global/networks/")
    if subnetwork:
        region = zone.rpartition("-")[0]
        interface["subnetwork"] = _full(str(subnetwork), f"projects/{project}/regions/{region}/subnetworks/")
    if inputs.get("enableExternalIps"):
        interface["accessConfigs"] = [access_config()]
    return interface


def _full(name: str, folder: str) -> str:
    return name if "/" in name else f"{folder}{name}"


def _scheduling(inputs: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the schedule. The instance is deleted when its run expires or it is preempted, so no billed resource remains."""
    scheduling: dict[str, Any] = {"provisioningModel": MODELS[model], "onHostMaintenance": "TERMINATE"}
    if model != "standard":
        scheduling |= {"automaticRestart": False, "instanceTerminationAction": "DELETE"}
    if "maxRunDurationS" in inputs:
        run = {"seconds": str(int(inputs["maxRunDurationS"]))}
        scheduling |= {"maxRunDuration": run, "instanceTerminationAction": "DELETE"}
    return scheduling


def _valid_s(inputs: Mapping[str, Any]) -> int:
    """Return how long Google keeps the request: `validUntilDurationS`, within the limits of Compute Engine."""
    wanted_s = int(inputs.get("validUntilDurationS") or inputs["waitPerZoneS"])
    return max(MIN_REQUEST_VALID_S, min(MAX_REQUEST_VALID_S, wanted_s))
