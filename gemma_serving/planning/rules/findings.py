"""All rules: the findings of a subject with tested remedies, and the ids that settings may accept."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice
from typing import Final

from msgspec.structs import replace

from gemma_serving.contracts.verdicts import SEVERITIES, Severity
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules import arguments, crashes, memory, models, observability, validators, workload
from gemma_serving.planning.rules.alternatives import other_accelerators
from gemma_serving.planning.rules.platforms import accelerator, cloud_run, cost, host, quota, replicas, tpu
from gemma_serving.planning.rules.registry import RULES, Rule, RuleResult
from gemma_serving.planning.rules.security import advisories, exposure, pinned
from gemma_serving.planning.settings.accepted import acceptable_ids
from gemma_serving.planning.settings.finding import Finding, LostValue, Remedy, Together
from gemma_serving.planning.settings.paths import effective_changes, with_changes
from gemma_serving.planning.units import number_of

_CHECKS = (
    arguments,
    crashes,
    memory,
    models,
    observability,
    validators,
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

_SHOWN = {("accelerator", True): 3, ("accelerator", False): 2, ("model", True): 2, ("model", False): 2}
"""Moves that a finding lists, by the replaced part and by whether this project can deploy the result."""
_CENT = 0.005
_MOST_TRIED: Final = 7
"""Values of which every choice is tried: at most 128 plans of a millisecond or two."""
_NOTES = frozenset({"CST05", "CST04", "MOD08"})
_MEMORY = ("FIT", "HST")
"""Findings about the memory of devices and hosts."""
_WORKLOAD_IDS = frozenset({"WRK03", "WRK04", "WRK05"})
"""Findings that block because of the workload. Without them, a move must serve the workload as it is."""


def findings_of(subject: Subject) -> tuple[tuple[Finding, ...], tuple[Together, ...]]:
    """Return all findings with their remedies, blocking ones first, and the remedies of several (`Plan.together`)."""
    trial, accepted = _Trial(subject), accepted_by(subject)
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
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    joined = _Joined(trial)
    open_ones = [one for one in findings if one.id not in accepted]
    sets = [joined.with_those([one for one in open_ones if one.severity == kind]) for kind in ("block", "warn")]
    ended = tuple(_ended(finding, trial, subject.resolved) for finding in findings)
    return ended, tuple(one for one in sets if one)


def _ended(finding: Finding, trial: "_Trial", resolved: Resolved) -> Finding:
    """Return a finding whose own remedies all leave another one about memory, with what that means: no setting makes the model fit, or what to do first."""
    stays = any(one.move is None for one in finding.remedies)
    if finding.id in trial.dead_ends and finding.id.startswith(_MEMORY) and not stays:
        hopeless = f" No setting makes this deployment of {resolved.model_id} fit on {resolved.accelerator.name}."
        finding = replace(finding, message=finding.message + hopeless)
    if finding.severity == "block" and not finding.remedies and not finding.advice:
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
        """Return the remedies of a finding, without those that change the same and more for a higher price.

        If after each remedy of a blocking finding about memory only another accelerator or model helps, the cheapest accelerator on which
        nothing blocks is the remedy.
        """
        is_of_memory = is_blocking and identifier.startswith(_MEMORY)
        for candidates in (result.remedies, result.last_resorts):
            found: list[Remedy] = []
            for remedy in self._remedies(identifier, candidates):
                if is_of_memory and remedy.move is None and self._completion(remedy.changes) is None:
                    self.dead_ends.add(identifier)
                elif all(other.changes != remedy.changes for other in found):
                    found.append(remedy)
            if found:
                self.dead_ends.discard(identifier)
                return tuple(one for one in found if not any(_is_less(other, one) for other in found))
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
            remedy = self.keeping(identifier, candidate, is_largest=True)
            if remedy is None:
                continue
            if remedy.move is not None:
                shown[group] += 1
                titles.add(remedy.title)
            yield remedy

    def keeping(self, identifier: str, candidate: Remedy, *, is_largest: bool) -> Remedy | None:
        """Return the candidate with as many of the values that it loses as leave it a remedy, each lost one with its reason; None if it never is.

        Without `is_largest`, and of many values, those are kept one by one that leave it a remedy.
        """
        values = [one for one in candidate.loses if one.changes]
        for kept in self._choices(identifier, candidate, values, is_largest=is_largest):
            if remedy := self.tried(identifier, _with_values(candidate, kept)):
                return replace(remedy, loses=tuple(self._with_reason(one, remedy) for one in remedy.loses))
        return None

    def _choices(
        self, identifier: str, candidate: Remedy, values: Sequence[LostValue], *, is_largest: bool
    ) -> Iterator[Sequence[LostValue]]:
        """Yield values to keep, the most first."""
        yield values
        if is_largest and len(values) <= _MOST_TRIED:
            yield from chain.from_iterable(combinations(values, size) for size in reversed(range(len(values))))
            return
        kept = list[LostValue]()
        for one in values:
            if self.tried(identifier, _with_values(candidate, (*kept, one))):
                kept.append(one)
        yield kept

    def _with_reason(self, lost: LostValue, remedy: Remedy) -> LostValue:
        """Return a lost value with the error or the findings that would block with it."""
        if not lost.changes:
            return lost
        try:
            after = examine(with_changes(self._subject.resolved.question, {**remedy.changes, **lost.changes}))
        except PlanningError as error:
            return replace(lost, reason=str(error).rstrip("."))
        new = sorted(_blocking(detected_findings(after)) - self.blocking)
        return replace(lost, reason=f"{', '.join(new)} then {'block' if new[1:] else 'blocks'}")

    def tried(self, identifier: str, candidate: Remedy) -> Remedy | None:
        """Return the candidate with its price; None if it does not qualify.

        A remedy removes its finding and adds no blocking one. A move must also fit. It includes the changes that remove the findings which
        block at its destination.
        """
        question = self._subject.resolved.question
        candidate = replace(candidate, changes=effective_changes(question, candidate.changes))
        outcome = self.outcome(candidate.changes)
        if outcome is None or self.remains(identifier, outcome[1]):
            return None
        if candidate.move is not None:
            rest = self._completion(candidate.changes)
            if rest is None:
                return None
            candidate = replace(candidate, changes=effective_changes(question, {**candidate.changes, **rest}))
            outcome = self.outcome(candidate.changes) or outcome
        return self.priced(candidate, *outcome) if self.is_better(outcome[1], (identifier,)) else None

    def priced(self, candidate: Remedy, after: Subject, found: Mapping[str, Severity]) -> Remedy:
        """Return a remedy with its price and the warnings that it adds, from the figures and the findings after it."""
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
                remedy = self.keeping(rule.id, candidate, is_largest=False) if candidate.move is None else None
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
                after = examine(with_changes(self._subject.resolved.question, changes))
                self._after[key] = (after, detected_findings(after))
            except PlanningError:
                self._after[key] = None
        return self._after[key]


def _is_less(one: Remedy, other: Remedy) -> bool:
    """Return whether a remedy makes only some of the changes of another one at a lower price."""
    is_cheaper = one.extra_usd_per_hour < other.extra_usd_per_hour and not other.move
    return is_cheaper and one.changes.items() < other.changes.items()


def _with_values(candidate: Remedy, kept: Sequence[LostValue]) -> Remedy:
    """Return a candidate that keeps some of the values that it loses."""
    changes = {path: value for one in kept for path, value in one.changes.items()}
    lost = tuple(one for one in candidate.loses if one not in kept)
    return replace(candidate, changes={**changes, **candidate.changes}, loses=lost)


class _Joined:
    """Remedies of several findings as one set: a key has one value, and what one removes stays removed after the others."""

    def __init__(self, trial: _Trial) -> None:
        self._trial = trial
        self._changes: dict[str, object] = {}
        self._used: list[Remedy] = []
        self._fixed: list[str] = []

    def with_those(self, findings: Sequence[Finding]) -> Together | None:
        """Add a remedy of each finding that the set leaves. Return the set; None if it is the remedy of one finding."""
        ways = {one.id: [way for way in one.remedies if way.is_deployable] for one in findings}
        before = len(self._used)
        moves_first = sorted(findings, key=lambda one: not all(way.move for way in ways[one.id]))
        for finding in moves_first:
            after = self._subject_after(finding.id)
            own = chain(ways[finding.id], self._later(finding.id, after)) if after else ()
            way = next((one for one in own if self._holds(finding.id, one)), None)
            if way is not None:
                self._used.append(way)
                self._changes |= way.changes
            if self._subject_after(finding.id) is None:
                self._fixed.append(finding.id)
        outcome = self._trial.outcome(self._changes)
        if outcome is None or len(self._used) in {1, before}:
            return None
        move = next((one for one in self._used if one.move), Remedy(changes={}))
        remedy = self._trial.priced(replace(move, changes={**self._changes}, loses=()), *outcome)
        return Together(ids=tuple(self._fixed), remedy=remedy)

    def _holds(self, identifier: str, way: Remedy) -> bool:
        """Return whether after the set and a remedy its finding and those of the set are gone, and nothing new blocks. A set has one move."""
        moved = {path for one in self._used if one.move for path in one.changes} & {"accelerator", "model"}
        if moved and (way.move or way.changes.keys() & moved):
            return False
        outcome = self._trial.outcome({**self._changes, **way.changes})
        return outcome is not None and self._trial.is_better(outcome[1], (*self._fixed, identifier))

    def _later(self, identifier: str, after: Subject) -> Iterator[Remedy]:
        """Yield the remedies that a finding has after the set."""
        if self._changes and (result := RULES[identifier].result(after)):
            yield from _Trial(after).ways_out(identifier, result, is_blocking=False)

    def _subject_after(self, identifier: str) -> Subject | None:
        """Return the subject after the set; None if a finding is gone from it."""
        after = self._trial.outcome(self._changes)
        return after[0] if after and self._trial.remains(identifier, after[1]) else None


def accepted_by(subject: Subject) -> frozenset[str]:
    """Return the ids of the findings that the settings accept."""
    return frozenset(subject.resolved.question.settings.accept_findings) & frozenset(acceptable_ids())


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
        subject = examine(with_changes(subject.resolved.question, change))
    return None
