"""Validation of requests for a queued resource, and the content of Cloud TPU's catalogs."""

import re
from datetime import datetime

from localcloud.json_values import JsonObject, part, parts
from localcloud.rest.errors import CloudError
from localcloud.services import networks
from localcloud.services.checks import check_labels
from localcloud.world.cloud import Cloud
from localcloud.world.scenario import TpuZone
from localcloud.world.timeline import seconds

QUEUED_ID = r"[A-Za-z0-9_.~+%-]{1,128}"
_MAX_DESCRIPTION = 512
_MAX_NODES = 256
"""Maximum number of nodes in one queued resource: a limit of the local cloud, not of Google."""
_DEFAULT_BOOT_DISK_GB = 100
_MAX_METADATA_VALUE_BYTES = 256 * 1024
_MAX_METADATA_BYTES = 512 * 1024
_TIERS = {
    "spot": {"STANDARD", "SPOT"},
    "guaranteed": {"STANDARD", "RESERVATION_BOUND"},
    "bestEffort": {"STANDARD"},
}
"""Tier -> compatible provisioning models. gcloud 528 sends STANDARD with each tier unless a model is given (queued_resources/util.py)."""
_NO_MODEL = "PROVISIONING_MODEL_UNSPECIFIED"
_TOPOLOGIES = {"1": "1x1", "4": "2x2", "8": "2x4"}
_FAMILIES = {"v6e": "V6E", "v5litepod": "V5LITE_POD"}
_QUOTA_NAMES = {"v6e": "TPUV6E", "v5litepod": "TPUV5sLitepod"}


def zone_of(cloud: Cloud, name: str) -> tuple[str, TpuZone]:
    """Return name and facts of the zone in `projects/P/locations/Z...`. Raise 403, as Google does, if the zone does not exist."""
    zone = name.split("/")[3]
    found = cloud.scenario.tpu.zones.get(zone)
    if found is None:
        raise CloudError.denied(f"Permission denied on 'locations/{zone}' (or it may not exist).")
    return zone, found


def chips_of(accelerator_type: str) -> int:
    """Return the chips of a type such as v6e-4: the number counts chips for v5e and v6e."""
    return int(accelerator_type.rpartition("-")[2])


def accelerator_of(node: JsonObject) -> str:
    """Return the accelerator type of a node, given by name or by version and topology."""
    if node.get("acceleratorType"):
        return str(node["acceleratorType"])
    config = part(node, "acceleratorConfig")
    family = next((key for key, value in _FAMILIES.items() if value == config.get("type")), "")
    chips = 1
    for side in str(config.get("topology", "0")).split("x"):
        chips *= int(side) if side.isdigit() else 0
    return f"{family}-{chips}"


def accelerator_document(zone_name: str, accelerator_type: str) -> JsonObject:
    """Return an AcceleratorType as the catalog shows it. `zone_name` is projects/P/locations/Z."""
    family, _, count = accelerator_type.rpartition("-")
    config = {"type": _FAMILIES.get(family, "TYPE_UNSPECIFIED"), "topology": _TOPOLOGIES.get(count, f"1x{count}")}
    return {
        "name": f"{zone_name}/acceleratorTypes/{accelerator_type}",
        "type": accelerator_type,
        "acceleratorConfigs": [config],
    }


def quota_name(accelerator_type: str, *, preemptible: bool) -> str:
    """Return the quota id for nodes of this type."""
    family = _QUOTA_NAMES.get(accelerator_type.rpartition("-")[0], "TPU")
    return f"{family}{'Preemptible' if preemptible else ''}PerProjectPerZoneForTPUAPI"


def preemptible(body: JsonObject) -> bool:
    """Return whether a queued resource uses preemptible quota, as spot and flex-start do."""
    return body.get("provisioningModel") in {"SPOT", "FLEX_START"} or "spot" in body or "bestEffort" in body


def check(cloud: Cloud, parent: str, body: JsonObject) -> list[tuple[str, JsonObject]]:
    """Check a request and return the nodes to create, as pairs of id and Node. Raise Cloud TPU's error for an invalid one."""
    _, facts = zone_of(cloud, parent)
    specs: list[JsonObject] = parts(part(body, "tpu"), "nodeSpec")
    if not specs:
        raise CloudError.field(
            "queued_resource.tpu.node_spec", "Field 'queued_resource.tpu.node_spec' must hold at least one node."
        )
    _check_tier(body)
    _check_run(cloud, body)
    nodes: list[tuple[str, JsonObject]] = []
    for index, spec in enumerate(specs):
        nodes += _nodes_of(cloud, parent, spec, f"queued_resource.tpu.node_spec[{index}]")
    ids = [node_id for node_id, _ in nodes]
    if len(set(ids)) != len(ids):
        raise CloudError.field("queued_resource.tpu.node_spec", f"The node ids {', '.join(ids)} are not unique.")
    for node_id, node in nodes:
        _check_node(cloud, parent, facts, node)
        if cloud.store.has("tpu.nodes", f"{parent}/nodes/{node_id}") or node_id in _claimed(cloud, parent):
            raise CloudError.already_exists(f"Resource '{parent}/nodes/{node_id}' already exists.")
    return nodes


def _check_tier(body: JsonObject) -> None:
    tiers = [tier for tier in _TIERS if tier in body]
    if len(tiers) > 1:
        raise CloudError.field("queued_resource", f"Only one of {', '.join(_TIERS)} may be given.")
    model = body.get("provisioningModel", _NO_MODEL)
    if tiers and model not in {*_TIERS[tiers[0]], _NO_MODEL}:
        raise CloudError.field(
            "queued_resource.provisioning_model",
            f"The provisioning model {model} cannot be combined with '{tiers[0]}'.",
        )


def unsupported_model(cloud: Cloud, parent: str, body: JsonObject) -> CloudError | None:
    """Return why the zone does not accept the provisioning model. Google reports it in the operation, and no resource exists then.

    Source: a public log of gcloud, 2026-06-30, with this message and code 3 after "Waiting for operation".
    """
    zone, facts = zone_of(cloud, parent)
    if body.get("provisioningModel") != "FLEX_START" or facts.flex_start:
        return None
    accelerator = accelerator_of(parts(part(body, "tpu"), "nodeSpec")[0]["node"])
    return CloudError.invalid(
        f'FLEX_START provisioning model is not supported for accelerator type "{accelerator}" in location "{zone}"'
    )


def _claimed(cloud: Cloud, parent: str) -> set[str]:
    """Return the node ids that queued resources of the zone have requested and can still get."""
    waiting = (document for _, document in cloud.store.under("tpu.queuedResources", parent + "/queuedResources/"))
    return {
        node_id
        for document in waiting
        if document["_machine"]["state"] not in {"SUSPENDED", "FAILED", "DELETING"}
        for node_id in document["_nodes"]
    }


def _check_run(cloud: Cloud, body: JsonObject) -> None:
    flex = body.get("provisioningModel") == "FLEX_START"
    run = part(body, "runDuration")
    path = "queued_resource.run_duration.max_run_duration"
    if not flex:
        if run:
            raise CloudError.field(
                "queued_resource.run_duration", "run_duration is supported with the provisioning model FLEX_START only."
            )
        return
    if "maxRunDuration" not in run:
        raise CloudError.field(path, "max_run_duration must be specified for the provisioning model FLEX_START.")
    most_s = cloud.scenario.tpu.max_flex_start_run_s
    given_s = seconds(run["maxRunDuration"])
    if not 0 < given_s <= most_s:
        raise CloudError.field(
            path,
            f"max_run_duration must be greater than 0 and at most {most_s:.0f}s (7 days) for FLEX_START; given {run['maxRunDuration']}.",
        )


def _nodes_of(cloud: Cloud, parent: str, spec: JsonObject, path: str) -> list[tuple[str, JsonObject]]:
    given = str(spec.get("parent", "")).split("/")
    if len(given) > 1:
        given[1] = cloud.project_id(given[1]) or given[1]
    if "/".join(given) != parent:
        raise CloudError.field(
            f"{path}.parent",
            f"The parent of a node must be the queued resource's own, '{parent}'; given '{spec.get('parent', '')}'.",
        )
    if not spec.get("node"):
        raise CloudError.field(f"{path}.node", f"Field '{path}.node' must be given.")
    many = spec.get("multiNodeParams")
    if many and spec.get("nodeId"):
        raise CloudError.field(path, "node_id and multi_node_params cannot both be given.")
    if many:
        count = int(many.get("nodeCount", 0))
        if not 1 <= count <= _MAX_NODES:
            raise CloudError.field(
                f"{path}.multi_node_params.node_count", f"node_count must be from 1 to {_MAX_NODES}; given {count}."
            )
        prefix = many.get("nodeIdPrefix") or "node"
        return [(f"{prefix}-{index}", spec["node"]) for index in range(count)]
    if re.fullmatch(QUEUED_ID, str(spec.get("nodeId", ""))) is None:
        raise CloudError.field(
            f"{path}.node_id", f"Invalid node id '{spec.get('nodeId', '')}': it must match '{QUEUED_ID}'."
        )
    return [(str(spec["nodeId"]), spec["node"])]


def _check_node(cloud: Cloud, parent: str, facts: TpuZone, node: JsonObject) -> None:
    zone, project = parent.split("/")[3], parent.split("/")[1]
    if bool(node.get("acceleratorType")) == bool(node.get("acceleratorConfig")):
        raise CloudError.field(
            "node.accelerator_type", "Exactly one of accelerator_type and accelerator_config must be specified."
        )
    accelerator = accelerator_of(node)
    if accelerator not in facts.accelerator_types:
        raise CloudError.field(
            "node.accelerator_type",
            f'Cloud TPU received a bad request. The requested accelerator configuration for accelerator type, "{accelerator}", '
            f'could not be found in the zonal accelerator configurations for "{zone}".; '
            f"the accelerator {accelerator} was not found in zone {zone}",
        )
    if node.get("runtimeVersion") not in cloud.scenario.tpu.runtime_versions:
        raise CloudError.field(
            "node.runtime_version",
            f"Runtime version '{node.get('runtimeVersion', '')}' not found in zone {zone}; available are {', '.join(cloud.scenario.tpu.runtime_versions)}.",
        )
    _check_boot_disk(node)
    check_changeable(node)
    if node.get("networkConfig") and node.get("networkConfigs"):
        raise CloudError.field("node.network_config", "network_config and network_configs are mutually exclusive.")
    account = str(part(node, "serviceAccount").get("email", ""))
    if cloud.policies.lacks_account(account):
        raise CloudError.denied(
            f"Permission 'iam.serviceAccounts.actAs' denied on service account {account} (or it may not exist)."
        )
    networks_of(cloud, project, zone, node)


def account_of(cloud: Cloud, project: str, node: JsonObject) -> str:
    """Return the email of the account that a node runs as: its own, or the project's default one."""
    return str(part(node, "serviceAccount").get("email") or cloud.default_account(project))


def _check_boot_disk(node: JsonObject) -> None:
    """Reject a boot disk that is smaller than the image: "It must be larger than or equal to the size of the image." (discovery).

    Google does not state the image's size; the local cloud uses the size of the default disk.
    """
    size = part(node, "bootDiskConfig").get("diskSizeGb")
    if size is not None and int(size) < _DEFAULT_BOOT_DISK_GB:
        raise CloudError.field(
            "node.boot_disk_config.disk_size_gb",
            f"Requested disk size cannot be smaller than the image size ({_DEFAULT_BOOT_DISK_GB} GB); given {size} GB.",
        )


def networks_of(cloud: Cloud, project: str, zone: str, node: JsonObject) -> list[str]:
    """Return the full names of the networks and subnetworks of a node. Raise 404 if one does not exist."""
    configs: list[JsonObject] = parts(node, "networkConfigs") or [part(node, "networkConfig")]
    names: list[str] = []
    for config in configs:
        names += networks.resolve_pair(
            cloud, project, zone.rpartition("-")[0], config.get("network"), config.get("subnetwork")
        )
    return names


def check_changeable(node: JsonObject) -> None:
    """Check the fields that both a creation and a patch can set: description, labels, metadata."""
    if len(node.get("description") or "") > _MAX_DESCRIPTION:
        raise CloudError.field(
            "node.description",
            f"The description has {len(node['description'])} characters; at most {_MAX_DESCRIPTION} are allowed.",
        )
    check_labels(node.get("labels"), "node.labels")
    total = 0
    for key, value in part(node, "metadata").items():
        size = len(str(value).encode())
        total += size + len(key)
        if size > _MAX_METADATA_VALUE_BYTES:
            raise CloudError.field(
                "node.metadata",
                f"The metadata value of '{key}' has {size} bytes; at most {_MAX_METADATA_VALUE_BYTES} are allowed.",
            )
    if total > _MAX_METADATA_BYTES:
        raise CloudError.field(
            "node.metadata", f"The metadata has {total} bytes in all; at most {_MAX_METADATA_BYTES} are allowed."
        )


def validity(policy: JsonObject, *, simulated_s: float, now: datetime) -> tuple[float, float | None]:
    """Return the start and end of validity in simulated seconds."""

    def at(text: str) -> float:
        return simulated_s + (datetime.fromisoformat(text) - now).total_seconds()

    interval = part(policy, "validInterval")
    after, until = simulated_s, None
    if "validAfterDuration" in policy:
        after = simulated_s + seconds(policy["validAfterDuration"])
    if "validAfterTime" in policy or "startTime" in interval:
        after = at(policy.get("validAfterTime") or interval["startTime"])
    if "validUntilDuration" in policy:
        until = simulated_s + seconds(policy["validUntilDuration"])
    if "validUntilTime" in policy or "endTime" in interval:
        until = at(policy.get("validUntilTime") or interval["endTime"])
    if until is not None and until <= max(after, simulated_s):
        raise CloudError.field(
            "queued_resource.queueing_policy",
            "The queueing policy's valid-until time must lie after its valid-after time and after now.",
        )
    return after, until
