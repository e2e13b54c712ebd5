"""Proof that something may be deleted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A fact that allows a deletion."""

    claim: str
    source: str
