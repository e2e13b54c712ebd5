"""Stand-ins for GitHub's token issuer and for Google's Security Token Service.

Expressions are evaluated by a library of the Common Expression Language. Google's documents name few functions, so that an expression
with another one is refused (cloud.google.com/iam/docs/workload-identity-federation, "Attribute mappings", 2026-11).
"""

import re
from dataclasses import dataclass, field

import cel

MAX_SUBJECT_BYTES = 127
MAX_MAPPING, MAX_CONDITION = 2048, 4096
"""Limits of iam.v1 WorkloadIdentityPoolProvider, in characters."""
FUNCTIONS = {"has", "contains", "startsWith", "endsWith", "extract"}
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")


class RefusedError(Exception):
    """Google refuses to set something up, or to exchange a token."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository of GitHub. `immutable`: it was made or renamed since 2026-07-15, so that subjects carry ids."""

    owner: str = "my-org"
    owner_id: str = "1234567"
    name: str = "gemma-serving"
    id: str = "987654321"
    immutable: bool = True

    def claims(self, *, event="push", ref="refs/heads/main", environment=None, head=None):
        """Return the claims of a job's token. `head` is the repository of a pull request's branch.

        A pull request of a fork has no token: GitHub takes the right `id-token: write` from its workflows.
        """
        if head is not None and head.id != self.id:
            raise RefusedError("Unable to get ACTIONS_ID_TOKEN_REQUEST_URL env variable")
        owner, name = (
            (f"{self.owner}@{self.owner_id}", f"{self.name}@{self.id}") if self.immutable else (self.owner, self.name)
        )
        told = (
            f"environment:{environment}" if environment else "pull_request" if event == "pull_request" else f"ref:{ref}"
        )
        claims = {
            "iss": "https://token.actions.githubusercontent.com",
            "sub": f"repo:{owner}/{name}:{told}",
            "repository": f"{self.owner}/{self.name}",
            "repository_id": self.id,
            "repository_owner_id": self.owner_id,
            "event_name": event,
            "ref": ref,
        }
        # Jobs without an environment have no such claim: an expression that reads it fails.
        return claims | ({"environment": environment} if environment else {})


@dataclass
class Google:
    """The pools, the provider and the policies of service accounts that a list of gcloud commands sets up."""

    pool: str = ""
    mapping: dict = field(default_factory=dict)
    condition: str = ""
    users: dict = field(default_factory=dict)

    @classmethod
    def set_up(cls, commands, number="123456789012"):
        """Run the commands that concern the federation, and refuse what Google refuses of them."""
        made = cls()
        for command in commands:
            options = dict(word[2:].partition("=")[::2] for word in command if word.startswith("--"))
            if command[:4] == ["iam", "workload-identity-pools", "providers", "create-oidc"]:
                made.pool = (
                    f"projects/{number}/locations/global/workloadIdentityPools/{options['workload-identity-pool']}"
                )
                made.mapping = dict(item.partition("=")[::2] for item in options["attribute-mapping"].split(","))
                made.condition = options["attribute-condition"]
                made._check()
            elif options.get("role") == "roles/iam.workloadIdentityUser":
                members = made.users.setdefault(command[3].partition("@")[0], set())
                (members.add if command[2] == "add-iam-policy-binding" else members.discard)(options["member"])
        return made

    def _check(self):
        texts = [*self.mapping.values(), self.condition]
        used = {name for text in texts for name in _CALL.findall(_TEXT.sub("''", text))} - {"in"}
        if used - FUNCTIONS:
            raise RefusedError(f"functions that Google's documents do not name: {sorted(used - FUNCTIONS)}")
        if "google.subject" not in self.mapping:
            raise RefusedError("The mapping has no google.subject.")
        if "assertion." not in self.condition:
            raise RefusedError("The attribute condition must reference one of the provider's claims.")
        if len(self.condition) > MAX_CONDITION or any(len(text) > MAX_MAPPING for text in self.mapping.values()):
            raise RefusedError("an expression is too long")

    def exchange(self, claims):
        """Return the principals of a token. Raises RefusedError if the mapping or the condition does not take it."""
        mapped = {}
        for target, expression in self.mapping.items():
            try:
                mapped[target] = cel.evaluate(expression, {"assertion": claims})
            except Exception as error:
                raise RefusedError(f"{target} cannot be evaluated: {error!r}") from error
            if not isinstance(mapped[target], str):
                raise RefusedError(f"The mapped attribute '{target}' must be of type STRING")
        if not 0 < len(mapped["google.subject"].encode()) <= MAX_SUBJECT_BYTES:
            raise RefusedError("The size of mapped attribute google.subject exceeds the 127 bytes limit.")
        spaces = {"google": {}, "attribute": {}}
        for target, value in mapped.items():
            space, _, name = target.partition(".")
            spaces[space][name] = value
        if cel.evaluate(self.condition, {"assertion": claims, **spaces}) is not True:
            raise RefusedError("The given credential is rejected by the attribute condition.")
        host = f"iam.googleapis.com/{self.pool}"
        custom = {f"principalSet://{host}/attribute.{name}/{value}" for name, value in spaces["attribute"].items()}
        return {f"principal://{host}/subject/{mapped['google.subject']}", f"principalSet://{host}/*", *custom}

    def accounts(self, claims):
        """Return the service accounts that a job can use; none if its token is refused."""
        try:
            principals = self.exchange(claims)
        except RefusedError:
            return set()
        return {account for account, members in self.users.items() if members & principals}
