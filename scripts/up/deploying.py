"""A deployment: preview, effect and cost, the engine with its progress, and the next commands."""

import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from gemma_serving.cloud.guard import limits_line
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.contracts.resource_types import BUCKET_TYPE, SERVER_TYPES
from gemma_serving.contracts.stack_facts import StackFacts
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.engine.children import interruptible
from gemma_serving.engine.deployment import read_deployment
from gemma_serving.engine.events import VARIABLES, EventLog
from gemma_serving.engine.locks import end_dead_locks, is_lock_error, parse_locks
from gemma_serving.engine.previewed import diagnostics, previewed
from gemma_serving.engine.state import of_deployment, outputs_in, read
from gemma_serving.engine.steps import ResourceChange, changes_of
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.command import print_progress, print_result
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.cli.tables import console
from gemma_serving.scripts.doctor.api import require_weights, width_of
from gemma_serving.scripts.preview.api import upcoming
from gemma_serving.scripts.stack.costs import recorded_costs
from gemma_serving.scripts.stack.serves import is_being_deleted, serves_now, teardown_sentence
from gemma_serving.scripts.up.starting import dropped_settings, exists_now, report_unknown
from gemma_serving.stacks.planned import notes_line

_OPERATIONS: Final = ("create", "update", "replace", "delete", "read")
_STARTS: Final = frozenset({"create", "update", "replace"})
_LONGEST_LINE: Final = 300
_NOTES: Final = re.compile(r"(?P<what>.+): `gemma plan [^`]+`")
_ACCEPTED: Final = "accepted findings "
_PRICES: Final = "Costs "
"""Start of the program's line about prices. The cost above the question has them."""
_EXPLAINED: Final = re.compile(r"Revision (?P<revision>\S+) did not start")
"""Start of the program's explanation (`stacks.hooks.run_failures`)."""
_SERVER_FAILED: Final = "The server failed: "
"""Start of the provider's error (`gcp_tpu_provider.serving`): the reason, the lines before it, and what serves."""
_ONLY_ERROR: Final = re.compile(r"\A1 error occurred:\s+\* ")


def deploy(facts: StackFacts, settings: Settings | None, *, yes: bool, refreshes: bool) -> ExitCode:
    """Preview a stack, confirm, and deploy it. A gateway has no settings of a server. Raises ScriptError."""
    stack, serves = facts.stack, serves_now(facts)
    refresh = ["--refresh"] if refreshes or serves.may_be_gone else []
    if serves.word == "unknown":
        print_progress("up", serves.why)
    print_progress("up", f"previewing stack {stack}{', comparing every resource with Google' if refresh else ''}")
    with show_step("previewing"):
        document = previewed(stack, *refresh)
        changes, unchanged, warnings = changes_of(document)
        starts_server = any(change.type in SERVER_TYPES and change.op in _STARTS for change in changes)
        # A gateway has no plan, and so no effect on a server and no price.
        coming = upcoming(stack, document, changes) if changes and settings is not None else None
    # The checks of a stack without a server had the weights.
    if settings is not None and starts_server and facts.declared is not None:
        report_unknown(require_weights(settings, stack, width=width_of(sys.stderr)))
    messages = diagnostics(document, "info")
    shown = [
        *(dropped_settings(stack) if facts.recorded is not None else ()),
        *program_messages(stack, messages, warnings),
        *([serves.why] if serves.word == "ended" else []),
    ]
    if is_being_deleted(facts, serves):
        again = f"`gemma teardown {stack}` continues it; `up` creates again what it deleted."
        shown = [f"Warning: {teardown_sentence(facts)} {again}", *shown]
    if not changes:
        compared = "are as Google reports them" if refresh else "are up to date"
        engine_up(stack, [], steps=0, known=[*messages, *warnings])  # settings can change the outputs alone
        print_result("\n".join([*shown, f"{stack}: no changes; {unchanged} resources {compared}."]))
        return ExitCode.DONE
    effect, limits = [change_counts(changes, unchanged)], ""
    if settings is not None and coming is not None:
        limits = limits_line(settings.limits, settings.project, coming.endless_forms)
        order = [f"  {line}" for line in coming.order]
        effect = [*coming.sentences, *effect, f"Cost: {coming.cost}", *order]
    print_result("\n".join([*shown, *effect, *([limits] if limits else [])]))
    if not yes:
        confirm(
            f"Deploy {stack}?",
            without_terminal=f"Deploying stack {stack} changes resources, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Cancelled. Nothing was changed.",
        )
    try:
        done = engine_up(stack, refresh, steps=len(changes), known=[*messages, *warnings, limits])
    except KeyboardInterrupt:
        print_progress("up", f"interrupted. Run `gemma up {stack}` again to continue. {_exists_after_interrupt(stack)}")
        return ExitCode.INTERRUPTED
    has_new_bucket = any(change.type == BUCKET_TYPE and change.op in {"create", "replace"} for change in changes)
    print_result("\n".join([done, *(_staging_lines(stack) if has_new_bucket else next_lines(stack))]))
    return ExitCode.DONE


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


def engine_up(stack: str, options: Sequence[str], *, steps: int, known: Sequence[str]) -> str:
    """Deploy a previewed stack, and return one sentence with the time that it took. Raises ScriptError.

    `known`: messages of the program that were shown before.
    """
    started_s = time.monotonic()
    code, output, errors = _updated(stack, options, steps=steps, known=known)
    if code != 0 and is_lock_error(output):
        end_dead_locks(stack, parse_locks(output), report=lambda line: print_progress("up", line))
        code, output, errors = _updated(stack, options, steps=steps, known=known)
    if code == 0:
        return f"{stack} deployed in {time.monotonic() - started_s:.0f} s."
    reason = _shown_reason(stack, errors, runner.first_error(output, code)).rstrip(".")
    hint = runner.recover_hint(stack, output)
    then = "Then run" if hint else "The created resources are in the state: fix the cause and run"
    raise ScriptError(f"{hint}Stack {stack} was not deployed completely: {reason}. {then} `gemma up {stack}` again.")


def _shown_reason(stack: str, errors: Sequence[str], first: str) -> str:
    """Return the reason for the last sentence. Whole errors that do not fit into it are printed before, with their lines."""
    texts = _with_cause(stack, errors)
    if not texts or (len(texts) == 1 and _one_line(texts[0]).endswith(_one_line(first))):
        return first
    print_progress("up", "\n".join(texts))
    return "see the error above" if len(texts) == 1 else "see the errors above"


def _with_cause(stack: str, errors: Sequence[str]) -> Sequence[str]:
    """Return the errors with a cause, without secrets, and without the header of a list with one error.

    Cloud Run's own error about a revision is left out if the program explains it.
    """
    found = runner.reasons(errors)
    explained = {name["revision"]: error for error in found if (name := _EXPLAINED.match(error))}
    found = [error for error in found if all(error is text or name not in error for name, text in explained.items())]
    return [masked(_of_server(stack, _ONLY_ERROR.sub("", error)).expandtabs(2)) for error in found]


def _of_server(stack: str, error: str) -> str:
    """Return the error of a TPU VM's server with its cause instead of its log lines, if the cause is known."""
    from gemma_serving.scripts.logs.api import known_cause, server_log  # noqa: PLC0415 - only a failure needs it

    if not error.startswith(_SERVER_FAILED):
        return error
    reason, *lines = error.removeprefix(_SERVER_FAILED).splitlines()
    cause = known_cause(server_log(read(stack)), [*lines[:-1], reason], reason=reason)
    if cause is None or cause.hint == reason:
        return error
    return "\n".join([f"The server failed. {cause.hint}", f"  {cause.line}", *lines[-1:]])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _updated(stack: str, options: Sequence[str], *, steps: int, known: Sequence[str]) -> tuple[int, str, Sequence[str]]:
    """Deploy without a preview. Return the engine's exit code, its output and its whole errors. Messages that are `known` are not shown again."""
    before = {_plain(_one_line(text)) for text in known}
    errors: list[str] = []
    with private_folder() as folder, show_step("starting") as show:
        log = EventLog(path=folder / "events", plain=_plain, steps=steps, errors=errors)

        def watch() -> None:
            for one in log.fresh():
                if one.text in before:
                    continue
                step = one.step or "finishing"
                show(step, "" if one.text == step else one.text)

        words = ["up", "--yes", "--skip-preview", "--suppress-outputs", "--event-log", str(log.path), "--stack", stack]
        try:
            code, output = runner.attended(*words, *options, variables=VARIABLES, watch=watch)
        except KeyboardInterrupt:
            for text in _with_cause(stack, errors):
                print_progress("up", text)
            raise
        return code, output, errors


def _plain(text: str) -> str:
    """Return a message as one line that cannot steer the terminal."""
    return for_terminal(text)[:_LONGEST_LINE]


@contextlib.contextmanager
def show_step(step: str) -> Generator[Callable[[str, str], None]]:
    """Show a step and its time until the body ends. Yield a function that shows another step and its detail."""
    is_terminal = sys.stderr.isatty()
    text = TextColumn("{task.description}", markup=False)
    progress = Progress(TimeElapsedColumn(), text, console=console(sys.stderr), transient=True, disable=not is_terminal)
    task = progress.add_task(step, total=None)

    def show(step: str, detail: str) -> None:
        progress.update(task, description=f"{step}\n{detail}".rstrip())
        if not is_terminal:
            print(detail or step, file=sys.stderr, flush=True)

    with progress:
        yield show


def _staging_lines(stack: str) -> Sequence[str]:
    """Return the next command after the creation of the bucket, which is empty."""
    return ["The bucket of the weights is new and empty.", f"Next: gemma stage_model {stack}"]


def next_lines(stack: str) -> Sequence[str]:
    """Return the server's location, its price, the end of its run, and the commands to use and to delete it; without outputs, the reason."""
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
    return [
        where,
        *(costs.sentence for costs in recorded_costs(of_deployment(stack, deployment))),
        "Next:",
        f'  gemma chat {stack} "Say hello."',
        f"  gemma connect {stack}",
        f"  gemma smoke {stack}",
        f"  gemma teardown {stack}   # stop all costs",
    ]


def _lines(messages: Iterable[str]) -> Sequence[str]:
    return [line for message in messages for line in message.splitlines() if line.strip()]
