"""A deployment: preview, effect and cost, the engine with its progress, and the next commands."""

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Final

from gemma_serving.cloud.caller import caller_of
from gemma_serving.cloud.google_api import connect
from gemma_serving.cloud.guard import limits_line
from gemma_serving.cloud.troubles import TROUBLES
from gemma_serving.cloud.zone_answers import with_causes
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.resource_types import BUCKET_TYPE, SERVER_TYPES
from gemma_serving.contracts.stack_facts import StackFacts
from gemma_serving.contracts.three_answers import Present
from gemma_serving.engine import runner
from gemma_serving.engine.children import interruptible
from gemma_serving.engine.exported_state import read_deployment
from gemma_serving.engine.locks import past_dead_locks
from gemma_serving.engine.previewed import creations_in, diagnostics, previewed
from gemma_serving.engine.state import of_deployment, outputs_in, read
from gemma_serving.engine.steps import ResourceChange, changes_of
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.doctor.api import require_weights, width_of
from gemma_serving.scripts.logs.api import first_start, known_cause, server_log, start_text, with_known_cause
from gemma_serving.scripts.preview.api import headline, upcoming
from gemma_serving.scripts.stack.costs import recorded_costs
from gemma_serving.scripts.stack.engine_run import Describe, EngineRunError, run_engine, show_step
from gemma_serving.scripts.stack.facts import read_facts
from gemma_serving.scripts.stack.frozen import program_digest
from gemma_serving.scripts.stack.own_runs import is_last_run, remember_run
from gemma_serving.scripts.stack.serves import (
    changed_by_hand,
    differs,
    failure_of,
    moved_traffic,
    next_start,
    old_report,
    serves_now,
    start_in_progress,
    unfinished_teardown,
)
from gemma_serving.scripts.up.importing import examine
from gemma_serving.scripts.up.request import UpRequest
from gemma_serving.scripts.up.returning import import_missing
from gemma_serving.scripts.up.start_phases import StartPhases
from gemma_serving.scripts.up.starting import dropped_settings, exists_now, report_unknown
from gemma_serving.stacks.planned import notes_line

_OPERATIONS: Final = ("create", "update", "replace", "delete", "read")
_STARTS: Final = frozenset({"create", "update", "replace"})
_NOTES: Final = re.compile(r"(?P<what>.+): `gemma plan [^`]+`")
_ACCEPTED: Final = "accepted findings "
_PRICES: Final = "Costs "
"""Start of the program's line about prices. The cost above the question has them."""
_EXPLAINED: Final = re.compile(r"Revision (?P<revision>\S+) did not start")
"""Start of the program's explanation (`stacks.hooks.run_failures`)."""
_START_LIMIT_S: Final = 30.0
"""Timeout of Google's answer about a server that has started."""
_SERVER_FAILED: Final = "The server failed: "
"""Start of the provider's error (`gcp_tpu_provider.serving`): the reason, the lines before it, and what serves."""


def deploy(facts: StackFacts, settings: Settings, request: UpRequest) -> ExitCode:
    """Preview a stack, import what its state lacks, confirm, and deploy it. Raises ScriptError."""
    stack = facts.stack
    # The state may still have what a killed teardown deleted.
    refresh = ["--refresh"] if request.refreshes or facts.teardown_began or differs(facts) else []
    print_progress("up", f"previewing stack {stack}{', comparing every resource with Google' if refresh else ''}")
    program = program_digest(stack, settings, runner.project_folder())
    facts, document, plan = _previewed(facts, settings, refresh, request)
    is_last = isinstance(facts.state, Present) and is_last_run(stack, program, facts.state.value)
    options = [*refresh, *(["--message", plan] if request.given else [])]
    differences = differs(facts)
    changes, unchanged, warnings = changes_of(document)
    starts_server = any(change.type in SERVER_TYPES and change.op in _STARTS for change in changes)
    is_dead = facts.cloud is not None and facts.cloud.serves_nothing
    coming = upcoming(stack, document, changes, serves_nothing=is_dead) if changes else None
    # The checks of a stack without a server had the weights.
    if starts_server and facts.declared is not None:
        report_unknown(require_weights(settings, stack, width=width_of(sys.stderr)))
    messages = diagnostics(document, "info")
    shown = [
        *(dropped_settings(stack) if facts.recorded is not None and not is_last else ()),
        *program_messages(stack, messages, warnings),
        *differences,
        *filter(None, [moved_traffic(facts), old_report(facts) if changes else ""]),
    ]
    if deletion := unfinished_teardown(facts, serves_now(facts)):
        shown = [deletion if facts.held else f"Warning: {deletion}", *shown]
    if coming is None:
        # A run can change outputs, dependencies and hooks alone, and ends the lock of a killed command.
        is_stored = is_last and document.get("isStored") and not (refresh or facts.locks)
        if not (request.dry_run or is_stored):
            request.write_settings()
            engine_up(stack, settings, options, None, steps=0, known=[*messages, *warnings], program=program)
        end = _unchanged(facts, unchanged, is_compared=bool(refresh))
        ends = [end, *filter(None, [start_in_progress(facts)])]
        said = [text for text in shown if text not in facts.losses]
        request.show(f"{stack}: changes nothing", [*said, *ends], document, plan)
        _require_no_failure(facts)
        return ExitCode.DONE
    limits = ""
    if facts.recorded is None or coming.endless_forms:  # a deployed stack was told at its first `up`
        limits = limits_line(settings.limits, settings.project, coming.endless_forms)
    order = [f"  {line}" for line in coming.order]
    effect = [*coming.sentences, change_counts(changes, unchanged), f"Cost: {coming.cost}", *order]
    sentences = [*shown, *effect, *([limits] if limits else [])]
    if request.dry_run:
        request.show(headline(stack, changes), sentences, document, plan, effect=coming.sentences)
        return ExitCode.DONE
    request.tell("\n".join(sentences))
    if not request.yes:
        confirm(
            f"Deploy {stack}?",
            without_terminal=f"Deploying stack {stack} changes resources, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Cancelled. No resource was changed.",
        )
    request.write_settings()
    try:
        with closing(StartPhases(facts, settings)) as phases:
            known = [*messages, *warnings, limits]
            done = engine_up(stack, settings, options, phases.during, steps=len(changes), known=known, program=program)
    except KeyboardInterrupt:
        print_progress("up", f"interrupted. Run `gemma up {stack}` again to continue. {_exists_after_interrupt(stack)}")
        return ExitCode.INTERRUPTED
    request.show(headline(stack, changes), [done, *_after(facts, changes, settings)], document, plan)
    return ExitCode.DONE


def _after(before: StackFacts, changes: Sequence[ResourceChange], settings: Settings) -> Sequence[str]:
    """Return what follows a deployment: the commands to use the server, or to stage weights in a new bucket."""
    if settings.weights == "bucket" and any(
        change.type == BUCKET_TYPE and change.op in {"create", "replace"} for change in changes
    ):
        return ["The bucket of the weights is new and empty.", f"Next: gemma stage_model {before.stack}"]
    return next_lines(before.stack, before.cloud.running if before.cloud else None)


def _previewed(
    facts: StackFacts, settings: Settings, options: Sequence[str], request: UpRequest
) -> tuple[StackFacts, Mapping[str, object], str]:
    """Return a preview, the facts, after the import of what the state lacks, and the plan's id. A dry run only says what would be imported."""
    stack = facts.stack

    def preview() -> Mapping[str, object]:
        TROUBLES.before_engine()
        with show_step("previewing"):
            return previewed(stack, *options)

    first = preview()
    plan = request.plan_of(first)
    if not facts.pending and not creations_in(first):
        return facts, first, plan
    if request.dry_run:
        lacking = examine(stack, connect(settings.project), first)
        if lacking.owned:
            request.tell(f"{lacking.sentence} `gemma up {stack}` imports them first; the changes below create them.")
        return facts, first, plan
    last = import_missing(stack, settings.project, first, preview=preview)
    is_same = last is first
    now = facts if is_same else read_facts(read(stack), "server", "lost", limit_s=_START_LIMIT_S)
    return now, last, plan


def _unchanged(facts: StackFacts, unchanged: int, *, is_compared: bool) -> str:
    """Return that nothing changes, and what was compared, as sentences. After a comparison, the state has what differed before."""
    has_now = " to make, and the state has this now" if changed_by_hand(facts) else ""
    start = f"{facts.stack}: no changes{has_now}; {unchanged} resources"
    if is_compared:
        return f"{start} are as Google reports them."
    exist = "exist" if facts.is_whole else "are as in the state"
    return f"{start} {exist}. To compare each with Google, run `gemma up {facts.stack} --refresh`."


def _require_no_failure(facts: StackFacts) -> None:
    """Raise ScriptError if the server failed, its agent does not report or a file that it reads is lost, although the engine sees no difference."""
    if text := old_report(facts):
        raise ScriptError(text)
    if failure_of(facts):
        failure = failure_of(with_known_cause(read(facts.stack), facts))
        raise ScriptError(f"{failure} {next_start(facts.stack)}")
    if facts.losses:  # the engine has all of its own, so these are files and images
        raise ScriptError(" ".join(facts.losses))


def _exists_after_interrupt(stack: str) -> str:
    """Return what the stack has and what it costs. A second interrupt leaves both unknown."""
    try:
        with interruptible():  # the engine starts again
            return exists_now(stack)
    except KeyboardInterrupt:
        return f"What exists and what it costs is unknown: `gemma status {stack}` shows it."


def program_messages(stack: str, messages: Sequence[str], warnings: Sequence[str]) -> Sequence[str]:
    """Return the program's messages: the warnings, the plan, then one line for what `gemma plan` shows."""
    notes = [found["what"] for text in messages if (found := _NOTES.fullmatch(text.strip()))]
    is_shown = any(_ACCEPTED in note for note in notes)
    plan = [text for text in messages if not _NOTES.fullmatch(text.strip()) and not text.startswith(_PRICES)]
    return [
        *_lines(f"Warning: {text}" for text in warnings if text.strip()),
        *_lines(plan),
        *([notes_line(stack, ", ".join(notes), is_shown_by_plan=is_shown)] if notes else []),
    ]


def change_counts(changes: Sequence[ResourceChange], unchanged: int) -> str:
    """Return the number of changes by operation."""
    counts = Counter(change.op for change in changes)
    found = [*(f"{counts[op]} to {op}" for op in _OPERATIONS if counts[op]), f"{unchanged} unchanged"]
    return f"Resources: {', '.join(found)}."


def engine_up(
    stack: str,
    settings: Settings,
    options: Sequence[str],
    describe: Describe,
    *,
    steps: int,
    known: Sequence[str],
    program: str,
) -> str:
    """Deploy a previewed stack, and return one sentence with the time that it took. Raises ScriptError.

    `known`: messages of the program that were shown before. `describe`, `program`: as of `run_engine`.
    """
    started_s = time.monotonic()
    explain = partial(_with_cause, stack, settings)
    run = partial(run_engine, known=known, explain=explain, describe=describe, program=program)
    up = partial(run, stack, "up", *options, name="up", steps=steps)
    try:
        past_dead_locks(stack, up, report=partial(print_progress, "up"))
    except EngineRunError as error:
        again = f"Fix the cause and run `gemma up {stack}` again: it continues with what exists."
        raise ScriptError(f"Stack {stack} was not deployed completely: {error}. {again}") from None
    return f"{stack} deployed in {time.monotonic() - started_s:.0f} s."


def _with_cause(stack: str, settings: Settings, errors: Sequence[str]) -> Sequence[str]:
    """Return the errors with their causes, and remember for `gemma status` that no zone granted capacity.

    Cloud Run's own error about a revision is left out if the program explains it.
    """
    if settings.tpu is not None:
        with suppress(ScriptError):  # without a login, the causes stay unknown
            errors = [with_causes(error, settings.tpu, partial(caller_of, settings.project)) for error in errors]
    remember_run(stack, "begun", errors)
    explained = {name["revision"]: error for error in errors if (name := _EXPLAINED.match(error))}
    found = [error for error in errors if all(error is text or name not in error for name, text in explained.items())]
    return [_of_server(stack, error) for error in found]


def _of_server(stack: str, error: str) -> str:
    """Return the error of a TPU VM's server with its cause instead of its log lines, if the cause is known."""
    if not error.startswith(_SERVER_FAILED):
        return error
    reason, *lines = error.removeprefix(_SERVER_FAILED).splitlines()
    cause = known_cause(server_log(read(stack)), [*lines[:-1], reason], reason=reason)
    if cause is None or not cause.hint:
        return error
    return "\n".join([f"The server failed. {cause.hint}", f"  {cause.line}", *lines[-1:]])


def next_lines(stack: str, before: str | None) -> Sequence[str]:
    """Return the server's location, its start, its price, the end of its run, and the commands to use and to delete it; without outputs, the reason.

    `before`: what served before, as `CloudFacts.running`. If it still serves, nothing has started.
    """
    deployment = read_deployment(stack)
    try:
        outputs = outputs_in(stack, deployment.resources)
    except CommandRefusedError as error:
        return [str(error)]
    if outputs.state not in {None, "ACTIVE"}:
        return [
            f"The capacity is {outputs.state}, so nothing serves yet.",
            f"Run `gemma status {stack} --watch` to follow the request.",
        ]
    where = f"Endpoint: {outputs.endpoint}" if outputs.tunnel is None else f"Zone: {outputs.location}"
    state = of_deployment(stack, deployment)
    facts = read_facts(state, "server", limit_s=_START_LIMIT_S)
    is_same = before is not None and facts.cloud is not None and facts.cloud.running == before
    start = "" if is_same else start_text(first_start(facts))
    return [
        where,
        *([f"Start: {start}"] if start else []),
        *(costs.sentence for costs in recorded_costs(state)),
        "Next:",
        f'  gemma chat {stack} "Say hello."',
        f"  gemma connect {stack}",
        f"  gemma smoke {stack}",
        f"  gemma teardown {stack}   # stop all costs",
    ]


def _lines(messages: Iterable[str]) -> Sequence[str]:
    return [line for message in messages for line in message.splitlines() if line.strip()]
