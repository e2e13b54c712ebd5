"""Definitions of the terms of a report, shown next to their use."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term and its definition."""

    name: str
    meaning: str


@cache
def terms() -> Mapping[str, Term]:
    """Return the terms by their keys."""
    found = tomllib.loads(Path(__file__).with_name("terms.toml").read_text(encoding="utf-8"))
    return {key: Term(name=term["name"], meaning=term["meaning"]) for key, term in found.items()}
