"""Creation of a missing stack bucket as previewed, the only engine operation of staging.

Any other change, such as a replacement of the bucket and its weights, is left to `pulumi up`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.resource_types import BUCKET_TYPE
from gemma_serving.contracts.staged_weights import STAGING_VARIABLE
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.engine.backend import absolute_backend, variable
from gemma_serving.engine.deployed_config import BUCKET_CREATION
from gemma_serving.engine.exported_state import read_deployment
from gemma_serving.engine.locks import past_dead_locks
from gemma_serving.engine.previewed import previewed
from gemma_serving.engine.secrets_provider import create_state
from gemma_serving.engine.steps import PlannedStep, steps_of
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.stack import engine_run
from gemma_serving.scripts.stack.frozen import FrozenProject, freeze
from gemma_serving.scripts.up.api import import_missing
from gemma_serving.stacks.deployed.home_region import home_region
from gemma_serving.stacks.planned import doctor_hint

_TARGETS: Final = (
    "**:Provider::gcp",
    "**:index:ModelBucket::models",
    "**$gcp:storage/bucket:Bucket::models",
)
_CREATED_TYPES: Final = frozenset(
    {BUCKET_TYPE, "gemma-serving:index:ModelBucket", "pulumi:providers:gcp", "pulumi:pulumi:Stack"}
)


def create_bucket(stack: str, *, say: Callable[[str], None], is_gone: bool = False) -> None:
    """Create only the stack's bucket, or import it, and the state if the stack has none. Raises CommandRefusedError and ScriptError.

    `is_gone`: the state has the bucket, but Google does not.
    """
    if stack not in runner.listed_stacks():
        create_state(stack, say)
        say(f"created an empty state for stack {stack}")
    with absolute_backend(), private_folder() as folder, variable(STAGING_VARIABLE, stack):
        frozen = freeze(stack, folder / "project")
        options = (*_options(frozen), *(["--refresh"] if is_gone else []))
        preview = partial(previewed, stack, *options)
        document = import_missing(stack, frozen.settings.project, preview(), preview=preview, name="stage_model")
        if not is_gone and has_bucket(stack, frozen.settings):
            return
        steps = len(_creation_steps(stack, document))
        say("creating the bucket")
        options = (*options, f"--message={BUCKET_CREATION}")
        up = partial(engine_run.change, stack, "up", *options, name="stage_model", steps=steps)
        after_failure = f"The bucket was not created. {doctor_hint(stack)}"
        try:
            past_dead_locks(stack, partial(up, after_failure=after_failure), report=say)
        finally:
            for sentence in frozen.bring_back_engine_lines(runner.project_folder()):
                say(sentence)


def has_bucket(stack: str, settings: Settings) -> bool:
    """Return whether the state has the stack's own bucket.

    Raises CommandRefusedError if the settings move the bucket, or if an interrupted update must finish first.
    """
    if stack not in runner.listed_stacks():
        return False
    resources = read_deployment(stack).resources
    for one in resources:
        if one.type == BUCKET_TYPE and one.name == "models" and not one.delete:
            home_region(settings, stack, {each.urn: each.raw for each in resources if not each.delete})
            return True
    waiting = [one.name for one in resources if one.delete]
    if waiting:
        raise CommandRefusedError(
            f"An update of stack {stack} was interrupted before it deleted {', '.join(waiting)}, "
            f"and staging deletes no resources. Run `gemma up {stack}`, "
            "which deletes them and then stops for the weights. Then stage again."
        )
    return False


def _creation_steps(stack: str, document: Mapping[str, object]) -> Sequence[PlannedStep]:
    """Return the steps of a preview of the creation. Raises CommandRefusedError if it has others."""
    steps = steps_of(document)
    others = [step for step in steps if step.op != "create" or step.type not in _CREATED_TYPES]
    if others:
        changes = "; ".join(f"{step.op} of `{step.name}` ({step.type})" for step in others)
        raise CommandRefusedError(
            f"Cannot create the bucket of stack {stack} because the engine plans other changes too: "
            f"{changes}. Review `gemma preview {stack}`, "
            f"run `gemma up {stack}`, then stage again."
        )
    return steps


def _options(frozen: FrozenProject) -> Sequence[str]:
    return [f"--cwd={frozen.folder}", *(f"--target={target}" for target in _TARGETS)]
