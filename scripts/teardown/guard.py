"""Take down the stacks that exceed their limits, with every safety of a teardown."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cloud.google_api import GoogleApi, connect
from cloud.simulated import is_simulated
from cloud.spending import StackSpending, spending
from contracts.answers import Absent, Present, Unknown
from contracts.exit_codes import ExitCode
from scripts.teardown.output import TeardownOutput, text_of
from scripts.teardown.receipt import Receipt
from scripts.teardown.run import Teardown, TeardownRequest, known


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReport:
    """What each stack has used of its limits, and the receipts of those that were taken down."""

    stacks: Sequence[StackSpending]
    receipts: Sequence[tuple[Receipt, Path]]
    unknown: Sequence[str]

    @property
    def clean(self) -> bool:
        """Whether everything could be read, and nothing is left of what was taken down."""
        told = not self.unknown and not any(item.unknown for item in self.stacks)
        return told and all(receipt.clean for receipt, _ in self.receipts)

    def to_json(self) -> dict[str, object]:
        """Return the report as `--json` prints it."""
        return {
            "stacks": [
                {
                    "stack": item.owner.stack,
                    "max_age_s": item.limits.max_age_s,
                    "max_usd": item.limits.max_usd,
                    "age_s": round(item.age_s),
                    "usd": round(item.usd, 2),
                    "usd_per_hour": round(item.usd_per_hour, 2),
                    "exceeded": list(item.exceeded),
                    "unknown": list(item.unknown),
                    "verdict": item.verdict,
                    "since": item.since,
                    "record": item.record,
                    "read": list(item.read),
                }
                for item in self.stacks
            ],
            "receipts": [{**receipt.to_json(), "receipt": str(path)} for receipt, path in self.receipts],
            "unknown": list(self.unknown),
            "clean": self.clean,
            "simulated": is_simulated(),
        }


def guard(request: TeardownRequest, talk: TeardownOutput, *, as_json: bool) -> ExitCode:
    """Search, compare with the limits, take down what exceeds them, and print what was done. Raises ScriptError."""
    report = _guarded(request, talk)
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        for receipt, path in report.receipts:
            print(text_of(receipt, path))
    return ExitCode.DONE if report.clean else ExitCode.FAILED


def _guarded(request: TeardownRequest, talk: TeardownOutput) -> GuardReport:
    found = known(request, talk.say)
    api = connect(*found.projects)
    looking = Teardown(request=replace(request, dry_run=True), known=found, api=api, talk=talk)
    looking.look()
    seen = looking.searches[-1]
    stacks = spending(api, seen.found, datetime.now(UTC))
    for item in stacks:
        talk.say(item.sentence())
        for line in item.read:
            talk.say(f"  {line}")
        for sentence in item.unknown:
            talk.say(f"  unknown: {sentence}")
    for sentence in seen.unknown:
        talk.say(sentence)
    over = [replace(request, stack=item.owner.stack) for item in stacks if item.exceeded]
    receipts = [_torn_down(each, api, talk) for each in over]
    match seen.answer_about(seen.found):
        case Present():
            pass
        case Absent():
            talk.say("no stack of this product has anything in the project.")
        case Unknown():
            talk.say("whether a stack of this product has anything in the project is unknown, see above.")
    return GuardReport(stacks=stacks, receipts=receipts, unknown=seen.unknown)


def _torn_down(request: TeardownRequest, api: GoogleApi, talk: TeardownOutput) -> tuple[Receipt, Path]:
    teardown = Teardown(request=request, known=known(request, talk.say), api=api, talk=talk)
    teardown.run()
    receipt = teardown.receipt()
    return receipt, receipt.write(None)
