"""`python -m localcloud try`: run the trials that fit a budget on a real project."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from localcloud.json_values import as_object
from localcloud.ledger.entries import Assumption, load, why_by_hand
from localcloud.trials import answers
from localcloud.trials.answers import NUMBER, PROJECT, Redaction, known_secrets
from localcloud.trials.requests_of_entries import FIXTURES, LedgerTrial, rank, trial
from localcloud.trials.resources import KINDS, collection_of, created_by, fixture_collections, fixture_seconds
from localcloud.trials.running import Judgement, Runner, Surroundings, sweep
from localcloud.trials.sending import Sender, Session, open_session, require_enabled
from localcloud.trials.trial_options import TryRefusedError

DONE: Final = 0
DIFFERS: Final = 1
INTERRUPTED: Final = 130
_WIDTH: Final = 78


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """The plan: trials to run, trials over the budget, and entries that need manual steps."""

    trials: tuple[LedgerTrial, ...]
    over: tuple[LedgerTrial, ...]
    by_hand: tuple[Assumption, ...]

    @property
    def usd(self) -> float:
        """Return the cost of the trials in USD."""
        return sum(each.entry.cost_usd for each in self.trials)

    @property
    def minutes(self) -> float:
        """Return the approximate duration of the trials with all deletions and the last listing."""
        fixtures = frozenset[str]().union(*(each.words for each in self.trials)) & set(FIXTURES)
        return (sum(each.seconds for each in self.trials) + fixture_seconds(fixtures) + len(KINDS)) / 60


def plan_trials(entries: Sequence[Assumption], budget_usd: float | None, only: Sequence[str] = ()) -> TrialPlan:
    """Return the plan. Raises TryRefusedError for an id that is not in the ledger or that no request can try."""
    known = {entry.id: entry for entry in entries}
    for name in only:
        if name not in known:
            raise TryRefusedError(
                f"Entry '{name}' not found in the ledger. `python -m localcloud try --list` lists all entries."
            )
        if known[name].answer is None:
            raise TryRefusedError(
                f"'{name}' cannot be tried by a request because it needs {why_by_hand(known[name])}. Run: {known[name].how_to_try}"
            )
    wanted = [known[name] for name in only] or [entry for entry in entries if not entry.tried]
    trials: list[LedgerTrial] = []
    over: list[LedgerTrial] = []
    by_hand: list[Assumption] = []
    usd = 0.0
    for entry in sorted(wanted, key=rank):
        found = trial(entry)
        if found is None:
            by_hand.append(entry)
        elif budget_usd is not None and usd + entry.cost_usd > budget_usd:
            over.append(found)
        else:
            trials.append(found)
            usd += entry.cost_usd
    return TrialPlan(trials=tuple(trials), over=tuple(over), by_hand=tuple(by_hand))


def try_entries(
    options: argparse.Namespace, environment: Mapping[str, str] = os.environ, *, session: Session | None = None
) -> int:
    """Run the command line. Raises TryRefusedError and LedgerError."""
    plan = plan_trials(load().assumptions, options.budget_usd, options.only)
    if options.only_list:
        print(json.dumps(_plan_json(plan), indent=1) if options.json else _plan_text(plan))
        return DONE
    if not options.project:
        raise TryRefusedError("No project set. Pass --project ID, preferably a test project.")
    if options.budget_usd is None and not options.clean_up:
        raise TryRefusedError(
            "No budget set. Pass --budget-usd USD (0 runs only free trials), or --list to print the plan."
        )
    collections = _collections(options.project, plan)
    asked = {request.url for each in plan.trials for request in each.requests}
    urls = collections if options.clean_up else collections | asked
    world = _world(options.project, environment, session, urls)
    if options.clean_up:
        return _clean_up(world, collections)
    _confirm(options, plan)
    with _interruptible():
        return _TrialRun(options, world, environment).run(plan, collections)


def _world(project: str, environment: Mapping[str, str], session: Session | None, urls: Iterable[str]) -> Surroundings:
    sender = Sender(session or open_session(project), environment)
    speed = 1.0 if sender.is_google else float(environment.get("LOCALCLOUD_SPEED", "1"))

    def pause(seconds: float) -> None:
        _report("an API that was just enabled does not respond yet, waiting")
        time.sleep(seconds / speed)

    require_enabled(sender, project, urls)
    sender.expect_enabled(pause)
    found = sender.send("GET", f"https://cloudresourcemanager.googleapis.com/v1/projects/{project}")
    if not found.is_accepted:
        raise TryRefusedError(
            f"Cannot read project {project}: {found.summary}. Check the id and the login "
            "(gcloud auth application-default login), then enable cloudresourcemanager.googleapis.com."
        )
    number = str(as_object(found.body).get("projectNumber") or "")
    return Surroundings(sender=sender, project=project, number=number, report=_report, speed=speed)


def _collections(project: str, plan: TrialPlan) -> frozenset[str]:
    """Return the listings that show everything a trial can create, from any run."""
    values = dict.fromkeys(("TRY", "SECRET", "BUCKET", "NETWORK", "REPOSITORY", "ACCOUNT"), "x")
    values |= {"PROJECT": project, "PROJECT_NUMBER": "x"}
    everything = plan_trials(load().assumptions, None)
    found = set(fixture_collections(project))
    for each in (*plan.trials, *everything.trials):
        for request in (each.filled(values) for each in each.requests):
            if created_by(request.method, request.url, request.body) is not None:
                url = collection_of(request.url)
                found.add(f"{url}?project={project}" if url.endswith("/b") else url)
    return frozenset(found)


def _clean_up(world: Surroundings, collections: frozenset[str]) -> int:
    left, unknown = sweep(world, collections, delete=True)
    _report_leaks(left, unknown, len(collections))
    return DIFFERS if left else DONE


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

    def __init__(self, options: argparse.Namespace, world: Surroundings, environment: Mapping[str, str]) -> None:
        self._options = options
        self._world = world
        own = ((PROJECT, world.project), (NUMBER, world.number))
        self._redaction = Redaction([*own, *known_secrets(environment)])
        self._out: Path | None = options.out
        if self._out is None and not (world.sender.is_google and answers.is_checkout()):
            self._out = Path("localcloud-tried.json")
        self._written: dict[str, str] = {}
        self._found: list[tuple[LedgerTrial, Judgement]] = []

    def run(self, plan: TrialPlan, collections: frozenset[str]) -> int:
        runner = Runner(world=self._world)
        interrupted = False
        try:
            for number, (each, judgement) in enumerate(runner.try_all(plan.trials), start=1):
                self._found.append((each, judgement))
                _report(f"[{number}/{len(plan.trials)}] {judgement.verdict:<10} {each.entry.id}")
                self._write(each.entry, judgement)
        except KeyboardInterrupt:
            interrupted = True
            _report("interrupted, deleting resources; after a second Ctrl-C, run `--clean-up`")
            runner.clean_up()
        left, unknown = sweep(self._world, collections, delete=False)
        left = sorted({*left, *runner.left})
        self._print(plan, left, unknown, len(collections))
        if interrupted:
            return INTERRUPTED
        return DIFFERS if left or any(each.verdict == "differs" for _, each in self._found) else DONE

    def _write(self, entry: Assumption, judgement: Judgement) -> None:
        if judgement.verdict == "unknown":
            return
        where = "a real project" if self._world.sender.is_google else "a local cloud"
        day = datetime.now(UTC).date().isoformat()
        text = answers.tried(day, judgement, self._redaction, where)
        self._written[entry.id] = text
        if self._out is not None:
            answers.write_to_file(self._out, self._written)
        else:
            answers.write_to_ledger(answers.LEDGER, entry, text)

    def _print(self, plan: TrialPlan, left: list[str], unknown: list[str], searched: int) -> None:
        if self._options.json:
            print(json.dumps(self._json(plan, left, unknown), indent=1))
            return
        print(self._text(plan))
        _report_leaks(left, unknown, searched)

    def _json(self, plan: TrialPlan, left: list[str], unknown: list[str]) -> dict[str, object]:
        return {
            "trials": [
                {
                    "id": each.entry.id,
                    "danger": each.entry.danger,
                    "verdict": judgement.verdict,
                    "assumed": each.entry.statement,
                    "answered": self._redaction.text(judgement.answered),
                    "why": judgement.why,
                }
                for each, judgement in self._found
            ],
            "over_budget": [each.entry.id for each in plan.over],
            "by_hand": [entry.id for entry in plan.by_hand],
            "left": left,
            "not_searched": unknown,
        }

    def _text(self, plan: TrialPlan) -> str:
        lines: list[str] = []
        for verdict in ("differs", "unknown"):
            for each, judgement in self._found:
                if judgement.verdict == verdict:
                    lines += [
                        f"{verdict}: {each.entry.id} ({each.entry.danger})",
                        f"  assumed:  {each.entry.statement}",
                        f"  answered: {self._redaction.text(judgement.answered)}",
                        f"  {f'why: {judgement.why}' if judgement.why else f'effect: {each.entry.if_false}'}",
                    ]
        counted = {
            verdict: sum(judgement.verdict == verdict for _, judgement in self._found)
            for verdict in ("as assumed", "differs", "unknown")
        }
        lines.append(", ".join(f"{count} {verdict}" for verdict, count in counted.items()) + ".")
        if plan.over:
            lines.append(f"{len(plan.over)} trials exceed the budget.")
        lines.append(f"{len(plan.by_hand)} entries need manual steps. --list prints their commands and prices.")
        place = f"in {self._out}" if self._out else "to packages/localcloud/ledger. Run `make docs` to update the page"
        lines.append(f"{len(self._written)} answers written {place}.")
        return "\n".join(lines)


def _report_leaks(left: Sequence[str], unknown: Sequence[str], searched: int) -> None:
    for each in left:
        print(f"left: {each}")
    for each in unknown:
        print(f"could not check: {each}")
    count = f"{len(left)} leaked resources" if left else "No leaked resources"
    print(f"{count} in {searched - len(unknown)} listings." + (" Run --clean-up." if left else ""))


def _plan_text(plan: TrialPlan) -> str:
    lines = [f"Trials: {len(plan.trials)}, about {plan.minutes:.0f} min, {plan.usd:.2f} USD at the planner's prices."]
    lines += [f"  {each.entry.cost_usd:>5.2f}  {each.entry.danger:<8}  {each.entry.id}" for each in plan.trials]
    if plan.over:
        lines.append(f"Over budget: {len(plan.over)}.")
        lines += [f"  {each.entry.cost_usd:>5.2f}  {each.entry.danger:<8}  {each.entry.id}" for each in plan.over]
    reasons: dict[str, list[Assumption]] = {}
    for entry in plan.by_hand:
        reasons.setdefault(why_by_hand(entry), []).append(entry)
    for reason, entries in reasons.items():
        lines.append(f"Manual: {len(entries)} need {reason}.")
        for entry in sorted(entries, key=lambda each: rank(each)[1:]):
            lines.append(f"  {entry.cost_usd:>5.2f}  {entry.danger:<8}  {entry.id}")
            if entry.danger == "critical":
                lines.append(f"         {entry.how_to_try}")
    lines.append("The files in localcloud/ledger have every command. `--only ID` tries one entry.")
    return "\n".join(lines)


def _plan_json(plan: TrialPlan) -> dict[str, object]:
    def one(entry: Assumption) -> dict[str, object]:
        return {"id": entry.id, "danger": entry.danger, "usd": entry.cost_usd, "try": entry.how_to_try}

    return {
        "usd": round(plan.usd, 2),
        "minutes": round(plan.minutes, 1),
        "trials": [one(each.entry) for each in plan.trials],
        "over_budget": [one(each.entry) for each in plan.over],
        "by_hand": [{**one(entry), "needs": why_by_hand(entry)} for entry in plan.by_hand],
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
