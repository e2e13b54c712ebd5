"""What a check found, and the report of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from scripts.errors import DONE, FAILED, INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Mapping

Verdict = Literal["passed", "failed", "warned", "skipped", "not run"]
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one check says. `measured` and `wanted` are for people, `values` for programs (units in their names)."""

    verdict: Verdict
    measured: str
    wanted: str = ""
    detail: str = ""
    """Why it failed and by how much it fell short, or what a reader should know."""
    values: Mapping[str, float | int | str | bool | None] = field(
        default_factory=dict[str, float | int | str | bool | None]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One row of the report."""

    name: str
    outcome: Outcome
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeReport:
    """Everything that is known at the end, whether all checks ran or not."""

    stack: str | None
    url: str
    model: str
    simulated: str | None
    """What the server calls itself when it is a simulation."""
    checks: tuple[CheckResult, ...]
    interrupted: bool
    elapsed_s: float

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Checks that fell short."""
        return tuple(check for check in self.checks if check.outcome.verdict == "failed")

    @property
    def passed(self) -> bool:
        """No check failed and none was left out by an interruption or by an earlier failure."""
        verdicts = {check.outcome.verdict for check in self.checks}
        return bool(self.checks) and not self.interrupted and not verdicts & {"failed", "not run"}

    @property
    def exit_code(self) -> int:
        """0 all well, 1 something fell short, 130 interrupted."""
        if self.interrupted:
            return INTERRUPTED
        return DONE if self.passed else FAILED
