"""How a roll-out ended, for people and programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from contracts.exit_codes import ExitCode
from scripts.rollout.decisions import Measured

Outcome = Literal[
    "rolled out", "rolled back", "not verified", "rolled back manually", "nothing to do", "failed",
    "not rolled back", "interrupted", "stopped", "held", "refused", "unknown",
]  # fmt: skip
"""`not verified`: the new revision could not be reached for its check, so that the old one has the requests; nothing is known against the new one.
`not rolled back`: a check failed, and Google took no change for minutes. `interrupted`: the requests stay as they were divided last.
`stopped`: another run or `pulumi up` changed the service, and this run left it alone. Nothing was changed by a run that ends with `held` (another
run holds the roll-out), `refused` (the revision was refused before) or `unknown` (the record cannot be read)."""
_GOOD: frozenset[Outcome] = frozenset({"rolled out", "rolled back manually", "nothing to do"})
_NOTHING_DONE: frozenset[Outcome] = frozenset({"held", "refused", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check of the new revision, at a share of the traffic."""

    share: int
    fault: str
    """Empty if it passed."""
    checked: bool = True
    """Whether the revision was reached: if not, the fault is not the revision's."""
    measured: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """How a roll-out ended."""

    stack: str
    outcome: Outcome
    revision: str
    """The revision that was made last, or that `--to` names."""
    reason: str
    """What happened, whole sentences."""
    traffic: Mapping[str, int] | None
    """Percent of the requests of each revision that gets some; None is unknown."""
    gates: Sequence[Gate] = ()
    before: Measured | None = None
    """What was measured of the revision that served before."""
    retired: Sequence[str] = ()
    """Revisions that were deleted."""
    state_is_behind: bool = False
    """Whether the stack's state could not take over the traffic: `pulumi refresh` does it."""

    @property
    def exit_code(self) -> ExitCode:
        """0 if the revision that was asked for serves and the state knows it, 2 if nothing was done."""
        if self.outcome in _NOTHING_DONE:
            return ExitCode.REFUSED
        return ExitCode.DONE if self.outcome in _GOOD and not self.state_is_behind else ExitCode.FAILED

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {"schema_version": 2, **asdict(self)}


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a run did so far."""

    gates: list[Gate]
    before: Measured | None = None
    took_over: str = ""
    """Whose hold was taken over and why, a sentence."""
