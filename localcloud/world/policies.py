"""IAM policies of resources: reads, writes with strict etags, permission checks."""

import base64
import binascii
import re
from collections.abc import Callable

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
_SERVICE_AGENT = re.compile(r"service-([0-9]+)@[^.]+\.iam\.gserviceaccount\.com")


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

    def __init__(self, store: ResourceStore, now_s: Callable[[], float], lag_s: Callable[[], float]) -> None:
        """Take the simulated time, and how long a grant takes until it has an effect."""
        self._store = store
        self._now_s = now_s
        self._lag_s = lag_s

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
        self._store.put(
            _KIND,
            resource,
            {"policy": updated, "generation": generation, "from_s": self._from_s(record, parts(updated, "bindings"))},
        )
        return {**updated, "etag": etag_of(generation)}

    def _from_s(self, record: JsonObject, bindings: list[JsonObject]) -> dict[str, float]:
        """Return when each grant that has no effect yet gets one, by role and member."""
        now_s, lag_s = self._now_s(), self._lag_s()
        before: set[str] = set(_grants_in(parts(record["policy"], "bindings")))
        waiting: dict[str, float] = record.get("from_s", {})
        found: dict[str, float] = {}
        for grant in _grants_in(bindings):
            from_s = waiting.get(grant, 0.0) if grant in before else now_s + lag_s
            if from_s > now_s:
                found[grant] = from_s
        return found

    def seed(self, resource: str, bindings: list[JsonObject]) -> None:
        """Store the initial policy of a resource: generation 0."""
        self._store.put(_KIND, resource, {"policy": {"version": 1, "bindings": bindings}, "generation": 0})

    def forget(self, resource: str) -> None:
        """Delete the policy of a deleted resource."""
        self._store.delete(_KIND, resource)

    def members(self, resource: str, permission: str) -> set[str]:
        """Return the members to whom the resource's own policy grants a permission now."""
        record = self._store.get(_KIND, resource)
        if record is None:
            return set()
        waiting: dict[str, float] = record.get("from_s", {})
        now_s = self._now_s()
        return {
            member
            for binding in parts(record["policy"], "bindings")
            if grants(binding["role"], permission)
            for member in strings(binding, "members")
            if waiting.get(_grant(binding["role"], member), 0.0) <= now_s
        }

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
        """Tell if an e-mail belongs to a simulated project that has no such service account, or has it only since a moment ago.

        A service agent exists from the first use of its API on: cloud.google.com/iam/docs/create-service-agents, 2026-11.
        """
        agent = _SERVICE_AGENT.fullmatch(email)
        if agent is not None:
            numbers = {document["projectNumber"] for _, document in self._store.under("projects")}
            return agent[1] in numbers and not self._store.has("iam.serviceAgents", email)
        found = _SERVICE_ACCOUNT.fullmatch(email)
        if found is None or not self._store.has("projects", found[1]):
            return False
        account = self._store.get("iam.serviceAccounts", email)
        return account is None or account.get("_usable_from_s", 0.0) > self._now_s()


def _grant(role: str, member: str) -> str:
    return f"{role} {member}"


def _grants_in(bindings: list[JsonObject]) -> list[str]:
    return [_grant(binding["role"], member) for binding in bindings for member in strings(binding, "members")]
