"""Cloud OS Login v1, v1beta and v1alpha: the login profile of a user, and the import of an SSH key into it."""

import hashlib
import re

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method, visible
from localcloud.world.cloud import Cloud

PROFILES = "oslogin.profiles"
_FIRST_UID = 1_000_000_000


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
