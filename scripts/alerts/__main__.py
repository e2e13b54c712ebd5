"""Show the alerts of a stack that fire, with the first command for each.

  gemma alerts tpu-v6e1

Reads Cloud Monitoring, and only the policies of this stack. If nothing fires, it checks whether anything can: alert policies exist, are enabled
and receive metrics. Changes nothing.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC
from typing import Annotated, Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_text, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option, StackName


@dataclass(frozen=True, kw_only=True)
class AlertsOptions:
    """Options of the command."""

    stack: StackName
    closed: Annotated[bool, Option("Also show alerts that no longer fire.")] = False
    utc: Annotated[bool, Option("Print times in UTC instead of this machine's time zone.", person=True)] = False
    as_json: JsonSwitch = False


def _alerts(options: AlertsOptions) -> ExitCode:
    from gemma_serving.cloud import google_api
    from gemma_serving.cloud.alerts import POLICY_TYPE, read_alerts
    from gemma_serving.cloud.simulated import is_simulated
    from gemma_serving.engine import state as states
    from gemma_serving.scripts.stack.facts import read_facts
    from gemma_serving.scripts.stack.serves import GOOGLE_LIMIT_S, old_report, require_deployed
    from gemma_serving.scripts.stack.settings import stack_project

    state = states.read(options.stack)
    facts = read_facts(state, "server", limit_s=GOOGLE_LIMIT_S)
    require_deployed(facts)
    outputs, named = state.outputs, next(iter(state.projects), None)
    project = outputs.project if outputs is not None else stack_project(options.stack, project=named)
    report = read_alerts(
        google_api.connect(project),
        stack=options.stack,
        project=project,
        declared=sum(item.get("type") == POLICY_TYPE for item in state.resources),
        has_closed=options.closed,
    )
    report = replace(report, unread=(*report.unread, *filter(None, [old_report(facts)])))
    if options.as_json:
        found = {"schema_version": 2, "simulated": is_simulated(), "verdict": report.verdict}
        print_text(json.dumps({**found, **asdict(report)}))
    else:
        from gemma_serving.cloud.clock import GOOGLE_CLOCK
        from gemma_serving.scripts.alerts.render import AlertTimes, print_alerts
        from gemma_serving.scripts.cli.tables import console

        times = AlertTimes(now=GOOGLE_CLOCK.now(), zone=UTC if options.utc else None)
        print_alerts(console(sys.stdout), report, times, simulated=is_simulated())
    return ExitCode.DONE if report.verdict == "silent" else ExitCode.FAILED


COMMAND: Final = Command(
    name="alerts",
    help=__doc__,
    options=AlertsOptions,
    run=_alerts,
    needs="state",
    after_interrupt="Nothing was changed.",
    exit_codes={
        ExitCode.DONE: "no alert fires",
        ExitCode.FAILED: "an alert fires, or it is unknown whether one does, for example because nothing watches the stack",
    },
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
