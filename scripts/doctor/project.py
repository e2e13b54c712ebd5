"""Checks of the project: APIs, permissions, organization policies."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from gemma_serving.cloud.enabled import SERVICE_USAGE, read_enabled_apis
from gemma_serving.cloud.quotas import VIEWER
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok
from gemma_serving.scripts.doctor.permissions import RolePermissions, permissions_of, permissions_of_gateway
from gemma_serving.stacks.apis import COMMON_APIS, GATEWAY_APIS, LOG_APIS, apis_of

FIRST_APIS: Final = ("serviceusage", "cloudresourcemanager")
"""APIs that must be enabled first, because the provider calls them before the stack can enable others."""
_MANAGER: Final = "cloudresourcemanager"
_POLICY_VIEWER: Final = "roles/orgpolicy.policyViewer"
_POLICIES: Final = "gcloud resource-manager org-policies"
_Constraint = tuple[str, Callable[[Mapping[str, object]], str], str]
"""Name of an organization policy constraint, what its effective policy blocks (empty: nothing), and the command, which needs
roles/orgpolicy.policyAdmin on the organization."""


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the checks of a project. Each sends one request."""
    yield checkup.calling("APIs", SERVICE_USAGE, VIEWER, partial(_apis, checkup))
    gateway = checkup.gateway
    for needed in permissions_of_gateway(gateway) if gateway else permissions_of(checkup.settings):
        name = f"permissions of {needed.role.removeprefix('roles/')}"
        yield checkup.calling(name, _MANAGER, needed.role, partial(_permissions, checkup, needed))
    for constraint in _constraints(checkup):
        yield checkup.calling(
            f"policy {constraint[0]}", _MANAGER, _POLICY_VIEWER, partial(_policy, checkup, *constraint)
        )


def _apis(checkup: Checkup) -> Iterator[Diagnosis]:
    own = GATEWAY_APIS if checkup.gateway else COMMON_APIS
    needed = (*apis_of(checkup.settings), *LOG_APIS) if checkup.settings else own
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
    if lacking:
        yield missing(f"missing permissions: {', '.join(lacking)}", checkup.grant(needed.role))
    else:
        yield ok(f"{len(needed.permissions)} granted")


def _constraints(checkup: Checkup) -> Iterator[_Constraint]:
    """Yield the constraints that can block a stack. A TPU node has no external address, so `compute.vmExternalIpAccess` is not one."""
    name, settings = "iam.disableServiceAccountCreation", checkup.settings
    why = "service accounts cannot be created, but the server needs one"
    yield name, partial(_refuses, why), f"{_POLICIES} disable-enforce {name} --project={checkup.project}"
    if settings and settings.tpu:
        name = "compute.disableGuestAttributesAccess"
        why = "`gemma up` cannot read whether the server is ready, and gcloud cannot open a tunnel"
        yield name, partial(_refuses, why), f"{_POLICIES} disable-enforce {name} --project={checkup.project}"
        if settings.tpu.ssh == "metadata-key":
            why = "tpu.ssh is metadata-key, but SSH keys in metadata are forbidden"
            fix = f"pulumi config set --stack {checkup.stack} --path gemma-serving:tpu.ssh os-login"
            yield "compute.requireOsLogin", partial(_refuses, why), fix
    placed = settings or checkup.gateway
    for region in placed.regions if placed else ():
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
    yield missing(refused, fix) if refused else ok("allows everything the stack needs")


def _refuses(consequence: str, policy: Mapping[str, object]) -> str:
    return consequence if as_mapping(policy.get("booleanPolicy")).get("enforced") else ""


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
