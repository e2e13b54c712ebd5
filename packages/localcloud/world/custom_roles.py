"""Custom roles of IAM, as policies need them.

A deleted role can be restored for 7 days; its id stays in use for 30 more (discovery: iam.v1, projects.roles.delete; the provider's page on
google_project_iam_custom_role, 2026-11: "between 7 and 37 days after deletion").
"""

import re

from localcloud.json_values import JsonObject, strings
from localcloud.world.store import ResourceStore

ROLES = "iam.roles"
CUSTOM = re.compile(r"(?P<parent>(projects|organizations)/[^/]+)/roles/[A-Za-z0-9_.]+")
_PROJECT = re.compile(r"/(?P<project>projects/[^/]+)")
_BUCKET = "//storage.googleapis.com/"
RESTORABLE_S = 7 * 24 * 3600.0
TAKEN_S = 37 * 24 * 3600.0


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
