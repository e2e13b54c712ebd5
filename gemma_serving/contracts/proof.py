"""The reason why a deletion is right, without which none type-checks.

Each function that deletes takes a `Proof`. Only the readers of a state and of Google make one, from what they read:
`tests/test_deletions.py` lists them. A check that found nothing against a deletion is not a proof.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A fact that was read before a deletion, and that allows it."""

    claim: str
    """The fact, as a clause that names the resource or the stack."""
    source: str
    """The source of the fact, such as the path of an API."""
