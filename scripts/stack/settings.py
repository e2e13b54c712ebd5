"""Read a stack's settings without the engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemma_serving.contracts.errors import CommandRefusedError

if TYPE_CHECKING:
    from gemma_serving.planning.settings.stack import Settings

NO_PROJECT: Final = "planned-without-a-project"
"""Stand-in if neither the file nor the environment sets a project. A plan needs none."""


def stack_settings(stack: str, *, project: str | None = None, folder: Path | None = None) -> "Settings":
    """Return the settings in `Pulumi.<stack>.yaml`. `project` is the fallback if neither the file nor the environment sets one.

    Raises CommandRefusedError if the file is missing or invalid.
    """
    from gemma_serving.engine.runner import no_settings, project_folder  # noqa: PLC0415 - starts no engine here, and costs 9 ms
    from gemma_serving.stacks.loading import from_file  # noqa: PLC0415 - YAML takes 20 ms to load

    path = (folder or project_folder()) / f"Pulumi.{stack}.yaml"
    if folder is None and not path.is_file():
        raise CommandRefusedError(no_settings(stack))
    return from_file(path, project=project)


def stack_project(stack: str, *, project: str | None = None) -> str:
    """Return the project of a stack. Raises CommandRefusedError as `stack_settings` does."""
    return stack_settings(stack, project=project).project


def require_staged(stack: str, settings: "Settings") -> None:
    """Raise CommandRefusedError for a stack that does not read its weights from a bucket."""
    if settings.weights != "bucket":
        raise CommandRefusedError(
            f"Stack {stack} does not use staged weights (weights: {settings.weights}). "
            "To stage weights, set weights: bucket."
        )
