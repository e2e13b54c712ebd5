"""Serve the project's commands to an assistant over MCP.

  gemma agent
  gemma agent --allow up,smoke,restart --max-usd-per-hour 6
  gemma agent --toolsets plan,status,logs
  gemma agent code tpu-v6e1

Without --allow, all tools are read-only. A change only runs a plan that was shown
before. A stack is deployed only with a limit of its cost. The first run of a flex-start
TPU has such a limit; later runs need maxUsd. A Cloud Run service that scales from 0 to 1
is deleted after --max-hours. Others need maxUsd and a scheduled guard. All that one
server deploys costs at most --max-usd. To delete a stack, the user must type its name
and a code each time; `code` shows the code. The audit file has every call.
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
    OWN_HOURS,
    TOOLSETS,
    TOTAL_HOURS,
    parse_permissions,
    parse_toolsets,
)
from gemma_serving.scripts.cli.command import Command, print_progress, run_command
from gemma_serving.scripts.cli.options import Option, StackName

AUDIT: Final = "audit.jsonl"


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
    toolsets: Annotated[str, Option(f"Offered tools: {', '.join(TOOLSETS)}. Default: all.", metavar="LIST")] = ""
    max_usd_per_hour: Annotated[
        float, Option("Maximum combined cost of everything deployed, in USD per hour.", above=0)
    ] = 10.0
    max_usd: Annotated[
        float | None,
        Option(
            f"Maximum cost of all that this server deploys, in USD. Default: {TOTAL_HOURS:g} hours of --max-usd-per-hour.",
            above=0,
        ),
    ] = None
    max_hours: Annotated[
        float, Option("Hours after which a Cloud Run service that no guard limits is deleted.", above=0)
    ] = OWN_HOURS
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
    from gemma_serving.scripts.agent.codes import code_shelf, show_codes

    runner.require_stacks([options.stack])
    show_codes(options.stack, code_shelf())
    return ExitCode.DONE


def _agent(options: AgentOptions) -> ExitCode:
    allowed = parse_permissions(options.allow)
    tools = parse_toolsets(options.toolsets)
    _require_packages()
    from gemma_serving.engine import runner
    from gemma_serving.engine.backend import absolute_backend, memory
    from gemma_serving.scripts.agent.context import AgentContext
    from gemma_serving.scripts.agent.recording import AuditFile
    from gemma_serving.scripts.agent.runs import Runs
    from gemma_serving.scripts.agent.spending import SpendingLimit, deployed_now
    from gemma_serving.scripts.agent.staging import parse_sources
    from gemma_serving.scripts.agent.tool_server import build, run_stdio
    from gemma_serving.scripts.cli.hidden import environment_secrets

    path = runner.project_folder() / (options.audit or memory().path(AUDIT))
    total = options.max_usd or options.max_usd_per_hour * TOTAL_HOURS
    agent = AgentContext(
        allowed=allowed,
        spending=SpendingLimit(states=deployed_now, usd_per_hour_limit=options.max_usd_per_hour, usd_limit=total),
        runs=Runs(within_s=options.answer_within),
        own_hours=options.max_hours,
        stage_from=parse_sources(options.stage_from),
        secrets=tuple(environment_secrets()),
    )
    server = build(agent, AuditFile(path=path), tools)
    rights = f"may {', '.join(sorted(allowed))}" if allowed else "read-only"
    print_progress("agent", f"{rights}; limits ${options.max_usd_per_hour:g}/h and ${total:g} in all; audit in {path}")
    with absolute_backend():  # `up` runs in a copy of the project
        agent.keepers.resume()
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
            help="Show the code for a deletion by an assistant, on this terminal only.\n\n  gemma agent code tpu-v6e1\n\ndocs/agent.md describes a deletion.",
            options=CodeOptions,
            run=_code,
        ),
    ),
    after_interrupt="Running work was interrupted as by Ctrl-C. The audit file lists the calls.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
