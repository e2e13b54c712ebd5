"""Measure an OpenAI-compatible server under load.

  python -m loadtest --url URL --concurrency 1,8,64 --out DIR
  python -m loadtest --url URL --request-rate 0.5,2,8 --slo ttft=1,tpot=0.05 --input-tokens 1024 --out DIR
  python -m loadtest compare DIR DIR
  python -m loadtest report DIR

Loads are closed loops (--concurrency), open loops (--request-rate), or both, over a grid of prompt and output lengths. Every point
is stored when it finishes, and --resume continues a sweep. Requests use the API key in GEMMA_API_KEY.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from loadtest.command_line import OptionParser, UsageError, add_options, read_options
from loadtest.errors import SweepError
from loadtest.load_options import CompareOptions, LoadTestOptions, ReportFolder
from loadtest.progress import say
from loadtest.subcommands import INTERRUPTED, OWN, REFUSED, compare, measure, report

ENDINGS: Final = (
    "exit codes: 0 done; 1 failed, a point is invalid or was not measured, a metric is worse, or nothing was compared;\n"
    "            2 refused, or compare --gate is inconclusive; 130 interrupted"
)
COMMANDS: Final[dict[str, tuple[type[Any], Callable[[Any], int]]]] = {
    "compare": (CompareOptions, compare),
    "report": (ReportFolder, report),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with these arguments, by default the process's, and return the exit code. Errors become one sentence on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    kind, run = COMMANDS.get(words[0], (LoadTestOptions, measure)) if words else (LoadTestOptions, measure)
    program = shlex.join(OWN.words)
    help_text = (__doc__ or "").replace("python -m loadtest", program)
    if run is not measure:
        program = f"{program} {words.pop(0)}"
        help_text = run.__doc__ or ""
    parser = OptionParser(
        prog=program,
        description=help_text,
        epilog=ENDINGS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, kind)
    try:
        return run(read_options(kind, parser.parse_args(words)))
    except (SweepError, UsageError) as error:
        say(OWN.name, str(error))
        return REFUSED
    except KeyboardInterrupt:
        say(OWN.name, "interrupted.")
        return INTERRUPTED


def _end_as_ctrl_c(_number: int, _frame: object) -> None:
    signal.raise_signal(signal.SIGINT)


def console() -> int:
    """Run as a separate program, which SIGTERM stops like Ctrl-C."""
    signal.signal(signal.SIGTERM, _end_as_ctrl_c)
    return main()


if __name__ == "__main__":
    sys.exit(console())
