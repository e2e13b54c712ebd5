"""Options of `gemma plan prices`, separate from its implementation to keep `--help` fast."""

from dataclasses import dataclass
from typing import Annotated

from scripts.cli.options import JsonSwitch, Option
from scripts.cli.project_ids import project_id


@dataclass(frozen=True, kw_only=True)
class PricesOptions:
    """Options of the command."""

    stack: Annotated[str | None, Option("Count the calls for this stack's project.", metavar="NAME")] = None
    project: Annotated[
        str | None,
        Option(
            "Project that the calls count for. Default: gcp:project of --stack, then GOOGLE_CLOUD_PROJECT.",
            metavar="ID",
            parse=project_id,
        ),
    ] = None
    dry_run: Annotated[bool, Option("Only show the changes; write nothing.")] = False
    as_json: JsonSwitch = False
