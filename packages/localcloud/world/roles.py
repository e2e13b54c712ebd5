"""The permissions of predefined roles, as far as the local cloud checks them, and custom roles as policies need them.

A permission is `API.resource.verb`. `data/roles.json` contains the patterns of each role.
They follow Google's IAM reference. A role that is not listed grants nothing here.

A deleted custom role can be restored for 7 days; its id stays in use for 30 more (discovery: iam.v1, projects.roles.delete; the provider's page on
google_project_iam_custom_role, 2026-11: "between 7 and 37 days after deletion").
"""

import re
from fnmatch import fnmatchcase
from functools import cache

from localcloud.json_values import JsonObject, packaged, strings
from localcloud.world.store import ResourceStore

ROLES = "iam.roles"
CUSTOM = re.compile(r"(?P<parent>(projects|organizations)/[^/]+)/roles/[A-Za-z0-9_.]+")
_PROJECT = re.compile(r"/(?P<project>projects/[^/]+)")
_BUCKET = "//storage.googleapis.com/"
RESTORABLE_S = 7 * 24 * 3600.0
TAKEN_S = 37 * 24 * 3600.0
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


_PERMISSIONS: JsonObject = packaged("localcloud.world", "permissions.json")
"""Permissions whose name does not follow from the method's name.

Cloud TPU has no separate permission for guest attributes (docs.cloud.google.com/iam/docs/roles-permissions/tpu, 2026-11).
"""
_VERBS = {"patch": "update", "insert": "create"}
"""Methods whose permission has a different verb (the same pages of roles and permissions)."""


def permission_of(method_id: str) -> str:
    """Return the permission that a method needs: `run.services.get` for `run.projects.locations.services.get`."""
    if method_id in _PERMISSIONS:
        return str(_PERMISSIONS[method_id])
    method_id = method_id.removeprefix("cloud") if method_id.startswith("cloudresourcemanager.") else method_id
    parts = method_id.split(".")
    if len(parts) <= 2:  # noqa: PLR2004 - API, resource, verb
        return method_id
    return f"{parts[0]}.{parts[-2]}.{_VERBS.get(parts[-1], parts[-1])}"


class CustomRoles:
    """The custom roles of projects and organizations, as policies see them."""

    def __init__(self, store: ResourceStore) -> None:
        self._store = store

    def permissions(self, role: str) -> frozenset[str]:
        """Return the permissions that a role grants now. Empty if it does not exist, is deleted or disabled."""
        found = self._store.get(ROLES, role)
        if found is None or found.get("deleted") or found.get("stage") == "DISABLED":
            return frozenset()
        return frozenset(strings(found, "includedPermissions"))

    def can_be_bound(self, role: str, resource: str, *, organization: str, now_s: float) -> bool:
        """Return whether a resource's policy can name a role: the role exists in the resource's project or organization.

        A role that was just created is not visible everywhere yet.
        """
        found, named = self._store.get(ROLES, role), CUSTOM.fullmatch(role)
        if found is None or named is None or found.get("deleted") or found.get("_usable_from_s", 0.0) > now_s:
            return False
        return named["parent"] in {self._project_of(resource), f"organizations/{organization}"}

    def _project_of(self, resource: str) -> str | None:
        if resource.startswith(_BUCKET):
            record: JsonObject = self._store.get("storage.buckets", resource.removeprefix(_BUCKET)) or {}
            return f"projects/{record.get('_project')}"
        found = _PROJECT.search(resource)
        return None if found is None else found["project"]
