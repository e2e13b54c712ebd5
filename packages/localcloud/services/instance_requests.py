"""Validation and content of a request for a TPU instance of Compute Engine."""

import re
from dataclasses import dataclass
from typing import Final

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.errors import CloudError
from localcloud.services import networks
from localcloud.services.capacity_words import zone_without_machine_type
from localcloud.services.checks import check_labels
from localcloud.world.catalog import generation_of_type, tpu_machine_types
from localcloud.world.cloud import REGIONS, Cloud
from localcloud.world.scenario import TpuZone

FLEX_START: Final = "FLEX_START"
PREEMPTIBLE: Final = frozenset({FLEX_START, "SPOT"})
"""Provisioning models that use preemptible quota (Compute Engine, "Provisioning models")."""
CLOUD_PLATFORM: Final = "https://www.googleapis.com/auth/cloud-platform"
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_METADATA_KEY: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MAX_METADATA_VALUE_BYTES: Final = 256 * 1024
_MAX_METADATA_BYTES: Final = 512 * 1024
_NOT_FOR_PEOPLE: Final = "ct5lp-"
"""Machine types of v5e: in the catalog, but only GKE can create them (the field report that `ComputeTpu` names)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRequest:
    """Content of a request. Times in seconds; `wait_s` is 0 if it does not wait for capacity."""

    accelerator: str
    model: str
    wait_s: float
    run_s: float | None
    ends_with_stop: bool
    """True: the instance is stopped and kept when the run expires. False: it is deleted."""
    networks: tuple[str, ...]
    account: str


def zone_facts(cloud: Cloud, zone: str) -> TpuZone:
    """Return the TPUs of a zone; a zone without TPUs has none. Raise 400 for an unknown zone."""
    region, _, letter = zone.rpartition("-")
    if letter not in tuple(REGIONS.get(region, "")):
        raise CloudError.field("zone", f"Invalid value for field 'zone': '{zone}'. Unknown zone.")
    return cloud.scenario.tpu.zones.get(zone, TpuZone(accelerator_types=()))


def check(cloud: Cloud, project: str, zone: str, body: JsonObject) -> InstanceRequest:
    """Check a request. Raise Google's error for an invalid one, and 501 for features that the local cloud does not simulate."""
    facts = zone_facts(cloud, zone)
    if _NAME.fullmatch(str(body.get("name") or "")) is None:
        why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise networks.invalid_value("name", body.get("name", ""), why)
    accelerator = _accelerator(facts, zone, body)
    check_labels(body.get("labels"), "resource.labels")
    check_metadata(part(body, "metadata"))
    check_tags(part(body, "tags"))
    _check_boot_disk(cloud, body)
    model, run_s = _check_scheduling(cloud, part(body, "scheduling"))
    return InstanceRequest(
        accelerator=accelerator,
        model=model,
        wait_s=_wait_s(cloud, model, part(part(body, "params"), "requestValidForDuration")),
        run_s=run_s,
        ends_with_stop=_ends_with_stop(model, part(body, "scheduling")),
        networks=_networks(cloud, project, body),
        account=_account(cloud, body),
    )


def quota_name(model: str, accelerator: str) -> str:
    """Return the quota that a model uses first for an accelerator type, as the error names it (the same field report)."""
    found = generation_of_type(accelerator)
    return found.instance_quota_metric.upper() if found is not None and model in PREEMPTIBLE else "TPUS_PER_TPU_FAMILY"


def check_metadata(metadata: JsonObject) -> None:
    """Raise 400 for metadata that is too large, or with a malformed or repeated key."""
    pairs = [(str(item.get("key", "")), str(item.get("value") or "")) for item in parts(metadata, "items")]
    keys = [key for key, _ in pairs]
    for index, (key, value) in enumerate(pairs):
        if _METADATA_KEY.fullmatch(key) is None or key in keys[:index]:
            why = "Duplicate key." if key in keys[:index] else "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'"
            raise networks.invalid_value(f"metadata.items[{index}].key", key, why)
        if len(value.encode()) > _MAX_METADATA_VALUE_BYTES:
            raise CloudError.invalid(f"Metadata value of '{key}' is too large: at most {_MAX_METADATA_VALUE_BYTES}.")
    total = sum(len(key) + len(value.encode()) for key, value in pairs)
    if total > _MAX_METADATA_BYTES:
        raise CloudError.invalid(f"Metadata is too large: {total} bytes, at most {_MAX_METADATA_BYTES}.")


def check_tags(tags: JsonObject) -> None:
    """Raise 400 for a malformed network tag."""
    networks.check_tags("tags.items", strings(tags, "items"))


def _accelerator(facts: TpuZone, zone: str, body: JsonObject) -> str:
    url = str(body.get("machineType") or "")
    name = url.rpartition("/")[2]
    if name.startswith(_NOT_FOR_PEOPLE):
        raise CloudError.invalid(f"This user agent is not allowed to use the machine type [{name}].")
    if f"zones/{zone}/machineTypes/{name}" not in url:
        why = f"The URL is malformed, or names another zone than {zone}."
        raise networks.invalid_value("machineType", url, why)
    accelerator = tpu_machine_types().get(name)
    if accelerator is None and not name.startswith("ct"):
        known = ", ".join(tpu_machine_types())
        raise CloudError.unimplemented(f"The local cloud has the machine types {known}, not {name}.")
    if accelerator is None or accelerator not in facts.accelerator_types:
        raise networks.invalid_value("machineType", url, zone_without_machine_type(name, zone))
    return accelerator


def _check_boot_disk(cloud: Cloud, body: JsonObject) -> None:
    boot = [disk for disk in parts(body, "disks") if disk.get("boot")]
    if len(boot) != 1:
        raise networks.invalid_value("disks", "", "Boot disk must be specified for instance.")
    given = part(boot[0], "initializeParams")
    image = re.sub(r"^https?://[^/]+/compute/[a-z0-9]+/", "", str(given.get("sourceImage") or ""))
    if image not in cloud.scenario.tpu.compute.image_families:
        raise CloudError.not_found(f"The resource '{image}' was not found")
    size_gb = int(given.get("diskSizeGb") or 0)
    least_gb = cloud.scenario.tpu.compute.image_size_gb
    if size_gb and size_gb < least_gb:
        why = f"Requested disk size cannot be smaller than the image size ({least_gb} GB)"
        raise networks.invalid_value("disks[0].initializeParams.diskSizeGb", size_gb, why)
    for disk in parts(body, "disks"):
        if not disk.get("boot"):
            raise CloudError.unimplemented("The local cloud's TPU instances only have a boot disk.")


def _check_scheduling(cloud: Cloud, given: JsonObject) -> tuple[str, float | None]:
    model = str(given.get("provisioningModel") or "STANDARD")
    if model == "RESERVATION_BOUND":
        raise CloudError.unimplemented("The local cloud does not support Compute Engine reservations.")
    if given.get("onHostMaintenance") != "TERMINATE":
        why = "Instances with guest accelerators do not support live migration."
        raise networks.invalid_value("scheduling.onHostMaintenance", given.get("onHostMaintenance", "MIGRATE"), why)
    if model in PREEMPTIBLE and given.get("automaticRestart", True):
        raise CloudError.invalid(f"Automatic restart is not supported with the provisioning model {model}.")
    seconds = part(given, "maxRunDuration").get("seconds")
    run_s = None if seconds is None else float(seconds)
    if model == FLEX_START:
        least_s, most_s = cloud.scenario.tpu.compute.min_run_s, cloud.scenario.tpu.max_flex_start_run_s
        if run_s is None or not least_s <= run_s <= most_s:
            why = f"It must be from {least_s:.0f} to {most_s:.0f} seconds for FLEX_START."
            raise networks.invalid_value("scheduling.maxRunDuration", "" if run_s is None else f"{run_s:.0f}", why)
    if run_s is not None and given.get("instanceTerminationAction") not in {"DELETE", "STOP"}:
        why = "It must be DELETE or STOP for an instance with a limited run duration."
        raise networks.invalid_value("scheduling.instanceTerminationAction", "", why)
    return model, run_s


def _ends_with_stop(model: str, given: JsonObject) -> bool:
    """Return whether the end of a run stops the instance. STOP is the default of spot (Compute Engine, "Spot VMs", preemption process)."""
    return given.get("instanceTerminationAction", "STOP" if model == "SPOT" else "") == "STOP"


def _wait_s(cloud: Cloud, model: str, given: JsonObject) -> float:
    """Return how long the request waits for capacity. 0 below the minimum wait."""
    facts = cloud.scenario.tpu.compute
    wait_s = float(given.get("seconds") or 0)
    if wait_s and model != FLEX_START:
        raise networks.invalid_value(
            "params.requestValidForDuration", f"{wait_s:.0f}", "It is for the provisioning model FLEX_START only."
        )
    if wait_s > facts.max_wait_s:
        why = f"It must be at most {facts.max_wait_s:.0f} seconds."
        raise networks.invalid_value("params.requestValidForDuration", f"{wait_s:.0f}", why)
    return wait_s if wait_s >= facts.min_wait_s else 0.0


def _networks(cloud: Cloud, project: str, body: JsonObject) -> tuple[str, ...]:
    interfaces = parts(body, "networkInterfaces")
    if len(interfaces) != 1:
        raise networks.invalid_value("networkInterfaces", "", "At least one network interface is required.")
    found: list[str] = []
    for kind, key in ((networks.NETWORKS, "network"), (networks.SUBNETWORKS, "subnetwork")):
        if interfaces[0].get(key):
            field = f"resource.networkInterfaces[0].{key}"
            found.append(networks.reference(cloud, project, kind, interfaces[0][key], field))
    return tuple(found or [f"projects/{project}/global/networks/default"])


def _account(cloud: Cloud, body: JsonObject) -> str:
    accounts = parts(body, "serviceAccounts")
    if len(accounts) > 1:
        raise CloudError.invalid("Invalid value for field 'resource.serviceAccounts': Too many service accounts.")
    if not accounts or CLOUD_PLATFORM not in strings(accounts[0], "scopes"):
        raise CloudError.unimplemented(
            f"The local cloud only simulates instances with a service account of scope {CLOUD_PLATFORM}."
        )
    email = str(accounts[0].get("email") or "")
    if cloud.policies.lacks_account(email):
        raise CloudError.invalid(f"The resource '{email}' of type 'serviceAccount' was not found.")
    return email
