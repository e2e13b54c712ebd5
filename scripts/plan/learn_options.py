"""Options of `python -m scripts.plan learn`, separate from its implementation to keep `--help` fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from scripts.cli.options import JsonSwitch, Option
from scripts.plan.question import Question


@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """Options of the command."""

    question: Question
    log: Annotated[
        Path | None,
        Option(
            "Boot log of vLLM or a saved /metrics response. Default: the newest start in the logs of --stack.",
            positional=True,
        ),
    ] = None
    url: Annotated[str, Option("URL where the log was published.")] = ""
    into: Annotated[
        Path | None,
        Option("Folder for the boot's file. Default: scripts/plan/corpus/boots.", metavar="FOLDER"),
    ] = None
    show: Annotated[bool, Option("Only show the comparison; write nothing.")] = False
    as_json: JsonSwitch = False
