"""IAM v1: custom roles of projects and organizations."""

import re
from typing import cast

from localcloud.json_values import JsonObject, part, strings
from localcloud.rest.call import Call, Handler, masked
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method, visible
from localcloud.world.cloud import Cloud
from localcloud.world.roles import RESTORABLE_S, ROLES, TAKEN_S

_ROLE_ID = re.compile(r"[A-Za-z0-9_.]{3,64}")
_PERMISSION = re.compile(r"[a-z]+\.[A-Za-z]+\.[A-Za-z]+")
_NOT_IN_PROJECTS = "resourcemanager.projects.list"
"""A permission that only an organization's role can have ("Create and manage custom roles", 2026-11)."""
_UPDATABLE = {"title", "description", "includedPermissions", "stage"}


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of custom roles."""
    return {**_ProjectRoles(cloud).handlers(), **_OrganizationRoles(cloud).handlers()}


class _Roles(ApiService):
    """Custom roles below one kind of parent. Error texts come from public logs of gcloud and Terraform, 2020 to 2026."""

    @method("create")
    def create(self, call: Call) -> JsonObject:
        parent = call.name
        role_id = str(call.body.get("roleId") or "")
        given = part(call.body, "role")
        if _ROLE_ID.fullmatch(role_id) is None:
            raise CloudError.field("role_id", f"The role_id '{role_id}' must match {_ROLE_ID.pattern}.")
        if given.get("name"):
            raise CloudError.field("role.name", "The role name must be empty.")
        name = f"{parent}/roles/{role_id}"
        known = self._stored(name)
        if known is not None and known.get("deleted"):
            raise CloudError.precondition(
                f"You can't create a role with role_id ({role_id}) where there is an existing role with that role_id in a deleted state."
            )
        if known is not None:
            raise CloudError.already_exists(f"A role named {role_id} in {parent} already exists.")
        _check_permissions(parent, given)
        usable_from_s = self._cloud.timeline.simulated_s() + self._cloud.scenario.iam.new_role_lag_s
        fields = {key: value for key, value in given.items() if key in _UPDATABLE and value}
        return self._put({**fields, "name": name, "_usable_from_s": usable_from_s})

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return visible(self._find(call))

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        role = self._find(call)
        _check_etag(role, call.body.get("etag"))
        if role.get("deleted"):
            raise CloudError.precondition(f"You can't update the role {role['name']} because it is in a deleted state.")
        _check_permissions(call.name.rpartition("/roles/")[0], call.body)
        mask = call.query.get("updateMask") or ",".join(sorted(_UPDATABLE & set(call.body)))
        return self._put(masked(role, call.body, mask, allowed=_UPDATABLE)) if mask else visible(role)

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        role = self._find(call)
        _check_etag(role, call.query.get("etag"))
        if role.get("deleted"):
            raise CloudError.precondition(f"You can't delete the role {role['name']} because it is already deleted.")
        return self._put({**role, "deleted": True, "_deleted_s": self._cloud.timeline.simulated_s()})

    @method("undelete")
    def undelete(self, call: Call) -> JsonObject:
        role = self._find(call)
        _check_etag(role, call.body.get("etag"))
        if not role.get("deleted"):
            raise CloudError.precondition(f"You can't undelete the role {role['name']} because it is not deleted.")
        return self._put({key: value for key, value in role.items() if key not in {"deleted", "_deleted_s"}})

    def _find(self, call: Call) -> JsonObject:
        role = self._stored(call.name)
        if role is None or self._is_gone(role):
            raise CloudError.not_found(f"The role named {call.name} was not found.")
        return role

    def _stored(self, name: str) -> JsonObject | None:
        """Return a role, or None if it does not exist or its id can be reused after its deletion."""
        role = self._store.get(ROLES, name)
        return None if role is None or self._deleted_for_s(role) > TAKEN_S else role

    def _is_gone(self, role: JsonObject) -> bool:
        return self._deleted_for_s(role) > RESTORABLE_S

    def _deleted_for_s(self, role: JsonObject) -> float:
        if not role.get("deleted"):
            return 0.0
        return self._cloud.timeline.simulated_s() - cast("float", role["_deleted_s"])

    def _put(self, role: JsonObject) -> JsonObject:
        return visible(self._store.put(ROLES, role["name"], {**role, "etag": self._cloud.ids.etag()}))


class _ProjectRoles(_Roles):
    prefix = "iam.projects.roles"


class _OrganizationRoles(_Roles):
    prefix = "iam.organizations.roles"


def _check_permissions(parent: str, role: JsonObject) -> None:
    for permission in strings(role, "includedPermissions"):
        is_misplaced = parent.startswith("projects/") and permission == _NOT_IN_PROJECTS
        if _PERMISSION.fullmatch(permission) is None or is_misplaced:
            raise CloudError.field("role.included_permissions", f"Permission {permission} is not valid.")


def _check_etag(role: JsonObject, given: object) -> None:
    if given and given != role["etag"]:
        raise CloudError.aborted("There were concurrent role changes. Please retry the whole read-modify-write.")
