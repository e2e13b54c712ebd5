"""Check that the custom role in `tpu.tunnelRole` exists, can be granted in the project and has the permissions for a tunnel."""

from collections.abc import Iterator, Mapping
from functools import partial
from http import HTTPStatus

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.contracts.fields import as_sequence
from gemma_serving.contracts.tunnel_role import PERMISSIONS, TunnelRole, tunnel_role
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the check of a stack that names a custom role."""
    tpu = checkup.settings.tpu if checkup.settings else None
    if tpu is not None and tpu.tunnel_role:
        role = tunnel_role(tpu.tunnel_role, checkup.project)
        yield checkup.calling(f"role {role.id}", "iam", "roles/iam.roleViewer", partial(_role, checkup, role))


def _role(checkup: Checkup, role: TunnelRole) -> Iterator[Diagnosis]:
    kind, _, number = role.parent.partition("/")
    if kind == "projects" and number != checkup.project:
        role_here = tunnel_role(role.id, checkup.project)
        detail = f"{role.name} can only be granted in its own project; create one in {checkup.project} and set gemma-serving:tpu.tunnelRole: {role_here.id}"
        yield missing(detail, role_here.create_command())
        return
    try:
        found = checkup.google.get("iam", f"v1/{role.name}")
    except GoogleListError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            detail = f"{role.name} does not exist; if it was deleted in the last 37 days, choose another id"
            yield missing(detail, role.create_command())
        elif kind == "organizations" and error.is_denied:
            grant = f"gcloud organizations add-iam-policy-binding {number} --member={checkup.member}"
            yield unknown(str(error), f"{grant} --role=roles/iam.organizationRoleViewer")
        else:
            raise
    else:
        yield _judged(role, found)


def _judged(role: TunnelRole, found: Mapping[str, object]) -> Diagnosis:
    held = [str(permission) for permission in as_sequence(found.get("includedPermissions"))]
    lacking = tuple(permission for permission in PERMISSIONS if permission not in held)
    more = ", ".join(permission for permission in held if permission not in PERMISSIONS)
    if found.get("deleted"):
        detail = f"{role.name} is deleted and grants nothing; it can be restored for 7 days"
        return missing(detail, role.command("undelete"))
    if found.get("stage") == "DISABLED":
        return missing(f"{role.name} is disabled and grants nothing", role.command("update", "--stage=GA"))
    if lacking:
        detail = f"{role.name} lacks permissions that a tunnel needs: {', '.join(lacking)}"
        return missing(detail, role.command("update", f"--add-permissions={','.join(lacking)}"))
    return ok(f"{len(PERMISSIONS)} permissions{f', plus some that a tunnel does not need: {more}' if more else ''}")
