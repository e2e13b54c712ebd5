"""Results of the checks, and the report on all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from contracts.exit_codes import ExitCode

Values = Mapping[str, float | int | str | bool | None]
Verdict = Literal["passed", "failed", "unknown", "warned", "skipped", "not run"]
"""`unknown` means that the check could not reach the server, so its health is unknown."""
ReportVerdict = Literal["passed", "failed", "unreachable", "interrupted"]
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one check. `measured` and `wanted` are text for users, `values` is for programs (units in the names)."""

    verdict: Verdict
    measured: str
    wanted: str = ""
    detail: str = ""
    """Reason and size of a failure, or a note."""
    values: Values = field(default_factory=dict[str, float | int | str | bool | None])


def passed(measured: str, *, wanted: str = "", values: Values | None = None) -> Outcome:
    """Return the result of a check that passed."""
    return Outcome(verdict="passed", measured=measured, wanted=wanted, values=values or {})


def failed(measured: str, *, wanted: str = "", detail: str = "", values: Values | None = None) -> Outcome:
    """Return the result of a check that failed."""
    return Outcome(verdict="failed", measured=measured, wanted=wanted, detail=detail, values=values or {})


def unknown(detail: str, *, wanted: str = "") -> Outcome:
    """Return the result of a check that could not reach the server."""
    return Outcome(verdict="unknown", measured="not reached", wanted=wanted, detail=detail)


def judged(measured: str, faults: str, *, wanted: str = "", detail: str = "", values: Values | None = None) -> Outcome:
    """Return a failed result with `faults` as its detail, or a passed result if there are none."""
    verdict = "failed" if faults else "passed"
    return Outcome(verdict=verdict, measured=measured, wanted=wanted, detail=faults or detail, values=values or {})


def warned(measured: str, *, wanted: str = "", detail: str, values: Values | None = None) -> Outcome:
    """Return the result of a check that passed with a warning."""
    return Outcome(verdict="warned", measured=measured, wanted=wanted, detail=detail, values=values or {})


def skipped(reason: str, *, measured: str = "", wanted: str = "") -> Outcome:
    """Return the result of a check that does not apply."""
    return Outcome(verdict="skipped", measured=measured, wanted=wanted, detail=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One row of the report."""

    name: str
    outcome: Outcome
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeReport:
    """Results of a run, including an interrupted one."""

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
        """True if every check ran and none failed."""
        verdicts = {check.outcome.verdict for check in self.checks}
        return bool(self.checks) and not self.interrupted and not verdicts & {"failed", "unknown", "not run"}

    @property
    def unreached(self) -> tuple[CheckResult, ...]:
        """Checks that could not reach the server."""
        return tuple(check for check in self.checks if check.outcome.verdict == "unknown")

    @property
    def verdict(self) -> ReportVerdict:
        """Result of the run. `unreachable`: no check failed, but at least one could not reach the server."""
        if self.interrupted:
            return "interrupted"
        if self.failed or not self.unreached:
            return "passed" if self.passed else "failed"
        return "unreachable"

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command. An unreachable server is not a failed one."""
        return _EXIT_CODES[self.verdict]


_EXIT_CODES: Final[Mapping[ReportVerdict, ExitCode]] = {
    "passed": ExitCode.DONE,
    "failed": ExitCode.FAILED,
    "unreachable": ExitCode.REFUSED,
    "interrupted": ExitCode.INTERRUPTED,
}
