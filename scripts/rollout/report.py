"""Report of a rollout, as text and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from contracts.exit_codes import ExitCode
from scripts.rollout.decisions import Measured

Outcome = Literal[
    "rolled out", "rolled back", "not verified", "rolled back manually", "nothing to do", "failed",
    "not rolled back", "interrupted", "stopped", "held", "refused", "unknown",
]  # fmt: skip
"""`rolled back manually`: --to routed all traffic to the given revision. `not verified`: the new revision could not be reached for its check, so the
old one has all traffic; the new one has not failed. `not rolled back`: a check failed, but Google accepted no change for minutes. `interrupted`: the
traffic split stays as it is. `stopped`: another run or `pulumi up` changed the service, and this run did not modify it further. With `held` (another
run holds the rollout), `refused` (the revision was refused before) and `unknown` (the record is unreadable), nothing was changed."""
_GOOD: frozenset[Outcome] = frozenset({"rolled out", "rolled back manually", "nothing to do"})
_NOTHING_DONE: frozenset[Outcome] = frozenset({"held", "refused", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check of the new revision at a traffic percentage."""

    share: int
    fault: str
    """Cause of the failure; empty if it passed."""
    checked: bool = True
    """True if the revision was reached. If not, the failure is not the revision's."""
    measured: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """Result of a rollout."""

    stack: str
    outcome: Outcome
    revision: str
    """The revision that was created last, or the revision of `--to`."""
    reason: str
    """Explanation in whole sentences."""
    traffic: Mapping[str, int] | None
    """Traffic percentage of each revision with traffic; None if unknown."""
    gates: Sequence[Gate] = ()
    before: Measured | None = None
    """Measurements of the revision that served before."""
    retired: Sequence[str] = ()
    """Deleted revisions."""
    state_is_behind: bool = False
    """True if the refresh of the stack's state failed. Run `pulumi refresh`."""

    @property
    def exit_code(self) -> ExitCode:
        """0 if the wanted revision serves and is in the state, 2 if nothing was done, otherwise 1."""
        if self.outcome in _NOTHING_DONE:
            return ExitCode.REFUSED
        return ExitCode.DONE if self.outcome in _GOOD and not self.state_is_behind else ExitCode.FAILED

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {"schema_version": 2, **asdict(self)}


@dataclass(slots=True, kw_only=True)
class Progress:
    """Results of a run so far."""

    gates: list[Gate]
    before: Measured | None = None
    took_over: str = ""
    """The hold that was taken over and why, as a sentence."""
