"""Read a stack's settings without the engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemma_serving.contracts.errors import CommandRefusedError

if TYPE_CHECKING:
    from gemma_serving.planning.settings.gateway_stack import GatewayStack
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


def gateway_settings(stack: str, *, project: str | None = None) -> "GatewayStack | None":
    """Return the settings of a gateway; None if the file is missing or another target's. Raises CommandRefusedError."""
    from gemma_serving.engine.runner import project_folder  # noqa: PLC0415 - as above
    from gemma_serving.stacks.loading import gateway_from_file, is_gateway_file  # noqa: PLC0415 - as above

    path = project_folder() / f"Pulumi.{stack}.yaml"
    if not is_gateway_file(path):
        return None
    return gateway_from_file(path, project=project)


def stack_project(stack: str, *, project: str | None = None) -> str:
    """Return the project of any stack. Raises CommandRefusedError as `stack_settings` does."""
    gateway = gateway_settings(stack, project=project)
    return (gateway or stack_settings(stack, project=project)).project
