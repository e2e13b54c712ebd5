"""Results of a search, and the calls that it made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.proof import Asker, Proof
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundResource:
    """A resource with the labels of a stack."""

    kind: str
    """Name of its kind, such as `TPU queued resource`; `kinds.by_name` returns the kind."""
    name: str
    """Full name, such as projects/P/locations/L/services/S; for a grant the resource, the role and the member."""
    command: str
    project: str = ""
    location: str = ""
    """Zone, region or multi-region in lower case; `global` if it has none."""
    created: str = ""
    """Creation time (RFC 3339); empty if the API does not state it."""
    owner: Ownership
    """The stack in its labels, its description or its condition."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels; for resources without labels, the words of the description."""
    document: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    """The resource from the API's response; for a grant `role`, `member` and `condition`."""

    @property
    def id(self) -> str:
        """Last part of the name."""
        return self.name.rpartition("/")[2]

    def age_s(self, now: datetime) -> float | None:
        """Return the seconds since its creation; None if the API does not state it."""
        return (now - datetime.fromisoformat(self.created)).total_seconds() if self.created else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCall:
    """One read of a search: the call, the number of resources, its duration."""

    kind: str
    api: str
    path: str
    items: int
    """Resources in the response, including other users' resources."""
    elapsed_s: float
    outcome: str = "read"
    """`read`, `API not enabled`, `no such place`, or the reason it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The result of a search. `found` alone is not proof of absence: read `answer_about`."""

    asker: Asker
    """Who owns `found`."""
    found: Sequence[FoundResource]
    calls: Sequence[ListCall]
    unknown: Sequence[str]
    elapsed_s: float
    foreign: Sequence[FoundResource] = ()
    """Resources of other Pulumi projects: of their stacks with the same name, or of all their stacks if all were searched."""
    claimed: Sequence[FoundResource] = ()
    """Resources of other owners that a state of the asker names."""
    others: frozenset[str] = frozenset()
    """Other stacks of the Pulumi project that have resources."""
    guests: Sequence[FoundResource] = ()
    """Resources of other stacks in the networks among `found`. Google deletes no network in use."""
    users: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """For each network and subnetwork among `found`: the full names of the listed resources that name it, whoever owns them."""

    def answer_about(self, items: Sequence[FoundResource]) -> Answer[Sequence[FoundResource]]:
        """Return whether any of these `found` resources exists. Absent only if everything could be read."""
        if items:
            return Present(items, unread=" ".join(self.unknown))
        return Unknown(" ".join(self.unknown)) if self.unknown else Absent()

    def proof_of_absence(self, items: Sequence[FoundResource], stack: str) -> Proof | None:
        """Return the proof that none of these `found` resources of a stack exists; None unless everything could be read."""
        owner = Ownership(project=self.asker.project, stack=stack)
        if not isinstance(self.answer_about(items), Absent) or not self.asker.owns(owner):
            return None
        claim = f"no resource of stack {stack} to delete exists in Google Cloud"
        return Proof(claim=claim, source=f"{len(self.calls)} lists, all read", owners={stack: owner})
