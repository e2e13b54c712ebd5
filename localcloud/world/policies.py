"""IAM policies of resources: reads, writes with strict etags, permission checks."""

import base64
import binascii
import re

from localcloud.json_values import JsonObject, parts, strings
from localcloud.rest.errors import CloudError
from localcloud.world.roles import grants
from localcloud.world.store import ResourceStore

_KIND = "iam.policies"
_MEMBER = re.compile(
    r"(user|serviceAccount|group|domain|deleted):\S+|allUsers|allAuthenticatedUsers|(principal|principalSet)://\S+|project(Owner|Editor|Viewer):\S+"
)
_ROLE = re.compile(r"(roles/[A-Za-z0-9_.]+|(projects|organizations)/[^/]+/roles/[A-Za-z0-9_.]+)")
_SERVICE_ACCOUNT = re.compile(r"[^@]+@([^.]+)\.iam\.gserviceaccount\.com")


def etag_of(generation: int) -> str:
    """Return the etag of the n-th generation of a policy: BwX=, BwY=, then a counted series. They also differ as bytes, since clients decode them."""
    first = ("BwX=", "BwY=")
    if generation < len(first):
        return first[generation]
    return base64.b64encode(b"\x07" + generation.to_bytes(5, "big")).decode()


def _same_etag(left: str, right: str) -> bool:
    try:
        return left == right or base64.b64decode(left) == base64.b64decode(right)
    except (binascii.Error, ValueError):
        return False


class Policies:
    """Policies by resource: `//run.googleapis.com/projects/p/locations/l/services/s` or another name that its service always uses."""

    def __init__(self, store: ResourceStore) -> None:
        self._store = store

    def get(self, resource: str) -> JsonObject:
        """Return the policy as `getIamPolicy` answers it."""
        record = self._store.get(_KIND, resource)
        if record is None:
            return {"version": 1, "etag": etag_of(0), "bindings": []}
        return {**record["policy"], "etag": etag_of(record["generation"])}

    def replace(self, resource: str, policy: JsonObject, *, mask: str | None = None) -> JsonObject:
        """Replace the policy. Raise 409 ABORTED if its etag is not the current one."""
        record = self._store.get(_KIND, resource) or {"policy": {"version": 1, "bindings": []}, "generation": 0}
        given, current = policy.get("etag"), etag_of(record["generation"])
        if given and not _same_etag(given, current):
            raise CloudError.aborted(
                "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff. "
                f"The request's ETag '{given}' did not match the current policy's ETag '{current}'."
            )
        fields = {"bindings", "version", "auditConfigs"} if not mask else {*mask.split(","), "version"}
        updated = {key: value for key, value in record["policy"].items() if key not in fields}
        updated.update({key: value for key, value in policy.items() if key in fields})
        updated.setdefault("version", 1)
        if "bindings" in updated:
            self._check(updated["bindings"], parts(record["policy"], "bindings"))
            updated["bindings"] = [binding for binding in updated["bindings"] if binding.get("members")]
        generation = record["generation"] + 1
        self._store.put(_KIND, resource, {"policy": updated, "generation": generation})
        return {**updated, "etag": etag_of(generation)}

    def seed(self, resource: str, bindings: list[JsonObject]) -> None:
        """Store the initial policy of a resource: generation 0."""
        self._store.put(_KIND, resource, {"policy": {"version": 1, "bindings": bindings}, "generation": 0})

    def forget(self, resource: str) -> None:
        """Delete the policy of a deleted resource."""
        self._store.delete(_KIND, resource)

    def members(self, resource: str, permission: str) -> set[str]:
        """Return the members to whom the resource's own policy grants a permission."""
        record = self._store.get(_KIND, resource)
        bindings: list[JsonObject] = [] if record is None else parts(record["policy"], "bindings")
        return {member for binding in bindings if grants(binding["role"], permission) for member in binding["members"]}

    def allows(self, email: str | None, permission: str, resources: list[str]) -> bool:
        """Tell if the policy of one of these resources grants the permission. `email` None means an anonymous caller."""
        wanted = {"allUsers"}
        if email is not None:
            wanted |= {"allAuthenticatedUsers", f"user:{email}", f"serviceAccount:{email}"}
        return any(wanted & self.members(resource, permission) for resource in resources)

    def _check(self, bindings: list[JsonObject], before: list[JsonObject]) -> None:
        known = {member for binding in before for member in strings(binding, "members")}
        for binding in bindings:
            role = binding.get("role", "")
            if _ROLE.fullmatch(role) is None:
                raise CloudError.invalid(f"Role {role or '(empty)'} is not supported for this resource.")
            for member in strings(binding, "members"):
                if _MEMBER.fullmatch(str(member)) is None:
                    raise CloudError.invalid(
                        f"Invalid member '{member}': it needs a prefix such as user:, serviceAccount: or group:."
                    )
                kind, _, email = str(member).partition(":")
                if member not in known and kind == "serviceAccount" and self.lacks_account(email):
                    raise CloudError.invalid(f"Service account {email} does not exist.")

    def lacks_account(self, email: str) -> bool:
        """Tell if an e-mail belongs to a simulated project that has no such service account."""
        found = _SERVICE_ACCOUNT.fullmatch(email)
        return (
            found is not None
            and self._store.has("projects", found[1])
            and not self._store.has("iam.serviceAccounts", email)
        )
