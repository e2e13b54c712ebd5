"""Before and after a deployment: what stops it, a state that exists only if it is used, and what exists after a failure."""

import contextlib
import sys
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from gemma_serving.cloud.google_session import NO_CONNECTION
from gemma_serving.contracts.capacity_states import ACTIVE
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.quotas import QUOTAS_VARIABLE, to_variable
from gemma_serving.contracts.settings_files import refresh_command
from gemma_serving.contracts.stack_facts import MISSING, StackFacts
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import replace_file
from gemma_serving.engine.backend import variable
from gemma_serving.engine.children import interruptible
from gemma_serving.engine.deployed_config import deployed_values, values_in
from gemma_serving.engine.locks import require_dead, stack_locks
from gemma_serving.engine.previewed import scratch_backend
from gemma_serving.engine.secrets_provider import create_state
from gemma_serving.engine.state import StackState, read, remove_empty
from gemma_serving.planning import planner
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.doctor.api import Diagnosis, read_quotas, require_ready, width_of
from gemma_serving.scripts.stack.costs import found_sentence, lost_files, reported_costs
from gemma_serving.scripts.stack.deployed_server import CAPACITY
from gemma_serving.scripts.stack.facts import read_facts
from gemma_serving.scripts.stack.lost_parts import old_grants_sentence
from gemma_serving.scripts.stack.old_limits import old_limits
from gemma_serving.scripts.stack.serves import short_identity
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.scripts.stack.unfinished_teardown import forget
from gemma_serving.scripts.up.returning import may_take_over, replace_cut_off
from gemma_serving.stacks.deployed.home_region import home_region
from gemma_serving.stacks.loading import read_yaml
from gemma_serving.stacks.planned import require_unblocked, to_question, today
from gemma_serving.stacks.settings_wording import StackWording

_ANSWER_LIMIT_S: Final = 60.0
"""Timeout of Google's answer about the server before the deployment."""
_GOOGLE_LIMIT_S: Final = 10.0
"""The same after a failure."""
_SEARCH_LIMIT_S: Final = 60.0
"""Timeout of the search of all zones and regions."""


@contextlib.contextmanager
def prepared_stack(stack: str, *, dry_run: bool) -> Generator[tuple[StackFacts, Settings]]:
    """Require that nothing blocks a stack, and create its state if it has none. A failure removes an empty new state.

    Yield its facts with its server, and its settings. With `dry_run`, a state that is missing or cut off is replaced in a temporary backend.

    Raises CommandRefusedError before anything is created, and ScriptError if its state cannot be read.
    """
    runner.pulumi()  # before the project, which a command of Pulumi may have to set
    settings = stack_settings(stack)
    if locks := [lock for lock in stack_locks(stack) if not lock.is_dead]:
        require_dead(stack, locks)
    state = _readable_state(stack)
    if state.status == "missing":
        _require_same_project(stack)
        for text in lost_files(stack):
            print_progress("up", text)
    home_region(settings, stack, state.by_urn)  # before the plan and the checks of another region
    _require_plan(stack, settings)
    is_lost = state.proof_of_loss is not None
    facts = read_facts(state, "server", "lost", "locks", *(("labels",) if is_lost else ()), limit_s=_ANSWER_LIMIT_S)
    if isinstance(facts.labels, Present) and state.status == "missing":
        may_take_over(stack, facts.labels.value, unread=facts.labels.unread, dry_run=dry_run)
    _require_free_way(settings, facts)
    if not dry_run:
        replace_cut_off(state)  # before the checks, because the staging that they ask for needs a state
    has_ended = facts.cloud is not None and facts.cloud.has_ended
    needs = require_ready(settings, state, has_ended=has_ended, width=width_of(sys.stderr))
    report_unknown(needs)
    if isinstance(facts.labels, Unknown):
        print_progress("up", f"could not check whether stack {stack} runs elsewhere: {facts.labels.why}")
    quotas = to_variable(read_quotas(needs))
    with variable(QUOTAS_VARIABLE, quotas), _kept_state(state, dry_run=dry_run and is_lost):
        if not dry_run:
            for text in old_limits(stack):
                print_progress("up", text)
        yield facts, settings
        if not dry_run:
            forget(stack)


@contextlib.contextmanager
def _kept_state(state: StackState, *, dry_run: bool) -> Generator[None]:
    """Give a stack a state if it has none that can be read. A failure removes an empty new one, and says what exists."""
    stack, is_new = state.stack, state.status == "missing"
    if dry_run:
        with scratch_backend(stack):
            create_state(stack, partial(print_progress, "up"))
            yield
        return
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    text = path.read_text(encoding="utf-8")
    if is_new:
        create_state(stack, partial(print_progress, "up"))
    try:
        yield
    except BaseException as error:
        with interruptible():  # the engine starts again
            is_removed = is_new and remove_empty(read(stack))
        if is_removed:
            _restore(path, text)
        elif isinstance(error, ScriptError) and not isinstance(error, CommandRefusedError):
            print_progress("up", exists_now(stack))
        raise


def _readable_state(stack: str) -> StackState:
    """Return the state of a stack, which may be missing. Raises CommandRefusedError after a rename, and ScriptError if it cannot be read."""
    state = read(stack)
    if state.status == "no engine":
        raise CommandRefusedError(state.detail)
    if state.status == "unreadable" and not state.is_cut_off:
        raise ScriptError(state.detail)
    if state.rename:
        raise CommandRefusedError(f"{state.rename} `up` would delete them and create others. Nothing was changed.")
    return state


def _require_same_project(stack: str) -> None:
    """Raise CommandRefusedError if Pulumi.yaml has another name, and the backend has the stack under the name that this project has."""
    path = runner.project_folder() / "Pulumi.yaml"
    name = str(as_mapping(read_yaml(path.read_text(encoding="utf-8"))).get("name"))
    if name != PRODUCT and stack in runner.listed_stacks("--project", PRODUCT):
        raise CommandRefusedError(
            f"Pulumi.yaml has the name {name}, and stack {stack} was deployed as a stack of {PRODUCT}. `up` would create it a second time. "
            f"Set `name: {PRODUCT}` in Pulumi.yaml. Nothing was changed."
        )


def _require_free_way(settings: Settings, facts: StackFacts) -> None:
    """Raise CommandRefusedError if Google keeps grants of a deleted account, or for running capacity in a zone that the settings no longer list."""
    if isinstance(facts.lost, Present) and (text := old_grants_sentence(facts.stack, facts.lost.value)):
        raise CommandRefusedError(text)
    tpu, cloud = settings.tpu, facts.cloud
    is_interrupted = facts.declared is not None and not facts.declared.outputs
    if tpu is None or cloud is None or not is_interrupted or tpu.allow_replace_active:
        return
    if cloud.state == ACTIVE and cloud.place not in tpu.zones:
        raise CommandRefusedError(
            f"The capacity in {cloud.place} is ACTIVE. An interrupted `gemma up` requested it, but `tpu.zones` no longer lists its zone. "
            f"Add {cloud.place} to `tpu.zones`, or set `tpu.allowReplaceActive: true` to delete the capacity. Nothing was changed."
        )


def _require_plan(stack: str, settings: Settings) -> None:
    """Raise CommandRefusedError if findings of the plan block a stack, and PlanningError if its settings cannot be planned."""
    question = to_question(settings, runner.project_folder(), today=today())
    require_unblocked(planner.plan(question), stack, StackWording(question, stack))


def report_unknown(lines: Sequence[Diagnosis]) -> None:
    """Print each check that could not be made, and each quota that is too low. Raises ScriptError if this machine has no connection to Google."""
    told = [line for line in lines if line.is_told]
    for line in told:
        if line.detail.startswith(NO_CONNECTION):
            raise ScriptError(f"{line.detail} Nothing was changed.")
    for text in dict.fromkeys(map(_shown, told)):
        print_progress("up", text)


def _shown(line: Diagnosis) -> str:
    if line.is_short:
        return f"{line.check}: {line.detail}. A request there can only wait or fail."
    return f"could not check {line.check}: {line.detail}"


def dropped_settings(stack: str) -> Sequence[str]:
    """Return a warning if the settings file lacks keys of the last `up`, as a file from another machine may."""
    lacking = sorted(set(deployed_values(stack) or ()) - set(_values_of_file(stack)))
    if not lacking:
        return ()
    keys = ", ".join(key.removeprefix(f"{PRODUCT}:") for key in lacking)
    text = (
        f"Warning: Pulumi.{stack}.yaml lacks settings of the last `gemma up`: {keys}. If you did not remove them, run "
        f"`{refresh_command(stack)}`, which writes the deployed settings."
    )
    return [text]


def waiting_edits(stack: str) -> str:
    """Return a sentence with the settings of the file that differ from the last `up`; an empty string without one."""
    deployed, now = deployed_values(stack), _values_of_file(stack)
    if deployed is None:
        return f"Whether Pulumi.{stack}.yaml has edits is unknown: the backend has no settings of an `up`."
    changed = sorted(key for key in {*deployed, *now} if deployed.get(key) != now.get(key))
    if not changed:
        return ""
    keys = ", ".join(key.removeprefix(f"{PRODUCT}:") for key in changed)
    return f"Edits of Pulumi.{stack}.yaml wait for `gemma up {stack}`: {keys}."


def _values_of_file(stack: str) -> Mapping[str, str]:
    document = read_yaml((runner.project_folder() / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8"))
    return values_in(as_mapping(as_mapping(document).get("config")))


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
    known = read_facts(state, "cost", limit_s=_GOOGLE_LIMIT_S)
    what = "capacity" if known.declared is not None and known.declared.kind in CAPACITY else "service"
    if isinstance(known.server, Unknown):
        return f"Exists now: unknown, because Google did not report the {what} ({known.server.why}). {end}"
    if not isinstance(known.server, Present) or known.server.value.state == MISSING:
        return f"{_found(state)} {end}"
    facts = known.server.value
    place = f" in {facts.place}" if facts.place else ""
    is_service = what == "service"
    serves = f"; revision {facts.running} still serves" if is_service and facts.running else f", {facts.state}"
    costs = reported_costs(facts, is_service=is_service)
    restarts = ""
    if not is_service and facts.stored and facts.running and facts.stored != facts.running:
        restarts = f"The server restarts with document {short_identity(facts.stored)}. "
    return f"Exists now: {what}{place}{serves}. {restarts}{costs.sentence} {end}"


def _found(state: StackState) -> str:
    """Return what Google has of a stack of which it has no server, or whose state cannot be read."""
    match read_facts(state, "labels", limit_s=_SEARCH_LIMIT_S).labels:
        case Present(value=found, unread=unread):
            return found_sentence(found, unread)
        case Unknown(why=why):
            return f"Exists now: unknown, because a check failed ({why.rstrip('.')})."
        case _:
            return "Exists now: nothing in Google Cloud: every list was read."
