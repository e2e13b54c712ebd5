"""Destroy a stack, then find and delete leaked resources.

  gemma teardown tpu-v6e1 --dry-run
  gemma teardown tpu-v6e1
  gemma teardown --all --dry-run

The search reads every zone and region and needs neither state nor settings. The receipt lists every call and every deletion.
"""

import json
import sys
from typing import TYPE_CHECKING, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, Effect, print_result, print_text, run_command
from gemma_serving.scripts.teardown.teardown_options import TeardownOptions

if TYPE_CHECKING:
    from gemma_serving.scripts.teardown.receipt import Receipt


def _teardown(options: TeardownOptions) -> ExitCode:
    from gemma_serving.scripts.teardown.output import progress, text_of
    from gemma_serving.scripts.teardown.receipt import ReceiptError
    from gemma_serving.scripts.teardown.removal import Teardown, connected, guard, read_inputs

    if (options.stack is None) != options.all_stacks:
        raise CommandRefusedError("Pass either STACK or --all.")
    if options.keep_bucket and options.include_retained:
        raise CommandRefusedError("--keep-bucket and --include-retained cannot be combined.")
    if options.over_limit:
        return guard(options)
    found = read_inputs(options)
    teardown = Teardown(options=options, known=found, api=connected(found.projects))
    try:
        teardown.run()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            progress("deletions already in progress continue." if teardown.begun else "nothing was deleted.")
        if teardown.searches:
            _write_partial(teardown.receipt(), options)
        raise
    receipt = teardown.receipt()
    if not options.as_json:
        print_result(text_of(receipt))
    try:
        path = receipt.write(options.receipt)
    except ReceiptError as error:
        if error.is_lost or options.as_json:
            print_text(json.dumps(receipt.to_json()))
        raise
    print_text(json.dumps({**receipt.to_json(), "receipt": str(path)}) if options.as_json else f"Receipt: {path}")
    return ExitCode.DONE if receipt.clean else ExitCode.FAILED


def _write_partial(receipt: "Receipt", options: TeardownOptions) -> None:
    """Write the receipt of a teardown that failed. An error is printed, because the teardown's own error ends the command."""
    from gemma_serving.scripts.teardown.output import progress
    from gemma_serving.scripts.teardown.receipt import ReceiptError

    try:
        progress(f"partial receipt: {receipt.write(options.receipt)}")
    except ReceiptError as error:
        if error.is_lost:
            print_text(json.dumps(receipt.to_json()))
        progress(str(error))


COMMAND: Final = Command(
    name="teardown",
    help=__doc__,
    options=TeardownOptions,
    run=_teardown,
    effect=Effect.DELETES,
    exit_codes={
        ExitCode.DONE: "every list was read and no resource leaked; Google may hold a network for two hours, at no cost",
        ExitCode.FAILED: "a resource leaked, a list could not be read, or the receipt could not be written; with --dry-run, a resource exists",
    },
    after_interrupt="Run the same command again to continue.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
