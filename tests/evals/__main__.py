"""Let a model do the tasks of the skill, on a local cloud.

  python -m tests.evals --base-url http://127.0.0.1:8000/v1 --model NAME

Any OpenAI-compatible server will do. The key is read from OPENAI_API_KEY. Exit code 1 if a task failed.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import Option


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of the command."""

    base_url: Annotated[str, Option("Address of the model's server, with /v1.", metavar="URL")]
    model: Annotated[str, Option("Name of the model.", metavar="NAME")]
    task: Annotated[tuple[str, ...], Option("Only this task; may be repeated.", metavar="NAME", repeated=True)] = ()


def _evals(options: EvalOptions) -> ExitCode:
    from tests.engine.conftest import open_workspace  # noqa: PLC0415 - --help answers at once
    from tests.evals.drivers import model  # noqa: PLC0415 - --help answers at once
    from tests.evals.run import evaluate  # noqa: PLC0415 - --help answers at once
    from tests.evals.tasks import TASKS  # noqa: PLC0415 - --help answers at once

    driver = model(options.base_url, options.model, os.environ.get("OPENAI_API_KEY", "none"))
    failed = 0
    for task in TASKS:
        if options.task and task.name not in options.task:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="evals-") as folder,
            open_workspace(Path(folder) / "workspace") as workspace,
        ):
            verdict = evaluate(workspace, task, driver)
        failed += bool(verdict.wrong)
        print(f"{task.name}: {'; '.join(verdict.wrong) or 'passed'} ({len(verdict.transcript.uses)} calls)", flush=True)
    return ExitCode.FAILED if failed else ExitCode.DONE


COMMAND: Final = Command(name="evals", help=__doc__, options=EvalOptions, run=_evals)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
