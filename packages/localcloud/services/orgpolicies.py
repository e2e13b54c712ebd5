"""Cloud Resource Manager v1: organization policies of a project, and the requests that they reject.

An unset policy has its constraint's default: everything is allowed. The local cloud enforces six constraints:
`iam.disableServiceAccountCreation` and its message: IAM's page on creating service accounts (Troubleshooting).
`iam.allowedPolicyMemberDomains`, `gcp.resourceLocations`, `compute.disableGuestAttributesAccess`, `compute.requireOsLogin` and
`compute.vmExternalIpAccess`: Google's messages in public logs. Cloud TPU's messages for the last three
are assumed to equal Compute Engine's, with the status of the Cloud TPU API.
"""

from collections.abc import Callable, Iterator, Mapping

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method
from localcloud.world.cloud import Cloud

_KIND = "orgpolicies"
_GUEST_ATTRIBUTES = "constraints/compute.disableGuestAttributesAccess"
_OS_LOGIN = "constraints/compute.requireOsLogin"
_EXTERNAL_IP = "constraints/compute.vmExternalIpAccess"
_BOOLEAN = {"constraints/iam.disableServiceAccountCreation", _GUEST_ATTRIBUTES, _OS_LOGIN}
_EVERYBODY = {"allUsers", "allAuthenticatedUsers"}


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of organization policies."""
    return _OrgPolicies(cloud).handlers()


def enforce(cloud: Cloud, call: Call, project: str) -> None:
    """Raise 400 or 412 if an organization policy of the project rejects the call."""
    violated = next((name for name, violates in _MACHINE_RULES.items() if violates(cloud, call, project)), None)
    if violated is not None:
        text = f"Constraint {violated} violated for project {cloud.project_number(project)}."
        is_compute = call.document.api == "compute"
        raise CloudError.condition_not_met(text) if is_compute else CloudError.precondition(text)
    if call.method.id == "iam.projects.serviceAccounts.create":
        _check_account_creation(cloud, project)
    elif call.method.id.endswith(".setIamPolicy"):
        _check_members(cloud, call, project)
    elif call.method.id.endswith((".create", ".insert")):
        _check_location(cloud, call, project)


class _OrgPolicies(ApiService):
    prefix = "cloudresourcemanager.projects"

    @method("getEffectiveOrgPolicy")
    def effective(self, call: Call) -> JsonObject:
        constraint = str(call.body.get("constraint", ""))
        policy = _effective(self._cloud, _project(call), constraint)
        return {key: value for key, value in policy.items() if key != "etag"}

    @method("setOrgPolicy")
    def set(self, call: Call) -> JsonObject:
        policy = part(call.body, "policy")
        constraint = str(policy.get("constraint", ""))
        if not constraint.startswith("constraints/"):
            raise CloudError.field("policy.constraint", f"Invalid constraint '{constraint}'.")
        rule = part(policy, "listPolicy")
        if rule.get("allValues") in {"ALLOW", "DENY"} and (rule.get("allowedValues") or rule.get("deniedValues")):
            raise CloudError.field(
                "policy.list_policy", "If all_values is ALLOW or DENY, allowed_values and denied_values must be unset."
            )
        stored = {**policy, "etag": self._cloud.ids.etag()}
        return self._store.put(_KIND, f"{_project(call)}/{constraint}", stored)


def _project(call: Call) -> str:
    return call.name.removeprefix("projects/")


def _effective(cloud: Cloud, project: str, constraint: str) -> JsonObject:
    default: JsonObject = {"booleanPolicy": {}} if constraint in _BOOLEAN else {"listPolicy": {"allValues": "ALLOW"}}
    return cloud.store.get(_KIND, f"{project}/{constraint}") or {"constraint": constraint, **default}


def _hides_guest_attributes(cloud: Cloud, call: Call, project: str) -> bool:
    return call.method.id.endswith(".getGuestAttributes") and _enforced(cloud, project, _GUEST_ATTRIBUTES)


def _forbids_metadata_keys(cloud: Cloud, call: Call, project: str) -> bool:
    """Return whether a request sets `enable-oslogin` to false, which the policy rejects (Compute Engine, "Manage OS Login in an organization")."""
    if call.method.id not in _WITH_METADATA or not _enforced(cloud, project, _OS_LOGIN):
        return False
    return any(found.get("enable-oslogin", "").upper() == "FALSE" for found in _metadata(call.body))


def _forbids_external_ip(cloud: Cloud, call: Call, project: str) -> bool:
    if call.method.id not in {*_WITH_METADATA, "compute.instances.addAccessConfig"}:
        return False
    policy = part(_effective(cloud, project, _EXTERNAL_IP), "listPolicy")
    if policy.get("allValues") == "ALLOW":
        return False
    node = any(part(each, "networkConfig").get("enableExternalIps") for each in _nodes(call.body))
    interfaces: list[JsonObject] = parts(call.body, "networkInterfaces")
    instance = any(each.get("accessConfigs") for each in interfaces)
    return bool(node or instance or call.method.id == "compute.instances.addAccessConfig")


_WITH_METADATA = frozenset(
    {
        "tpu.projects.locations.queuedResources.create",
        "tpu.projects.locations.nodes.create",
        "tpu.projects.locations.nodes.patch",
        "compute.instances.insert",
        "compute.instances.setMetadata",
    }
)
"""Methods whose bodies can contain a machine's metadata or external address."""
_MACHINE_RULES: Mapping[str, Callable[[Cloud, Call, str], bool]] = {
    _GUEST_ATTRIBUTES: _hides_guest_attributes,
    _OS_LOGIN: _forbids_metadata_keys,
    _EXTERNAL_IP: _forbids_external_ip,
}


def _enforced(cloud: Cloud, project: str, constraint: str) -> bool:
    return bool(part(_effective(cloud, project, constraint), "booleanPolicy").get("enforced"))


def _nodes(body: JsonObject) -> list[JsonObject]:
    """Return the nodes of a body: a queued resource's nodes, or the node itself."""
    return [body, *(part(spec, "node") for spec in parts(part(body, "tpu"), "nodeSpec"))]


def _metadata(body: JsonObject) -> Iterator[Mapping[str, str]]:
    """Yield the metadata in a body: a map for nodes, a list of items for instances and `setMetadata`."""
    for node in _nodes(body):
        given = part(node, "metadata")
        items: list[JsonObject] = [*parts(node, "items"), *parts(given, "items")]
        yield {str(item.get("key")): str(item.get("value") or "") for item in items}
        yield {key: value for key, value in given.items() if isinstance(value, str)}


def _check_account_creation(cloud: Cloud, project: str) -> None:
    policy = _effective(cloud, project, "constraints/iam.disableServiceAccountCreation")
    if part(policy, "booleanPolicy").get("enforced"):
        raise CloudError.precondition("Service account creation is not allowed on this project.")


def _check_members(cloud: Cloud, call: Call, project: str) -> None:
    policy = part(_effective(cloud, project, "constraints/iam.allowedPolicyMemberDomains"), "listPolicy")
    bindings: list[JsonObject] = parts(part(call.body, "policy") or call.body, "bindings")
    named = {member for binding in bindings for member in strings(binding, "members")}
    if policy.get("allValues") != "ALLOW" and named & _EVERYBODY:
        raise CloudError.precondition(
            "One or more users named in the policy do not belong to a permitted customer, perhaps due to an organization policy."
        )


def _check_location(cloud: Cloud, call: Call, project: str) -> None:
    location = _location(call)
    policy = part(_effective(cloud, project, "constraints/gcp.resourceLocations"), "listPolicy")
    if not location or _allows(policy, location):
        return
    kind = call.method.id.split(".")[-2]
    number = cloud.project_number(project)
    text = (
        f"Constraint constraints/gcp.resourceLocations violated for [orgpolicy:projects/{number}] attempting to create "
        f"{kind} in [{location}]. For more information, see "
        "https://cloud.google.com/resource-manager/docs/organization-policy/defining-locations."
    )
    raise CloudError.condition_not_met(text) if call.document.api == "storage" else CloudError.precondition(text)


def _location(call: Call) -> str:
    """Return the region or zone in which a call creates a resource, or an empty text."""
    if call.method.id == "storage.buckets.insert":
        return str(call.body.get("location", "US")).lower()
    place = call.path.get("region") or call.path.get("zone")
    found = call.path.get("parent", "").partition("/locations/")[2]
    return place or found.partition("/")[0]


def _allows(policy: JsonObject, location: str) -> bool:
    """Return whether a list policy allows a location. `in:us-locations` allows all whose name starts with `us-`, `in:us-east4-locations` only that region."""
    if policy.get("allValues") in {"ALLOW", "DENY"}:
        return policy["allValues"] == "ALLOW"
    allowed, denied = strings(policy, "allowedValues"), strings(policy, "deniedValues")
    if any(_covers(value, location) for value in denied):
        return False
    return not allowed or any(_covers(value, location) for value in allowed)


def _covers(value: str, location: str) -> bool:
    if value.startswith("in:"):
        place = value.removeprefix("in:").removesuffix("-locations")
        return location == place or location.startswith(f"{place}-")
    return location == value.removeprefix("is:")
