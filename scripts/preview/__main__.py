"""Preview stacks and show what a pull request changes as one comment.

  gemma preview STACK
  gemma preview run --out DIR --base main
  gemma preview comment --from DIR --pull-request N
  gemma preview plans --out FILE

Planning needs no cloud and no credentials. docs/ci.md describes the comment and
the workflows.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `run`."""

    out: Annotated[
        Path | None, Option("Folder for one JSON file per stack. Default: nothing is kept.", metavar="DIR")
    ] = None
    stack: Annotated[
        tuple[str, ...],
        Option(
            "Preview this stack; repeatable. Default: every stack with a settings file.",
            repeated=True,
            metavar="NAME",
        ),
    ] = ()
    base: Annotated[str | None, Option("Compare with this commit, e.g. main or HEAD^1.", metavar="COMMIT")] = None
    create: Annotated[bool, Option("Preview unknown stacks as new ones. Does not write to the backend.")] = False
    without_secrets: Annotated[
        bool,
        Option("Use stand-ins for secrets; needs no passphrase or key. Hides changed values."),
    ] = False
    plans_only: Annotated[bool, Option("Compare the plans without running the Pulumi engine.")] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class CommentOptions:
    """Options of `comment`."""

    source: Annotated[Path, Option("Folder written by `run`.", flag="--from", metavar="DIR")]
    repository: Annotated[str, Option("Repository.", metavar="OWNER/NAME", variable="GITHUB_REPOSITORY")]
    pull_request: Annotated[int, Option("Number of the pull request.", least=1)]


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Options of the command itself, which requires a subcommand."""


@dataclass(frozen=True, kw_only=True)
class PlansOptions:
    """Options of `plans`."""

    out: Annotated[Path, Option("File for the plans.", metavar="FILE")]


def _run(options: RunOptions) -> ExitCode:
    """Plan all stacks of both commits, preview them and print the comment.

    With --base, a stack that is not deployed is compared with the base, and skipped
    if nothing of it changed. A failed preview is stored with its error, and the exit
    code is 1.
    """
    from engine.private_folders import private_folder
    from engine.runner import project_folder
    from scripts.preview.against_base import base_of
    from scripts.preview.base import base_checkout
    from scripts.preview.comment import comment
    from scripts.preview.report import StackPreview, report
    from scripts.preview.run import preview_stacks
    from scripts.preview.stored import compare_plans

    previews: Sequence[StackPreview] = ()
    with private_folder() as scratch, base_checkout(options.base) as checkout:
        out = options.out or scratch
        base, head = compare_plans(out, checkout)
        if not options.plans_only:
            compared = base_of(checkout, project_folder(), base, head) if checkout and base else None
            previews = preview_stacks(
                options.stack,
                out,
                create=options.create,
                hide_secrets=options.without_secrets,
                base=compared,
            )
    print(report(previews, base, head) if options.as_json else comment(base, head, previews), end="")
    return ExitCode.FAILED if any(preview.error is not None for preview in previews) else ExitCode.DONE


def _comment(options: CommentOptions) -> ExitCode:
    """Post the previews as one comment, or update the existing one.

    The token comes from GITHUB_TOKEN.
    """
    from scripts.cli.github import repository_from_environment
    from scripts.preview.comment import MARKER
    from scripts.preview.stored import stored_comment

    repository = repository_from_environment(options.repository)
    action = repository.upsert_comment(options.pull_request, MARKER, stored_comment(options.source))
    print(f"preview: comment {action} on {options.repository}#{options.pull_request}")
    return ExitCode.DONE


def _plans(options: PlansOptions) -> ExitCode:
    """Write the plans of all stacks in this checkout to a file.

    Another checkout reads the file to compare its own plans with them.
    """
    from engine.runner import project_folder
    from scripts.preview.plans import describe_checkout, write_plans

    write_plans(options.out, describe_checkout(project_folder()))
    return ExitCode.DONE


COMMAND: Final = Command(
    name="preview",
    help=__doc__,
    options=NoOptions,
    run=None,
    subcommands=(
        Command(
            name="run", help=_run.__doc__, options=RunOptions, run=_run, after_interrupt="Finished previews are stored."
        ),
        Command(name="plans", help=_plans.__doc__, options=PlansOptions, run=_plans),
        Command(name="comment", help=_comment.__doc__, options=CommentOptions, run=_comment),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
