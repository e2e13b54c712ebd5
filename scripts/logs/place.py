"""Location of a stack's server logs: the project and the Cloud Logging filter."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from contracts.errors import CommandRefusedError
from contracts.machine_log import MACHINE_RESOURCE, machine_log_name
from contracts.naming import Names
from contracts.outputs import StackOutputs, Target
from engine.state import StackState, require_deployed
from scripts.cli.settings import stack_settings
from stacks.hooks.container_logs import RevisionLog

if TYPE_CHECKING:
    from stacks.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """The log of one stack's server."""

    stack: str
    project: str
    target: Target
    location: str
    """Region of Cloud Run; empty for a TPU node, which can be in any zone."""
    api_key_secret: str | None = None
    """Secret version of the API key, which must be masked."""

    def filter(self, since: datetime) -> str:
        """Return the filter for the logs since a time."""
        names, moment = Names(project=self.project, stack=self.stack), since.isoformat()
        if self.target != "tpu":
            return RevisionLog(
                project=self.project, location=self.location, service=names.base, revision=None, since=moment
            ).filter
        terms = [
            f'logName="{machine_log_name(self.project)}"',
            f'resource.type="{MACHINE_RESOURCE}"',
            f'resource.labels.namespace="{names.account_id}"',
            f'timestamp>="{moment}"',
        ]
        return " AND ".join(terms)


def server_log(state: StackState) -> ServerLog:
    """Return the log of a stack from its outputs, or else from its settings, because logs outlive the server.

    Raises CommandRefusedError if the stack has neither, or if its settings are invalid.
    """
    outputs = state.outputs
    if outputs is not None:
        return _of_outputs(state.stack, outputs)
    try:
        return log_of_settings(state.stack, stack_settings(state.stack, project=next(iter(state.projects), None)))
    except CommandRefusedError:
        require_deployed(state)
        raise


def _of_outputs(stack: str, outputs: StackOutputs) -> ServerLog:
    return ServerLog(
        stack=stack,
        project=outputs.project,
        target=outputs.target,
        location=outputs.location if outputs.target != "tpu" else "",
        api_key_secret=outputs.api_key_secret,
    )


def log_of_settings(stack: str, settings: "Settings") -> ServerLog:
    """Return the log of a stack with these settings."""
    return ServerLog(
        stack=stack,
        project=settings.project,
        target=settings.target,
        location=settings.cloud_run.region if settings.cloud_run else "",
    )
