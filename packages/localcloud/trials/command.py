"""`python -m localcloud try`: run the trials that fit a budget on a real project."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from localcloud.ledger.entries import CriticalAssumption, load
from localcloud.trials.attempt import Surroundings
from localcloud.trials.evening import APIS, TRIALS
from localcloud.trials.journal import Journal
from localcloud.trials.judging import Judgement
from localcloud.trials.product import STACKS, Product
from localcloud.trials.resources import KINDS
from localcloud.trials.running import Runner, sweep
from localcloud.trials.sending import Sender, Session, open_session, require_enabled
from localcloud.trials.trial_options import TryRefusedError

DONE: Final = 0
DIFFERS: Final = 1
INTERRUPTED: Final = 130
_DANGER: Final = "critical"
"""Weight of every assumption that has a trial, as reports name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """The plan: entries to try, and entries over the budget."""

    trials: tuple[CriticalAssumption, ...]
    over: tuple[CriticalAssumption, ...]

    @property
    def usd(self) -> float:
        """Return the cost of the trials in USD, with each stack once."""
        return cost_usd(self.trials)

    @property
    def minutes(self) -> float:
        """Return the approximate duration of the trials with all deletions and the last listing."""
        stacks = sum(
            int(STACKS[name]["minutes"]) * 60 for name in {entry.stack for entry in self.trials if entry.stack}
        )
        return (sum(TRIALS[entry.id].seconds for entry in self.trials) + stacks + len(KINDS)) / 60


def by_cost(entry: CriticalAssumption) -> tuple[float, str]:
    """Return the sort key of an entry: the cheapest first."""
    return entry.cost_usd, entry.id


def cost_usd(entries: Iterable[CriticalAssumption]) -> float:
    """Return the maximum cost of trying entries together, in USD: each stack counts once."""
    listed = list(entries)
    stacks = {entry.stack for entry in listed if entry.stack}
    return round(sum(map(own_usd, listed)) + sum(float(STACKS[name]["usd"]) for name in stacks), 2)


def own_usd(entry: CriticalAssumption) -> float:
    """Return the maximum cost of an entry's trial without its stack, in USD."""
    return round(entry.cost_usd - (float(STACKS[entry.stack]["usd"]) if entry.stack else 0), 2)


def plan_trials(
    entries: Sequence[CriticalAssumption],
    budget_usd: float | None,
    only: Sequence[str] = (),
    done: Collection[str] = (),
) -> TrialPlan:
    """Return the plan, without the entries in `done` unless `only` names them. Raises TryRefusedError for an id without a trial."""
    known = {entry.id: entry for entry in entries}
    for name in only:
        if name not in known:
            raise TryRefusedError(f"No trial has the id '{name}'. `python -m localcloud try --list` lists all trials.")
    wanted = [known[name] for name in only] or [entry for entry in entries if not entry.tried and entry.id not in done]
    trials: list[CriticalAssumption] = []
    over: list[CriticalAssumption] = []
    for entry in sorted(wanted, key=by_cost):
        is_over = budget_usd is not None and cost_usd([*trials, entry]) > budget_usd
        (over if is_over else trials).append(entry)
    return TrialPlan(trials=tuple(trials), over=tuple(over))


def try_entries(
    options: argparse.Namespace, environment: Mapping[str, str] = os.environ, *, session: Session | None = None
) -> int:
    """Run the command line. Raises TryRefusedError and LedgerError."""
    entries = load().critical
    if options.only_list:
        plan = plan_trials(entries, options.budget_usd, options.only)
        print(json.dumps(_plan_json(plan), indent=1) if options.json else _plan_text(plan))
        return DONE
    if not options.project:
        raise TryRefusedError("No project set. Pass --project ID, preferably a test project.")
    if options.budget_usd is None and not options.clean_up and not options.second_run:
        raise TryRefusedError(
            "No budget set. Pass --budget-usd USD (0 runs only free trials), or --list to print the plan."
        )
    sender = Sender(session or open_session(options.project), environment)
    with closing(Journal.open(options.out.with_suffix(".journal"), options.project, _report)) as journal:
        world = Surroundings(
            sender=sender,
            project=options.project,
            report=_report,
            speed=1.0 if sender.is_google else float(environment.get("LOCALCLOUD_SPEED", "1")),
            product=Product(project=options.project, environment=environment, journal=journal, report=_report),
        )
        return _evening(options, world, entries)


def _evening(options: argparse.Namespace, world: Surroundings, entries: Sequence[CriticalAssumption]) -> int:
    journal = world.product.journal
    left_usd = None if options.budget_usd is None else round(options.budget_usd - journal.usd, 2)
    plan = plan_trials(entries, left_usd, options.only, {*journal.answered, *journal.later})
    today = datetime.now(UTC).date().isoformat()
    if options.second_run and world.sender.is_google and any(today in each["END"] for each in journal.later.values()):
        raise TryRefusedError("The second run needs another day (UTC) than the first. Run it tomorrow.")
    if options.second_run or options.clean_up:
        later = (entry for entry in entries if options.second_run and entry.id in journal.later)
        plan = replace(plan, trials=tuple(later), over=())
    Runner(world=world).enable_again()
    require_enabled(world.sender, options.project, APIS)
    _require_readable(world)
    if options.clean_up or journal.is_open:
        code = _clean_up(world, is_asked=options.clean_up)
        if options.clean_up or code != DONE:
            return code
    _confirm(options, plan)
    with _interruptible():
        return _TrialRun(options, world).run(plan)


def _clean_up(world: Surroundings, *, is_asked: bool) -> int:
    """Delete what earlier runs left."""
    journal = world.product.journal
    if journal.is_open:
        _report("an earlier run did not finish, deleting what it left")
    runner = Runner(world=world)
    with _interruptible():
        runner.clean_up()
        left, unknown = sweep(world, delete=True)
    left = [*runner.left, *left]
    if is_asked or left:
        _report_leaks(left, unknown)
    if journal.is_open:
        journal.is_open = bool(left)
        journal.write()
    return DIFFERS if left else DONE


def _require_readable(world: Surroundings) -> None:
    """Require that the login can read the project. From then on, requests wait for APIs that were just enabled."""

    def pause(seconds: float) -> None:
        _report("an API that was just enabled does not respond yet, waiting")
        time.sleep(seconds / world.speed)

    world.sender.expect_enabled(pause)
    found = world.sender.send("GET", f"https://cloudresourcemanager.googleapis.com/v1/projects/{world.project}")
    if not found.is_accepted:
        raise TryRefusedError(
            f"Cannot read project {world.project}: {found.summary}. Check the id and the login "
            "(gcloud auth application-default login), then enable cloudresourcemanager.googleapis.com."
        )


def _confirm(options: argparse.Namespace, plan: TrialPlan) -> None:
    if options.yes or not plan.trials:
        return
    text = (
        f"{len(plan.trials)} trials in project {options.project}: about {plan.minutes:.0f} min, maximum "
        f"{plan.usd:.2f} USD at the planner's prices. All resources that they create are deleted."
    )
    if not sys.stdin.isatty():
        raise TryRefusedError(f"{text} Stdin is not a terminal. Pass --yes to confirm.")
    print(text, file=sys.stderr)
    if input("Continue? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise TryRefusedError("Not confirmed. No request was sent.")


class _TrialRun:
    """One run: sends requests, writes each answer when it arrives, and checks at the end that no resource is left."""

    def __init__(self, options: argparse.Namespace, world: Surroundings) -> None:
        self._options = options
        self._world = world
        self._journal = world.product.journal
        self._out: Path = options.out
        self._found: list[tuple[CriticalAssumption, Judgement]] = []

    def run(self, plan: TrialPlan) -> int:
        runner = Runner(world=self._world)
        interrupted = False
        try:
            self._journal.is_open = True
            self._journal.runs.append(runner.run)
            self._journal.write()
            for number, (entry, judgement) in enumerate(self._judgements(runner, plan), start=1):
                self._found.append((entry, judgement))
                _report(f"[{number}/{len(plan.trials)}] {judgement.verdict:<10} {entry.id}")
                self._write(entry, judgement)
        except KeyboardInterrupt:
            interrupted = True
            _report("interrupted, deleting resources; after a second Ctrl-C, run `--clean-up`")
            runner.clean_up()
        left, unknown = sweep(self._world, delete=False)
        left = sorted({*left, *runner.left})
        self._journal.is_open = bool(left)
        self._journal.write()
        self._print(plan, left, unknown)
        if interrupted:
            return INTERRUPTED
        return DIFFERS if left or any(each.verdict == "differs" for _, each in self._found) else DONE

    def _judgements(self, runner: Runner, plan: TrialPlan) -> Iterator[tuple[CriticalAssumption, Judgement]]:
        if not self._options.second_run:
            return runner.try_all(plan.trials, lambda entry: self._journal.spend(entry.id, own_usd(entry)))
        return ((entry, runner.second_run(entry, self._journal.later[entry.id])) for entry in plan.trials)

    def _write(self, entry: CriticalAssumption, judgement: Judgement) -> None:
        if judgement.verdict in {"unknown", "tomorrow"}:
            return
        where = "a real project" if self._world.sender.is_google else "a local cloud"
        day = datetime.now(UTC).date().isoformat()
        self._journal.answered[entry.id] = f"{day}, {where}: {judgement.verdict}"
        self._journal.later.pop(entry.id, None)
        self._journal.write()
        text = _report_text(self._journal.answered, load().critical, self._journal.usd)
        self._out.write_text(text, encoding="utf-8")

    def _print(self, plan: TrialPlan, left: list[str], unknown: list[str]) -> None:
        if self._options.json:
            print(json.dumps(self._json(plan, left, unknown), indent=1))
            return
        print(self._text(plan))
        _report_leaks(left, unknown)

    def _json(self, plan: TrialPlan, left: list[str], unknown: list[str]) -> dict[str, object]:
        return {
            "usd": self._journal.usd,
            "trials": [
                {
                    "id": entry.id,
                    "danger": _DANGER,
                    "verdict": judgement.verdict,
                    "assumed": entry.statement,
                    "answered": judgement.answered,
                    "why": judgement.why,
                }
                for entry, judgement in self._found
            ],
            "over_budget": [entry.id for entry in plan.over],
            "left": left,
            "not_searched": unknown,
        }

    def _text(self, plan: TrialPlan) -> str:
        lines: list[str] = []
        for verdict in ("differs", "unknown", "tomorrow"):
            for entry, judgement in self._found:
                if judgement.verdict == verdict:
                    why = f"why: {judgement.why}" if judgement.why else f"effect: {entry.if_false}"
                    lines += [
                        f"{verdict}: {entry.id} ({_DANGER})",
                        f"  assumed:  {entry.statement}",
                        f"  answered: {judgement.answered}",
                        f"  {why}",
                    ]
        counted = {
            verdict: sum(judgement.verdict == verdict for _, judgement in self._found)
            for verdict in ("as assumed", "differs", "unknown", "tomorrow")
            if verdict != "tomorrow" or any(each.verdict == verdict for _, each in self._found)
        }
        lines.append(", ".join(f"{count} {verdict}" for verdict, count in counted.items()) + ".")
        if plan.over:
            lines.append(f"{len(plan.over)} trials exceed the budget.")
        lines.append(f"{len(self._journal.answered)} verdicts written in {self._out}; paste it into an issue.")
        lines.append(f"At most {self._journal.usd:.2f} USD in all runs of this evening.")
        return "\n".join(lines)


def _report_text(written: Mapping[str, str], entries: Sequence[CriticalAssumption], usd: float) -> str:
    """Return the text for an issue: how many entries were tried, and each verdict with the effect if it differs.

    It has none of Google's words, which may identify someone.
    """
    known = {entry.id: entry for entry in entries}
    tried_ones = [name for name in known if name in written]
    lines = [f"{len(tried_ones)} of {len(known)} critical assumptions tried, at most {usd:.2f} USD.", ""]
    for name, text in written.items():
        lines.append(f"- `{name}`: {text}")
        if text.endswith(": differs") and name in known:
            lines += [f"  - assumed: {known[name].statement}", f"  - effect: {known[name].if_false}"]
    return "\n".join(lines) + "\n"


def _report_leaks(left: Sequence[str], unknown: Sequence[str]) -> None:
    for each in left:
        print(f"left: {each}")
    for each in unknown:
        print(f"could not check: {each}")
    count = f"{len(left)} leaked resources" if left else "No leaked resources"
    print(f"{count} in {len(KINDS) - len(unknown)} listings." + (" Run --clean-up." if left else ""))


def _plan_text(plan: TrialPlan) -> str:
    def row(entry: CriticalAssumption) -> str:
        return f"  {entry.cost_usd:>5.2f}  {_DANGER:<8}  {entry.id}"

    lines = [f"Trials: {len(plan.trials)}, about {plan.minutes:.0f} min, {plan.usd:.2f} USD at the planner's prices."]
    lines += map(row, plan.trials)
    if plan.over:
        lines.append(f"Over budget: {len(plan.over)}.")
        lines += map(row, plan.over)
    lines.append("localcloud/trials/evening.py has every request and command. `--only ID` tries one entry.")
    return "\n".join(lines)


def _plan_json(plan: TrialPlan) -> dict[str, object]:
    def one(entry: CriticalAssumption) -> dict[str, object]:
        return {"id": entry.id, "danger": _DANGER, "usd": entry.cost_usd}

    return {
        "usd": round(plan.usd, 2),
        "minutes": round(plan.minutes, 1),
        "trials": [one(entry) for entry in plan.trials],
        "over_budget": [one(entry) for entry in plan.over],
    }


@contextmanager
def _interruptible():  # noqa: ANN202 - a context manager
    """Treat SIGTERM as an interruption, so it cleans up as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
