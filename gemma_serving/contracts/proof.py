"""The reason why a deletion is right, without which none type-checks.

Each function that deletes takes a `Proof`. Only the readers of a state and of Google make one, from what they read:
`tests/test_deletions.py` lists them. That a check found nothing against a deletion is no proof.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was read before a deletion, and what it proves."""

    claim: str
    """What it proves, as a clause that names the resource or the stack."""
    source: str
    """What was read for it, such as the path of an API."""
