"""Checks of the project: APIs, permissions, organization policies."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from gemma_serving.cloud.enabled import SERVICE_USAGE, read_enabled_apis
from gemma_serving.cloud.kinds import NETWORK, by_name
from gemma_serving.cloud.quotas import VIEWER
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown
from gemma_serving.scripts.doctor.permissions import CREATIONS, NETWORKS, READS, RolePermissions, permissions_of
from gemma_serving.stacks.apis import COMMON_APIS, apis_of

FIRST_APIS: Final = ("serviceusage", "cloudresourcemanager")
"""APIs that must be enabled first, because the provider calls them before the stack can enable others."""
_QUOTAS: Final = "https://console.cloud.google.com/iam-admin/quotas"
_MANAGER: Final = "cloudresourcemanager"
_POLICY_VIEWER: Final = "roles/orgpolicy.policyViewer"
_POLICIES: Final = "gcloud resource-manager org-policies"
_Constraint = tuple[str, Callable[[Mapping[str, object]], str], str]
"""Name of an organization policy constraint, what its effective policy blocks (empty: nothing), and the command, which needs
roles/orgpolicy.policyAdmin on the organization."""

_OWN_KEYS: Final[Mapping[str, str]] = {
    "storage": "bucket.existing",
    "secretmanager": "hfTokenSecret and apiKeySecret instead of the secrets",
}
"""Settings that take a resource with the user's own key, by service."""


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the checks of a project. Each sends one request."""
    yield checkup.calling("APIs", SERVICE_USAGE, VIEWER, partial(_apis, checkup))
    permissions = permissions_of(checkup.settings)
    for needed in permissions:
        name = f"permissions of {needed.role.removeprefix('roles/')}"
        yield checkup.calling(name, _MANAGER, needed.role, partial(_permissions, checkup, needed))
    if NETWORKS in permissions:
        yield checkup.calling("quota of networks", "compute", "roles/compute.viewer", partial(_networks, checkup))
    if checkup.settings and checkup.settings.tpu and checkup.settings.tpu.api == "compute-engine":
        name = "quota of chips in all regions"
        yield checkup.calling(name, "compute", "roles/compute.viewer", partial(_all_regions, checkup))
    for constraint in _constraints(checkup):
        yield checkup.calling(
            f"policy {constraint[0]}", _MANAGER, _POLICY_VIEWER, partial(_policy, checkup, *constraint)
        )


def _networks(checkup: Checkup) -> Iterator[Diagnosis]:
    """Yield whether the project can have another network: a stack creates one. That of a deployed stack is in use already."""
    is_deployed = any(each.get("type") == by_name(NETWORK).type_ for each in checkup.state.resources)
    yield _project_quota(checkup, "NETWORKS", "networks", 0 if is_deployed else 1)


def _all_regions(checkup: Checkup) -> Iterator[Diagnosis]:
    """Yield whether the project's quota of all regions suffices. By one report it counts the chips of TPUs, so it stops no `up`."""
    tpu = checkup.settings.tpu if checkup.settings else None
    chips = int(tpu.accelerator_type.rpartition("-")[2]) if tpu and not checkup.state.has_server else 0
    yield replace(_project_quota(checkup, "GPUS_ALL_REGIONS", "chips", chips), blocks=False, required=False)


def _project_quota(checkup: Checkup, metric: str, unit: str, needed: int) -> Diagnosis:
    """Return whether a quota of the whole project leaves as many as needed."""
    quotas = as_sequence(checkup.google.get("compute", f"compute/v1/projects/{checkup.project}").get("quotas"))
    quota = next((as_mapping(each) for each in quotas if as_mapping(each).get("metric") == metric), None)
    if quota is None:
        return unknown(f"Google's response has no quota of {unit}", f"{_QUOTAS}?project={checkup.project}")
    limit, used = float(str(quota.get("limit"))), float(str(quota.get("usage")))
    detail = f"{limit:g} {unit}, {used:g} in use, {needed} needed"
    is_enough = not needed or used + needed <= limit
    return ok(detail) if is_enough else missing(detail, f"request {metric} at {_QUOTAS}?project={checkup.project}")


def _apis(checkup: Checkup) -> Iterator[Diagnosis]:
    needed = apis_of(checkup.settings) if checkup.settings else COMMON_APIS
    apis = tuple(dict.fromkeys((*FIRST_APIS, *needed)))
    enabled = read_enabled_apis(checkup.google, checkup.project, apis)
    for api in apis:
        found = ok("enabled") if api in enabled else missing("not enabled", checkup.enable(api))
        yield replace(found, check=f"API {api}")


def _permissions(checkup: Checkup, needed: RolePermissions) -> Iterator[Diagnosis]:
    path = f"v1/projects/{checkup.project}:testIamPermissions"
    answer = checkup.google.post(_MANAGER, path, {"permissions": list(needed.permissions)})
    held = as_sequence(answer.get("permissions"))
    lacking = [permission for permission in needed.permissions if permission not in held]
    if lacking and needed.by_name and CREATIONS.isdisjoint(lacking):
        detail = "not granted on the whole project; Google shows a grant that is limited to the stacks' names on the resource only"
        yield unknown(f"{detail}: {', '.join(lacking)}", checkup.grant(needed.role))
    elif lacking:
        is_needed = needed.role not in READS and not checkup.state.has_server
        yield missing(f"missing permissions: {', '.join(lacking)}", checkup.grant(needed.role), blocks=is_needed)
    else:
        yield ok(f"{len(needed.permissions)} granted")


def _constraints(checkup: Checkup) -> Iterator[_Constraint]:
    """Yield the constraints that can block a stack. A TPU node has no external address, so `compute.vmExternalIpAccess` is not one."""
    name, settings = "iam.disableServiceAccountCreation", checkup.settings
    why = "service accounts cannot be created, but the server needs one"
    yield name, partial(_refuses, why), f"{_POLICIES} disable-enforce {name} --project={checkup.project}"
    name, services = "gcp.restrictNonCmekServices", tuple(_own_resources(checkup))
    exempt = json.dumps({"constraint": f"constraints/{name}", "restoreDefault": {}})
    yield (
        name,
        partial(_refuses_own_keys, services),
        f"echo '{exempt}' | {_POLICIES} set-policy /dev/stdin --project={checkup.project}",
    )
    if settings and settings.tpu:
        name = "compute.disableGuestAttributesAccess"
        why = "`gemma up` cannot read whether the server is ready, and gcloud cannot open a tunnel"
        yield name, partial(_refuses, why), f"{_POLICIES} disable-enforce {name} --project={checkup.project}"
        if settings.tpu.ssh == "metadata-key":
            why = "tpu.ssh is metadata-key, but SSH keys in metadata are forbidden"
            fix = f"pulumi config set --stack {checkup.stack} --path gemma-serving:tpu.ssh os-login"
            yield "compute.requireOsLogin", partial(_refuses, why), fix
    for region in settings.regions if settings else ():
        name, value = "gcp.resourceLocations", f"in:{region}-locations"
        fix = f"{_POLICIES} allow {name} {value} --project={checkup.project}"
        yield f"{name} for {region}", partial(_refuses_location, region), fix
    if settings and settings.cloud_run and settings.cloud_run.public:
        name = "iam.allowedPolicyMemberDomains"
        yield name, _refuses_all_users, f"{_POLICIES} delete {name} --project={checkup.project}"


def _policy(
    checkup: Checkup, name: str, refusal: Callable[[Mapping[str, object]], str], fix: str
) -> Iterator[Diagnosis]:
    body = {"constraint": f"constraints/{name.partition(' ')[0]}"}
    refused = refusal(checkup.google.post(_MANAGER, f"v1/projects/{checkup.project}:getEffectiveOrgPolicy", body))
    is_new = not checkup.state.has_server
    yield missing(refused, fix, blocks=is_new) if refused else ok("allows everything the stack needs")


def _refuses(consequence: str, policy: Mapping[str, object]) -> str:
    return consequence if as_mapping(policy.get("booleanPolicy")).get("enforced") else ""


def _own_resources(checkup: Checkup) -> Iterator[str]:
    """Yield the services of the stack's own resources for which an organization can require customer-managed keys. A stack sets no such key."""
    settings = checkup.settings
    yield "artifactregistry"
    if settings and settings.cloud_run:
        yield "run"
    if settings and settings.uses_bucket and not settings.bucket.existing:
        yield "storage"
    if settings and (settings.secrets or settings.archives_programs):
        yield "secretmanager"
    if settings and settings.tpu and settings.tpu.api == "compute-engine":
        yield "compute"


def _refuses_own_keys(services: Sequence[str], policy: Mapping[str, object]) -> str:
    rule = as_mapping(policy.get("listPolicy"))
    denied = {str(value).removeprefix("is:") for value in as_sequence(rule.get("deniedValues"))}
    found = [one for one in services if f"{one}.googleapis.com" in denied or rule.get("allValues") == "DENY"]
    if not found:
        return ""
    ways = [_OWN_KEYS[one] for one in found if one in _OWN_KEYS]
    instead = f", or set {' and '.join(ways)}" if len(ways) == len(found) else ""
    return (
        f"customer-managed keys are required for {', '.join(found)}, but a stack sets none. Exempt the project{instead}"
    )


def _refuses_all_users(policy: Mapping[str, object]) -> str:
    rule = as_mapping(policy.get("listPolicy"))
    free = not rule or rule.get("allValues") == "ALLOW"
    return "" if free else "cloudRun.public is set, but allUsers cannot be granted a role"


def _refuses_location(region: str, policy: Mapping[str, object]) -> str:
    rule = as_mapping(policy.get("listPolicy"))
    allowed = [str(value) for value in as_sequence(rule.get("allowedValues"))]
    denied = [str(value) for value in as_sequence(rule.get("deniedValues"))]
    if rule.get("allValues") == "DENY" or any(_covers(value, region) for value in denied):
        return f"{region} is denied"
    if allowed and not any(_covers(value, region) for value in allowed):
        return f"{region} is not allowed; allowed: {', '.join(allowed)}"
    return ""


def _covers(value: str, region: str) -> bool:
    """Return whether a value of a location policy covers a region: the region itself, or a value group for it or its continent."""
    place = value.removeprefix("is:").removeprefix("in:").removesuffix("-locations")
    return region == place or (value.startswith("in:") and region.startswith(f"{place}-"))
