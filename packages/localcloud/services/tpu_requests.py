"""Validation of requests for a queued resource, and the content of Cloud TPU's catalogs."""

import re
from collections.abc import Sequence
from datetime import datetime

from localcloud.json_values import JsonObject, part, parts
from localcloud.rest.errors import CloudError
from localcloud.services import networks
from localcloud.services.capacity_words import zone_without_accelerator
from localcloud.services.checks import Rules, check_labels, obey
from localcloud.world.catalog import generation_of_type, tpu_generations
from localcloud.world.cloud import Cloud
from localcloud.world.scenario import TpuZone
from localcloud.world.timeline import seconds

QUEUED_ID = r"[A-Za-z0-9_.~+%-]{1,128}"
_SPECS = "queued_resource.tpu.node_spec"
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


def zone_of(cloud: Cloud, name: str) -> tuple[str, TpuZone]:
    """Return name and facts of the zone in `projects/P/locations/Z...`. Raise 403, as Google does, if the zone does not exist."""
    zone = name.split("/")[3]
    found = cloud.scenario.tpu.zones.get(zone)
    if found is None:
        raise CloudError.denied(f"Permission denied on 'locations/{zone}' (or it may not exist).")
    return zone, found


def chips_of(accelerator_type: str) -> int:
    """Return the chips of a type such as v6e-4. The number counts chips for v5e and v6e."""
    return int(accelerator_type.rpartition("-")[2])


def accelerator_of(node: JsonObject) -> str:
    """Return the accelerator type of a node, given by name or by version and topology."""
    if node.get("acceleratorType"):
        return str(node["acceleratorType"])
    config = part(node, "acceleratorConfig")
    kind = config.get("type")
    family = next((key for key, one in tpu_generations().items() if one.config_type == kind), "")
    chips = 1
    for side in str(config.get("topology", "0")).split("x"):
        chips *= int(side) if side.isdigit() else 0
    return f"{family}-{chips}"


def accelerator_document(zone_name: str, accelerator_type: str) -> JsonObject:
    """Return an AcceleratorType as the catalog shows it. `zone_name` is projects/P/locations/Z."""
    generation, count = generation_of_type(accelerator_type), accelerator_type.rpartition("-")[2]
    kind, topology = "TYPE_UNSPECIFIED", f"1x{count}"
    if generation is not None:
        kind, topology = generation.config_type, generation.types.get(accelerator_type, topology)
    config = {"type": kind, "topology": topology}
    return {
        "name": f"{zone_name}/acceleratorTypes/{accelerator_type}",
        "type": accelerator_type,
        "acceleratorConfigs": [config],
    }


def quota_name(accelerator_type: str, *, preemptible: bool) -> str:
    """Return the quota id for nodes of this type."""
    generation = generation_of_type(accelerator_type)
    family = "TPU" if generation is None else generation.quota_id
    return f"{family}{'Preemptible' if preemptible else ''}PerProjectPerZoneForTPUAPI"


def model_of(body: JsonObject) -> str:
    """Return the provisioning model of a queued resource. gcloud sends STANDARD with each tier, and the tier decides."""
    if "spot" in body or "bestEffort" in body:
        return "SPOT"
    model = str(body.get("provisioningModel", _NO_MODEL))
    return "STANDARD" if model == _NO_MODEL else model


def preemptible(body: JsonObject) -> bool:
    """Return whether a queued resource uses preemptible quota, as spot and flex-start do."""
    return model_of(body) in {"SPOT", "FLEX_START"}


def check(cloud: Cloud, parent: str, body: JsonObject) -> list[tuple[str, JsonObject]]:
    """Check a request and return the nodes to create, as pairs of id and Node. Raise Cloud TPU's error for an invalid one."""
    _, facts = zone_of(cloud, parent)
    specs: list[JsonObject] = parts(part(body, "tpu"), "nodeSpec")
    obey(_of_request(cloud, body, specs))
    nodes: list[tuple[str, JsonObject]] = []
    for index, spec in enumerate(specs):
        obey(_of_spec(cloud, parent, spec, f"{_SPECS}[{index}]"))
        nodes += _nodes_of(spec)
    ids = [node_id for node_id, _ in nodes]
    obey([(len(set(ids)) == len(ids), _SPECS, f"The node ids {', '.join(ids)} are not unique.")])
    for node_id, node in nodes:
        _check_node(cloud, parent, facts, node)
        if cloud.store.has("tpu.nodes", f"{parent}/nodes/{node_id}") or node_id in _claimed(cloud, parent):
            raise CloudError.already_exists(f"Resource '{parent}/nodes/{node_id}' already exists.")
    return nodes


def _of_request(cloud: Cloud, body: JsonObject, specs: list[JsonObject]) -> Rules:
    yield bool(specs), _SPECS, f"Field '{_SPECS}' must hold at least one node."
    tiers = [tier for tier in _TIERS if tier in body]
    model = body.get("provisioningModel", _NO_MODEL)
    yield len(tiers) <= 1, "queued_resource", f"Only one of {', '.join(_TIERS)} may be given."
    allowed = not tiers or model in {*_TIERS[tiers[0]], _NO_MODEL}
    combined = f"The provisioning model {model} cannot be combined with '{next(iter(tiers), '')}'."
    yield allowed, "queued_resource.provisioning_model", combined
    run = part(body, "runDuration")
    if model != "FLEX_START":
        other = "run_duration is supported with the provisioning model FLEX_START only."
        yield not run, "queued_resource.run_duration", other
        return
    path, given = "queued_resource.run_duration.max_run_duration", run.get("maxRunDuration")
    yield given is not None, path, "max_run_duration must be specified for the provisioning model FLEX_START."
    most_s = cloud.scenario.tpu.max_flex_start_run_s
    limits = (
        f"max_run_duration must be greater than 0 and at most {most_s:.0f}s (7 days) for FLEX_START; given {given}."
    )
    yield 0 < seconds(str(given)) <= most_s, path, limits


def unsupported_model(cloud: Cloud, parent: str, body: JsonObject) -> CloudError | None:
    """Return why the zone does not accept the provisioning model. Google reports it in the operation, without a resource.

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


def _of_spec(cloud: Cloud, parent: str, spec: JsonObject, path: str) -> Rules:
    given = str(spec.get("parent", "")).split("/")
    if len(given) > 1:
        given[1] = cloud.project_id(given[1]) or given[1]
    own = f"The parent of a node must be the queued resource's own, '{parent}'; given '{spec.get('parent', '')}'."
    yield "/".join(given) == parent, f"{path}.parent", own
    yield bool(spec.get("node")), f"{path}.node", f"Field '{path}.node' must be given."
    many, node_id = part(spec, "multiNodeParams"), str(spec.get("nodeId", ""))
    yield not (many and node_id), path, "node_id and multi_node_params cannot both be given."
    count = int(many.get("nodeCount", 0))
    number = f"node_count must be from 1 to {_MAX_NODES}; given {count}."
    yield not many or 1 <= count <= _MAX_NODES, f"{path}.multi_node_params.node_count", number
    valid = bool(many) or re.fullmatch(QUEUED_ID, node_id) is not None
    yield valid, f"{path}.node_id", f"Invalid node id '{node_id}': it must match '{QUEUED_ID}'."


def _nodes_of(spec: JsonObject) -> list[tuple[str, JsonObject]]:
    many = part(spec, "multiNodeParams")
    prefix = many.get("nodeIdPrefix") or "node"
    ids = [f"{prefix}-{index}" for index in range(int(many.get("nodeCount", 0)))] or [str(spec["nodeId"])]
    return [(node_id, spec["node"]) for node_id in ids]


def _check_node(cloud: Cloud, parent: str, facts: TpuZone, node: JsonObject) -> None:
    zone, project = parent.split("/")[3], parent.split("/")[1]
    obey(_of_machine(zone, facts, cloud.scenario.tpu.runtime_versions, node))
    check_changeable(node)
    both = node.get("networkConfig") and node.get("networkConfigs")
    obey([(not both, "node.network_config", "network_config and network_configs are mutually exclusive.")])
    account = str(part(node, "serviceAccount").get("email", ""))
    if cloud.policies.lacks_account(account):
        raise CloudError.denied(
            f"Permission 'iam.serviceAccounts.actAs' denied on service account {account} (or it may not exist)."
        )
    networks_of(cloud, project, zone, node)


def _of_machine(zone: str, facts: TpuZone, versions: Sequence[str], node: JsonObject) -> Rules:
    """Yield the rules of a node's hardware and image.

    Boot disk: "It must be larger than or equal to the size of the image." (discovery). Google does not state the image's size; the local cloud
    uses the size of the default disk.
    """
    kind = "node.accelerator_type"
    accelerator = accelerator_of(node)
    version = node.get("runtimeVersion", "")
    one = bool(node.get("acceleratorType")) != bool(node.get("acceleratorConfig"))
    yield one, kind, "Exactly one of accelerator_type and accelerator_config must be specified."
    yield accelerator in facts.accelerator_types, kind, zone_without_accelerator(accelerator, zone)
    known = f"Runtime version '{version}' not found in zone {zone}; available are {', '.join(versions)}."
    yield version in versions, "node.runtime_version", known
    size = int(part(node, "bootDiskConfig").get("diskSizeGb", _DEFAULT_BOOT_DISK_GB))
    small = f"Requested disk size cannot be smaller than the image size ({_DEFAULT_BOOT_DISK_GB} GB); given {size} GB."
    yield size >= _DEFAULT_BOOT_DISK_GB, "node.boot_disk_config.disk_size_gb", small


def account_of(cloud: Cloud, project: str, node: JsonObject) -> str:
    """Return the email of the account that a node runs as: its own, or the project's default one."""
    return str(part(node, "serviceAccount").get("email") or cloud.default_account(project))


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
    description = str(node.get("description") or "")
    metadata = part(node, "metadata")
    long = f"The description has {len(description)} characters; at most {_MAX_DESCRIPTION} are allowed."
    obey([(len(description) <= _MAX_DESCRIPTION, "node.description", long)])
    check_labels(node.get("labels"), "node.labels")
    sizes = {key: len(str(value).encode()) for key, value in metadata.items()}
    obey(
        (
            size <= _MAX_METADATA_VALUE_BYTES,
            "node.metadata",
            f"The metadata value of '{key}' has {size} bytes; at most {_MAX_METADATA_VALUE_BYTES} are allowed.",
        )
        for key, size in sizes.items()
    )
    total = sum(sizes.values()) + sum(map(len, sizes))
    long = f"The metadata has {total} bytes in all; at most {_MAX_METADATA_BYTES} are allowed."
    obey([(total <= _MAX_METADATA_BYTES, "node.metadata", long)])


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
