"""Check of the custom role in `tpu.tunnelRole`: it exists, can be granted in the project and has the permissions for a tunnel."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from cloud.google_api import GoogleListError
from contracts.fields import as_sequence
from contracts.tunnel_role import PERMISSIONS, TunnelRole, tunnel_role
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis

_VIEWER: Final = "roles/iam.roleViewer"
_NOT_FOUND: Final = 404
_DENIED: Final = 403


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the check of a stack that names a custom role."""
    tpu = checkup.settings.tpu if checkup.settings else None
    if tpu is not None and tpu.tunnel_role:
        role = tunnel_role(tpu.tunnel_role, checkup.project)
        yield Check(name=f"role {role.id}", run=partial(_role, checkup, role))


def _role(checkup: Checkup, role: TunnelRole) -> Sequence[Diagnosis]:
    check = f"role {role.id}"
    if role.parent.startswith("projects/") and role.parent != f"projects/{checkup.project}":
        own = tunnel_role(role.id, checkup.project)
        detail = f"{role.name} can only be granted in its own project; create one in {checkup.project} and set gemma-serving:tpu.tunnelRole: {own.id}"
        return (Diagnosis(check=check, state="missing", detail=detail, fix=own.create_command()),)
    try:
        found = checkup.google.get("iam", f"v1/{role.name}")
    except GoogleListError as error:
        if error.status == _NOT_FOUND:
            detail = f"{role.name} does not exist; if it was deleted in the last 37 days, choose another id"
            return (Diagnosis(check=check, state="missing", detail=detail, fix=role.create_command()),)
        return (_unknown(checkup, check, role, error),)
    problem, command = _problem(role, found)
    if problem:
        return (Diagnosis(check=check, state="missing", detail=problem, fix=command),)
    return (Diagnosis(check=check, state="ok", detail=_held(found)),)


def _unknown(checkup: Checkup, check: str, role: TunnelRole, error: GoogleListError) -> Diagnosis:
    kind, _, number = role.parent.partition("/")
    if kind == "organizations" and error.status == _DENIED and not error.is_api_off:
        command = f"gcloud organizations add-iam-policy-binding {number} --member={checkup.member} --role=roles/iam.organizationRoleViewer"
        return Diagnosis(check=check, state="unknown", detail=str(error), fix=command)
    return checkup.refused(check, "iam", _VIEWER, error)


def _problem(role: TunnelRole, found: Mapping[str, object]) -> tuple[str, str]:
    """Return the problem of a role and the command that fixes it; empty texts if the role is fine."""
    lacking = tuple(permission for permission in PERMISSIONS if permission not in _permissions(found))
    if found.get("deleted"):
        return f"{role.name} is deleted and grants nothing; it can be restored for 7 days", role.undelete_command()
    if found.get("stage") == "DISABLED":
        return f"{role.name} is disabled and grants nothing", role.enable_command()
    if lacking:
        return f"{role.name} lacks permissions that a tunnel needs: {', '.join(lacking)}", role.add_command(lacking)
    return "", ""


def _held(found: Mapping[str, object]) -> str:
    more = [permission for permission in _permissions(found) if permission not in PERMISSIONS]
    return f"{len(PERMISSIONS)} permissions" + (
        f", plus some that a tunnel does not need: {', '.join(more)}" if more else ""
    )


def _permissions(found: Mapping[str, object]) -> Sequence[str]:
    return [str(permission) for permission in as_sequence(found.get("includedPermissions"))]
