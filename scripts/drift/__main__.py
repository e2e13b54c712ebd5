"""Detect changes in the cloud since the last deployment.

  python -m scripts.drift --stack NAME
  python -m scripts.drift --issue

With --issue, maintains one GitHub issue about them and exits with 0 if that succeeds. Changes nothing in the cloud or the state. Exit code 1
without --issue: a stack differs or could not be read.
"""

import json
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command, say
from scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class DriftOptions:
    """Options of the command."""

    stack: Annotated[
        tuple[str, ...],
        Option("Stack to check; repeatable. Default: all stacks with a settings file.", repeated=True, metavar="NAME"),
    ] = ()
    issue: Annotated[
        bool,
        Option("Create, update or close the issue in GITHUB_REPOSITORY with GITHUB_TOKEN."),
    ] = False
    as_json: JsonSwitch = False


def _drift(options: DriftOptions) -> ExitCode:
    from scripts.cli.github import repository_from_environment
    from scripts.drift.run import MARKER, TITLE, drift_of_all, issue_body

    name = os.environ.get("GITHUB_REPOSITORY", "")
    if options.issue and not name:
        raise CommandRefusedError("--issue requires GITHUB_REPOSITORY.")
    repository = repository_from_environment(name) if options.issue else None
    found = drift_of_all(options.stack)
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    body = issue_body(found, f"{server}/{name}/actions/runs/{os.environ.get('GITHUB_RUN_ID', '')}")
    if options.as_json:
        print(json.dumps({"schema_version": 1, "stacks": [one.model_dump() for one in found]}))
    else:
        print(body or "No drift found.")
    if repository is not None:
        say("drift", f"issue {repository.upsert_issue(MARKER, TITLE, body)}")
        return ExitCode.DONE
    return ExitCode.FAILED if body else ExitCode.DONE


COMMAND: Final = Command(name="drift", help=__doc__, options=DriftOptions, run=_drift)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
