"""Cloud OS Login v1, v1beta and v1alpha: the login profile of a user, and the import of an SSH key into it."""

import hashlib
import re

from localcloud.json_values import JsonObject, part, parts
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services import compute_instances, tpu_requests
from localcloud.services.checks import may_act_as
from localcloud.services.compute_instances import INSTANCES
from localcloud.services.service import ApiService, method, visible
from localcloud.services.tpu_nodes import NODES, metadata_of
from localcloud.world.cloud import Cloud, project_policy

PROFILES = "oslogin.profiles"
_FIRST_UID = 1_000_000_000
_SSH_PORT = 22
_OS_LOGIN = "enable-oslogin"
_SSH_KEYS = "ssh-keys"
_SERVICE_ACCOUNTS = ".gserviceaccount.com"


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of users."""
    return _Users(cloud).handlers()


def has_key(cloud: Cloud, email: str) -> bool:
    """Return whether a user has imported an SSH key."""
    return bool((cloud.store.get(PROFILES, email) or {}).get("sshPublicKeys"))


class _Users(ApiService):
    prefix = "oslogin.users"

    @method("getLoginProfile")
    def get_login_profile(self, call: Call) -> JsonObject:
        return visible(self._profile(call))

    @method("importSshPublicKey")
    def import_ssh_public_key(self, call: Call) -> JsonObject:
        profile, key = self._profile(call), str(call.body.get("key", ""))
        project = call.query.get("projectId")
        if key:
            fingerprint = hashlib.sha256(key.encode()).hexdigest()
            name = f"users/{profile['name']}/sshPublicKeys/{fingerprint}"
            profile["sshPublicKeys"] = {
                **part(profile, "sshPublicKeys"),
                fingerprint: {"key": key, "fingerprint": fingerprint, "name": name},
            }
        if project and not profile.get("posixAccounts"):
            profile["posixAccounts"] = [self._account(str(profile["name"]), str(project))]
        self._store.put(PROFILES, str(profile["name"]), profile)
        return {"loginProfile": visible(profile)}

    def _profile(self, call: Call) -> JsonObject:
        """Return the caller's profile. Users can only read and change their own."""
        email = call.name.removeprefix("users/")
        if email != call.caller.email and not call.caller.operator:
            raise CloudError.denied(f"Insufficient permissions to access the login profile of {email}.")
        return dict(self._store.get(PROFILES, email) or {"name": email})

    def _account(self, email: str, project: str) -> JsonObject:
        username = re.sub(r"[^a-z0-9_]", "_", email.lower())[:32]
        uid = str(_FIRST_UID + self._store.count_up("oslogin.uids"))
        return {
            "primary": True,
            "username": username,
            "uid": uid,
            "gid": uid,
            "homeDirectory": f"/home/{username}",
            "shell": "/bin/bash",
            "operatingSystemType": "LINUX",
            "accountId": project,
        }


def check_login(cloud: Cloud, node: str, email: str) -> None:
    """Raise 403 if IAP denies the tunnel to a node's SSH port, or the node denies the login.

    IAP provides `destination.port` and `destination.ip` to conditions (cloud.google.com/iap/docs/using-tcp-forwarding, 2026-11). With OS Login
    a login needs `compute.instances.osLogin`, actAs on the machine's account and a key in the user's profile
    (cloud.google.com/compute/docs/oslogin/set-up-oslogin, 2026-11), and a user outside the organization also needs
    `roles/compute.osLoginExternalUser` on it ("Manage OS Login in an organization"). Without OS Login, a key in the machine's metadata
    suffices; keys in the project's metadata are not modeled. That project-level conditions see no attribute of the machine is assumed
    because Google runs it in a separate project.
    """
    document = cloud.store.get(NODES, node) or cloud.store.get(INSTANCES, node)
    if document is None:
        raise CloudError.not_found(f"Resource '{node}' was not found.")
    if email == cloud.operator:
        return
    project = node.split("/")[1]
    policy = project_policy(project)
    is_instance = "networkInterfaces" in document
    address = (
        parts(document, "networkInterfaces")[0]["networkIP"]
        if is_instance
        else parts(document, "networkEndpoints")[0]["ipAddress"]
    )
    destination = {"destination.port": _SSH_PORT, "destination.ip": address}
    if not cloud.policies.allows(email, "iap.tunnelInstances.accessViaIAP", [policy], destination):
        raise CloudError.denied("Error while connecting [4033: 'not authorized'].")
    metadata = compute_instances.metadata_of(document) if is_instance else metadata_of(document)
    if metadata.get(_OS_LOGIN, "").upper() != "TRUE":
        if not metadata.get(_SSH_KEYS, "").strip():
            raise CloudError.denied("Permission denied (publickey).")
        return
    account = str(document["_request"]["account"]) if is_instance else tpu_requests.account_of(cloud, project, document)
    allowed = cloud.policies.allows(email, "compute.instances.osLogin", [policy])
    if _is_outside(cloud, email):
        raise CloudError.denied("Permission denied (publickey).")
    if not (allowed and may_act_as(cloud, email, account, project) and has_key(cloud, email)):
        raise CloudError.denied("Permission denied (publickey).")


def _is_outside(cloud: Cloud, email: str) -> bool:
    """Return whether OS Login denies a user of another organization who lacks the role for external users."""
    domain, own = email.rpartition("@")[2], cloud.scenario.iam.organization_domain
    if not own or domain == own or domain.endswith(_SERVICE_ACCOUNTS):
        return False
    return email not in cloud.scenario.iam.external_logins
