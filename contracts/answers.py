"""The answer to "does it exist?": present, absent or unknown. No proof reads the third as the second.

Read an answer with `match` and a case for each of the three: pyright in strict mode refuses a `match` that forgets one
(reportMatchNotExhaustive), and refuses to read `value` before it (reportAttributeAccessIssue).
"""

from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)

Cause: TypeAlias = Literal["api off", "denied", "other"]
"""Why something is unknown. `denied`: HTTP 403, which Google also answers for what does not exist."""


@dataclass(frozen=True)
class Present(Generic[T_co]):
    """It exists, and this is what was read of it."""

    value: T_co


@dataclass(frozen=True)
class Absent:
    """It does not exist: whoever would have it was asked, and said so."""


@dataclass(frozen=True)
class Unknown:
    """Nothing was proved."""

    why: str
    """A clause with the reason."""
    cause: Cause = "other"
    service: str = ""
    """The API that is off, as `run`; empty for other causes."""


Answer: TypeAlias = Present[T_co] | Absent | Unknown
