"""Change the modules of money and deletion, one expression at a time, and print the changes that no test notices: `make mutants ROOM=money`.

mutmut 3.8 takes no further operators and leaves out decorated functions and constants of a module. cosmic-ray 8.7 takes operators, but writes each change
into the checkout, starts a command for it, and counts a time-out as caught. So the engine is here: a module is loaded once, with a switch for each change,
and a mutant is a fork that turns one switch on. What runs at import is judged by forks that load the modules themselves.

First each test runs once without a change, which tells what it reaches and costs. A mutant is judged by the tests that reach its expression, those of
files that import its module first, then those of the cheapest file; one that runs at import, by the tests that run its module or one that imports it.
Child processes load modules without changes. A test that sleeps for more than half a minute fails.
Answers: `caught`, `survived`, and `unknown` for one that ends by its limits of time and memory. A stated reason is a row of `reasons.json`.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.forks import ROOT
from tests.mutants.judging import Verdict, judge

COUNT: Final = 25
REASONS: Final = Path(__file__).with_name("reasons.json")
_STACKS: Final = (
    "tests/cloud",
    "tests/contracts",
    "tests/stacks",
    *(f"tests/scripts/{name}" for name in ("stack", "status", "teardown")),
)
_PRICES: Final = (
    "tests/agreement/test_capacity_states.py",
    "tests/planning",
    "tests/scripts/test_prices_agree.py",
    "tests/scripts/test_refreshed_prices.py",
)


@dataclass(frozen=True, slots=True)
class Room:
    """Modules of one subject, and the folders of the tests that can judge them."""

    tests: Sequence[str]
    modules: Sequence[str]


ROOMS: Final = {
    "money": Room(
        (*_STACKS, *_PRICES),
        (
            "gemma_serving/cloud/price_file.py",
            "gemma_serving/cloud/prices.py",
            "gemma_serving/cloud/spending.py",
            "gemma_serving/cloud/tpu_machine.py",
            "gemma_serving/contracts/capacity_states.py",
            "gemma_serving/contracts/run_record.py",
            "gemma_serving/planning/cost/capacity_order.py",
            "gemma_serving/planning/cost/costs.py",
            "gemma_serving/planning/cost/running_costs.py",
            "gemma_serving/planning/data/prices.py",
            "gemma_serving/planning/rules/platforms/cost.py",
            "scripts/stack/costs.py",
        ),
    ),
    "teardown": Room(
        (*_STACKS, "tests/scripts/gemma", "tests/scripts/up"),
        (
            "gemma_serving/cloud/deletion.py",
            "gemma_serving/cloud/grants.py",
            "gemma_serving/cloud/held.py",
            "gemma_serving/cloud/kinds.py",
            "gemma_serving/cloud/search.py",
            "scripts/stack/held_networks.py",
            "scripts/stack/labelled.py",
            "scripts/teardown/pending.py",
            "scripts/teardown/receipt.py",
            "scripts/teardown/removal.py",
        ),
    ),
    "assistant": Room(
        ("tests/scripts/agent",),
        (
            "scripts/agent/approvals.py",
            "scripts/agent/bounds.py",
            "scripts/agent/codes.py",
            "scripts/agent/consent.py",
            "scripts/agent/deletions.py",
        ),
    ),
    "up": Room(
        (*_STACKS, "tests/scripts/gemma", "tests/scripts/up"),
        ("gemma_serving/cloud/guard.py", "scripts/up/starting.py"),
    ),
    "memory": Room(
        ("tests/planning",),
        tuple(
            f"gemma_serving/planning/memory/{name}.py"
            for name in ("adapters", "budget", "host_memory", "kv_cache", "margins", "resolve", "weights")
        ),
    ),
    "path_guard": Room(
        ("tests/vm_agent", "tests/components"),
        tuple(
            f"gemma_serving/vm_agent/{name}.py"
            for name in ("confinement", "guard_file", "metadata_guard", "path_guard")
        ),
    ),
    "lifecycle": Room(
        ("packages/gcp-tpu/gcp_tpu_provider/tests",),
        tuple(
            f"packages/gcp-tpu/gcp_tpu_provider/{name}.py"
            for name in ("capacity", "diff", "lifecycle", "operation", "serving", "transport")
        ),
    ),
}


def drawn(files: Iterable[str], count: int | None, seed: int) -> list[Mutant]:
    """Return mutants of each module, all of them without a count."""
    found = list[Mutant]()
    for file in files:
        every = mutants_of(ROOT, file)
        chance = random.Random(f"{seed} {file}")  # noqa: S311 - a draw, not a secret
        found += every if count is None else chance.sample(every, min(count, len(every)))
    return found


def stated() -> dict[tuple[str, str, str], str]:
    """Return the reason of each mutant that has one, by its file, line and change."""
    return {(row["file"], row["line"], row["change"]): row["reason"] for row in json.loads(REASONS.read_text("utf-8"))}


def key_of(mutant: Mutant) -> tuple[str, str, str]:
    """Return what a reason names a mutant by."""
    return mutant.file, mutant.text, mutant.change


def printed(verdict: Verdict, reason: str | None) -> str:
    """Return a mutant that no test caught, as text."""
    mutant, files = verdict.mutant, Counter(name.partition("::")[0] for name in verdict.tests)
    ran = ", ".join(f"{file} ({count})" for file, count in files.items()) or "no test reaches it"
    return f"{verdict.answer}: {mutant.file}:{mutant.line}: {mutant.text}\n  {mutant.change}\n  {reason or ran}"


def stale(verdicts: Iterable[Verdict], files: Iterable[str]) -> list[str]:
    """Return what is wrong with the reasons about some modules."""
    by_answer = {True: set[tuple[str, str, str]](), False: set[tuple[str, str, str]]()}
    for each in verdicts:
        by_answer[each.answer == "caught"].add(key_of(each.mutant))
    reasons, caught = stated(), by_answer[True] - by_answer[False]  # two equal lines have one reason
    every = {key_of(mutant) for file in files for mutant in mutants_of(ROOT, file)}
    about = [key for key in reasons if key[0] in files]
    return [
        f"{REASONS.name} has a reason for {' '.join(key)}, which {'a test catches' if key in caught else 'does not exist'}"
        for key in about
        if key in caught or key not in every
    ]


def main() -> int:
    """Judge the mutants of rooms or modules. Return 1 if one without a reason survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Judge tests by changes of modules.")
    parser.add_argument(
        "rooms", metavar="ROOM", nargs="+", help=f"{', '.join(ROOMS)}, or a module, any one with --tests"
    )
    parser.add_argument("--all", action="store_true", help=f"all changes, instead of {COUNT} of each module")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw; default: 1")
    parser.add_argument("--tests", nargs="+", help="test files and folders, instead of those of the room")
    given = parser.parse_args()
    known = {*ROOMS, *(file for room in ROOMS.values() for file in room.modules)}
    others = sorted({*given.rooms} - known)
    if unknown := [name for name in others if not (given.tests and (ROOT / name).is_file())]:
        parser.error(f"{', '.join(unknown)} is neither a room nor a module of one: {', '.join(ROOMS)}")
    failed = False
    for name, room in {**ROOMS, "others": Room(given.tests or (), others)}.items():
        files = [file for file in room.modules if {name, file} & {*given.rooms}]
        if files:
            failed |= judged_room(files, given.tests or room.tests, None if given.all else COUNT, given.seed)
    return int(failed)


def judged_room(files: Sequence[str], tests: Sequence[str], count: int | None, seed: int) -> bool:
    """Print the verdicts about modules, and return whether one of them is a failure."""
    reasons, verdicts = stated(), judge(drawn(files, count, seed), tests)
    for verdict in sorted(verdicts, key=lambda each: (each.mutant.file, each.mutant.line)):
        if verdict.answer != "caught":
            print(printed(verdict, reasons.get(key_of(verdict.mutant))))
    print(f"{'module':<50} drawn caught reasoned survived unknown  CPU s each")
    for file in files:
        these = [each for each in verdicts if each.mutant.file == file]
        is_reasoned = [each.answer == "survived" and key_of(each.mutant) in reasons for each in these]
        answers = Counter(each.answer for each in these)
        survived, cpu_s = answers["survived"] - sum(is_reasoned), sum(each.cpu_s for each in these) / max(1, len(these))
        row = f"{len(these):5} {answers['caught']:6} {sum(is_reasoned):8} {survived:8} {answers['unknown']:7} {cpu_s:11.2f}"
        print(f"{file:<50} {row}")
    problems = stale(verdicts, files)
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems) or any(each.answer == "survived" and key_of(each.mutant) not in reasons for each in verdicts)


if __name__ == "__main__":
    sys.exit(main())
