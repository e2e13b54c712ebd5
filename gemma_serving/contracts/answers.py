"""Result of an existence check, to read with `match`. No proof treats unknown as absent."""

from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)

Cause: TypeAlias = Literal["api off", "denied", "no connection", "no login", "not simulated", "other"]
"""Cause of an unknown result. `denied`: HTTP 403, including for missing resources. `no login`: HTTP 401. `not simulated`: HTTP 501."""


@dataclass(frozen=True)
class Present(Generic[T_co]):
    """The resource exists, with the data that was read."""

    value: T_co


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


Answer: TypeAlias = Present[T_co] | Absent | Unknown
