"""The reason why a deletion is right, without which none type-checks, and who asks for it.

Each function that deletes takes a `Proof` and compares it with its `Asker`. Only the readers of a state and of Google make a proof, from what
they read: `tests/test_deletions.py` lists them. A check that found nothing against a deletion is not a proof.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.labels import PRODUCT, Ownership


class NotOwnedError(ScriptError):
    """A deletion whose proof names another owner than who asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks for a search or a deletion: one stack of a Pulumi project, or the project for all of its stacks."""

    project: str = PRODUCT
    """Pulumi project."""
    stack: str | None
    """None: all stacks of the project."""
    former: frozenset[str] = frozenset()
    """Names of the stacks before `pulumi stack rename`. The labels of their resources still have them."""
    stated: frozenset[str] = frozenset()
    """Names in the states, without their Google Cloud project (`in_project`). What has a former name must be one of them."""

    def owns(self, owner: Ownership | None, name: str = "") -> bool:
        """Return whether a resource of this owner, and with this full name, belongs to who asks."""
        if owner is None or owner.project != self.project:
            return False
        return self.stack in {None, owner.stack} or (owner.stack in self.former and in_project(name) in self.stated)


def in_project(name: str) -> str:
    """Return a full name without its Google Cloud project, which has the id in some APIs and the number in others."""
    return name.split("/", 2)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A fact that was read before a deletion, and that allows it to the owner."""

    claim: str
    """The fact, as a clause that names the resource or the stack."""
    source: str
    """The source of the fact, such as the path of an API."""
    owners: Mapping[str, Ownership]
    """Full name of each resource that is deleted, or name of the stack, and its owner, as read."""

    def require(self, asker: Asker) -> None:
        """Raise NotOwnedError unless everything that is deleted belongs to who asks."""
        others = [name for name, owner in self.owners.items() if not asker.owns(owner, name)]
        if others or not self.owners:
            whose = f"stack {asker.stack}" if asker.stack else "a stack"
            raise NotOwnedError(
                f"{', '.join(others) or self.claim} does not belong to {whose} of the Pulumi project {asker.project}. It was not deleted."
            )
