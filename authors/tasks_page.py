"""The commands of docs/tasks.md, and how the tour runs each of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Ending = Literal["ends", "stays open"]

SKIPPED: Final[Mapping[str, str]] = {
    "--from ./checkpoint": "it needs a folder with a downloaded checkpoint",
    "--from gs://BUCKET/FOLDER": "it needs a bucket that holds a checkpoint",
}
"""Part of a command line, and why the tour does not run it."""
STAYS_OPEN: Final = (" --watch", " --follow", "scripts.connect --stack")
"""Parts of command lines that run until Ctrl-C."""
_ASKS: Final = ("pulumi up", "scripts.capacity --write", "scripts.teardown --stack")
"""Commands that ask before they change something, with the option `--yes`."""
_MAY_FIND: Final = ("scripts.teardown --all --over-limit",)
"""Commands whose exit code 1 is an answer, not a failure."""
TAKES_LONG: Final = "scripts.deploy "
"""Command that benchmarks before and after the deployment, in real time: eight minutes on a TPU, longer on a GPU."""
_STACK: Final = "tpu-v6e1"
"""The stack of the page's commands for both targets."""
_CLOUD_RUN_STACK: Final = "l4-qat"
_PROGRAMS: Final = re.compile(r"(pulumi|python -m scripts\.[a-z_]+)( |$)")
_PLACEHOLDER: Final = re.compile(r"\b(?=[A-Z_]*[A-Z]{3})[A-Z_]{3,}\b|\./\w+")
_SMOKE: Final = f"python -m scripts.smoke --stack {_STACK}"
_ROLLOUT: Final = f"python -m scripts.rollout --stack {_CLOUD_RUN_STACK}"
STAGE: Final = "python -m scripts.stage_model --stack l4-qat"
_MADE: Final = ("pulumi config set --stack", "git ")
PROJECT: Final = "YOUR_PROJECT"
REVISION: Final = "REVISION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A section of the page with its command lines, in order."""

    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TourCommand:
    """A command line of the tour. `reason` says why it is skipped; empty if it runs."""

    task: str
    line: str
    reason: str = ""
    made_by_tour: bool = False
    """True for what the page tells a person to do with an editor."""

    @property
    def ending(self) -> Ending:
        """Return whether it ends by itself."""
        return "stays open" if any(part in self.line for part in STAYS_OPEN) else "ends"

    @property
    def answered(self) -> str:
        """Return the line with `--yes` if it asks."""
        return f"{self.line} --yes" if any(part in self.line for part in _ASKS) else self.line

    def is_success(self, code: int) -> bool:
        """Return whether the command did what the page says."""
        return code == 0 or (code == 1 and any(part in self.line for part in _MAY_FIND))


def tasks_of(page: str) -> list[Task]:
    """Return the sections of the page that have blocks of commands."""
    found: list[Task] = []
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```sh\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
        lines = tuple(line.strip() for block in blocks for line in block.splitlines() if line.strip())
        if lines:
            found.append(Task(heading=section.partition("\n")[0], lines=lines))
    return found


def walk(tasks: Sequence[Task], stack: str) -> list[TourCommand]:
    """Return the commands of the tour for one stack, in order."""
    commands = [_command(task.heading, line, stack) for task in tasks for line in _edited(task, stack)]
    return _staged_first(commands) if stack == _CLOUD_RUN_STACK else commands


def problem_of(line: str) -> str:
    """Return why the tour can neither run nor skip a line of the page. Empty if it can do either."""
    if any(part in line for part in SKIPPED):
        return ""
    if not _PROGRAMS.match(line):
        return f"{line}: the tour runs pulumi and python -m scripts.NAME only"
    unknown = [word for word in _PLACEHOLDER.findall(line) if word not in {PROJECT, REVISION}]
    return f"{line}: the tour has no value for {', '.join(unknown)}" if unknown else ""


def _command(task: str, line: str, stack: str) -> TourCommand:
    if line.startswith(_MADE):
        return TourCommand(task=task, line=line, made_by_tour=True)
    reason = next((why for part, why in SKIPPED.items() if part in line), "")
    if not reason and _CLOUD_RUN_STACK in line and stack != _CLOUD_RUN_STACK:
        reason = "it is for Cloud Run"
    if not reason and TAKES_LONG in line and stack == _CLOUD_RUN_STACK:
        reason = f"its benchmarks take a quarter of an hour on this GPU; the tour of {_STACK} runs it"
    return TourCommand(task=task, line=re.sub(rf"\b{_STACK}\b", stack, line), reason=reason)


def _edited(task: Task, stack: str) -> Sequence[str]:
    """Return a task's lines after what the page tells a person to change in the stack's file."""
    setting = f"pulumi config set --stack {stack} --path gemma-serving:"
    changes: dict[str, tuple[str, ...]] = {
        "Change a flag": (f"{setting}vllm.maxModelLen 8192",),
        "Deploy from CI": ("git commit --quiet --all --message Settings",),
    }
    if stack == _CLOUD_RUN_STACK:
        changes["Roll out a change on Cloud Run"] = (
            f"{setting}cloudRun.rollout.requests 16",
            f"{setting}vllm.maxModelLen 12288",
        )
    lines = [*changes.get(task.heading, ()), *task.lines]
    if stack == _CLOUD_RUN_STACK and task.heading == "Change a flag":
        lines.insert(lines.index(_SMOKE), _ROLLOUT)  # the tour has turned rollouts on
    return lines


def _staged_first(commands: Sequence[TourCommand]) -> list[TourCommand]:
    """Return the commands with the weights staged before the first check, as docs/cloud-run.md has it."""
    stage = next(command for command in commands if command.line == STAGE)
    rest = [command for command in commands if command is not stage]
    at = next(index for index, command in enumerate(rest) if "scripts.doctor" in command.line)
    return [*rest[:at], stage, *rest[at:]]
