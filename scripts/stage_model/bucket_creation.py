"""The one thing that staging may do in the engine: create a stack's bucket that does not exist yet, as a preview showed it.

A bucket that the state has needs no run of the engine. Anything else than creations, such as a replacement of the bucket with the weights in
it, is a change that `pulumi preview` shows and `pulumi up` makes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.naming import Names
from engine import runner
from engine.deployment import ResourceState, read_deployment
from engine.previewed import previewed
from engine.steps import PlannedStep, shortened_differences, steps_of
from scripts.cli.frozen import FrozenProject
from scripts.cli.plan_identity import identity_of, plan_id_of
from stacks.settings import Settings

BUCKET_TYPE: Final = "gcp:storage/bucket:Bucket"
_TARGETS: Final = (
    "**:Provider::gcp",
    "**:index:ModelBucket::models",
    "**$gcp:storage/bucket:Bucket::models",
    "**gcp:projects/service:Service::*",
)
_CREATED_TYPES: Final = frozenset(
    {
        BUCKET_TYPE,
        "gcp:projects/service:Service",
        "gemma-serving:index:ModelBucket",
        "pulumi:providers:gcp",
        "pulumi:pulumi:Stack",
    }
)


def target_options() -> Sequence[str]:
    """Return the options of the engine that leave everything but the bucket and what it needs alone."""
    return [f"--target={target}" for target in _TARGETS]


def has_bucket(stack: str, settings: Settings) -> bool:
    """Return whether the state has the stack's own bucket.

    Raises CommandRefusedError if there is no such stack, if the settings have the bucket elsewhere than it is, or if an interrupted update
    has to end before the engine creates anything.
    """
    resources = read_deployment(stack).resources
    found = next(
        (one for one in resources if one.type == BUCKET_TYPE and one.name == "models" and not one.delete), None
    )
    if found is not None:
        _require_unmoved(stack, settings, found)
        return True
    waiting = [one.name for one in resources if one.delete]
    if waiting:
        raise CommandRefusedError(
            f"An update of stack {stack} was interrupted before it deleted {', '.join(waiting)}, and staging deletes nothing. Run "
            f"`pulumi up --stack {stack}`, which deletes that first and then asks for the weights; then stage."
        )
    return False


def require_creations(stack: str, steps: Sequence[PlannedStep]) -> None:
    """Refuse a preview that does anything but create the bucket and what it needs. Raises CommandRefusedError."""
    others = [step for step in steps if step.op != "create" or step.type not in _CREATED_TYPES]
    if others:
        what = shortened_differences([f"{step.does} `{step.name}` ({step.type})" for step in others])
        raise CommandRefusedError(
            f"Creating the bucket of stack {stack} would also change other resources: {what}. Staging creates the bucket and changes nothing "
            f"else. Read `pulumi preview --stack {stack}`, run `pulumi up --stack {stack}`, then stage."
        )


def creation_steps(frozen: FrozenProject) -> Sequence[PlannedStep]:
    """Preview the creation in a copy of the project. Raises CommandRefusedError as `require_creations` does, and ScriptError."""
    steps = steps_of(previewed(frozen.stack, _in_copy(frozen.folder), *target_options()))
    require_creations(frozen.stack, steps)
    return steps


def creation_plan_id(frozen: FrozenProject, steps: Sequence[PlannedStep]) -> str:
    """Return the id of a creation's plan: a bucket without objects costs nothing."""
    return plan_id_of(identity_of(frozen), steps, refresh=False, usd_per_hour=0.0)


def create_bucket(frozen: FrozenProject, *, after_failure: str) -> None:
    """Create what the preview showed, from the same copy. Raises PulumiFailedError."""
    runner.change(frozen.stack, "up", _in_copy(frozen.folder), *target_options(), after_failure=after_failure)


def _in_copy(folder: Path) -> str:
    return f"--cwd={folder}"


def _require_unmoved(stack: str, settings: Settings, bucket: ResourceState) -> None:
    """Refuse a bucket that the next `up` would replace: weights that are staged into it would not be in the other one."""
    name, location = Names(project=settings.project, stack=stack).bucket, settings.regions[0].upper()
    is_now = (str(bucket.inputs.get("name") or ""), str(bucket.inputs.get("location") or "").upper())
    if is_now != (name, location):
        raise CommandRefusedError(
            f"The bucket of stack {stack} is {is_now[0]} in {is_now[1]}, and the settings have it as {name} in {location}. Staging replaces no "
            f"bucket, and `pulumi up` refuses to while it is protected (`pulumi preview --stack {stack}` shows it). Set the region back, or "
            f"use another stack there: docs/cloud-run.md, Move a stack to another region."
        )
