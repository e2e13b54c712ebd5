"""The options of `python -m localcloud try`, without what a trial loads: the other commands know these only."""

import argparse
from pathlib import Path
from typing import Protocol


class TryRefusedError(Exception):
    """The command is refused before anything was sent that could change the project. The message is one or two sentences."""


class _Parsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 - argparse's


def add_parser(commands: _Parsers) -> None:
    """Add `try` to the commands of `python -m localcloud`."""
    parser = commands.add_parser("try", help="try on a real project what the local cloud assumes about Google")
    parser.add_argument("--project", help="the project that the requests go to; it gets nothing that stays")
    parser.add_argument(
        "--budget-usd", type=_dollars, metavar="USD", help="the most that the trials may cost; 0: free ones"
    )
    parser.add_argument(
        "--list", "--dry-run", dest="only_list", action="store_true", help="print the plan; send nothing"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="ID", help="only this entry, tried or not; repeatable"
    )
    parser.add_argument("--clean-up", action="store_true", help="only delete what an earlier run has left")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the answers there instead of into the ledger")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _dollars(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not an amount of 0 or more")
    return value
