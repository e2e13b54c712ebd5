"""Options of `gemma teardown`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gemma_serving.scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class TeardownOptions:
    """Options of the command. Without `stack`, all stacks of this product in the project."""

    stack: Annotated[str | None, Option("Name of the stack.", metavar="STACK")] = None
    all_stacks: Annotated[
        bool,
        Option(
            "Tear down all stacks of the Pulumi project gemma-serving in the Google Cloud project, even unknown ones.",
            flag="--all",
            person=True,
        ),
    ] = False
    every_project: Annotated[
        bool,
        Option(
            "With --all: then also the stacks of other Pulumi programs that use this package, after a question for each project.",
            person=True,
        ),
    ] = False
    dry_run: Annotated[bool, Option("Count the resources without deleting them.")] = False
    yes: Annotated[bool, Option("Skip the confirmation. A lock that may be in use still needs one.", person=True)] = (
        False
    )
    over_limit: Annotated[
        bool,
        Option(
            "Tear down only stacks that exceed maxAge, maxUsd or tpu.idleAfter. For schedules, add --yes.", person=True
        ),
    ] = False
    keep_bucket: Annotated[bool, Option("Keep the bucket with the weights.")] = False
    include_retained: Annotated[
        bool, Option("Delete the bucket even if bucket.retainOnDestroy is set.", person=True)
    ] = False
    wait: Annotated[bool, Option("Wait until Google releases the network of a Cloud Run service: up to two hours.")] = (
        False
    )
    receipt: Annotated[
        Path | None, Option("File to write the receipt to. Default: a file in .work/teardown.", person=True)
    ] = None
    as_json: JsonSwitch = False
