"""Kill the engine and everything around it at random moments, and see that nothing is left, nothing foreign is touched and `up` goes on.

`python -m tests.kills --seed 1 --count 1000`. Everything happens on a local cloud below a temporary folder. Linux only.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class KillOptions:
    """Options of the command."""

    seed: Annotated[int, Option("Seed of everything that is drawn by chance.", least=0)] = 1
    count: Annotated[int, Option("How many kills have to hit a living process.", least=1)] = 30
    each: Annotated[int, Option("Kills in each cycle.", least=1)] = 5
    first: Annotated[int, Option("Number of the first cycle, to replay one.", least=0)] = 0
    folder: Annotated[Path | None, Option("An empty folder that is kept, with the output of every command.")] = None
    history: Annotated[
        Path | None,
        Option("File that gets a line of JSON for the seed, for each cycle with its kills, and for the end."),
    ] = None
    as_json: JsonSwitch = False


def _kills(options: KillOptions) -> ExitCode:
    from tests.kills.series import Series  # noqa: PLC0415 - --help answers at once

    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as temporary:
        series = Series(
            folder=options.folder or Path(temporary),
            seed=options.seed,
            each=options.each,
            first=options.first,
            history=options.history,
        )
        summary = series.run(options.count)
    print(summary.to_json() if options.as_json else summary.to_text())
    return ExitCode.FAILED if summary.problems else ExitCode.DONE


COMMAND: Final = Command(name="kills", help=__doc__, options=KillOptions, run=_kills)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
