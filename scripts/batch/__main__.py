r"""Send a file of requests to a deployed server, and write the responses.

  python -m scripts.batch requests.jsonl --stack NAME --output results.jsonl
  python -m scripts.batch requests.jsonl --url URL --output results.jsonl

Both files have the JSONL format of OpenAI's batch API. Each response is stored
as it arrives. If the command is stopped or killed, run it again: it sends only
the requests that have no response yet.
"""

import sys
from typing import Final

from contracts.exit_codes import ExitCode
from scripts.batch.options import BatchOptions
from scripts.cli.command import Command, run_command


def _batch(options: BatchOptions) -> ExitCode:
    from scripts.batch.run import run_batch

    return run_batch(options)


COMMAND: Final = Command(
    name="batch",
    help=__doc__,
    options=BatchOptions,
    run=_batch,
    after_interrupt="Stored responses are kept. Run the same command again to continue.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
