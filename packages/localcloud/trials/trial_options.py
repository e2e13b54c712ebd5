"""The options of `python -m localcloud try`, without the modules that a trial loads. The other commands import only this."""

import argparse
from pathlib import Path
from typing import Protocol


class TryRefusedError(Exception):
    """The command was rejected before any request that can change the project. The message is one or two sentences."""


class _Parsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 - argparse's


def add_parser(commands: _Parsers) -> None:
    """Add `try` to the commands of `python -m localcloud`."""
    parser = commands.add_parser("try", help="try the local cloud's assumptions on a real project")
    parser.add_argument("--project", help="project to send the requests to; all resources are deleted")
    parser.add_argument(
        "--budget-usd", type=_dollars, metavar="USD", help="maximum cost of the trials; 0 runs only free trials"
    )
    parser.add_argument(
        "--list", "--dry-run", dest="only_list", action="store_true", help="print the plan without sending requests"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ID",
        help="run only this entry, even if already tried; repeatable",
    )
    parser.add_argument(
        "--clean-up", action="store_true", help="only delete resources that earlier runs of this journal leaked"
    )
    parser.add_argument("--second-run", action="store_true", help="only run the parts that need another day")
    parser.add_argument("--yes", action="store_true", help="run without confirmation")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("localcloud-tried.txt"),
        metavar="FILE",
        help="file for the verdicts (default: localcloud-tried.txt); .journal beside it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _dollars(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not an amount of 0 or more")
    return value
