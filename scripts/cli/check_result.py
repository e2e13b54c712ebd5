"""Result of one check, in one set of words. Each command maps the words of its JSON by one table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["passed", "failed", "unknown", "warned", "skipped", "not run"]
"""`unknown`: the check could not read or reach its object."""
Values = Mapping[str, float | int | str | bool | None]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check. Its runner adds the name and explains refusals."""

    state: State
    detail: str = ""
    fix: str = ""
    """A command, or a change of a settings file; empty if no fix is needed or known."""
    values: Values = field(default_factory=dict[str, float | int | str | bool | None])
    """Measured or read values for programs, with units in the names."""
