"""Record a run's measurements in the stack's results file."""

from contracts.outputs import StackOutputs
from scripts.cli.command import say
from scripts.cli.measured.planned import DeployedPlan
from scripts.cli.measured.record import Measured, add, now, smoke_measurement
from scripts.cli.measured.store import NotKeptError
from scripts.smoke.results import SmokeReport


def keep(stack: str, outputs: StackOutputs, plan: DeployedPlan, report: SmokeReport) -> None:
    """Add the run to the stack's results file if anything was measured. Report the path, or why it failed, on stderr."""
    if outputs.target == "gateway":
        say("smoke", "the results are not recorded, because a gateway's requests go to several servers.")
        return
    measured = smoke_measurement({check.name: check.outcome.values for check in report.checks}, plan, now())
    if measured is None:
        say("smoke", "nothing was measured; the results file is unchanged.")
        return
    try:
        path = add(stack, Measured(outputs=outputs, plan=plan, simulated=report.simulated, smoke=(measured,)))
    except NotKeptError as error:
        say("smoke", str(error))
    else:
        say("smoke", f"results recorded in {path}. Run `gemma plan {stack} --measured` to compare them with the plan.")
