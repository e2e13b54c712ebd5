"""A run of the engine that changes a stack: its progress on stderr, and its errors whole."""

import contextlib
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Final, Literal

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from gemma_serving.cloud.troubles import TROUBLES
from gemma_serving.contracts.proof import Asker, Proof
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.engine.events import VARIABLES, EventLog
from gemma_serving.scripts.cli.command import print_progress, print_text
from gemma_serving.scripts.cli.tables import console
from gemma_serving.scripts.cli.transfer import PERIOD_S
from gemma_serving.scripts.stack.own_runs import remember_run

Describe = Callable[[str], str] | None
"""Returns more about a step than the engine reports, or an empty string. None: nothing."""
_LONGEST_LINE: Final = 300
_ONLY_ERROR: Final = re.compile(r"\A1 error occurred:\s+\* ")


class EngineRunError(runner.PulumiFailedError):
    """The engine failed. The message is its reason, or names the whole errors printed before; `first` is always a reason."""

    def __init__(self, message: str, output: str, first: str) -> None:
        super().__init__(message, output)
        self.first = first


def change(
    stack: str, verb: Literal["up", "refresh"], *options: str, name: str, steps: int = 0, after_failure: str
) -> None:
    """Run the engine with this verb for a command of this project. Raises PulumiFailedError, ending in `after_failure`.

    `steps`: resources that the engine will change, 0 if unknown.
    """
    with _ending_in(after_failure, stack, verb):
        run_engine(stack, verb, *options, name=name, steps=steps)


def destroy(
    stack: str, proof: Proof, *options: str, name: str, steps: int, after_failure: str, describe: Describe = None
) -> None:
    """Destroy the resources that the proof's state names. Raises PulumiFailedError as `change` does, and NotOwnedError."""
    proof.require(Asker(stack=stack))
    with _ending_in(after_failure, stack, "destroy"):
        run_engine(stack, "destroy", *options, name=name, steps=steps, describe=describe)
    remember_run(stack, "destroyed")


@contextlib.contextmanager
def _ending_in(after_failure: str, stack: str, verb: str) -> Generator[None]:
    try:
        yield
    except EngineRunError as error:
        failed = f"`pulumi {verb} --stack {stack}` failed: {error.first}. {after_failure}"
        raise runner.PulumiFailedError(failed, error.output) from None


def run_engine(
    stack: str,
    *arguments: str,
    name: str,
    steps: int,
    known: Sequence[str] = (),
    explain: Callable[[Sequence[str]], Sequence[str]] = list,
    describe: Describe = None,
    program: str = "",
) -> None:
    """Run a Pulumi command that changes a stack, without a preview and a prompt. Raises EngineRunError.

    `known`: messages that were shown before. `explain` returns the errors with their causes. `program`: as of `remember_run`.
    """
    before = {_plain(_one_line(text)) for text in known}
    errors: list[str] = []
    is_up = arguments[0] == "up"
    if is_up:
        remember_run(stack, "begun")
    TROUBLES.before_engine()
    with private_folder() as folder, show_step("starting") as show:
        log = EventLog(
            path=folder / "events", plain=lambda text: _plain(runner.own_words(text, stack)), steps=steps, errors=errors
        )
        step, detail = "starting", ""

        def watch() -> None:
            nonlocal step, detail
            for one in log.fresh():
                if one.text in before:
                    continue
                step = one.step or (step if one.is_lasting else one.text)
                is_printed = one.is_lasting and not sys.stderr.isatty()
                detail = "" if is_printed or one.text == step else one.text
                if is_printed:
                    print_text(one.text, sys.stderr)
            show(step, (describe(step) if describe is not None else "") or detail)

        options = ("--yes", "--skip-preview", "--suppress-outputs", "--event-log", str(log.path), "--stack", stack)
        verb, *rest = arguments
        try:
            code, output = runner.attended(verb, *options, *rest, variables=VARIABLES, watch=watch)
        except KeyboardInterrupt:
            watch()
            for text in _explained(errors, explain, stack):
                print_progress(name, text)
            raise
    if code != 0:
        first = runner.first_error(output, code, stack).rstrip(".")
        raise EngineRunError(_shown_reason(name, _explained(errors, explain, stack), first), output, first)
    if is_up:
        remember_run(stack, "done", program=program)


@contextlib.contextmanager
def show_step(step: str) -> Generator[Callable[[str, str], None]]:
    """Show a step and its time until the body ends. Yield a function that shows another step and its detail.

    Without a terminal, it prints one of them every few seconds, and shorter work prints none.
    """
    is_terminal = sys.stderr.isatty()
    text = TextColumn("{task.description}", markup=False)
    progress = Progress(TimeElapsedColumn(), text, console=console(sys.stderr), transient=True, disable=not is_terminal)
    task = progress.add_task(step, total=None)
    said, said_s = step, time.monotonic()

    def show(step: str, detail: str) -> None:
        nonlocal said, said_s
        progress.update(task, description=f"{step}\n{detail}".rstrip())
        line = detail or step
        if not is_terminal and line != said and time.monotonic() - said_s >= PERIOD_S:
            said, said_s = line, time.monotonic()
            print_text(line, sys.stderr)

    with progress:
        yield show


def _explained(errors: Sequence[str], explain: Callable[[Sequence[str]], Sequence[str]], stack: str) -> Sequence[str]:
    """Return the errors with their causes, without the header of a list with one error."""
    found = explain([_ONLY_ERROR.sub("", error) for error in runner.reasons(errors, stack)])
    return [runner.own_words(error, stack).expandtabs(2) for error in found]


def _shown_reason(name: str, errors: Sequence[str], first: str) -> str:
    """Return the reason for the last sentence. Whole errors that do not fit into it are printed before, with their lines."""
    if not errors or (len(errors) == 1 and _one_line(errors[0]).rstrip(".").endswith(_one_line(first))):
        return first
    print_progress(name, "\n".join(errors))
    return "see the error above" if len(errors) == 1 else "see the errors above"


def _plain(text: str) -> str:
    """Return a message as one line that cannot steer the terminal."""
    return text[:_LONGEST_LINE]


def _one_line(text: str) -> str:
    return " ".join(text.split())
