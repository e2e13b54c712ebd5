"""Destroy a stack, search Google Cloud for everything that carries its marks, and delete what is left.

The search needs no state and no settings: it reads every zone and region. Exit code 0 proves that nothing is left. Exit code 1 means
that something is left, or that not everything could be read. The receipt says what was read and deleted.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class TeardownOptions:
    """Options of the command."""

    stack: Annotated[str | None, Option("Name of the stack.", metavar="NAME")] = None
    all_stacks: Annotated[
        bool, Option("Tear down all stacks of this product in the project, also unknown ones.", flag="--all")
    ] = False
    dry_run: Annotated[bool, Option("Show what there is, and change nothing. Exit code 1 if there is something.")] = (
        False
    )
    yes: Annotated[bool, Option("Do not ask for confirmation. A lock that may be in use is asked for even so.")] = False
    over_limit: Annotated[
        bool, Option("Take down only stacks that exceed their maxAge or maxUsd. With --yes it suits a schedule.")
    ] = False
    keep_bucket: Annotated[bool, Option("Keep the bucket with the weights.")] = False
    include_retained: Annotated[bool, Option("Delete the bucket even if bucket.retainOnDestroy keeps it.")] = False
    receipt: Annotated[Path | None, Option("Where to write the receipt. By default, below .work/teardown.")] = None
    as_json: JsonSwitch = False


def _teardown(options: TeardownOptions) -> ExitCode:
    from cloud import google_api
    from scripts.teardown.output import TeardownOutput, text_of
    from scripts.teardown.run import Teardown, TeardownRequest, known

    if (options.stack is None) != options.all_stacks:
        raise CommandRefusedError("Name one stack with --stack NAME, or pass --all.")
    if options.keep_bucket and options.include_retained:
        raise CommandRefusedError("--keep-bucket and --include-retained contradict each other; pass one of them.")
    talk = TeardownOutput()
    request = TeardownRequest(
        stack=options.stack,
        yes=options.yes,
        keep_bucket=options.keep_bucket,
        include_retained=options.include_retained,
        dry_run=options.dry_run,
    )
    if options.over_limit:
        from scripts.teardown.guard import guard

        return guard(request, talk, as_json=options.as_json)
    found = known(request, talk.say)
    teardown = Teardown(request=request, known=found, api=google_api.connect(*found.projects), talk=talk)
    try:
        teardown.run()
    except BaseException:
        if teardown.searches:
            talk.say(f"what was done so far stands in {teardown.receipt().write(options.receipt)}")
        raise
    receipt = teardown.receipt()
    path = receipt.write(options.receipt)
    print(json.dumps({**receipt.to_json(), "receipt": str(path)}) if options.as_json else text_of(receipt, path))
    return ExitCode.DONE if receipt.clean else ExitCode.FAILED


COMMAND: Final = Command(
    name="teardown",
    help=__doc__,
    options=TeardownOptions,
    run=_teardown,
    after_interrupt=(
        "What the engine and Google have begun to delete goes on; run the same command again to delete the rest and to see what is left."
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
