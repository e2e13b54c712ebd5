"""What is kept beside the plan after a sweep, so that `scripts.plan --measured` can compare."""

from pathlib import Path

from contracts.errors import ScriptError
from engine.stack import stack_outputs
from loadtest.errors import SweepError
from loadtest.store import read_results
from scripts.cli.command import say
from scripts.cli.measured.planned import deployed_plan
from scripts.cli.measured.record import Measured, add, bench_points


def keep_sweep(stack: str, folder: Path, since: str) -> None:
    """Add the points of a sweep that were measured since a time, and tell on stderr where they are, or why they were not kept."""
    try:
        rows = [row for row in read_results(folder) if row["date"] >= since]
        outputs = stack_outputs(stack)
        plan = deployed_plan(stack, outputs)
        points = bench_points(rows, plan)
        if not points:
            say("bench", "no point is valid and has prompts of one length, so none was kept beside the plan.")
            return
        simulated = next((str(row["simulated"]) for row in rows if row["simulated"]), None)
        path = add(stack, Measured(outputs=outputs, plan=plan, simulated=simulated, bench=points))
    except (ScriptError, SweepError) as error:
        say("bench", str(error))
    else:
        kept = "1 point is" if len(points) == 1 else f"{len(points)} points are"
        say("bench", f"{kept} kept beside the plan in {path}: scripts.plan --stack {stack} --measured shows them.")
