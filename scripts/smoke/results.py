"""Results of the checks, and the report on all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.three_answers import Absent, Answer
from gemma_serving.scripts.cli.check_result import CheckResult, State, Values
from gemma_serving.scripts.logs.api import MeasuredStart

ReportVerdict = Literal["passed", "failed", "unreachable", "interrupted"]
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Outcome(CheckResult):
    """Result of one check. `detail`: the reason and size of a failure, or a note."""

    measured: str = ""
    wanted: str = ""
    """The runner sets it."""


def _outcome(state: State, measured: str, detail: str = "", values: Values | None = None) -> Outcome:
    return Outcome(state, detail, values=values or {}, measured=measured)


failed: Final = partial(_outcome, "failed")
warned: Final = partial(_outcome, "warned")


def passed(measured: str, values: Values | None = None, note: str = "") -> Outcome:
    """Return the result of a check that passed."""
    return _outcome("passed", measured, note, values)


def failed_or_passed(measured: str, faults: str, values: Values | None = None, note: str = "") -> Outcome:
    """Return a failed result with its faults, or a passed one without any."""
    return failed(measured, faults, values) if faults else passed(measured, values, note)


def unknown(detail: str) -> Outcome:
    """Return the result of a check that did not reach the server."""
    return Outcome("unknown", detail, measured="not reached")


def skipped(reason: str, measured: str = "") -> Outcome:
    """Return the result of a check that does not apply."""
    return Outcome("skipped", reason, measured=measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCheck:
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
    checks: tuple[FinishedCheck, ...]
    interrupted: bool
    elapsed_s: float
    start: Answer[MeasuredStart] = field(default_factory=Absent)
    """First start of the server; Absent with --url, or if it is not in the log."""

    def of_state(self, state: State) -> tuple[FinishedCheck, ...]:
        """Return the checks with this result."""
        return tuple(check for check in self.checks if check.outcome.state == state)

    @property
    def failed(self) -> tuple[FinishedCheck, ...]:
        """Checks that failed."""
        return self.of_state("failed")

    @property
    def passed(self) -> bool:
        """True if every check ran and none failed."""
        return self.verdict == "passed"

    @property
    def verdict(self) -> ReportVerdict:
        """Result of the run. `unreachable`: no check failed, and one did not reach the server."""
        if self.interrupted:
            return "interrupted"
        if self.of_state("unknown") and not self.failed:
            return "unreachable"
        return "failed" if self.failed or self.of_state("not run") or not self.checks else "passed"

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
