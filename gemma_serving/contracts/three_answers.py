"""Answers about one fact, to read with `match`: known, assumed or unknown, where each comes from, and how old it is.

No proof treats unknown as absent, and no sentence treats assumed as known.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Literal, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)

Cause: TypeAlias = Literal["api off", "denied", "no connection", "no login", "not simulated", "other"]
"""Cause of an unknown result. `denied`: HTTP 403, including for missing resources. `no login`: HTTP 401. `not simulated`: HTTP 501."""


@dataclass(frozen=True)
class Present(Generic[T_co]):
    """The resource exists, with the data that was read."""

    value: T_co
    source: str = field(default="", compare=False)
    """Who stated it, such as a setting; empty for the service that the caller asked."""
    read_at: datetime | None = field(default=None, compare=False)
    """When the source stated it; None: for this answer, or at an unknown time."""
    unread: str = field(default="", compare=False)
    """What could not be read beside it, as sentences; empty if nothing. Then more may exist."""


@dataclass(frozen=True)
class Absent:
    """The resource does not exist, as reported by the responsible service."""


@dataclass(frozen=True)
class Unknown:
    """The check proved nothing."""

    why: str
    """The reason, as a clause."""
    cause: Cause = "other"
    service: str = ""
    """Name of the disabled API, such as `run`, or empty."""
    fix: str = ""
    """Command that lets the caller read it; empty if none is known."""
    read_at: datetime | None = field(default=None, compare=False)
    """When the source last stated something, which is too old to hold now; None without that."""


@dataclass(frozen=True)
class Assumed(Generic[T_co]):
    """Nothing was read, so a value stands in."""

    value: T_co
    source: str
    """Origin of the value, such as `new projects`."""


Answer: TypeAlias = Present[T_co] | Absent | Unknown
