"""Serve the project's commands to an assistant over MCP.

  gemma agent
  gemma agent --allow up,smoke,restart
  gemma agent code tpu-v6e1

Without --allow, all tools are read-only. A change only runs a plan that was shown
before, and the client asks the user with the price per hour and its maximum. The first
run of a flex-start TPU has a maximum; later runs need maxUsd. A Cloud Run service that
scales from 0 to 1 has none. Others need maxUsd and a scheduled guard. To delete a stack,
the user must type its name and a code each time. `code` shows the code, also for a
client that shows no questions. The audit file has every call.
docs/agent.md describes the protections.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.installation import install_sentence
from gemma_serving.scripts.agent.permissions import (
    ANSWER_WITHIN_S,
    CHANGES,
    LONGEST_WAIT_S,
    parse_permissions,
)
from gemma_serving.scripts.cli.command import Command, print_progress, run_command
from gemma_serving.scripts.cli.options import Option, StackName

AUDIT: Final = "audit.jsonl"
_CODE_HELP: Final = """Show what an assistant asks about a stack, and the code that approves it, on this terminal only.

  gemma agent code tpu-v6e1

The code approves exactly the shown question, once."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """Options of the command."""

    allow: Annotated[str, Option(f"Allowed changes: {', '.join(CHANGES)}.", metavar="LIST")] = ""
    stage_from: Annotated[
        tuple[str, ...],
        Option(
            "Additional source folder for weights, gs://BUCKET/FOLDER. Repeatable.", metavar="SOURCE", repeated=True
        ),
    ] = ()
    answer_within: Annotated[
        float,
        Option("Time after which a longer call returns a handle.", metavar="SECONDS", least=0, most=LONGEST_WAIT_S),
    ] = ANSWER_WITHIN_S
    audit: Annotated[
        Path | None,
        Option(f"Audit file, with a line per call. Default: {AUDIT} in the state folder.", metavar="FILE"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CodeOptions:
    """Options of `code`."""

    stack: StackName


def _code(options: CodeOptions) -> ExitCode:
    from gemma_serving.engine import runner
    from gemma_serving.scripts.agent.codes import code_shelf, show_code

    runner.require_stacks([options.stack])
    show_code(options.stack, code_shelf())
    return ExitCode.DONE


def _agent(options: AgentOptions) -> ExitCode:
    allowed = parse_permissions(options.allow)
    _require_packages()
    from gemma_serving.engine import runner
    from gemma_serving.engine.backend import absolute_backend, memory
    from gemma_serving.scripts.agent.context import AgentContext
    from gemma_serving.scripts.agent.recording import AuditFile
    from gemma_serving.scripts.agent.runs import Runs
    from gemma_serving.scripts.agent.staging import parse_sources
    from gemma_serving.scripts.agent.tool_server import build, run_stdio
    from gemma_serving.scripts.cli.hidden import environment_secrets
    from gemma_serving.scripts.stack.old_limits import old_limits

    path = runner.project_folder() / (options.audit or memory().path(AUDIT))
    agent = AgentContext(
        allowed=allowed,
        runs=Runs(within_s=options.answer_within),
        stage_from=parse_sources(options.stage_from),
        secrets=tuple(environment_secrets()),
    )
    server = build(agent, AuditFile(path=path))
    rights = f"may {', '.join(sorted(allowed))}" if allowed else "read-only"
    print_progress("agent", f"{rights}; audit in {path}")
    for text in old_limits():
        print_progress("agent", text)
    with absolute_backend():  # `up` runs in a copy of the project
        run_stdio(server)
    return ExitCode.DONE


def _require_packages() -> None:
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise CommandRefusedError(f"The package mcp is not installed. {install_sentence('agent')}")


COMMAND: Final = Command(
    name="agent",
    help=__doc__,
    options=AgentOptions,
    run=_agent,
    subcommands=(
        Command(
            name="code",
            help=_CODE_HELP,
            options=CodeOptions,
            run=_code,
        ),
    ),
    after_interrupt="Running work was interrupted as by Ctrl-C. The audit file lists the calls.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
