"""Creation of a missing stack bucket as previewed, the only engine operation of staging.

A bucket in the state needs no engine run. Any other change, such as a replacement of the bucket and its weights, is left to `pulumi preview` and
`pulumi up`.
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
from stacks.settings import Settings

BUCKET_TYPE: Final = "gcp:storage/bucket:Bucket"
_TARGETS: Final = (
    "**:Provider::gcp",
    "**:index:ModelBucket::models",
    "**$gcp:storage/bucket:Bucket::models",
)
_CREATED_TYPES: Final = frozenset(
    {
        BUCKET_TYPE,
        "gemma-serving:index:ModelBucket",
        "pulumi:providers:gcp",
        "pulumi:pulumi:Stack",
    }
)


def target_options() -> Sequence[str]:
    """Return the engine options that limit a run to the bucket and its dependencies."""
    return [f"--target={target}" for target in _TARGETS]


def has_bucket(stack: str, settings: Settings) -> bool:
    """Return whether the state has the stack's own bucket.

    Raises CommandRefusedError if the stack does not exist, if its settings move the bucket, or if an interrupted update must finish first.
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
            f"An update of stack {stack} was interrupted before it deleted {', '.join(waiting)}, and staging deletes no resources. Run "
            f"`gemma up {stack}`, which deletes them and then stops for the weights. Then stage again."
        )
    return False


def require_creations(stack: str, steps: Sequence[PlannedStep]) -> None:
    """Reject a preview that does more than create the bucket and its dependencies. Raises CommandRefusedError."""
    others = [step for step in steps if step.op != "create" or step.type not in _CREATED_TYPES]
    if others:
        changes = shortened_differences([f"{step.does} `{step.name}` ({step.type})" for step in others])
        raise CommandRefusedError(
            f"Cannot create the bucket of stack {stack} because the engine plans other changes too: {changes}. "
            f"Review `pulumi preview --stack {stack}`, run `gemma up {stack}`, then stage again."
        )


def creation_steps(frozen: FrozenProject) -> Sequence[PlannedStep]:
    """Preview the creation in a copy of the project. Raises CommandRefusedError as `require_creations` does, and ScriptError."""
    steps = steps_of(previewed(frozen.stack, _in_copy(frozen.folder), *target_options()))
    require_creations(frozen.stack, steps)
    return steps


def creation_plan_id(frozen: FrozenProject, steps: Sequence[PlannedStep]) -> str:
    """Return the plan id of a creation."""
    return frozen.plan_id(steps)


def create_bucket(frozen: FrozenProject, *, after_failure: str) -> None:
    """Create the previewed resources from the same copy. Raises PulumiFailedError."""
    runner.change(frozen.stack, "up", _in_copy(frozen.folder), *target_options(), after_failure=after_failure)


def _in_copy(folder: Path) -> str:
    return f"--cwd={folder}"


def _require_unmoved(stack: str, settings: Settings, bucket: ResourceState) -> None:
    """Reject a bucket that the next `up` replaces, because the new bucket will not have the staged weights."""
    name, location = Names(project=settings.project, stack=stack).bucket, settings.regions[0].upper()
    is_now = (str(bucket.inputs.get("name") or ""), str(bucket.inputs.get("location") or "").upper())
    if is_now != (name, location):
        raise CommandRefusedError(
            f"The bucket of stack {stack} is {is_now[0]} in {is_now[1]}, but the settings have {name} in {location}. Neither staging nor "
            f"`pulumi up` replaces a protected bucket (see `pulumi preview --stack {stack}`). Revert the region, or use another stack there: "
            f"docs/staging.md, Move a stack to another region."
        )
