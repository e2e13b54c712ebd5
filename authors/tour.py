"""Walk through docs/tasks.md on a local cloud: one task after the other, with its commands.

  make tour
  python -m authors.tour --stack l4-qat
  python -m authors.tour --yes

Press Enter to run a command, s to skip it, q or Ctrl-C to stop. The cloud is simulated. Everything else is this project. The tour works in a copy in
`.work/tour` and does not change the checkout.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from authors.in_local_cloud import copy_project, inside_folder, run_inside
from authors.tasks_page import PROJECT, REVISION, TAKES_LONG, TourCommand, tasks_of, walk
from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from contracts.fields import as_mapping
from engine import runner
from scripts.cli.command import Command, run_command
from scripts.cli.options import Option

STACKS: Final = ("tpu-v6e1", "l4-qat")
SHOWN_S: Final = 5.0
"""How long a command that stays open may show its output."""
_ENDS_IN_S: Final = 60.0
_SCENARIO: Final = "prepared"
_PROJECT_VARIABLE: Final = "GOOGLE_CLOUD_PROJECT"


@dataclass(frozen=True, kw_only=True)
class TourOptions:
    """Options of the command."""

    stack: Annotated[str | None, Option(f"Only this stack: {' or '.join(STACKS)}. Default: both.", metavar="NAME")] = (
        None
    )
    yes: Annotated[bool, Option("Run every command without waiting for Enter.")] = False


def _tour(options: TourOptions) -> ExitCode:
    if options.stack is not None and options.stack not in STACKS:
        raise CommandRefusedError(f"The tour does not know stack {options.stack}. Pass {' or '.join(STACKS)}.")
    if not options.yes and not sys.stdin.isatty():
        raise CommandRefusedError("The tour waits for Enter, and stdin is not a terminal. Pass --yes.")
    inside = inside_folder()
    return _inside(inside, options) if inside is not None else _outside(options)


def _outside(options: TourOptions) -> ExitCode:
    """Copy the project, and run the tour again inside a local cloud."""
    root = runner.project_folder()
    folder = root / ".work" / "tour" / (options.stack or "both")
    shutil.rmtree(folder, ignore_errors=True)
    copy_project(root, folder / "project")
    shutil.copy2(root / "docs" / "tasks.md", folder / "tasks.md")
    _commit_all(folder / "project")
    arguments = [*(["--stack", options.stack] if options.stack else []), *(["--yes"] if options.yes else [])]
    return run_inside(folder, "authors.tour", scenario=_SCENARIO, arguments=arguments, reads=not options.yes)


def _commit_all(project: Path) -> None:
    """Make the copy a checkout, for the commands that deploy and compare commits."""
    with (project / ".gitignore").open("a", encoding="utf-8") as file:
        file.write("\n.venv\npreviews/\n")
    for arguments in (
        ("init", "--quiet", "--initial-branch=main"),
        ("config", "user.name", "tour"),
        ("config", "user.email", "tour@example.com"),
        ("config", "commit.gpgsign", "false"),
        ("add", "--all"),
        ("commit", "--quiet", "--message", "Start of the tour"),
        ("checkout", "--quiet", "-b", "change"),
    ):
        subprocess.run(["git", *arguments], cwd=project, check=True)


def _inside(folder: Path, options: TourOptions) -> ExitCode:
    tasks = tasks_of((folder / "tasks.md").read_text(encoding="utf-8"))
    failed: list[TourCommand] = []
    counted = 0
    for stack in (options.stack,) if options.stack else STACKS:
        _say(f"\n===== {stack}, on a simulated cloud =====")
        heading = ""
        for command in walk(tasks, stack):
            if command.task != heading:
                heading = command.task
                _say(f"\n## {heading}")
            choice = _ask(command, waits=not options.yes)
            if choice == "stop":
                _say("The tour stops here. The local cloud and everything in it is stopped.")
                return ExitCode.FAILED if failed else ExitCode.DONE
            if choice == "run":
                counted += 1
                code = _run(command, folder / "project", stack, answers=options.yes)
                if not command.is_success(code):
                    _say(f"(exit code {code})")
                    failed.append(command)
    _say(f"\nThe tour ran {counted} commands; {len(failed)} failed.")
    for command in failed:
        _say(f"failed: {command.line}")
    return ExitCode.FAILED if failed else ExitCode.DONE


def _ask(command: TourCommand, *, waits: bool) -> str:
    """Show a command and return what to do: run, skip or stop."""
    if command.reason:
        _say(f"\n# skipped, because {command.reason}\n# {command.line}")
        return "skip"
    if command.made_by_tour:
        _say("\n# the page tells you to do this by hand")
    _say(f"\n$ {command.line}")
    if TAKES_LONG in command.line:
        _say("# it benchmarks before and after, which takes about eight minutes")
    if not waits:
        return "run"
    try:
        answer = input("Enter: run, s: skip, q: stop > ").strip().lower()
    except EOFError:
        return "stop"
    return {"": "run", "s": "skip", "q": "stop"}.get(answer, "skip")


def _run(command: TourCommand, project: Path, stack: str, *, answers: bool) -> int:
    """Run a command and return its exit code."""
    words = shlex.split(command.answered if answers else command.line)
    words = [_filled(word, stack) for word in words]
    if command.ending == "stays open":
        return _shown(words, project)
    return subprocess.run(words, cwd=project, check=False).returncode


def _filled(word: str, stack: str) -> str:
    if word == PROJECT:
        return os.environ[_PROJECT_VARIABLE]
    return _oldest_revision(stack) if word == REVISION else word


def _shown(words: Sequence[str], project: Path) -> int:
    """Run a command that stays open, and end it as Ctrl-C does, a while after its first line."""
    process = subprocess.Popen(
        words,
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said = threading.Event()
    reader = threading.Thread(target=_relayed, args=(process, said), daemon=True)
    reader.start()
    said.wait(_ENDS_IN_S)
    try:
        code = process.wait(SHOWN_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        code = process.wait(_ENDS_IN_S)
        _say(f"(It stays open until Ctrl-C. The tour ended it after {SHOWN_S:.0f} s.)")
    reader.join(_ENDS_IN_S)
    return 0 if code in {0, ExitCode.INTERRUPTED} else code


def _relayed(process: subprocess.Popen[str], said: threading.Event) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            said.set()
    said.set()


def _oldest_revision(stack: str) -> str:
    """Return the name of the service's first revision."""
    from cloud import google_api
    from engine.stack import stack_outputs
    from loadtest.client.json_values import as_list

    rollout = stack_outputs(stack).rollout
    if rollout is None:
        raise CommandRefusedError(f"Stack {stack} has no rollout, so it has no older revision to go back to.")
    api = google_api.connect(os.environ[_PROJECT_VARIABLE])
    pages = api.pages("run", f"v2/{rollout.service}/revisions")
    found = [as_mapping(item) for page in pages for item in as_list(page.get("revisions"))]
    oldest = min(found, key=lambda revision: str(revision.get("createTime")))
    return str(oldest.get("name")).rpartition("/")[2]


def _say(text: str) -> None:
    print(text, flush=True)


COMMAND: Final = Command(
    name="tour",
    room="authors",
    help=__doc__,
    options=TourOptions,
    run=_tour,
    after_interrupt="The local cloud and everything in it is stopped.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
