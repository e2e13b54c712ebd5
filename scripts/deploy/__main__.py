"""Deploy a stack from a clean checkout and roll back if a check fails.

  python -m scripts.deploy --stack NAME --out DIR
  python -m scripts.deploy --stack NAME --out DIR --plan plan.json
  python -m scripts.deploy --stack pr-12 --settings-of l4-qat --out DIR

Runs the smoke checks and compares the speed with the previous deployment. With --plan, deploys only the plan of `python -m scripts.preview save`:
previews again and refuses if a step differs. Stores a commit that passes in the stack's tag. Exit code 0: this commit is deployed and passed. If
the server is unreachable, nothing is rolled back (outcome `not verified`, exit code 1). docs/ci.md describes the steps.
"""

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command, say
from scripts.cli.options import JsonSwitch, Option, StackName


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """Options of the command."""

    stack: StackName
    out: Annotated[Path, Option("Folder for the report, the smoke checks and the benchmarks.", metavar="DIR")]
    settings_of: Annotated[
        str | None,
        Option("Stack whose settings are deployed as --stack, for a preview environment.", metavar="NAME"),
    ] = None
    plan: Annotated[
        Path | None,
        Option("Deploy only this plan of `scripts.preview save`; refuse if a step differs.", metavar="FILE"),
    ] = None
    bench: Annotated[bool, Option("Benchmark before and after, and compare.", negatable=True)] = True
    threshold: Annotated[float, Option("Maximum fraction by which a metric may get worse.", least=0, most=1)] = 0.1
    roll_back: Annotated[bool, Option("Roll back to the last good commit if a check fails.", negatable=True)] = True
    configure_docker: Annotated[
        bool,
        Option("Run `gcloud auth configure-docker` first, for a stack that builds its image."),
    ] = False
    as_json: JsonSwitch = False


def _deploy(options: DeployOptions) -> ExitCode:
    from engine import runner
    from engine.checkout import require_committed
    from scripts.cli.markdown import code, plain
    from scripts.cli.summary import write_summary
    from scripts.deploy.run import DeployRequest, deploy_stack
    from scripts.deploy.steps import EngineSteps
    from scripts.preview.face import read_plan

    known = runner.require_stacks([options.settings_of or options.stack])
    if options.settings_of is not None and options.stack in known:
        raise CommandRefusedError(f"--settings-of would overwrite Pulumi.{options.stack}.yaml. Pass another --stack.")
    commit = require_committed()
    plan = read_plan(options.plan, stack=options.stack) if options.plan else None
    if options.out.exists() and any(options.out.iterdir()):
        raise CommandRefusedError(f"--out {options.out} is not empty. Pass a new folder.")
    options.out.mkdir(parents=True, exist_ok=True)
    steps = EngineSteps(
        stack=options.stack,
        out=options.out.absolute(),
        source=options.settings_of,
        threshold=options.threshold,
        plan=plan,
        configure_docker=options.configure_docker,
    )
    request = DeployRequest(
        stack=options.stack,
        commit=commit,
        bench=options.bench,
        roll_back=options.roll_back,
        plan=plan.id if plan else "",
    )
    try:
        report = deploy_stack(request, steps, partial(say, "deploy"))
    except CommandRefusedError as error:
        write_summary(f"### {code(options.stack)}: refused\n\n{plain(str(error))}\n")
        raise
    text = json.dumps(report.to_json())
    (options.out / "deploy.json").write_text(f"{text}\n", encoding="utf-8")
    write_summary(report.markdown())
    print(text if options.as_json else report.markdown(), end="" if not options.as_json else "\n")
    return report.exit_code


COMMAND: Final = Command(
    name="deploy",
    help=__doc__,
    options=DeployOptions,
    run=_deploy,
    after_interrupt="Nothing was rolled back. Run the same command again to continue an interrupted `up`.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
