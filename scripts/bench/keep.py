"""Record a sweep's results, so that `scripts.plan --measured` can compare them with the plan."""

from pathlib import Path

from contracts.errors import ScriptError
from engine.stack import stack_outputs
from loadtest.errors import SweepError
from loadtest.store import read_results
from scripts.cli.command import say
from scripts.cli.measured.planned import deployed_plan
from scripts.cli.measured.record import Measured, add, bench_points


def keep_sweep(stack: str, folder: Path, since: str) -> None:
    """Record the points of a sweep measured since a time. Report the path, or why it failed, on stderr."""
    try:
        rows = [row for row in read_results(folder) if row["date"] >= since]
        outputs = stack_outputs(stack)
        if outputs.target == "gateway":
            say("bench", "the points are not recorded, because the plan is that of one server, not of a gateway.")
            return
        plan = deployed_plan(stack, outputs)
        points = bench_points(rows, plan)
        if not points:
            say("bench", "no valid point has prompts of one length; the results file is unchanged.")
            return
        simulated = next((str(row["simulated"]) for row in rows if row["simulated"]), None)
        path = add(stack, Measured(outputs=outputs, plan=plan, simulated=simulated, bench=points))
    except (ScriptError, SweepError) as error:
        say("bench", str(error))
    else:
        recorded = "1 point" if len(points) == 1 else f"{len(points)} points"
        say(
            "bench",
            f"{recorded} recorded in {path}. Run `gemma plan {stack} --measured` to compare.",
        )
