"""Checks of the project: APIs, permissions, organization policies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cloud.enabled import SERVICE_USAGE, read_enabled_apis
from cloud.google_api import GoogleListError
from cloud.quotas import VIEWER
from contracts.fields import as_mapping, as_sequence
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis
from scripts.doctor.permissions import RolePermissions, permissions_of, permissions_of_gateway
from stacks.apis import COMMON_APIS, GATEWAY_APIS, LOG_APIS, apis_of
from stacks.settings import TpuSettings

FIRST_APIS: Final = ("serviceusage", "cloudresourcemanager")
"""APIs that must be enabled first, because the provider calls them before the stack can enable others."""
_POLICY_VIEWER: Final = "roles/orgpolicy.policyViewer"


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the checks of a project. Each sends one request."""
    yield Check(name="APIs", run=partial(_apis, checkup))
    gateway = checkup.gateway
    for needed in permissions_of_gateway(gateway) if gateway else permissions_of(checkup.settings):
        yield Check(name=f"permissions of {needed.role}", run=partial(_permissions, checkup, needed))
    for constraint in _constraints(checkup):
        yield Check(name=f"policy {constraint.name}", run=partial(_policy, checkup, constraint))


def _apis(checkup: Checkup) -> Sequence[Diagnosis]:
    settings = checkup.settings
    own = GATEWAY_APIS if checkup.gateway else COMMON_APIS
    needed = (*apis_of(settings), *LOG_APIS) if settings else own
    apis = tuple(dict.fromkeys((*FIRST_APIS, *needed)))
    try:
        enabled = read_enabled_apis(checkup.google, checkup.project, apis)
    except GoogleListError as error:
        line = checkup.refused("APIs", SERVICE_USAGE, VIEWER, error)
        return (line,)
    return [_api(checkup, api, enabled=api in enabled) for api in apis]


def _api(checkup: Checkup, api: str, *, enabled: bool) -> Diagnosis:
    if enabled:
        return Diagnosis(check=f"API {api}", state="ok", detail="enabled")
    return Diagnosis(check=f"API {api}", state="missing", detail="not enabled", fix=checkup.enable(api))


def _permissions(checkup: Checkup, needed: RolePermissions) -> Sequence[Diagnosis]:
    check = f"permissions of {needed.role.removeprefix('roles/')}"
    path = f"v1/projects/{checkup.project}:testIamPermissions"
    try:
        answer = checkup.google.post("cloudresourcemanager", path, {"permissions": list(needed.permissions)})
    except GoogleListError as error:
        return (checkup.refused(check, "cloudresourcemanager", needed.role, error),)
    held = set(as_sequence(answer.get("permissions")))
    lacking = [permission for permission in needed.permissions if permission not in held]
    if not lacking:
        return (Diagnosis(check=check, state="ok", detail=f"{len(needed.permissions)} granted"),)
    detail = f"missing permissions: {', '.join(lacking)}"
    return (Diagnosis(check=check, state="missing", detail=detail, fix=checkup.grant(needed.role)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constraint:
    """An organization policy constraint that can block a stack."""

    name: str
    refusal: Callable[[Mapping[str, object]], str]
    """Returns what the effective policy blocks; empty if it blocks nothing."""
    fix: str
    """The command, with `{p}` for the project. It needs roles/orgpolicy.policyAdmin on the organization."""


def _constraints(checkup: Checkup) -> Iterator[_Constraint]:
    yield _Constraint(
        name="iam.disableServiceAccountCreation",
        refusal=partial(_refuses, "service accounts cannot be created, but the server needs one"),
        fix="gcloud resource-manager org-policies disable-enforce iam.disableServiceAccountCreation --project={p}",
    )
    settings = checkup.settings
    if settings and settings.tpu:
        yield from _machine_constraints(checkup, settings.tpu)
    gateway = checkup.gateway.gateway if checkup.gateway else None
    regions = dict.fromkeys([gateway.region, *gateway.regions]) if gateway else ()
    for region in settings.regions if settings else regions:
        yield _Constraint(
            name=f"gcp.resourceLocations for {region}",
            refusal=partial(_refuses_location, region),
            fix=f"gcloud resource-manager org-policies allow gcp.resourceLocations in:{region}-locations --project={{p}}",
        )
    if settings and settings.cloud_run and settings.cloud_run.public:
        yield _Constraint(
            name="iam.allowedPolicyMemberDomains",
            refusal=_refuses_all_users,
            fix="gcloud resource-manager org-policies delete iam.allowedPolicyMemberDomains --project={p}",
        )


def _machine_constraints(checkup: Checkup, tpu: TpuSettings) -> Iterator[_Constraint]:
    """Yield the constraints on a TPU node. It has no external address, so `compute.vmExternalIpAccess` does not apply."""
    yield _Constraint(
        name="compute.disableGuestAttributesAccess",
        refusal=partial(
            _refuses, "`pulumi up` cannot read whether the server is ready, and gcloud cannot open a tunnel"
        ),
        fix="gcloud resource-manager org-policies disable-enforce compute.disableGuestAttributesAccess --project={p}",
    )
    if tpu.ssh == "metadata-key":
        setting = f"pulumi config set --stack {checkup.stack} --path gemma-serving:tpu.ssh os-login"
        refusal = partial(_refuses, "tpu.ssh is metadata-key, but SSH keys in metadata are forbidden")
        yield _Constraint(name="compute.requireOsLogin", refusal=refusal, fix=setting)


def _policy(checkup: Checkup, constraint: _Constraint) -> Sequence[Diagnosis]:
    check = f"policy {constraint.name}"
    body = {"constraint": f"constraints/{constraint.name.partition(' ')[0]}"}
    path = f"v1/projects/{checkup.project}:getEffectiveOrgPolicy"
    try:
        policy = checkup.google.post("cloudresourcemanager", path, body)
    except GoogleListError as error:
        return (checkup.refused(check, "cloudresourcemanager", _POLICY_VIEWER, error),)
    refusal = constraint.refusal(policy)
    if not refusal:
        return (Diagnosis(check=check, state="ok", detail="allows everything the stack needs"),)
    fix = constraint.fix.format(p=checkup.project)
    return (Diagnosis(check=check, state="missing", detail=refusal, fix=fix),)


def _refuses(consequence: str, policy: Mapping[str, object]) -> str:
    enforced = as_mapping(policy.get("booleanPolicy")).get("enforced")
    return consequence if enforced else ""


def _refuses_all_users(policy: Mapping[str, object]) -> str:
    rule = as_mapping(policy.get("listPolicy"))
    free = not rule or rule.get("allValues") == "ALLOW"
    return "" if free else "cloudRun.public is set, but allUsers cannot be granted a role"


def _refuses_location(region: str, policy: Mapping[str, object]) -> str:
    rule = as_mapping(policy.get("listPolicy"))
    allowed, denied = (
        [str(value) for value in as_sequence(rule.get(key))] for key in ("allowedValues", "deniedValues")
    )
    if rule.get("allValues") == "DENY" or any(_covers(value, region) for value in denied):
        return f"{region} is denied"
    if allowed and not any(_covers(value, region) for value in allowed):
        return f"{region} is not allowed; allowed: {', '.join(allowed)}"
    return ""


def _covers(value: str, region: str) -> bool:
    """Return whether a value of a location policy covers a region: the region itself, or a value group for it or its continent."""
    place = value.removeprefix("is:").removeprefix("in:").removesuffix("-locations")
    return region == place or (value.startswith("in:") and region.startswith(f"{place}-"))
