"""Option `--fix`, the settings change that removes blocking findings, as a diff and optionally applied to the file."""

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path

from contracts.exit_codes import ExitCode
from planning.errors import PlanningError
from planning.planner import plan
from planning.question.types import Deployment, Finding, Plan, Remedy
from planning.solve.wording import remedy_of, worded
from scripts.cli.settings import NO_PROJECT
from scripts.cli.settings_file import SettingsFile
from scripts.plan.question import stack_file
from stacks.loading import SettingsError, from_file
from stacks.planned import to_deployment
from stacks.wording import StackWording, file_changes

_MOST_CHANGES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A settings file after all fixes."""

    text: str
    plan: Plan
    deployment: Deployment
    removed: tuple[str, ...]
    """Ids of the resolved findings, in order."""


def fix(stack: str, *, write: bool) -> ExitCode:
    """Print the settings change as a unified diff, and optionally apply it. Raises PlanningError."""
    path = stack_file(stack)
    fixed = fixed_file(path)
    before = path.read_text(encoding="utf-8")
    if fixed.text == before:
        print(f"plan: {path.name} {'needs no change' if fixed.plan.fits else 'cannot be fixed'}.", file=sys.stderr)
    lines = (before.splitlines(keepends=True), fixed.text.splitlines(keepends=True))
    print("".join(difflib.unified_diff(*lines, fromfile=f"a/{path.name}", tofile=f"b/{path.name}")), end="")
    if write and fixed.text != before:
        path.write_text(fixed.text, encoding="utf-8")
        print(f"plan: changed {path.name}; resolved {', '.join(fixed.removed)}.", file=sys.stderr)
    wording = StackWording(fixed.deployment)
    for finding in fixed.plan.stopping:
        text = f"{worded(finding.message, wording)} {remedy_of(finding, wording)}"
        print(f"plan: {finding.id} still blocks: {text}", file=sys.stderr)
    return ExitCode.DONE if fixed.plan.fits else ExitCode.REFUSED


def fixed_file(path: Path) -> Fixed:
    """Return the file with the first deployable remedy of each blocking finding, until none blocks or none has a remedy.

    Raises:
        PlanningError: if the file cannot be read, or has an error that is not a finding.
    """
    try:
        from_file(path, project=NO_PROJECT)
    except SettingsError as error:
        raise PlanningError(str(error)) from None
    document = SettingsFile(path)
    removed: list[str] = []
    while True:
        deployment = to_deployment(document.settings(), path.parent)
        planned = plan(deployment)
        found = _first_remedy(planned)
        if found is None or len(removed) == _MOST_CHANGES:
            return Fixed(text=document.text(), plan=planned, deployment=deployment, removed=tuple(removed))
        finding, remedy = found
        document.apply(file_changes(deployment, remedy.changes))
        removed.append(finding.id)


def _first_remedy(planned: Plan) -> tuple[Finding, Remedy] | None:
    remedies = ((finding, remedy) for finding in planned.stopping for remedy in finding.remedies)
    return next(((finding, remedy) for finding, remedy in remedies if remedy.is_deployable), None)
