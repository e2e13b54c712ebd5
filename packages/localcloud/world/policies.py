"""IAM policies of resources: reads, writes with strict etags, permission checks."""

import base64
import binascii
import re
from collections.abc import Callable
from datetime import datetime

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.errors import CloudError
from localcloud.world import conditions
from localcloud.world.conditions import Attributes
from localcloud.world.roles import CUSTOM, CustomRoles, grants
from localcloud.world.store import ResourceStore

_KIND = "iam.policies"
_MEMBER = re.compile(
    r"(user|serviceAccount|group|domain|deleted):\S+|allUsers|allAuthenticatedUsers|(principal|principalSet)://\S+|project(Owner|Editor|Viewer):\S+"
)
_ROLE = re.compile(rf"roles/[A-Za-z0-9_.]+|{CUSTOM.pattern}")
_SERVICE_ACCOUNT = re.compile(r"[^@]+@([^.]+)\.iam\.gserviceaccount\.com")
_SERVICE_AGENT = re.compile(r"service-([0-9]+)@[^.]+\.iam\.gserviceaccount\.com")
_DELETED = re.compile(r"deleted:(?P<member>serviceAccount:[^?]+)\?uid=\d+")
_CONDITIONAL_VERSION = 3
"""The policy version that conditions need (cloud.google.com/iam/docs/policies#versions)."""
_NO_ATTRIBUTES: Attributes = {}


def etag_of(generation: int) -> str:
    """Return the etag of the n-th generation of a policy: BwX=, BwY=, then a counted series. They also differ as bytes because clients decode them."""
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

    def __init__(
        self,
        store: ResourceStore,
        *,
        now: Callable[[], datetime],
        now_s: Callable[[], float],
        lag_s: Callable[[], float],
        organization: Callable[[], str],
    ) -> None:
        """Set the request time, the simulated time, the delay until a grant takes effect, and the number of the organization."""
        self._store = store
        self._now = now
        self._now_s = now_s
        self._lag_s = lag_s
        self._organization = organization
        self._custom_roles = CustomRoles(store)

    def get(self, resource: str, *, version: int = 0) -> JsonObject:
        """Return the policy as `getIamPolicy` answers it. Raise 400 if it has conditions and the requested version is too old for them.

        Text from hashicorp/terraform-provider-google#5218.
        """
        record = self._store.get(_KIND, resource)
        if record is None:
            return {"version": 1, "etag": etag_of(0), "bindings": []}
        _check_version("Requested", version, record["policy"])
        return {**record["policy"], "etag": etag_of(record["generation"])}

    def replace(self, resource: str, policy: JsonObject, *, mask: str | None = None) -> JsonObject:
        """Replace the policy. Raise 409 ABORTED if its etag is outdated."""
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
        _check_version("Specified", int(policy.get("version") or 0), record["policy"])
        if "bindings" in updated:
            self._check(resource, updated["bindings"], parts(record["policy"], "bindings"))
            updated["bindings"] = [binding for binding in updated["bindings"] if binding.get("members")]
        updated.setdefault("version", 1)
        generation = record["generation"] + 1
        self._store.put(
            _KIND,
            resource,
            {"policy": updated, "generation": generation, "from_s": self._from_s(record, parts(updated, "bindings"))},
        )
        return {**updated, "etag": etag_of(generation)}

    def modified_roles(self, resource: str, policy: JsonObject, *, mask: str | None = None) -> frozenset[str]:
        """Return the roles of the grants that `replace` adds or removes."""
        if mask and "bindings" not in mask.split(","):
            return frozenset()
        record = self._store.get(_KIND, resource) or {"policy": {}}
        before = set(_grants_in(parts(record["policy"], "bindings")))
        after = set(_grants_in(parts(policy, "bindings")))
        return frozenset(grant.partition(" ")[0] for grant in before ^ after)

    def _from_s(self, record: JsonObject, bindings: list[JsonObject]) -> dict[str, float]:
        """Return when each pending grant takes effect, by role and member."""
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

    def mark_deleted(self, member: str, unique_id: str) -> None:
        """Rename a deleted member in all policies to `deleted:MEMBER?uid=ID`. Its grants no longer have an effect.

        Source: discovery, cloudresourcemanager.v1 Binding.members (`deleted:serviceAccount:{emailid}?uid={uniqueid}`), and openshift/installer#2790.
        """
        named = f"deleted:{member}?uid={unique_id}"
        for resource, record in self._store.under(_KIND):
            bindings = parts(record["policy"], "bindings")
            if not any(member in strings(binding, "members") for binding in bindings):
                continue
            renamed = [
                {**binding, "members": [named if item == member else item for item in strings(binding, "members")]}
                for binding in bindings
            ]
            policy = {**record["policy"], "bindings": renamed}
            self._store.put(_KIND, resource, {**record, "policy": policy, "generation": record["generation"] + 1})

    def members(self, resource: str, permission: str, attributes: Attributes = _NO_ATTRIBUTES) -> set[str]:
        """Return the members that the resource's own policy currently grants a permission, on a request with these attributes."""
        record = self._store.get(_KIND, resource)
        if record is None:
            return set()
        waiting: dict[str, float] = record.get("from_s", {})
        now_s, known = self._now_s(), {"request.time": self._now(), **attributes}
        return {
            member
            for binding in parts(record["policy"], "bindings")
            if self._grants(binding["role"], permission) and conditions.holds(part(binding, "condition"), known)
            for member in strings(binding, "members")
            if waiting.get(_grant(binding, member), 0.0) <= now_s
        }

    def allows(
        self, email: str | None, permission: str, resources: list[str], attributes: Attributes = _NO_ATTRIBUTES
    ) -> bool:
        """Return whether the policy of one of these resources grants the permission. `email` None means an anonymous caller.

        `attributes` are the service's attributes for conditions; every service provides `request.time`.
        """
        wanted = {"allUsers"}
        if email is not None:
            wanted |= {"allAuthenticatedUsers", f"user:{email}", f"serviceAccount:{email}"}
        return any(wanted & self.members(resource, permission, attributes) for resource in resources)

    def _grants(self, role: str, permission: str) -> bool:
        return grants(role, permission) or permission in self._custom_roles.permissions(role)

    def _check(self, resource: str, bindings: list[JsonObject], before: list[JsonObject]) -> None:
        known = {member for binding in before for member in strings(binding, "members")}
        kept = {(binding["role"], member) for binding in before for member in strings(binding, "members")}
        _check_deleted({member for binding in bindings for member in strings(binding, "members")})
        for binding in bindings:
            conditions.check(binding)
            role = binding.get("role", "")
            if _ROLE.fullmatch(role) is None:
                raise CloudError.invalid(f"Role {role or '(empty)'} is not supported for this resource.")
            if {(role, member) for member in strings(binding, "members")} - kept:
                self._check_custom(role, resource)
            for member in strings(binding, "members"):
                if _MEMBER.fullmatch(str(member)) is None:
                    raise CloudError.invalid(
                        f"Invalid member '{member}': it needs a prefix such as user:, serviceAccount: or group:."
                    )
                kind, _, email = str(member).partition(":")
                if member not in known and kind == "serviceAccount" and self.lacks_account(email):
                    raise CloudError.invalid(f"Service account {email} does not exist.")

    def _check_custom(self, role: str, resource: str) -> None:
        """Reject a new grant of a custom role that cannot be granted there. Text from pubsec-declarative-toolkit#608.

        Existing grants of a role that is deleted stay and have no effect (discovery: iam.v1, projects.roles.delete).
        """
        if CUSTOM.fullmatch(role) is None:
            return
        if not self._custom_roles.can_be_bound(role, resource, organization=self._organization(), now_s=self._now_s()):
            raise CloudError.invalid(f"Role ({role}) does not exist in the resource's hierarchy.")

    def lacks_account(self, email: str) -> bool:
        """Return whether an email belongs to a simulated project without such a service account, or with one that was just created.

        A number of uses can be rejected regardless of how late they come.
        A service agent exists once its API has been used: cloud.google.com/iam/docs/create-service-agents, 2026-11.
        """
        agent = _SERVICE_AGENT.fullmatch(email)
        if agent is not None:
            numbers = {document["projectNumber"] for _, document in self._store.under("projects")}
            return agent[1] in numbers and not self._store.has("iam.serviceAgents", email)
        found = _SERVICE_ACCOUNT.fullmatch(email)
        if found is None or not self._store.has("projects", found[1]):
            return False
        account = self._store.get("iam.serviceAccounts", email)
        if account is None:
            return True
        left = int(account.get("_refusals", 0))
        if left > 0:
            self._store.put("iam.serviceAccounts", email, {**account, "_refusals": left - 1})
        return left > 0 or account.get("_usable_from_s", 0.0) > self._now_s()


def _check_deleted(members: set[str]) -> None:
    """Reject a policy that names both an account and a deleted account with the same email.

    Text from GoogleCloudPlatform/k8s-config-connector#279, for an account that was created again.
    """
    for member in sorted(members):
        found = _DELETED.fullmatch(member)
        if found is not None and found["member"] in members:
            raise CloudError.invalid(
                f"Inconsistent representation of deleted member: '{member}' and '{found['member']}'."
            )


def _version_of(policy: JsonObject) -> int:
    conditional = any(binding.get("condition") for binding in parts(policy, "bindings"))
    return _CONDITIONAL_VERSION if conditional else 1


def _check_version(which: str, version: int, policy: JsonObject) -> None:
    """Reject reading or writing a policy with conditions in a version without conditions."""
    if version < _version_of(policy) == _CONDITIONAL_VERSION:
        raise CloudError.invalid(
            f"{which} policy version ({version}) cannot be less than the existing policy version ({_CONDITIONAL_VERSION}). "
            "For more information, please refer to https://cloud.google.com/iam/docs/policies#versions."
        )


def _grant(binding: JsonObject, member: str) -> str:
    condition = part(binding, "condition")
    return " ".join([str(binding.get("role", "")), str(member), *(str(condition[key]) for key in sorted(condition))])


def _grants_in(bindings: list[JsonObject]) -> list[str]:
    return [_grant(binding, member) for binding in bindings for member in strings(binding, "members")]
