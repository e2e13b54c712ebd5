"""IAM grants of a stack: members of a policy, found by their account or their condition's text."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from cloud.found import FoundResource
from cloud.google_api import GoogleApi
from cloud.kinds import GRANT, POLICIES, Item, PolicyCall, PolicyOf, bindings_of, last_segments, members_of
from contracts.fields import as_mapping
from contracts.labels import Ownership, owner_of

_DELETED: Final = "deleted:"
_ACCOUNT: Final = "serviceAccount:"
_TYPES: Final = {
    "project": "gcp:projects/iAMMember:IAMMember",
    "bucket": "gcp:storage/bucketIAMMember:BucketIAMMember",
    "secret": "gcp:secretmanager/secretIamMember:SecretIamMember",
}
"""The type of grants in each holder's policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyHolder:
    """A resource whose policy can hold grants of a stack: the project, or another owner's bucket or secret."""

    kind: Literal["project", "bucket", "secret"]
    project: str
    name: str
    """projects/P, projects/_/buckets/B or projects/N/secrets/S."""

    @property
    def policy(self) -> PolicyOf:
        """Read and write calls of its policy."""
        return POLICIES[_TYPES[self.kind]]

    @property
    def inputs(self) -> Mapping[str, str]:
        """Name of the resource in a grant's inputs."""
        return {"project": self.project, "bucket": self.name, "secretId": self.name}

    @property
    def api(self) -> str:
        """The API that has the policy."""
        return self.policy.api

    @property
    def path(self) -> str:
        """Path of the method that reads the policy."""
        return self._reading.path.partition("?")[0]

    @property
    def _reading(self) -> PolicyCall:
        return self.policy.read(self.policy.name_of(self.inputs))

    def read(self, api: GoogleApi) -> Item:
        """Return the policy with its conditions. Raises GoogleListError and ScriptError."""
        call = self._reading
        return api.get(self.api, call.path) if call.body is None else api.post(self.api, call.path, call.body)

    def write(self, api: GoogleApi, policy: Item) -> None:
        """Replace the policy that was read, unless it changed. Raises GoogleListError and ScriptError."""
        call = self.policy.write(self.policy.name_of(self.inputs), policy)
        send = api.put if call.verb == "PUT" else api.post
        send(self.api, call.path, call.body or {})

    def command(self, role: str, member: str, condition: Item) -> str:
        """Return the command that removes a grant."""
        what = self.policy.command.format_map(last_segments(self.inputs))
        words = [what, f"--member={shlex.quote(member)}", f"--role={role}"]
        if condition:
            words.append(f"--condition={shlex.quote(_condition_flag(condition))}")
        elif self.kind != "bucket":
            words.append("--condition=None")
        return f"gcloud {' '.join(words)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Owners of accounts: stack by email of a service account."""

    owners: Mapping[str, Ownership] = field(default_factory=dict[str, Ownership])
    """Accounts of stacks: existing ones with a stack's description, and deleted ones with a stack's name."""

    def owner(self, member: str) -> Ownership | None:
        """Return the stack of a member, even of a deleted account (`deleted:serviceAccount:EMAIL?uid=N`)."""
        kind, _, rest = member.removeprefix(_DELETED).partition(":")
        email = rest.partition("?")[0]
        return self.owners.get(email) if f"{kind}:" == _ACCOUNT else None

    @classmethod
    def of(cls, grants: Sequence[FoundResource]) -> "Accounts":
        """Return the accounts in grants."""
        named = [(str(grant.document["member"]), grant.owner) for grant in grants]
        pairs = ((_bare(member).partition(":"), owner) for member, owner in named)
        return cls(owners={email: owner for (kind, _, email), owner in pairs if f"{kind}:" == _ACCOUNT})


def owner_of_grant(member: str, condition: Item, accounts: Accounts) -> Ownership | None:
    """Return the stack that a grant belongs to: by its condition's text, otherwise by its member."""
    words = f"{condition.get('description') or ''} {condition.get('title') or ''}"
    return owner_of(description=words) or accounts.owner(member)


def grants_in(policy: Item, holder: PolicyHolder, accounts: Accounts) -> Iterator[FoundResource]:
    """Yield the grants of a policy that belong to a stack."""
    for binding in bindings_of(policy):
        condition = as_mapping(binding.get("condition"))
        role = str(binding.get("role"))
        for member in members_of(binding):
            owner = owner_of_grant(member, condition, accounts)
            if owner is not None:
                yield found_grant(holder, role, member, condition, owner, etag=str(policy.get("etag") or ""))


def found_grant(
    holder: PolicyHolder, role: str, member: str, condition: Item, owner: Ownership, *, etag: str = ""
) -> FoundResource:
    """Return a grant of a stack as a found resource."""
    return FoundResource(
        kind=GRANT,
        name=f"{holder.name} {role} {member}",
        command=holder.command(role, member, condition),
        project=holder.project,
        location="global",
        owner=owner,
        labels=owner.labels,
        document={"holder": holder, "role": role, "member": member, "condition": condition},
        etag=etag,
    )


def without(policy: Item, grants: Sequence[FoundResource], accounts: Accounts) -> tuple[Item, int]:
    """Return the policy without these grants, and how many of them it had.

    A grant that changed owner since the search stays, unless the stack's state has it (`stated`).
    """
    wanted = {_key(grant.document, str(grant.document["member"])): grant for grant in grants}
    removed = 0
    bindings: list[Item] = []
    for binding in bindings_of(policy):
        kept: list[str] = []
        for member in members_of(binding):
            grant = wanted.get(_key(binding, member))
            owner = owner_of_grant(member, as_mapping(binding.get("condition")), accounts)
            if grant is not None and (owner == grant.owner or grant.document.get("stated")):
                removed += 1
            else:
                kept.append(member)
        if kept:
            bindings.append({**binding, "members": kept})
    return {**policy, "bindings": bindings}, removed


def _key(binding: Item, member: str) -> tuple[str, str, str]:
    """Return the identity of a grant: role, member and condition."""
    condition = as_mapping(binding.get("condition"))
    return str(binding.get("role")), _bare(member), "\n".join(f"{key}={condition[key]}" for key in sorted(condition))


def _condition_flag(condition: Item) -> str:
    """Return a condition in gcloud's format, with an unused separator (gcloud topic escaping)."""
    texts = [f"{key}={value}" for key, value in condition.items()]
    separator = next(mark for mark in (",", "|", "#", "~", ";", "@@") if not any(mark in text for text in texts))
    return ",".join(texts) if separator == "," else f"^{separator}^{separator.join(texts)}"


def _bare(member: str) -> str:
    """Return a member without the marks of a deleted account, which it may become before the removal."""
    return member.removeprefix(_DELETED).partition("?")[0] if member.startswith(_DELETED) else member
