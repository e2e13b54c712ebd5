"""Tear down the stacks that exceed their limits, with all safety checks of a teardown."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cloud.clock import GOOGLE_CLOCK
from cloud.found import FoundResource
from cloud.google_api import GoogleApi, connect
from cloud.simulated import is_simulated
from cloud.spending import StackSpending, spending
from contracts.answers import Absent, Present, Unknown
from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from scripts.teardown.output import TeardownOutput, text_of
from scripts.teardown.receipt import Receipt
from scripts.teardown.run import Teardown, TeardownRequest, known


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReport:
    """Age and cost of each stack against its limits, and the receipts of the stacks that were torn down."""

    stacks: Sequence[StackSpending]
    receipts: Sequence[tuple[Receipt, Path | None]]
    unknown: Sequence[str]

    @property
    def clean(self) -> bool:
        """True if everything could be read and no teardown leaked a resource."""
        all_read = not self.unknown and not any(item.unknown for item in self.stacks)
        return all_read and all(receipt.clean and path for receipt, path in self.receipts)

    def to_json(self) -> dict[str, object]:
        """Return the report as `--json` prints it."""
        return {
            "stacks": [
                {
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
                for item in self.stacks
            ],
            "receipts": [{**receipt.to_json(), "receipt": path and str(path)} for receipt, path in self.receipts],
            "unknown": list(self.unknown),
            "clean": self.clean,
            "simulated": is_simulated(),
        }


def guard(request: TeardownRequest, output: TeardownOutput, *, as_json: bool) -> ExitCode:
    """Search, tear down the stacks that exceed their limits, and print the receipts. Raises ScriptError."""
    report = _guarded(request, output)
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        for receipt, path in report.receipts:
            print(f"{text_of(receipt)}\nReceipt: {path or 'above'}")
    return ExitCode.DONE if report.clean else ExitCode.FAILED


def _guarded(request: TeardownRequest, output: TeardownOutput) -> GuardReport:
    found = known(request, output.report_progress)
    api = connect(*found.projects)
    scan = Teardown(request=replace(request, dry_run=True), known=found, api=api, output=output)
    scan.search()
    seen = scan.searches[-1]
    stacks = spending(api, seen.found, GOOGLE_CLOCK.now())
    for item in stacks:
        output.report_progress(item.sentence())
        for line in item.read:
            output.report_progress(f"  {line}")
        for sentence in item.unknown:
            output.report_progress(f"  unknown: {sentence}")
    for sentence in seen.unknown:
        output.report_progress(sentence)
    over = [item for item in stacks if item.exceeded]
    receipts = [
        _torn_down(replace(request, stack=item.owner.stack, over_limit=True), item, api, output)
        for item in over
        if not _works_again(item, seen.found, api, output)
    ]
    match seen.answer_about(seen.found):
        case Present():
            pass
        case Absent():
            output.report_progress("no stack of this product has resources in the project")
        case Unknown():
            output.report_progress("unknown whether a stack of this product has resources in the project, see above")
    return GuardReport(stacks=stacks, receipts=receipts, unknown=seen.unknown)


def _works_again(item: StackSpending, found: Sequence[FoundResource], api: GoogleApi, output: TeardownOutput) -> bool:
    """Return whether a stack that exceeds only its idle time has had a request since, because earlier teardowns may have taken hours."""
    if not item.is_only_idle:
        return False
    own = [one for one in found if (one.owner.project, one.owner.stack) == (item.owner.project, item.owner.stack)]
    if spending(api, own, GOOGLE_CLOCK.now())[0].exceeded:
        return False
    output.report_progress(f"stack {item.owner.stack} is not idle anymore and is kept")
    return True


def _torn_down(
    request: TeardownRequest, item: StackSpending, api: GoogleApi, output: TeardownOutput
) -> tuple[Receipt, Path | None]:
    teardown = Teardown(request=request, known=known(request, output.report_progress), api=api, output=output)
    teardown.run()
    receipt = replace(teardown.receipt(), reasons=tuple(item.exceeded))
    try:
        return receipt, receipt.write(None)
    except ScriptError as error:
        output.report_progress(str(error))
        return receipt, None
