"""A stack's server logs in Cloud Logging, and known causes of failures in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from gemma_serving.cloud.server_logs import service_filter
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.machine_log import MACHINE_RESOURCE, machine_log_name
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.outputs import Target
from gemma_serving.engine.state import StackState
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.stack.facts import facts_of
from gemma_serving.scripts.stack.serves import require_deployed
from gemma_serving.scripts.stack.settings import stack_settings

if TYPE_CHECKING:
    from gemma_serving.stacks.hooks.failure_hints import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """The log of one stack's server."""

    stack: str
    project: str
    target: Target
    location: str
    """Region of Cloud Run. A TPU node can be in any zone."""
    api_key_secret: str | None = None
    """Secret version of the API key, which must be masked."""

    def filter(self, since: datetime) -> str:
        """Return the filter for the logs since a time."""
        names, moment = Names(project=self.project, stack=self.stack), since.isoformat()
        if self.target != "tpu":
            return service_filter(names.base, self.location, f'timestamp>="{moment}"')
        return (
            f'logName="{machine_log_name(self.project)}" AND resource.type="{MACHINE_RESOURCE}" AND '
            f'resource.labels.namespace="{names.account_id}" AND timestamp>="{moment}"'
        )


def server_log(state: StackState) -> ServerLog:
    """Return the log of a stack from its outputs or its settings, because logs outlive the server.

    Raises CommandRefusedError if it has neither.
    """
    outputs = state.outputs
    if outputs is not None:
        return ServerLog(
            stack=state.stack,
            project=outputs.project,
            target=outputs.target,
            location=outputs.location,
            api_key_secret=outputs.api_key_secret,
        )
    try:
        settings = stack_settings(state.stack, project=next(iter(state.projects), None))
    except CommandRefusedError:
        require_deployed(facts_of(state))
        raise
    return log_of(state.stack, settings)


def log_of(stack: str, settings: Settings) -> ServerLog:
    """Return the log of a stack with these settings."""
    region = settings.cloud_run.region if settings.cloud_run else ""
    return ServerLog(stack=stack, project=settings.project, target=settings.target, location=region)


def known_cause(log: ServerLog, lines: Sequence[str], *, reason: str = "") -> "Cause | None":
    """Return the root cause from the log, or its error with an unknown cause; None if it shows neither or the settings cannot be read.

    `reason`: the error of a server that failed, or empty.
    """
    from gemma_serving.planning.planner import plan  # noqa: PLC0415 - the planner takes 0.1 s to load
    from gemma_serving.stacks.hooks.failure_hints import FailedStart, cause_of  # noqa: PLC0415 - as above
    from gemma_serving.stacks.planned import to_question  # noqa: PLC0415 - as above

    try:
        settings = stack_settings(log.stack, project=log.project)
        planned = plan(to_question(settings))
    except (CommandRefusedError, PlanningError):
        return None
    start = FailedStart(stack=log.stack, settings=settings, plan=planned)
    return cause_of(lines, start, reason=reason)


def sentence(cause: "Cause") -> str:
    """Return a cause as text, and an error without one as such."""
    if not cause.hint:
        return f"the server's error, whose cause is not known: {cause.line}"
    finding = f" [{cause.finding}: docs/reference/rules.md]" if cause.finding else ""
    return f"known cause{finding}: {cause.hint}"
