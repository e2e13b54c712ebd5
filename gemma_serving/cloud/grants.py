"""IAM grants of a stack: members of a policy, found by their account or their condition's text."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final, Literal

from gemma_serving.cloud.google_api import GoogleApi
from gemma_serving.cloud.kinds import GRANT, POLICIES, Item, last_segments, list_in
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import Ownership, owner_of
from gemma_serving.contracts.proof import Asker, Proof
from gemma_serving.contracts.search_results import FoundResource

_DELETED: Final = "deleted:"
_POLICY_VERSION: Final = 3
"""Policy version with conditions (discovery: cloudresourcemanager.v1 GetPolicyOptions.requestedPolicyVersion)."""
HolderKind = Literal["project", "bucket", "secret", "account", "repository", "service"]
_HOLDERS: Final[Mapping[HolderKind, tuple[str, str, str]]] = {
    "project": ("cloudresourcemanager", "gcp:projects/iAMMember:IAMMember", "projects/{project}"),
    "bucket": ("storage", "gcp:storage/bucketIAMMember:BucketIAMMember", "projects/_/buckets/{bucket}"),
    "secret": (
        "secretmanager",
        "gcp:secretmanager/secretIamMember:SecretIamMember",
        "projects/{project}/secrets/{secretId}",
    ),
    "account": (
        "iam",
        "gcp:serviceaccount/iAMMember:IAMMember",
        "projects/{project}/serviceAccounts/{serviceAccountId}",
    ),
    "repository": (
        "artifactregistry",
        "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember",
        "projects/{project}/locations/{location}/repositories/{repository}",
    ),
    "service": (
        "run",
        "gcp:cloudrunv2/serviceIamMember:ServiceIamMember",
        "projects/{project}/locations/{location}/services/{name}",
    ),
}
"""API, type of a grant, and full name by the inputs of such a grant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyHolder:
    """A resource whose policy can hold grants of a stack: the project, the stack's own, or another owner's bucket or secret."""

    kind: HolderKind
    project: str
    name: str
    """Full name, such as projects/P, projects/_/buckets/B or projects/N/secrets/S."""

    @property
    def api(self) -> str:
        """The API that has the policy."""
        return _HOLDERS[self.kind][0]

    @property
    def path(self) -> str:
        """Path of the method that reads the policy."""
        bucket = self.name.rpartition("/")[2]
        version = "v2" if self.kind == "service" else "v1"
        return f"storage/v1/b/{bucket}/iam" if self.kind == "bucket" else f"{version}/{self.name}:getIamPolicy"

    def read(self, api: GoogleApi) -> Item:
        """Return the policy with its conditions. Raises GoogleListError and ScriptError."""
        if self.kind == "project":
            policy = api.post(self.api, self.path, {"options": {"requestedPolicyVersion": _POLICY_VERSION}})
        else:
            parameter = "optionsRequestedPolicyVersion" if self.kind == "bucket" else "options.requestedPolicyVersion"
            path = f"{self.path}?{parameter}={_POLICY_VERSION}"
            policy = api.post(self.api, path, {}) if self.kind == "account" else api.get(self.api, path)
        if not policy.get("etag"):  # each policy has one, also without a binding
            raise ScriptError(f"Google answered a request for the policy of {self.name} without its etag")
        return policy

    def write(self, api: GoogleApi, policy: Item, proof: Proof, asker: Asker) -> None:
        """Replace the policy that was read, without the grants that the proof names.

        Its etag rejects a policy that changed. Raises GoogleListError, NotOwnedError and ScriptError.
        """
        proof.require(asker)
        body = {**policy, "version": _POLICY_VERSION}
        if self.kind == "bucket":
            api.change("PUT", self.api, self.path, body=body)
        else:
            api.post(self.api, self.path.replace(":getIamPolicy", ":setIamPolicy"), {"policy": body})

    def command(self, role: str, member: str, condition: Item) -> str:
        """Return the command that removes a grant."""
        location = self.name.partition("/locations/")[2].partition("/")[0]
        named = dict.fromkeys(("bucket", "secretId", "serviceAccountId", "repository", "name"), self.name)
        inputs = last_segments({"project": self.project, "location": location, **named})
        words = [POLICIES[_HOLDERS[self.kind][1]].format_map(inputs), f"--member={shlex.quote(member)}"]
        words.append(f"--role={shlex.quote(role)}")
        if condition:
            words.append(f"--condition={shlex.quote(_condition_flag(condition))}")
        elif self.kind != "bucket":
            words.append("--condition=None")
        return f"gcloud {' '.join(words)}"


def holder_of(type_: str, inputs: Item, project: str) -> PolicyHolder:
    """Return the resource that has a grant of a stack, by the grant's type and inputs, in `project` if they name none."""
    found: tuple[HolderKind, str] = next((one, name) for one, (_, of, name) in _HOLDERS.items() if of == type_)
    kind, name = found
    given = last_segments(inputs)
    full = str(inputs.get("secretId") or "")  # one of another project has its full name
    if kind == "secret" and full.startswith("projects/"):
        return PolicyHolder(kind=kind, project=full.split("/")[1], name=full)
    return PolicyHolder(
        kind=kind, project=given.get("project", project), name=name.format_map({"project": project, **given})
    )


def bindings_of(policy: Item) -> Sequence[Item]:
    """Return the bindings of a policy. Raises ScriptError for a policy that could not be written back."""
    return [as_mapping(binding) for binding in list_in(policy, "bindings")]


def members_of(binding: Item) -> Sequence[str]:
    """Return the members of a binding. Raises ScriptError as `bindings_of` does."""
    return [str(member) for member in list_in(binding, "members")]


def account_in(member: str) -> str:
    """Return the e-mail of a service account, even of a deleted one; empty for another member."""
    kind, _, email = bare(member).partition(":")
    return email if kind == "serviceAccount" else ""


def account_of(grant: FoundResource) -> str:
    """Return the full name of the service account of a grant; of another member, the name of the grant."""
    email = account_in(str(grant.document["member"]))
    return f"projects/-/serviceAccounts/{email}" if email else grant.name


def owner_of_grant(member: str, condition: Item, accounts: Mapping[str, Ownership | None]) -> Ownership | None:
    """Return the stack that a grant belongs to: by its condition's text, otherwise by its account's e-mail."""
    words = f"{condition.get('description', '')} {condition.get('title', '')}"
    return owner_of(description=words) or accounts.get(account_in(member))


def grants_in(policy: Item, holder: PolicyHolder, accounts: Mapping[str, Ownership | None]) -> Iterator[FoundResource]:
    """Yield the grants of a policy that belong to a stack."""
    for binding in bindings_of(policy):
        condition = as_mapping(binding.get("condition"))
        for member in members_of(binding):
            owner = owner_of_grant(member, condition, accounts)
            if owner is not None:
                yield found_grant(holder, str(binding.get("role")), member, condition, owner)


def found_grant(holder: PolicyHolder, role: str, member: str, condition: Item, owner: Ownership) -> FoundResource:
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
    )


def accounts_of(grants: Sequence[FoundResource]) -> Mapping[str, Ownership]:
    """Return the owners of the accounts in grants, by e-mail."""
    members = [(account_in(str(grant.document["member"])), grant.owner) for grant in grants]
    return {email: owner for email, owner in members if email}


def without(
    policy: Item, holder: PolicyHolder, grants: Sequence[FoundResource], accounts: Mapping[str, Ownership]
) -> tuple[Item, Proof | None]:
    """Return a holder's policy without these grants, and the proof that each belongs to its stack; None if it has none of them.

    A grant that changed owner since the search stays. One that the stack's state has (`stated`) needs no owner in the policy.
    """
    wanted = {_key(grant.document, str(grant.document["member"])): grant for grant in grants}
    removed: list[FoundResource] = []
    bindings: list[Item] = []
    for binding in bindings_of(policy):
        kept: list[str] = []
        for member in members_of(binding):
            grant = wanted.get(_key(binding, member))
            owner = owner_of_grant(member, as_mapping(binding.get("condition")), accounts)
            if grant is not None and (owner == grant.owner or (owner is None and grant.document.get("stated"))):
                removed.append(grant)
            else:
                kept.append(member)
        if kept:
            bindings.append({**binding, "members": kept})
    names = ", ".join(f"{grant.name} of stack {grant.owner.stack}" for grant in removed)
    claim = f"condition, account or state name the stack of each grant: {names}"
    owners = {account_of(grant): grant.owner for grant in removed}
    proof = Proof(claim=claim, source=holder.path, owners=owners) if removed else None
    return {**policy, "bindings": bindings}, proof


def _key(binding: Item, member: str) -> tuple[str, str, str]:
    """Return the identity of a grant: role, member and condition."""
    condition = as_mapping(binding.get("condition"))
    return str(binding.get("role")), bare(member), "\n".join(f"{key}={condition[key]}" for key in sorted(condition))


def _condition_flag(condition: Item) -> str:
    """Return a condition in gcloud's format, with an unused separator (gcloud topic escaping)."""
    texts = [f"{key}={value}" for key, value in condition.items()]
    used = "".join(texts)
    separator = next(mark for mark in chain(",|#~;@", map(chr, count(ord("¡")))) if mark not in used)
    return ",".join(texts) if separator == "," else f"^{separator}^{separator.join(texts)}"


def bare(member: str) -> str:
    """Return a member without the marks of a deleted account, which it may become before a removal."""
    return member.removeprefix(_DELETED).partition("?")[0] if member.startswith(_DELETED) else member
