"""Evaluation of PromQL alert policies: scrape, evaluate, open and close incidents, notify.

Time is that of time stamps (`Timeline.now`), in rounds of 30 seconds. `POST /admin/advance` runs every round that it skips, so an alert about
thirty idle minutes rings after sixty rounds, in less than a second. A round that is late, because the machine was busy, runs with its own
stamp; no gap appears that Google would not have.
"""

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from localcloud.json_values import JsonObject, part, parts
from localcloud.rules import program
from localcloud.rules.evaluator import Evaluator, EvaluatorExitedError, ExpressionError, ParsedExpression
from localcloud.services.billable_time import billed
from localcloud.services.collecting import Collected, Collecting, Expositions, described
from localcloud.services.incidents import Incidents
from localcloud.services.notifying import Notifier
from localcloud.world.cloud import Cloud
from localcloud.world.timeline import seconds

POLICIES: Final = "monitoring.alertPolicies"
_FOLDER: Final = "evaluators"
"""Folder of the state for the evaluators' series, which a restart loses."""
EVALUATED: Final = "evaluated"
ROUND_S: Final = 30
"""Seconds between rounds: the shortest evaluationInterval, and the shortest interval at which a target is scraped here."""


class NotEvaluatedError(Exception):
    """No evaluator runs here. The message states why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A PromQL condition of an enabled policy."""

    policy: JsonObject
    condition: JsonObject

    @property
    def name(self) -> str:
        return str(self.condition["name"])

    @property
    def promql(self) -> JsonObject:
        return part(self.condition, "conditionPrometheusQueryLanguage")

    @property
    def project(self) -> str:
        return self.name.split("/")[1]

    @property
    def content(self) -> tuple[str, float, tuple[tuple[str, str], ...]]:
        """Return what the evaluator knows of the rule: the expression, its duration and its labels."""
        labels = tuple(sorted(part(self.promql, "labels").items()))
        return str(self.promql["query"]), seconds(str(self.promql.get("duration") or "0s")), labels

    def is_due(self, at_s: int) -> bool:
        return at_s % int(seconds(str(self.promql.get("evaluationInterval") or f"{ROUND_S}s"))) == 0


class _Project:
    """The evaluator of one project, whose queries see only its own series, and the rules in it."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self._known: dict[str, tuple[str, float, tuple[tuple[str, str], ...]]] = {}

    async def load(self, rules: list[_Rule]) -> dict[str, str]:
        """Make the rules in the evaluator those given, and return the errors of those that it rejects.

        A rule whose text has not changed keeps its pending alerts.
        """
        wanted, errors = {rule.name: rule.content for rule in rules}, dict[str, str]()
        for name in self._known.keys() - wanted.keys():
            await self.evaluator.drop_rule(name)
        for name, content in wanted.items():
            if self._known.get(name) != content:
                expression, for_s, labels = content
                try:
                    await self.evaluator.set_rule(name, expression, for_s=for_s, labels=dict(labels))
                except ExpressionError as error:
                    errors[name] = str(error)
        self._known = {name: content for name, content in wanted.items() if name not in errors}
        return errors


class Monitor:
    """Evaluates the alert policies of a cloud. Without an evaluator it does nothing, and says why."""

    def __init__(self, cloud: Cloud, find: Callable[[], Path | None] = program.found) -> None:
        """`find` returns the evaluator's program, or None if it is not built."""
        self._cloud = cloud
        self._find = find
        self._projects: dict[str, _Project] = {}
        self._incidents = Incidents(cloud)
        self._collecting = Collecting(cloud)
        self.notifier = Notifier(cloud)
        self._session: aiohttp.ClientSession | None = None
        self._turn, self._start = asyncio.Lock(), asyncio.Lock()
        self._at_s: int | None = None
        self._failure = ""
        self.errors: dict[str, str] = {}
        """Error message of each condition whose last evaluation failed."""

    @property
    def status(self) -> str:
        """Return EVALUATED, or why alert policies are not evaluated."""
        problem = self._failure or ("" if self._find() else program.why_missing() or program.NOT_BUILT)
        return f"not evaluated: {problem}" if problem else EVALUATED

    def collectors(self) -> JsonObject:
        """Return what the deployed collectors scrape, and why some store nothing."""
        found = self._collecting.targets()
        return described(found, {**self._collecting.problems, **self.errors})

    async def run(self) -> None:
        """Run each round at its time, until cancelled."""
        while True:
            await self.catch_up()
            now_s = self._cloud.timeline.now().timestamp()
            await asyncio.sleep(ROUND_S - now_s % ROUND_S)

    async def catch_up(self) -> None:
        """Run the rounds until now."""
        async with self._turn:
            until_s = int(self._cloud.timeline.now().timestamp()) // ROUND_S * ROUND_S
            if self._at_s is None or not self._has_work():
                self._at_s = until_s
                self._incidents.close_without(
                    datetime.fromtimestamp(until_s, UTC), (rule.name for rule in self._rules())
                )
                return
            expositions = Expositions(self._own_session())
            while self._at_s < until_s:
                self._at_s += ROUND_S
                try:
                    await self._round(self._at_s, expositions)
                except Exception as error:  # noqa: BLE001 - a fault is shown, and the next round starts with a new evaluator
                    await self._fail(error)

    async def check(self, project: str, expression: str) -> ParsedExpression | None:
        """Parse an expression of a policy. None: no evaluator can. Raises ExpressionError."""
        found = await self._project(project)
        if found is None:
            return None
        try:
            return await found.evaluator.check(expression)
        except EvaluatorExitedError as error:
            await self._fail(error)
            return None

    async def query(self, project: str, expression: str, at: datetime | None) -> dict[str, Any]:
        """Answer an instant query. Raises ExpressionError, and NotEvaluatedError without an evaluator."""
        found = await self._project(project)
        if found is None:
            raise NotEvaluatedError(self.status)
        at = at or self._cloud.timeline.now()
        try:
            return await found.evaluator.query(int(at.timestamp() * 1000), expression)
        except EvaluatorExitedError as error:
            await self._fail(error)
            raise NotEvaluatedError(self.status) from error

    async def close(self) -> None:
        """Stop the evaluators."""
        await self._stop_evaluators()
        # An evaluator that was killed leaves its series behind.
        shutil.rmtree(self._cloud.state / _FOLDER, ignore_errors=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _stop_evaluators(self) -> None:
        projects, self._projects = self._projects, {}
        for project in projects.values():
            await project.evaluator.stop()

    async def _fail(self, error: Exception) -> None:
        """Record a failure of the evaluator. The next use starts with a new one."""
        self._failure = f"the evaluator failed: {error!r}"
        await self._stop_evaluators()
        print(f"localcloud: alert policies are {self.status}", file=sys.stderr, flush=True)

    def _has_work(self) -> bool:
        return self._find() is not None and (any(self._rules()) or bool(self._collecting.targets()))

    def _own_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session

    async def _project(self, name: str) -> _Project | None:
        async with self._start:
            known, path = self._projects.get(name), self._find()
            if known is None and path is not None:
                known = self._projects[name] = _Project(await Evaluator.start(path, self._folder()))
                self._failure = ""
            return known

    def _folder(self) -> Path:
        folder = self._cloud.state / _FOLDER
        folder.mkdir(exist_ok=True)
        return folder

    def _rules(self) -> Iterator[_Rule]:
        for _, policy in self._cloud.store.under(POLICIES):
            for condition in parts(policy, "conditions") if policy.get("enabled") is not False else ():
                if condition.get("conditionPrometheusQueryLanguage"):
                    yield _Rule(policy=policy, condition=condition)

    async def _round(self, at_s: int, expositions: Expositions) -> None:
        for each in self._collecting.targets():
            if at_s % _multiple(each.target.interval_s) == 0:
                await self._store(at_s, each, expositions)
        at = datetime.fromtimestamp(at_s, UTC)
        for project, scrape in billed(self._cloud, at):
            found = await self._project(project)
            if found is not None:
                await found.evaluator.scrape(at_s * 1000, scrape)
        rules = list(self._rules())
        self._incidents.close_without(at, (rule.name for rule in rules))
        for project in sorted({rule.project for rule in rules}):
            await self._evaluate(at_s, project, [rule for rule in rules if rule.project == project])

    async def _store(self, at_s: int, each: Collected, expositions: Expositions) -> None:
        scrape = await self._collecting.scrape(each, expositions)
        found = await self._project(each.project)
        if scrape is None or found is None:
            return
        try:
            await found.evaluator.scrape(at_s * 1000, scrape)
        except ExpressionError as error:
            self.errors[each.owner] = str(error)
        else:
            self.errors.pop(each.owner, None)

    async def _evaluate(self, at_s: int, name: str, rules: list[_Rule]) -> None:
        found = await self._project(name)
        if found is None:
            return
        errors = await found.load(rules)
        due = [rule for rule in rules if rule.is_due(at_s)]
        result = await found.evaluator.evaluate(at_s * 1000, [rule.name for rule in due if rule.name not in errors])
        for rule in due:
            self.errors.pop(rule.name, None)
            problem = errors.get(rule.name) or result.errors.get(rule.name)
            if problem:
                self.errors[rule.name] = problem
                continue
            firing = [alert for alert in result.alerts if alert.firing and alert.rule == rule.name]
            at = datetime.fromtimestamp(at_s, UTC)
            for change in self._incidents.settle(at, rule.policy, rule.condition, firing):
                await self.notifier.notify(self._own_session(), change)


def _multiple(interval_s: float) -> int:
    """Return a scrape interval as a multiple of the rounds, rounded up."""
    return max(1, -int(-interval_s // ROUND_S)) * ROUND_S
