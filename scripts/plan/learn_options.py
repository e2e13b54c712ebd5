"""Options of `python -m scripts.plan learn`, apart from its work so that `--help` stays quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from scripts.cli.options import JsonSwitch, Option
from scripts.plan.question import Question


@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """Options of the command."""

    log: Annotated[Path, Option("Boot log of vLLM, or a saved answer of its /metrics.", positional=True)]
    question: Question
    url: Annotated[str, Option("Where the log was published.")] = ""
    into: Annotated[
        Path | None,
        Option(
            "File that takes the boot; scripts/plan/corpus/learned.toml without it, which docs/authors/accuracy.md reads too."
        ),
    ] = None
    show: Annotated[bool, Option("Write nothing: only show the plan beside the log.")] = False
    as_json: JsonSwitch = False
