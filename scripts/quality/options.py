"""Options of the command and of its subcommand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from scripts.cli.options import JsonSwitch, Option

KINDS_TEXT: Final = "exact, json, tools, retrieval"


@dataclass(frozen=True, kw_only=True)
class QualityServerOptions:
    """Server."""

    stack: Annotated[str | None, Option("Ask the server of this stack.", metavar="NAME")] = None
    url: Annotated[str | None, Option("Ask the server at this address, without /v1.", metavar="URL")] = None
    model: Annotated[
        str | None, Option("Model name, or that of an adapter. Default: the first served model.", metavar="ID")
    ] = None


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """Questions."""

    kind: Annotated[
        tuple[str, ...], Option(f"Ask only this kind; repeatable: {KINDS_TEXT}.", metavar="KIND", repeated=True)
    ] = ()
    max_context: Annotated[
        int | None, Option("Leave out longer questions, in tokens. Default: max-model-len.", least=1024)
    ] = None
    thinking: Annotated[bool, Option("Ask with thinking enabled.")] = False
    request_timeout: Annotated[float, Option("Timeout of one question, in seconds.", least=1, metavar="SECONDS")] = (
        600.0
    )


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """Options of `python -m scripts.quality`."""

    server: QualityServerOptions
    questions: QuestionOptions
    out: Annotated[
        Path | None, Option("Folder for the answers. Default: results/STACK/TIME-quality.", metavar="DIR")
    ] = None
    resume: Annotated[bool, Option("Continue the run in --out, and ask the questions without an answer again.")] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class QualityCompareOptions:
    """Options of `compare`."""

    runs: Annotated[
        tuple[str, ...],
        Option(
            "Folders of runs, or stacks with a run in results/. The first is the baseline.",
            positional=True,
            repeated=True,
            metavar="RUN",
        ),
    ] = ()
    as_json: JsonSwitch = False
