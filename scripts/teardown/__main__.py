"""Destroy a stack, then find and delete leaked resources.

The search reads every zone and region and needs neither state nor settings. Exit code 0: every list was read and no resource leaked. Exit code 1:
a resource leaked, a list could not be read, or the receipt could not be written. The receipt lists every call and every deletion.
"""

import json
import sys
from typing import Final

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command, tell
from scripts.teardown.options import TeardownOptions


def _teardown(options: TeardownOptions) -> ExitCode:
    from cloud import google_api
    from scripts.teardown.output import progress, text_of
    from scripts.teardown.run import Teardown, guard, known

    if (options.stack is None) != options.all_stacks:
        raise CommandRefusedError("Pass either STACK or --all.")
    if options.keep_bucket and options.include_retained:
        raise CommandRefusedError("--keep-bucket and --include-retained cannot be combined.")
    if options.over_limit:
        return guard(options)
    found = known(options)
    teardown = Teardown(options=options, known=found, api=google_api.connect(*found.projects))
    try:
        teardown.run()
    except BaseException:
        if teardown.searches:
            try:
                progress(f"partial receipt: {teardown.receipt().write(options.receipt)}")
            except ScriptError as error:
                progress(str(error))
        raise
    receipt = teardown.receipt()
    if not options.as_json:
        tell(text_of(receipt))
    path = receipt.write(options.receipt)
    print(json.dumps({**receipt.to_json(), "receipt": str(path)}) if options.as_json else f"Receipt: {path}")
    return ExitCode.DONE if receipt.clean else ExitCode.FAILED


COMMAND: Final = Command(
    name="teardown",
    help=__doc__,
    options=TeardownOptions,
    run=_teardown,
    after_interrupt=(
        "Deletions already in progress continue. Run the same command again to delete the remaining resources."
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
