"""Destroy a stack, then find and delete leaked resources.

  gemma teardown tpu-v6e1 --dry-run
  gemma teardown tpu-v6e1
  gemma teardown --all --dry-run

The search reads every zone and region and needs neither state nor settings. The receipt lists every call and every deletion.
"""

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, Effect, print_result, print_text, run_command
from gemma_serving.scripts.teardown.teardown_options import TeardownOptions

if TYPE_CHECKING:
    from pathlib import Path

    from gemma_serving.cloud.google_api import GoogleApi
    from gemma_serving.scripts.stack.labelled import SearchedStacks
    from gemma_serving.scripts.teardown.receipt import Receipt
    from gemma_serving.scripts.teardown.removal import Teardown


def _teardown(options: TeardownOptions) -> ExitCode:
    from gemma_serving.scripts.teardown.removal import (
        Teardown,
        connected,
        exit_code,
        guard,
        others_over_limit,
        read_inputs,
    )

    if (options.stack is None) != options.all_stacks:
        raise CommandRefusedError("Pass either STACK or --all.")
    if options.keep_bucket and options.include_retained:
        raise CommandRefusedError("--keep-bucket and --include-retained cannot be combined.")
    if options.every_project and (not options.all_stacks or options.over_limit or options.receipt):
        raise CommandRefusedError("--every-project needs --all, and cannot be combined with --over-limit or --receipt.")
    if options.over_limit:
        return guard(options)
    found = read_inputs(options)
    api = connected(found.projects)
    receipt, path = _finished(Teardown(options=options, known=found, api=api), options)
    others = others_over_limit(api, receipt.foreign) if options.all_stacks and not options.every_project else ()
    if options.every_project:
        return _every_project(options, found, api, [(receipt, path)])
    if options.as_json:
        print_text(json.dumps({**receipt.to_json(), "receipt": str(path), "others": others}))
    else:
        print_text("\n".join([f"Receipt: {path}", *others]))
    return exit_code(clean=receipt.clean, others=others)


def _every_project(
    options: TeardownOptions, known: "SearchedStacks", api: "GoogleApi", done: "list[tuple[Receipt, Path]]"
) -> ExitCode:
    """Tear down the stacks of each other Pulumi project, after a question even with --yes. What is declined stays."""
    from gemma_serving.scripts.stack.labelled import SearchedStacks
    from gemma_serving.scripts.teardown.output import progress
    from gemma_serving.scripts.teardown.removal import Teardown

    declined = False
    asked = replace(options, yes=False)
    for project in sorted({item.owner.project for item in done[0][0].foreign}):
        of_project = SearchedStacks(
            stack=None,
            states=(),
            settings={},
            projects=known.projects,
            pulumi_project=project,
            is_name_known=True,
        )
        try:
            done.append(_finished(Teardown(options=asked, known=of_project, api=api), asked))
        except CommandRefusedError as error:
            progress(str(error))
            declined = True
    if options.as_json:
        receipts = [{**receipt.to_json(), "receipt": str(path)} for receipt, path in done]
        print_text(json.dumps({"receipts": receipts}))
    else:
        print_text("\n".join(f"Receipt: {path}" for _, path in done))
    return ExitCode.DONE if all(receipt.clean for receipt, _ in done) and not declined else ExitCode.FAILED


def _finished(teardown: "Teardown", options: TeardownOptions) -> "tuple[Receipt, Path]":
    """Run a teardown, print its receipt as text, and write it. Raises ScriptError."""
    from gemma_serving.scripts.teardown.output import progress, text_of
    from gemma_serving.scripts.teardown.receipt import ReceiptError
    from gemma_serving.scripts.teardown.removal import UnknownStackError

    try:
        teardown.run()
    except UnknownStackError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            progress("deletions already in progress continue." if teardown.has_deleted else "nothing was deleted.")
        if teardown.searches:
            _write_partial(teardown.receipt(), options)
        raise
    receipt = teardown.receipt()
    if not options.as_json:
        print_result(text_of(receipt))
    try:
        return receipt, receipt.write(options.receipt)
    except ReceiptError as error:
        if error.is_lost or options.as_json:
            print_text(json.dumps(receipt.to_json()))
        raise


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
        ExitCode.OTHERS_OVER_LIMIT: "done; with --all or --over-limit, a stack of another Pulumi project exceeds its limit and was left",
    },
    after_interrupt="Run the same command again to continue.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
