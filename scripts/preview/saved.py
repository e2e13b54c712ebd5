"""Plan file with the result of a preview and its validity, passed from the job that creates it to the job that deploys it."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from contracts.errors import CommandRefusedError, ScriptError
from engine import runner
from engine.checkout import require_committed
from engine.previewed import previewed_or_new
from engine.steps import PlannedStep, differences, shortened_differences, steps_of
from scripts.cli.frozen import FrozenProject, frozen_here
from scripts.cli.hidden import environment_secrets
from scripts.cli.plan_identity import PlanIdentity, identity_of, plan_id_of
from scripts.preview.plans import DescribedFinding, DescribedPlan, describe_stack
from stacks.planned import today

PLAN_VERSION: Final = 1
VALID: Final = timedelta(hours=24)


class PlanRefusedError(CommandRefusedError):
    """The plan differs from the deployment's current steps. Nothing was deployed, so nothing needs a rollback."""


class SavedPlan(BaseModel):
    """The document. It is never executed; a deployment computes the plan again and compares."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = PLAN_VERSION
    id: str
    stack: str
    commit: str
    made_at: AwareDatetime
    expires_at: AwareDatetime
    refresh: bool
    """True if the preview refreshed from Google first. The deployment then does the same."""
    identity: PlanIdentity
    steps: tuple[PlannedStep, ...]
    usd_per_hour_at_most: float
    """With the maximum number of instances, at list prices."""
    planner: DescribedPlan | None
    findings: tuple[DescribedFinding, ...] = ()

    def require_same(self, frozen: FrozenProject) -> None:
        """Preview the copy again and compare. The current folder must be the copy.

        Raises PlanRefusedError with the differences, or with the reason why the comparison failed.
        """
        if datetime.now(UTC) > self.expires_at:
            raise self.refused(f"it expired at {_minute(self.expires_at)} UTC")
        try:
            self._compare(frozen)
        except PlanRefusedError:
            raise
        except ScriptError as error:
            raise PlanRefusedError(f"{self.id} could not be compared. Nothing was deployed. {error}") from None

    def _compare(self, frozen: FrozenProject) -> None:
        identity = identity_of(frozen, must_exist=False)
        changed = identity.changed_since(self.identity)
        if changed:
            raise self.refused(" and ".join(changed))
        differing = differences(self.steps, _previewed_steps(frozen.stack, refresh=self.refresh))
        if differing:
            raise self.refused(shortened_differences(differing))
        changed = identity_of(frozen, must_exist=False).changed_since(identity)
        if changed:
            raise self.refused(f"{' and '.join(changed)} during the comparison")

    def refused(self, reason: str) -> PlanRefusedError:
        """Return the error with the difference and the next step."""
        return PlanRefusedError(
            f"{self.id} does not match the current deployment steps: {reason}. Nothing was deployed. To save and review a new plan, run "
            f"`python -m scripts.preview save --stack {self.stack} --out plan.json`, or rerun all jobs of the workflow."
        )


def make_plan(stack: str, *, settings_of: str | None = None, refresh: bool = False) -> SavedPlan:
    """Preview a private copy of this checkout and return the result.

    Raises CommandRefusedError if the settings are missing or invalid or a file is not committed, and ScriptError if the preview fails.
    """
    if settings_of is not None and (runner.project_folder() / f"Pulumi.{stack}.yaml").exists():
        raise CommandRefusedError(
            f"--settings-of conflicts with the existing Pulumi.{stack}.yaml. Choose another name for --stack."
        )
    commit = require_committed()
    with frozen_here(stack, settings_of=settings_of) as frozen:
        identity = identity_of(frozen, must_exist=False)
        steps = _previewed_steps(stack, refresh=refresh)
        changed = identity_of(frozen, must_exist=False).changed_since(identity)
        described = describe_stack(frozen.folder, stack, date=today())
        usd_per_hour = round(frozen.most_usd_per_hour, 4)
    if changed:
        raise ScriptError(f"The stack changed during the preview: {' and '.join(changed)}. Run the command again.")
    made_at = datetime.now(UTC).replace(microsecond=0)
    return SavedPlan(
        id=plan_id_of(identity, steps, refresh=refresh, usd_per_hour=usd_per_hour),
        stack=stack,
        commit=commit,
        made_at=made_at,
        expires_at=made_at + VALID,
        refresh=refresh,
        identity=identity,
        steps=tuple(steps),
        usd_per_hour_at_most=usd_per_hour,
        planner=described.plan,
        findings=described.findings,
    )


def write_plan(path: Path, plan: SavedPlan) -> None:
    """Store a plan. Raises CommandRefusedError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plan.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandRefusedError(f"Cannot write --out {path}: {error.strerror}. Choose another path.") from None


def read_plan(path: Path, *, stack: str) -> SavedPlan:
    """Return the plan stored by `write_plan`. Raises CommandRefusedError if it is not a plan, was edited, or is for another stack."""
    try:
        text = path.read_text(encoding="utf-8")
        version = json.loads(text).get("schema_version")
        if version != PLAN_VERSION:
            raise CommandRefusedError(
                f"--plan {path} has schema_version {version}, but this version reads {PLAN_VERSION}. Save a new plan with this version."
            )
        plan = SavedPlan.model_validate_json(text)
    except OSError as error:
        raise CommandRefusedError(f"Cannot read --plan {path}: {error.strerror}.") from None
    except (ValidationError, ValueError, AttributeError):
        raise CommandRefusedError(
            f"--plan {path} is not a plan. To save one, run `python -m scripts.preview save --stack {stack} --out plan.json`."
        ) from None
    identity, steps = plan.identity, plan.steps
    if plan.id != plan_id_of(identity, steps, refresh=plan.refresh, usd_per_hour=plan.usd_per_hour_at_most):
        raise CommandRefusedError(f"--plan {path} was edited: its content does not match the id {plan.id[:40]}.")
    if stack != plan.stack or stack != identity.stack:
        raise CommandRefusedError(f"--plan {path} is for stack {plan.stack[:60]}, but --stack is {stack}.")
    return plan


def _previewed_steps(stack: str, *, refresh: bool) -> Sequence[PlannedStep]:
    preview = previewed_or_new(stack, *(["--refresh"] if refresh else []))
    return steps_of(preview, environment_secrets())


def _minute(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
