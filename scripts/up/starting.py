"""Before and after a deployment: what stops it, a state that exists only if it is used, and what exists after a failure."""

import contextlib
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

from gemma_serving.cloud.google_session import NO_CONNECTION
from gemma_serving.contracts.answers import Present, Unknown
from gemma_serving.contracts.capacity_states import ACTIVE
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.guest_attributes import FAILED, reason_of
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.settings_files import refresh_command
from gemma_serving.contracts.stack_facts import CloudFacts
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import replace_file
from gemma_serving.engine.deployed_config import deployed_keys, keys_in
from gemma_serving.engine.secrets_provider import create_state
from gemma_serving.engine.state import StackState, read, remove_empty
from gemma_serving.planning import plan
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.doctor.api import blocking_checks, report_entries, width_of
from gemma_serving.scripts.stack.costs import ServerCosts, reported_billing
from gemma_serving.scripts.stack.deployed_server import CAPACITY
from gemma_serving.scripts.stack.facts import read_facts
from gemma_serving.scripts.stack.settings import gateway_settings, stack_settings
from gemma_serving.scripts.stack.unfinished_teardown import forget
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
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    settings = None if gateway_settings(stack) else stack_settings(stack)
    state = read(stack)
    is_known = state.status != "missing"
    if state.rename:
        raise CommandRefusedError(f"{state.rename} `up` would delete them and create others. Nothing was changed.")
    if not is_known:
        _require_same_project(stack)
    if settings is not None:  # a gateway has no plan, and no check of the doctor is for one
        _require_plan(stack, settings)
        home_region(settings, stack, state.by_urn)  # before the checks of another region
        _require_zone(settings, state)
        _require_unblocked(stack, settings, state)
    if state.status not in {"read", "missing"}:
        raise CommandRefusedError(state.detail)
    text = path.read_text(encoding="utf-8")
    if not is_known:
        create_state(stack)
    try:
        yield settings is None
        forget(stack)
    except BaseException as error:
        if not is_known and remove_empty(read(stack)):
            _restore(path, text)
        elif isinstance(error, ScriptError) and not isinstance(error, CommandRefusedError):
            print_progress("up", exists_now(stack))
        raise


def _require_same_project(stack: str) -> None:
    """Raise CommandRefusedError if Pulumi.yaml has another name, and the backend has the stack under the name that this project has."""
    path = runner.project_folder() / "Pulumi.yaml"
    name = str(as_mapping(read_yaml(path.read_text(encoding="utf-8"))).get("name"))
    if name != PRODUCT and stack in runner.listed_stacks("--project", PRODUCT):
        raise CommandRefusedError(
            f"Pulumi.yaml has the name {name}, and stack {stack} was deployed as a stack of {PRODUCT}. `up` would create it a second time. "
            f"Set `name: {PRODUCT}` in Pulumi.yaml. Nothing was changed."
        )


def _require_zone(settings: Settings, state: StackState) -> None:
    """Raise CommandRefusedError if an interrupted `up` has running capacity in a zone that the settings no longer list."""
    tpu = settings.tpu
    is_interrupted = any(item.get("type") == CAPACITY_TYPE for item in state.pending)
    if tpu is None or not is_interrupted or tpu.allow_replace_active:
        return
    report = read_facts(state, "server", limit_s=_GOOGLE_LIMIT_S).server
    facts = report.value if isinstance(report, Present) else None
    if facts is not None and facts.state == ACTIVE and facts.place not in tpu.zones:
        raise CommandRefusedError(
            f"The capacity in {facts.place} is ACTIVE. An interrupted `gemma up` requested it, but `tpu.zones` no longer lists its zone. "
            f"Add {facts.place} to `tpu.zones`, or set `tpu.allowReplaceActive: true` to delete the capacity. Nothing was changed."
        )


def _require_plan(stack: str, settings: Settings) -> None:
    """Raise CommandRefusedError if findings of the plan block a stack, and PlanningError if its settings cannot be planned."""
    deployment = to_deployment(settings, runner.project_folder(), today=today())
    require_unblocked(plan(deployment), stack, StackWording(deployment, stack))


def _require_unblocked(stack: str, settings: Settings, state: StackState) -> None:
    """Print each check that blocks, with the commands that fix it.

    Raises CommandRefusedError if one does, and ScriptError if this machine has no connection to Google.
    """
    lines = blocking_checks(stack, settings, state)
    login = next((line for line in lines if line.check == "credentials" and line.state == "failed"), None)
    if login is not None:
        raise CommandRefusedError(f"{login.detail}. Nothing was changed. Run `{login.fix}`, then `gemma up {stack}`.")
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


def dropped_settings(stack: str) -> Sequence[str]:
    """Return a warning if the settings file lacks keys of the last `up`, as a file from another machine may."""
    document = read_yaml((runner.project_folder() / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8"))
    lacking = sorted(deployed_keys(stack) - set(keys_in(as_mapping(as_mapping(document).get("config")))))
    if not lacking:
        return ()
    keys = ", ".join(key.removeprefix(f"{PRODUCT}:") for key in lacking)
    text = (
        f"Warning: Pulumi.{stack}.yaml lacks settings of the last `gemma up`: {keys}. If you did not remove them, run "
        f"`{refresh_command(stack)}`, which writes the deployed settings."
    )
    return [text]


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
    known = read_facts(state, "cost", limit_s=_GOOGLE_LIMIT_S)
    what = "capacity" if known.declared is not None and known.declared.kind in CAPACITY else "service"
    if isinstance(known.server, Unknown):
        return f"Exists now: unknown, because Google did not report the {what} ({known.server.why}). {end}"
    if not isinstance(known.server, Present):
        return (
            f"Exists now: {number_of(len(state.resources), 'resource')} in the state, and no server. If an earlier state had one, it may "
            f"still cost money: `gemma teardown {stack} --dry-run` asks Google. {end}"
        )
    facts = known.server.value
    place = f" in {facts.place}" if facts.place else ""
    is_service = what == "service"
    costs = ServerCosts(
        billing=reported_billing(facts.state, facts.usd_per_hour, has_ended=facts.has_ended, is_service=is_service),
        is_service=is_service,
        running=facts.running_usd_per_hour,
        now=facts.usd_per_hour,
        ends=facts.deadline or "",
        form=facts.form or "",
    )
    return f"Exists now: {what}{place}, {facts.state}. {costs.sentence} {end}{_fix(state, facts)}"


def _fix(state: StackState, facts: CloudFacts) -> str:
    """Return how to fix a machine's server that failed, with the command to run then; empty if the cause is unknown."""
    from gemma_serving.scripts.logs.api import known_cause, server_log  # noqa: PLC0415 - only a failure needs it

    if facts.phase != FAILED:
        return ""
    detail = facts.phase_detail or ""
    cause = known_cause(server_log(state), detail.splitlines(), reason=reason_of(detail))
    return f" {cause.hint} Then run `gemma up {state.stack}`." if cause is not None else ""
