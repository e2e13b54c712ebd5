"""Results of the checks, and the report of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from contracts.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

Verdict = Literal["passed", "failed", "warned", "skipped", "not run"]
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one check. `measured` and `wanted` are for people, `values` for programs (units in their names)."""

    verdict: Verdict
    measured: str
    wanted: str = ""
    detail: str = ""
    """Why it failed and by how much, or what to know about it."""
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
    """Results of a run, also of one that was interrupted."""

    stack: str | None
    url: str
    model: str
    simulated: str | None
    """Name of the simulator; None for a real server."""
    checks: tuple[CheckResult, ...]
    interrupted: bool
    elapsed_s: float

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Checks that failed."""
        return tuple(check for check in self.checks if check.outcome.verdict == "failed")

    @property
    def passed(self) -> bool:
        """Whether no check failed and every check ran."""
        verdicts = {check.outcome.verdict for check in self.checks}
        return bool(self.checks) and not self.interrupted and not verdicts & {"failed", "not run"}

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.DONE if self.passed else ExitCode.FAILED
