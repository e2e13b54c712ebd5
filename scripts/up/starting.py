"""Before and after a deployment: what stops it, a state that exists only if it is used, and what exists after a failure."""

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

from gemma_serving.cloud.google_session import NO_CONNECTION
from gemma_serving.contracts.capacity_states import ACTIVE, BILLED, IN_QUEUE
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.guest_attributes import FAILED, reason_of
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import replace_file
from gemma_serving.engine.secrets_provider import create_state
from gemma_serving.engine.state import StackState, read, remove_empty
from gemma_serving.planning import plan
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.doctor.api import blocking_checks, report_entries, width_of
from gemma_serving.scripts.stack.settings import gateway_settings, stack_settings
from gemma_serving.scripts.status.api import CAPACITY, CloudFacts, facts_within, serving
from gemma_serving.stacks.deployed.home_region import home_region
from gemma_serving.stacks.loading import read_yaml
from gemma_serving.stacks.planned import require_unblocked, to_deployment, today
from gemma_serving.stacks.wording import StackWording

_GOOGLE_LIMIT_S: Final = 10.0


@contextlib.contextmanager
def prepared_stack(stack: str) -> Generator[bool]:
    """Require that nothing blocks a stack, and create its state if it has none. A failure removes an empty new state.

    Yield whether it is a gateway. Raises CommandRefusedError before anything is created.
    """
    runner.require_stacks([stack])
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    settings = None if gateway_settings(stack) else stack_settings(stack)
    is_known = stack in runner.listed_stacks()
    if settings is not None:  # a gateway has no plan, and no check of the doctor is for one
        _require_plan(stack, settings)
        if is_known:
            home_region(settings, stack, read(stack).by_urn)  # before the checks of another region
        _require_unblocked(stack, settings, is_known=is_known)
    text = path.read_text(encoding="utf-8")
    if not is_known:
        create_state(stack)
    try:
        yield settings is None
    except BaseException as error:
        if not is_known and remove_empty(read(stack)):
            _restore(path, text)
        elif isinstance(error, ScriptError) and not isinstance(error, CommandRefusedError):
            print_progress("up", exists_now(stack))
        raise


def _require_plan(stack: str, settings: Settings) -> None:
    """Raise CommandRefusedError if findings of the plan block a stack, and PlanningError if its settings cannot be planned."""
    deployment = to_deployment(settings, runner.project_folder(), today=today())
    require_unblocked(plan(deployment), stack, StackWording(deployment, stack))


def _require_unblocked(stack: str, settings: Settings, *, is_known: bool) -> None:
    """Print each check that blocks, with the commands that fix it.

    Raises CommandRefusedError if one does, and ScriptError if this machine has no connection to Google.
    """

    def has_server() -> bool:
        return is_known and read(stack).has_server

    lines = blocking_checks(stack, settings, is_known=is_known, has_server=has_server)
    if any(line.state == "failed" for line in lines):
        print(report_entries(lines, width=width_of(sys.stderr)), file=sys.stderr)
        raise CommandRefusedError(
            f"Project {settings.project} is not ready for stack {stack}. Nothing was changed. Run the commands above, then "
            f"`gemma up {stack}`."
        )
    for line in lines:
        if line.detail.startswith(NO_CONNECTION):
            raise ScriptError(f"{line.detail} Nothing was changed.")
    for text in dict.fromkeys(f"could not check {line.check}: {line.detail}" for line in lines):
        print_progress("up", text)


def _restore(path: Path, text: str) -> None:
    """Restore the settings file without the salt of a removed state, unless somebody else changed the file."""
    before = as_mapping(read_yaml(text))
    now = as_mapping(read_yaml(path.read_text(encoding="utf-8")))
    if {**now, "encryptionsalt": ""} == {**before, "encryptionsalt": ""}:
        replace_file(path.resolve(), text)


def exists_now(stack: str) -> str:
    """Return what the stack has after a failure and what it costs, as far as Google reports it."""
    end = f"`gemma status {stack}` shows it, `gemma teardown {stack}` deletes it."
    state = read(stack)
    if state.status != "read":
        return f"Exists now: unknown, because the state cannot be read. {end}"
    found = serving(state)
    if found is None:
        return (
            f"Exists now: {len(state.resources)} resources in the state. None of them is a TPU VM, a service or a request for "
            f"capacity, which have the hourly price. {end}"
        )
    what = "service" if found.kind not in CAPACITY else "capacity"
    facts, error = facts_within(found, stack, limit_s=_GOOGLE_LIMIT_S)
    if facts is None:
        return f"Exists now: unknown, because Google did not report the {what} ({error}). {end}"
    place = f" in {facts.place}" if facts.place else ""
    cost = _cost(facts, is_service=what == "service")
    return f"Exists now: {what}{place}, {facts.state}: {cost}. {end}{_fix(state, facts)}"


def _fix(state: StackState, facts: CloudFacts) -> str:
    """Return how to fix a machine's server that failed, with the command to run then; empty if the cause is unknown."""
    from gemma_serving.scripts.logs.api import known_cause, server_log  # noqa: PLC0415 - only a failure needs it

    if facts.phase != FAILED:
        return ""
    detail = facts.phase_detail or ""
    cause = known_cause(server_log(state), detail.splitlines(), reason=reason_of(detail))
    return f" {cause.hint} Then run `gemma up {state.stack}`." if cause is not None else ""


def _cost(facts: CloudFacts, *, is_service: bool) -> str:
    """Return the cost of a server as text, with the price in its labels."""
    price = "an unknown price" if facts.usd_per_hour is None else f"${facts.usd_per_hour:.2f}/h"
    if is_service:
        return f"each running instance costs {price}"
    if facts.state in IN_QUEUE | {"CREATING"}:
        return "costs nothing until it is ACTIVE"
    if facts.state == ACTIVE:
        return f"costs {price}"
    return f"may cost {price}" if facts.state in BILLED | {"UNKNOWN"} else "no TPU VM is running"
