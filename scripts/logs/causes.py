"""Known causes of failures in server logs, with their fixes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts.errors import CommandRefusedError
from contracts.naming import Names
from planning.errors import PlanningError
from scripts.cli.settings import stack_settings
from scripts.logs.place import ServerLog
from scripts.logs.reading import PrintedLine

if TYPE_CHECKING:
    from stacks.hooks.failure_hints import Cause, FailedStart


def known_cause(log: ServerLog, lines: Sequence[str]) -> "Cause | None":
    """Return the root cause in the lines; None if no known cause matches or the settings cannot be read."""
    from stacks.hooks.failure_hints import cause_of  # noqa: PLC0415 - the planner takes 0.1 s to load

    start = _start(log)
    return None if start is None else cause_of(lines, start)


def newest_cause(log: ServerLog, lines: Sequence[PrintedLine]) -> "Cause | None":
    """Return the cause in the logs of the newest revision or node that has one.

    A fixed failure must not hide the failure of the next start. The revision or node whose logs start later is newer.
    """
    places: dict[str, list[str]] = {}
    for line in lines:
        places.setdefault(line.where, []).append(line.text)
    causes = (known_cause(log, texts) for texts in reversed(places.values()))
    return next((cause for cause in causes if cause is not None), None)


def sentence(cause: "Cause") -> str:
    """Return a cause as text."""
    finding = f" [{cause.finding}: docs/reference/rules.md]" if cause.finding else ""
    return f"known cause{finding}: {cause.hint}"


def _start(log: ServerLog) -> "FailedStart | None":
    from planning import plan  # noqa: PLC0415 - as above
    from stacks.hooks.failure_hints import FailedStart  # noqa: PLC0415 - as above
    from stacks.planned import to_deployment  # noqa: PLC0415 - as above

    names = Names(project=log.project, stack=log.stack)
    try:
        settings = stack_settings(log.stack, project=log.project)
        planned = plan(to_deployment(settings))
    except (CommandRefusedError, PlanningError):
        return None
    return FailedStart(
        stack=log.stack,
        settings=settings,
        run=settings.cloud_run,
        plan=planned,
        probe=planned.startup.probe if settings.cloud_run else None,
        bucket=settings.bucket.existing or names.bucket,
        account=f"{names.account_id}@{log.project}.iam.gserviceaccount.com",
    )
