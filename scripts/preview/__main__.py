"""Preview stacks and show the changes of a pull request as one comment.

  gemma preview tpu-v6e1
  gemma preview run --base main --out previews
  gemma preview plans --out plans.json

`run` runs the program of the folder, with its virtual environment and its
provider plugins. Planning runs none of them, and needs no cloud and no credentials. docs/ci.md describes the comment and
the workflows.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.memory import write_private
from gemma_serving.scripts.cli.command import Command, print_text, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `run`."""

    out: Annotated[
        Path | None,
        Option("Folder for the comment and one JSON file per stack. Default: nothing is kept.", metavar="DIR"),
    ] = None
    stack: Annotated[
        tuple[str, ...],
        Option(
            "Preview this stack; repeatable. Default: every stack with a settings file.",
            repeated=True,
            metavar="STACK",
        ),
    ] = ()
    base: Annotated[str | None, Option("Compare with this commit, e.g. main or HEAD^1.", metavar="COMMIT")] = None
    without_secrets: Annotated[
        bool,
        Option("Use stand-ins for secrets; needs no passphrase or key. Hides changed values."),
    ] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Options of the command itself, which requires a subcommand."""


@dataclass(frozen=True, kw_only=True)
class PlansOptions:
    """Options of `plans`."""

    out: Annotated[Path, Option("File for the plans.", metavar="FILE")]


def _run(options: RunOptions) -> ExitCode:
    """Plan all stacks of both commits, preview them and print the comment; without --base, plain text.

      gemma preview run --base main --out previews
      gemma preview run tpu-v6e1

    A stack that is not deployed is previewed as a new one, and the backend is not changed.
    With --base and without STACK, a stack that is neither deployed nor changed is left out.
    A failed preview is stored with its error.
    """
    from gemma_serving.engine import runner
    from gemma_serving.engine.previewed import other_checkout
    from gemma_serving.scripts.preview.comment import as_text, comment, verdicts
    from gemma_serving.scripts.preview.plans import describe_checkout
    from gemma_serving.scripts.preview.previews import preview_stacks

    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)  # fails early without the right to write
    base, head = None, describe_checkout(runner.project_folder())
    known = runner.require_stacks(options.stack)
    names = options.stack or known
    if options.base:
        with other_checkout(options.base) as folder:
            base = describe_checkout(folder)
        if not options.stack:
            same = {verdict.stack for verdict in verdicts(base, head) if verdict.is_same} - runner.listed_stacks()
            names = [name for name in names if name not in same]
    previews = preview_stacks(names, hide_secrets=options.without_secrets)
    why = "only these were named" if options.stack else "it leaves out stacks that are neither deployed nor changed"
    text = as_text(previews, head) if base is None else comment(base, head, previews, not_previewed=why)
    if options.out is not None:
        for one in previews:
            write_private(options.out / f"{one.stack}.json", f"{one.model_dump_json(indent=1)}\n")
        write_private(options.out / "comment.md", text)
    if options.as_json:
        print_text(json.dumps({"schema_version": 1, "stacks": [one.model_dump(mode="json") for one in previews]}))
    else:
        print_text(text, end="")
    return ExitCode.FAILED if any(preview.error is not None for preview in previews) else ExitCode.DONE


def _plans(options: PlansOptions) -> ExitCode:
    """Write the plans of all stacks, with flags and variables, to a file.

      gemma preview plans --out plans.json

    Needs no cloud and no credentials.
    """
    from gemma_serving.engine.runner import project_folder
    from gemma_serving.scripts.preview.plans import describe_checkout

    stacks = [described.model_dump() for described in describe_checkout(project_folder()).values()]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(f"{json.dumps({'stacks': stacks}, indent=1)}\n", encoding="utf-8")
    return ExitCode.DONE


COMMAND: Final = Command(
    name="preview",
    help=__doc__,
    options=NoOptions,
    run=None,
    needs="settings",
    subcommands=(
        Command(
            name="run",
            help=_run.__doc__,
            options=RunOptions,
            run=_run,
            exit_codes={ExitCode.FAILED: "a preview failed"},
        ),
        Command(name="plans", help=_plans.__doc__, options=PlansOptions, run=_plans),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
