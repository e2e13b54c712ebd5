"""All rules: the findings of a subject with tested remedies, and the ids that settings may accept."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from msgspec.structs import replace

from gemma_serving.contracts.verdicts import Severity
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules import arguments, crashes, memory, models, observability, workload
from gemma_serving.planning.rules.alternatives import other_accelerators
from gemma_serving.planning.rules.platforms import accelerator, cloud_run, cost, host, quota, replicas, tpu
from gemma_serving.planning.rules.registry import RULES, Rule, RuleResult
from gemma_serving.planning.rules.security import advisories, exposure, pinned
from gemma_serving.planning.settings.accepted import acceptable_ids
from gemma_serving.planning.settings.finding import Finding, Remedy
from gemma_serving.planning.settings.paths import effective_changes, with_changes
from gemma_serving.planning.units import number_of

_CHECKS = (
    arguments,
    crashes,
    memory,
    models,
    observability,
    workload,
    accelerator,
    cloud_run,
    cost,
    host,
    quota,
    replicas,
    tpu,
    advisories,
    exposure,
    pinned,
)
"""Modules that register the checks."""

QUOTA_IDS = ("SCL02", "SCL04", "SCL05")
"""Findings about a project's quota, which can be raised and does not affect what fits."""

_ORDER: Mapping[Severity, int] = {"block": 0, "warn": 1, "info": 2}
_SHOWN = {("accelerator", True): 3, ("accelerator", False): 2, ("model", True): 2, ("model", False): 2}
"""Moves that a finding lists, by the replaced part and by whether this project can deploy the result."""
_CENT = 0.005
_NOTHING: Mapping[str, object] = {}
_NOTES = frozenset({"CST05", "CST04", "MOD08"})
_MEMORY = ("FIT", "HST")
"""Findings about the memory of devices and hosts."""
_WORKLOAD_IDS = frozenset({"WRK03", "WRK04", "WRK05"})
"""Findings that block because of the workload. Without them, a move must serve the workload as it is."""


def findings_of(subject: Subject) -> tuple[Finding, ...]:
    """Return all findings, blocking ones first."""
    trial = _Trial(subject)
    findings = list[Finding]()
    for rule, result, severity in _results(subject):
        ways = trial.ways_out(rule.id, result, is_blocking=severity == "block")
        source = result.source or rule.source
        findings.append(
            Finding(
                id=rule.id,
                severity=severity,
                message=result.message,
                remedies=ways,
                advice=result.advice,
                source=source,
            )
        )
    findings.sort(key=lambda finding: _ORDER[finding.severity])
    agreement = _Agreement(subject, trial, findings)
    agreed = (agreement.agreed(finding) for finding in findings)
    return tuple(
        _ended(finding, trial, subject.resolved) if finding.id in trial.dead_ends else finding for finding in agreed
    )


def _ended(finding: Finding, trial: "_Trial", resolved: Resolved) -> Finding:
    """Return a finding whose own remedies all leave another blocking one, with what that means: no setting makes the model fit, or what to do first."""
    stays = any(one.move is None for one in finding.remedies)
    if finding.id.startswith(_MEMORY) and not stays:
        hopeless = f" No setting makes this deployment of {resolved.model_id} fit on {resolved.accelerator.name}."
        finding = replace(finding, message=finding.message + hopeless)
    if not finding.remedies and not finding.advice:
        finding = replace(finding, advice=trial.way_on(finding.id))
    return finding


def cheapest_place(subject: Subject) -> Remedy | None:
    """Return the move of a blocked deployment to the cheapest accelerator of this project on which nothing blocks.

    None if none exists, or if the devices have room for a request and other settings remove every finding that blocks.
    """
    trial = _Trial(subject)
    has_room = subject.memory.max_concurrency >= 1
    if has_room and _completion(subject, trial.kept) is not None:
        return None
    return next((move for identifier in sorted(trial.blocking) for move in trial.moves(identifier)), None)


def notes_of(plan: Plan) -> tuple[Finding, ...]:
    """Return the findings that text output only counts: information that nearly every stack has."""
    return tuple(one for one in plan.findings if one.severity == "info" and one.id in _NOTES)


def counted_notes(plan: Plan) -> str:
    """Return the numbers of published vulnerabilities, with why no newer image is used, and of notes as text; empty without any."""
    counted = list[str]()
    if plan.vulnerabilities:
        why = {f" ({one.not_newer})" for one in IMAGES.values() if one.not_newer and one.version == plan.vllm_version}
        counted += [number_of(len(plan.vulnerabilities), "published vulnerability") + "".join(why)]
    if notes := notes_of(plan):
        counted += [number_of(len(notes), "note")]
    return ", ".join(counted)


def detected_findings(subject: Subject) -> Mapping[str, Severity]:
    """Return the ids of all findings with their severities. Much cheaper than `findings_of`, which also tests remedies."""
    return {rule.id: severity for rule, _, severity in _results(subject)}


def _results(subject: Subject) -> Iterator[tuple[Rule, RuleResult, Severity]]:
    for rule in RULES.values():
        if result := rule.result(subject):
            yield rule, result, result.severity or rule.severities[0]


def _blocking(found: Mapping[str, Severity]) -> frozenset[str]:
    return frozenset(identifier for identifier, severity in found.items() if severity == "block")


class _Trial:
    """Tries candidate remedies for one subject. Candidates shared by several findings are planned once."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._found = detected_findings(subject)
        self.blocking = _blocking(self._found)
        self._after: dict[str, tuple[Subject, Mapping[str, Severity]] | None] = {}
        self._rest: dict[str, Mapping[str, object] | None] = {}
        self.dead_ends: set[str] = set()
        """Findings whose own remedies all leave another blocking one."""
        self.kept = () if self.blocking & _WORKLOAD_IDS else ("workload.",)

    def way_on(self, identifier: str) -> str:
        """Return what to do about a finding that no setting removes: the findings about memory first, whose moves include its change."""
        memory = sorted(one for one in self.blocking if one.startswith(_MEMORY))
        if memory and not identifier.startswith(_MEMORY):
            return f"First do what {memory[0]} proposes."
        return "Choose another model or accelerator."

    def ways_out(self, identifier: str, result: RuleResult, *, is_blocking: bool) -> tuple[Remedy, ...]:
        """Return the remedies of a finding; a blocking one's with the changes that remove all other blocking ones.

        If after each of them only another accelerator or model helps, the cheapest accelerator on which nothing blocks is the remedy.
        """
        for candidates in (result.remedies, result.last_resorts):
            found: list[Remedy] = []
            for remedy in self._remedies(identifier, candidates):
                rest = self._completion(remedy.changes) if is_blocking and remedy.move is None else _NOTHING
                whole = None
                if rest is not None and not _undoes(rest, remedy.changes):
                    whole = self.tried(identifier, replace(remedy, changes={**remedy.changes, **rest}))
                if whole is None:
                    self.dead_ends.add(identifier)
                elif all(other.changes != whole.changes for other in found):
                    found.append(whole)
            if found:
                self.dead_ends.discard(identifier)
                return tuple(found)
        return self.moves(identifier) if identifier in self.dead_ends else ()

    def moves(self, identifier: str) -> tuple[Remedy, ...]:
        """Return the move to the cheapest accelerator of this project on which the finding is gone and nothing blocks; empty if none exists."""
        return tuple(islice(self._remedies(identifier, other_accelerators(self._subject, only_deployable=True)), 1))

    def _remedies(self, identifier: str, candidates: Iterable[Remedy]) -> Iterator[Remedy]:
        """Yield the candidates that qualify as remedies, and of moves only as many as a finding lists."""
        shown: Counter[tuple[str, bool]] = Counter()
        titles: set[str] = set()
        for candidate in candidates:
            group = (candidate.move or "", candidate.is_deployable)
            if candidate.title in titles or shown[group] >= _SHOWN.get(group, 1):
                continue
            remedy = self.tried(identifier, candidate)
            if remedy is None:
                continue
            if remedy.move is not None:
                shown[group] += 1
                titles.add(remedy.title)
            yield remedy

    def tried(self, identifier: str, candidate: Remedy) -> Remedy | None:
        """Return the candidate with its price; None if it does not qualify.

        A remedy removes its finding and adds no blocking one. A move must also fit. It includes the changes that remove the findings which
        block at its destination.
        """
        deployment = self._subject.resolved.deployment
        candidate = replace(candidate, changes=effective_changes(deployment, candidate.changes))
        outcome = self.outcome(candidate.changes)
        if outcome is None or self.remains(identifier, outcome[1]):
            return None
        if candidate.move is not None:
            rest = self._completion(candidate.changes)
            if rest is None:
                return None
            candidate = replace(candidate, changes=effective_changes(deployment, {**candidate.changes, **rest}))
            outcome = self.outcome(candidate.changes) or outcome
        after, found = outcome
        if not self.is_better(found, (identifier,)):
            return None
        warned = {name for name, severity in found.items() if severity == "warn" and self._found.get(name) != "warn"}
        candidate = replace(candidate, warns=tuple(sorted(warned - accepted_by(self._subject))))
        if not after.cost.is_known:
            return candidate
        before = self._subject.cost
        extra = after.cost.usd_per_hour - before.usd_per_hour if before.is_known else 0.0
        if candidate.move is None and abs(extra) < _CENT:
            return candidate
        return replace(candidate, usd_per_hour=after.cost.usd_per_hour, extra_usd_per_hour=extra)

    def is_better(self, found: Mapping[str, Severity], fixed: Iterable[str]) -> bool:
        """Return whether findings have none of the fixed ones and none that newly blocks."""
        return not _blocking(found) - self.blocking and not any(self.remains(one, found) for one in fixed)

    def remains(self, identifier: str, found: Mapping[str, Severity]) -> bool:
        """Return whether a finding is still there, and not merely a note where it was more."""
        after = found.get(identifier)
        return after is not None and (after != "info" or self._found[identifier] == "info")

    def first_change(self) -> Mapping[str, object] | None:
        """Return the first remedy of a blocking finding that keeps the accelerator and the model; None if none exists."""
        accepted = accepted_by(self._subject)
        for rule, result, severity in _results(self._subject):
            if severity != "block" or rule.id in accepted:
                continue
            for candidate in result.remedies:
                remedy = self.tried(rule.id, candidate) if candidate.move is None else None
                if remedy is not None:
                    return remedy.changes
        return None

    def _completion(self, changes: Mapping[str, object]) -> Mapping[str, object] | None:
        """Return the further changes after which nothing blocks, with the same accelerator and model; None if none exist."""
        key = repr(changes)
        if key not in self._rest:
            outcome = self.outcome(changes)
            self._rest[key] = None if outcome is None else _completion(outcome[0], self.kept)
        return self._rest[key]

    def outcome(self, changes: Mapping[str, object]) -> tuple[Subject, Mapping[str, Severity]] | None:
        """Return the changed deployment's figures and its findings; None if it cannot be planned."""
        key = repr(changes)
        if key not in self._after:
            try:
                after = examine(with_changes(self._subject.resolved.deployment, changes))
                self._after[key] = (after, detected_findings(after))
            except PlanningError:
                self._after[key] = None
        return self._after[key]


def _undoes(rest: Mapping[str, object], changes: Mapping[str, object]) -> bool:
    """Return whether further changes remove a value that the first ones set."""
    return any(path in rest and rest[path] is None for path, value in changes.items() if value is not None)


class _Agreement:
    """The first remedies of the findings as one set: a key has one value in all of them, and each still holds after the others."""

    def __init__(self, subject: Subject, trial: _Trial, findings: Sequence[Finding]) -> None:
        self._trial = trial
        self._together: dict[str, object] = {}
        self._chosen: dict[str, Remedy | None] = {}
        """The first remedy of each finding; None if the set before it removes the finding or leaves no remedy for it."""
        self._fixed = set[str]()
        ways = {one.id: [way for way in one.remedies if way.is_deployable] for one in findings}
        self._accepted = accepted_by(subject)
        for finding in sorted(findings, key=lambda one: (_ORDER[one.severity], all(way.move for way in ways[one.id]))):
            if ways[finding.id] and finding.id not in self._accepted:
                self._choose(finding, ways[finding.id])

    def agreed(self, finding: Finding) -> Finding:
        """Return the finding with remedies of the set's values; with the advice to do another's first if none is left."""
        if finding.id not in self._chosen:
            has_way = finding.remedies or finding.advice or finding.severity != "block"
            other = None if has_way else self._of_others(finding)
            return replace(finding, remedies=(other,)) if other else finding
        chosen = self._chosen[finding.id]
        others = [way for one in finding.remedies if (way := one if one.move else self._joined(finding, one))]
        if chosen is None:
            first = next((one for one in others if one.is_deployable and self._stands(finding.id, one)), None)
        else:
            first = chosen if chosen.move else self._joined(finding, chosen)
        first = first or self._of_others(finding)
        if first is None:
            before = f"First do what {next(iter(self._chosen))} proposes."
            return replace(finding, remedies=(), advice=f"{before} {finding.advice}".rstrip())
        is_own = chosen in finding.remedies
        ways = [first, *(one for one in others if (is_own or one.move) and one.changes != first.changes)]
        return replace(finding, remedies=tuple(ways))

    def _choose(self, finding: Finding, ways: Sequence[Remedy]) -> None:
        """Add the first way out of a finding that stands beside the set, or may replace its values; else the first that the finding has after the set."""
        name = finding.id
        is_left = finding.severity != "info" and self._subject_after(name) is not None
        own = (way for way in ways if self._stands(name, way) or (is_left and self._replaces(name, way)))
        later = (way for way in (self._later(name) if is_left else ()) if self._replaces(name, way))
        chosen = next(chain(own, later), None)
        self._chosen[name] = chosen
        self._together |= chosen.changes if chosen else {}
        if self._subject_after(name) is None:
            self._fixed.add(name)

    def _stands(self, identifier: str, way: Remedy) -> bool:
        """Return whether a remedy changes no value of the set and holds after it. A finding that the set removes needs no move, and after a move no change."""
        if any(self._together.get(path, value) != value for path, value in way.changes.items()):
            return False
        if self._together and self._subject_after(identifier) is None:
            is_new_move = way.move is not None and not way.changes.items() <= self._together.items()
            if is_new_move or (way.move is None and self._moves()):
                return False
        return self._holds(identifier, way)

    def _holds(self, identifier: str, way: Remedy) -> bool:
        """Return whether after the set and a remedy its finding and those of the set are gone, and nothing new blocks."""
        outcome = self._trial.outcome({**self._together, **way.changes})
        return outcome is not None and self._trial.is_better(outcome[1], (*self._fixed, identifier))

    def _replaces(self, identifier: str, way: Remedy) -> bool:
        """Return whether a remedy that keeps accelerator and model, and the value of each key that a move sets, holds after the set."""
        moved = {path for one in self._chosen.values() if one and one.move for path in one.changes}
        return way.move is None and way.changes.keys().isdisjoint(moved) and self._holds(identifier, way)

    def _later(self, identifier: str) -> Iterator[Remedy]:
        """Yield the remedies that a finding has after the set."""
        after = self._subject_after(identifier)
        result = RULES[identifier].result(after) if after else None
        if after and result:
            yield from _Trial(after).ways_out(identifier, result, is_blocking=False)

    def _subject_after(self, identifier: str) -> Subject | None:
        """Return the subject after the set; None if a finding is gone from it."""
        after = self._trial.outcome(self._together)
        return after[0] if after and self._trial.remains(identifier, after[1]) else None

    def _moves(self) -> bool:
        """Return whether the set moves the deployment to another accelerator or model."""
        return any(one.move for one in self._chosen.values() if one)

    def _of_others(self, finding: Finding) -> Remedy | None:
        """Return the remedy of another finding that removes this one too, or the whole set; None if it moves the deployment or leaves the finding."""
        if self._moves() or self._subject_after(finding.id) is not None:
            return None
        paths = [*(one.changes.keys() for one in self._chosen.values() if one), self._together.keys()]
        sets = ({path: self._together[path] for path in one} for one in paths)
        tried = (self._tried(finding, Remedy(changes=changes)) for changes in sets)
        return next((one for one in tried if one), None)

    def _joined(self, finding: Finding, way: Remedy) -> Remedy | None:
        """Return a remedy with the changes of those that give one of its keys another value; None if it does not remove the finding with them."""
        differing = {path for path, value in way.changes.items() if self._together.get(path, value) != value}
        others = [
            one for name, one in self._chosen.items() if one and name != finding.id and one.changes.keys() & differing
        ]
        if not others and way in finding.remedies:
            return way
        if any(one.move for one in others):
            return None
        paths = {path for one in others for path in one.changes}
        changes = {**way.changes, **{path: self._together[path] for path in paths}}
        return self._tried(finding, replace(way, changes=changes))

    def _tried(self, finding: Finding, way: Remedy) -> Remedy | None:
        """Return a remedy with its price; None if it does not remove its finding alone, or if something still blocks where the finding did."""
        remedy = self._trial.tried(finding.id, way)
        outcome = self._trial.outcome(remedy.changes) if remedy else None
        if outcome is None or (finding.severity == "block" and _blocking(outcome[1]) - self._accepted):
            return None
        return remedy


def accepted_by(subject: Subject) -> frozenset[str]:
    """Return the ids of the findings that the settings accept."""
    return frozenset(subject.resolved.deployment.accept_findings) & frozenset(acceptable_ids())


def _completion(subject: Subject, kept: tuple[str, ...]) -> Mapping[str, object] | None:
    """Return the changes after which nothing blocks, without the accelerator, the model and the kept fields; None if none exist."""
    made: dict[str, object] = {}
    for _ in RULES:
        if not _blocking(detected_findings(subject)) - accepted_by(subject):
            return made
        change = _Trial(subject).first_change()
        if change is None or any(path.startswith(kept) for path in change):
            return None
        made |= change
        subject = examine(with_changes(subject.resolved.deployment, change))
    return None
