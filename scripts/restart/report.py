"""What a restart will do, and what it did."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from contracts.exit_codes import ExitCode
from scripts.cli.looked import look_id

SCHEMA_VERSION: Final = 1
Outcome = Literal["restarted", "waits for rollout", "failed", "timed out"]
"""`waits for rollout`: the new revision is ready and has no traffic, because the stack has `cloudRun.rollout`."""


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTimes:
    """Planned seconds of a restart."""

    restart_s: float
    """On a TPU machine that keeps the compiled programs."""
    start_s: float
    """If the server has to compile again; on Cloud Run always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLook:
    """A restart before it is requested."""

    stack: str
    target: Literal["tpu", "cloud-run"]
    server: str
    """Full name of the machine or the service."""
    serving: str
    """Hash of the document that serves, or the revision with the most traffic; empty if none does."""
    requests_fail_s: float
    """Planned time in which requests fail; 0 if the old server keeps serving."""
    start_s: float
    """Planned time until the new server is ready, if it has to compile again."""
    usd_per_hour: float | None
    """Maximum price during the restart, in USD per hour: on Cloud Run of both revisions with all their instances. None if unknown."""
    usd_per_hour_after: float | None
    """Maximum price after it, in USD per hour; None if unknown."""
    sentences: tuple[str, ...]
    """Effect and cost, for the user."""

    @property
    def plan(self) -> str:
        """Id of the dry run. It excludes the sentences, which have the phase."""
        return look_id({key: value for key, value in asdict(self).items() if key != "sentences"})

    def to_json(self) -> dict[str, Any]:
        """Return the dry run in JSON types."""
        return {"schema_version": SCHEMA_VERSION, "dry_run": True, **asdict(self), "plan": self.plan}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartReport:
    """Result of a restart."""

    stack: str
    server: str
    outcome: Outcome
    reason: str
    """What serves now and what to do next, in whole sentences."""
    elapsed_s: float
    paused_s: float | None = None
    """Time in which no server was ready, as the machine measured it; None if it did not, and on Cloud Run."""
    revision: str | None = None
    """The new revision; None on a TPU."""
    traffic: Mapping[str, int] | None = None
    """Traffic percentage by revision; None on a TPU, or if unknown."""
    state_is_behind: bool = False
    """True if the stack's state could not be refreshed, so that `scripts.status` reports the new revision as drift."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""
        return ExitCode.DONE if self.outcome in {"restarted", "waits for rollout"} else ExitCode.FAILED

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        values = asdict(self)
        for key in ("elapsed_s", "paused_s"):
            values[key] = None if values[key] is None else round(values[key], 1)
        return {"schema_version": SCHEMA_VERSION, "dry_run": False, **values}
