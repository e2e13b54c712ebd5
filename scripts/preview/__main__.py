"""Preview every stack, and show the differences as one comment on a pull request.

python -m scripts.preview run --out DIR
python -m scripts.preview comment --from DIR --pull-request N
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option
from scripts.errors import CommandRefusedError


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `run`."""

    out: Annotated[Path, Option("Folder for one JSON file per stack.", metavar="DIR")]
    stack: Annotated[
        tuple[str, ...],
        Option(
            "Preview this stack; may be repeated. By default all with a settings file.", repeated=True, metavar="NAME"
        ),
    ] = ()
    create: Annotated[bool, Option("Create stacks that the backend does not know.")] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class CommentOptions:
    """Options of `comment`."""

    source: Annotated[Path, Option("Folder that `run` wrote.", flag="--from", metavar="DIR")]
    repository: Annotated[
        str, Option("Repository; by default GITHUB_REPOSITORY.", metavar="OWNER/NAME", variable="GITHUB_REPOSITORY")
    ]
    pull_request: Annotated[int, Option("Number of the pull request.", least=1)]


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """A command that is called with a subcommand."""


def _run(options: RunOptions) -> ExitCode:
    """Preview stacks one after the other.

    A failed preview is stored with its error, and the exit code is 1.
    """
    from scripts.preview.report import comment, report
    from scripts.preview.run import preview_stacks

    previews = preview_stacks(options.stack, options.out, create=options.create)
    print(report(previews) if options.as_json else comment(previews))
    return ExitCode.FAILED if any(preview.error is not None for preview in previews) else ExitCode.DONE


def _comment(options: CommentOptions) -> ExitCode:
    """Post the previews as one comment, or update the existing one.

    The token comes from GITHUB_TOKEN.
    """
    from scripts.preview.github import api_url, upsert_comment
    from scripts.preview.report import comment, read_all

    token = os.environ.get("GITHUB_TOKEN", "")
    if not token:
        raise CommandRefusedError("GITHUB_TOKEN is not set, so the comment cannot be posted.")
    body = comment(read_all(options.source))
    action = upsert_comment(api_url(), options.repository, options.pull_request, token, body)
    print(f"preview: comment {action} on {options.repository}#{options.pull_request}")
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
        Command(name="comment", help=_comment.__doc__, options=CommentOptions, run=_comment),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
