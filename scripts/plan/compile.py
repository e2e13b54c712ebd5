"""Google's compiler as judge of a plan: a child process, because judges are not part of the product."""

import os
import sys
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.engine.children import run_child
from gemma_serving.scripts.cli.command import last_command

_ROOT: Final = Path(__file__).resolve().parents[2]


def run_judge() -> ExitCode:
    """Run this command again as the judge, which prints the plan and the compiler's answer, and return its exit code.

    A judge that was killed has failed. Raises CommandRefusedError where its folder is missing.
    """
    if not Path(_ROOT, "dev", "judges", "plan.py").is_file():
        raise CommandRefusedError(
            "--compile needs the folder dev/judges/ of the repository, which this installation does not have. Run the command in a clone of the "
            "repository (60 MB); there it installs Google's compiler and vLLM, about 4 GB."
        )
    _program, _name, *words = last_command()
    # The judge is no command of `gemma`, which takes a stack as its first word.
    arguments = words if not words or words[0].startswith("-") else ["--stack", *words]
    folders = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    code = run_child(
        [sys.executable, "-P", "-m", "dev.judges.plan", *arguments], {"PYTHONPATH": os.pathsep.join(folders)}
    )
    return ExitCode(code) if code in {*ExitCode} else ExitCode.FAILED
