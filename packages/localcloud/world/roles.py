"""The permissions of predefined roles, as far as the local cloud checks them.

A permission is `API.resource.verb`. `data/roles.json` contains the patterns of each role.
They follow Google's IAM reference. A role that is not listed grants nothing here.
"""

from fnmatch import fnmatchcase
from functools import cache

from localcloud.json_values import JsonObject, packaged

_NOT_FOR_EDITORS = (
    "*.setIamPolicy",
    "secretmanager.versions.access",
    *(f"iam.roles.{verb}" for verb in ("create", "update", "delete", "undelete")),
)
"""Permissions that the basic role Editor lacks (IAM's reference of basic roles; Secret Manager's page on access control; IAM's page on
creating custom roles: only owners and the Role Administrator have them)."""


@cache
def _roles() -> JsonObject:
    """Return the patterns of each role. Editor grants all except the patterns above."""
    return packaged("localcloud.world", "roles.json")


def grants(role: str, permission: str) -> bool:
    """Return whether a predefined role includes a permission."""
    if role == "roles/editor" and any(fnmatchcase(permission, pattern) for pattern in _NOT_FOR_EDITORS):
        return False
    return any(fnmatchcase(permission, pattern) for pattern in _roles().get(role, ()))


_PERMISSIONS = {
    "cloudbilling.projects.getBillingInfo": "resourcemanager.projects.get",
    "cloudresourcemanager.projects.getEffectiveOrgPolicy": "orgpolicy.policy.get",
    "cloudresourcemanager.projects.getOrgPolicy": "orgpolicy.policy.get",
    "cloudresourcemanager.projects.listOrgPolicies": "orgpolicy.policies.list",
    "cloudresourcemanager.projects.setOrgPolicy": "orgpolicy.policy.set",
    "cloudresourcemanager.projects.clearOrgPolicy": "orgpolicy.policy.set",
    "logging.entries.list": "logging.logEntries.list",
    "logging.entries.write": "logging.logEntries.create",
    "serviceusage.services.consumerQuotaMetrics.get": "serviceusage.quotas.get",
    "serviceusage.services.consumerQuotaMetrics.list": "serviceusage.quotas.get",
    "serviceusage.services.batchEnable": "serviceusage.services.enable",
    "serviceusage.services.batchGet": "serviceusage.services.get",
    "tpu.projects.locations.nodes.getGuestAttributes": "tpu.nodes.get",
    "tpu.projects.locations.acceleratorTypes.get": "tpu.acceleratortypes.get",
    "tpu.projects.locations.acceleratorTypes.list": "tpu.acceleratortypes.list",
    "tpu.projects.locations.runtimeVersions.get": "tpu.runtimeversions.get",
    "tpu.projects.locations.runtimeVersions.list": "tpu.runtimeversions.list",
}
"""Permissions whose name does not follow from the method's name.

Cloud TPU has no separate permission for guest attributes (docs.cloud.google.com/iam/docs/roles-permissions/tpu, 2026-11).
"""
_VERBS = {"patch": "update", "insert": "create"}
"""Methods whose permission has a different verb (the same pages of roles and permissions)."""


def permission_of(method_id: str) -> str:
    """Return the permission that a method needs: `run.services.get` for `run.projects.locations.services.get`."""
    if method_id in _PERMISSIONS:
        return _PERMISSIONS[method_id]
    method_id = method_id.removeprefix("cloud") if method_id.startswith("cloudresourcemanager.") else method_id
    parts = method_id.split(".")
    if len(parts) <= 2:  # noqa: PLR2004 - API, resource, verb
        return method_id
    return f"{parts[0]}.{parts[-2]}.{_VERBS.get(parts[-1], parts[-1])}"
