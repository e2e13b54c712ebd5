"""Tear down the stacks that exceed their limits, with all safety checks of a teardown."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloud.clock import GOOGLE_CLOCK
from cloud.found import FoundResource
from cloud.google_api import GoogleApi, connect
from cloud.simulated import is_simulated
from cloud.spending import StackSpending, spending
from contracts.answers import Absent, Unknown
from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from scripts.teardown.output import progress, text_of
from scripts.teardown.receipt import Receipt
from scripts.teardown.run import Teardown, known

if TYPE_CHECKING:
    from scripts.teardown.__main__ import TeardownOptions


def guard(options: "TeardownOptions") -> ExitCode:
    """Search, tear down the stacks that exceed their limits, and print the receipts. Raises ScriptError."""
    found = known(options)
    api = connect(*found.projects)
    scan = Teardown(options=replace(options, dry_run=True), known=found, api=api)
    scan.search()
    seen = scan.searches[-1]
    stacks = spending(api, seen.found, GOOGLE_CLOCK.now())
    for item in stacks:
        progress(item.sentence())
        for line in (*item.read, *(f"unknown: {sentence}" for sentence in item.unknown)):
            progress(f"  {line}")
    for sentence in seen.unknown:
        progress(sentence)
    over = [item for item in stacks if item.exceeded]
    receipts = [_torn_down(options, item, api) for item in over if not _works_again(item, seen.found, api)]
    answer = seen.answer_about(seen.found)
    if isinstance(answer, Absent):
        progress("no stack of this product has resources in the project")
    if isinstance(answer, Unknown):
        progress("unknown whether a stack of this product has resources in the project, see above")
    all_read = not seen.unknown and not any(item.unknown for item in stacks)
    clean = all_read and all(receipt.clean and path for receipt, path in receipts)
    if options.as_json:
        document = {
            "stacks": [_described(item) for item in stacks],
            "receipts": [{**receipt.to_json(), "receipt": path and str(path)} for receipt, path in receipts],
            "unknown": list(seen.unknown),
            "clean": clean,
            "simulated": is_simulated(),
        }
        print(json.dumps(document))
    else:
        for receipt, path in receipts:
            print(f"{text_of(receipt)}\nReceipt: {path or 'above'}")
    return ExitCode.DONE if clean else ExitCode.FAILED


def _described(item: StackSpending) -> dict[str, object]:
    return {
        "stack": item.owner.stack,
        "max_age_s": item.limits.max_age_s,
        "max_usd": item.limits.max_usd,
        "idle_after_s": item.limits.idle_after_s,
        "age_s": round(item.age_s),
        "usd": round(item.usd, 2),
        "usd_per_hour": round(item.usd_per_hour, 2),
        "idle": item.idle,
        "idle_s": None if item.idle_s is None else round(item.idle_s),
        "exceeded": list(item.exceeded),
        "unknown": list(item.unknown),
        "verdict": item.verdict,
        "since": item.since,
        "record": item.record,
        "read": list(item.read),
    }


def _works_again(item: StackSpending, found: Sequence[FoundResource], api: GoogleApi) -> bool:
    """Return whether a stack that exceeds only its idle time has had a request since, because earlier teardowns may have taken hours."""
    if len(item.exceeded) > len(item.exceeded_idle):
        return False
    own = [one for one in found if (one.owner.project, one.owner.stack) == (item.owner.project, item.owner.stack)]
    if spending(api, own, GOOGLE_CLOCK.now())[0].exceeded:
        return False
    progress(f"stack {item.owner.stack} is not idle anymore and is kept")
    return True


def _torn_down(options: "TeardownOptions", item: StackSpending, api: GoogleApi) -> tuple[Receipt, Path | None]:
    chosen = replace(options, stack=item.owner.stack)
    teardown = Teardown(options=chosen, known=known(chosen), api=api)
    teardown.run()
    receipt = replace(teardown.receipt(), reasons=tuple(item.exceeded))
    try:
        return receipt, receipt.write(None)
    except ScriptError as error:
        progress(str(error))
        return receipt, None
