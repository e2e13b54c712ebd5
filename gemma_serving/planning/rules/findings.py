"""All rules: the findings of a subject with tested remedies, and the ids that settings may accept."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, cast

from msgspec.structs import replace

from gemma_serving.contracts.verdicts import Severity
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.errors import PlanningError
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
_EXTRA: Final = "vllm.extra_args"
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
    resolved = subject.resolved
    hopeless = f" No setting makes this deployment of {resolved.model_id} fit on {resolved.accelerator.name}."
    for rule, result, severity in _results(subject):
        ways = trial.ways_out(rule.id, result, is_blocking=severity == "block")
        message, advice = result.message, result.advice
        if rule.id in trial.dead_ends:
            message += hopeless
            if not ways and not advice:
                advice = trial.way_on(rule.id)
        source = result.source or rule.source
        findings.append(
            Finding(id=rule.id, severity=severity, message=message, remedies=ways, advice=advice, source=source)
        )
    findings.sort(key=lambda finding: _ORDER[finding.severity])
    return tuple(trial.agreed(findings))


def cheapest_place(subject: Subject) -> Remedy | None:
    """Return the move of a blocked deployment to the cheapest accelerator of this project on which nothing blocks.

    None if none exists, or if the devices have room for a request and other settings remove every finding that blocks.
    """
    return _Trial(subject).cheapest_place()


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
        self._blocking = _blocking(self._found)
        self._after: dict[str, tuple[Subject, Mapping[str, Severity]] | None] = {}
        self._rest: dict[str, Mapping[str, object] | None] = {}
        self.dead_ends: set[str] = set()
        """Findings whose own remedies all leave another blocking one."""
        self._kept = () if self._blocking & _WORKLOAD_IDS else ("workload.",)

    def way_on(self, identifier: str) -> str:
        """Return what to do about a finding that no setting removes: the findings about memory first, whose moves include its change."""
        memory = sorted(one for one in self._blocking if one.startswith(_MEMORY))
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
                    whole = self._tried(identifier, replace(remedy, changes={**remedy.changes, **rest}))
                if whole is None:
                    self.dead_ends.add(identifier)
                elif all(other.changes != whole.changes for other in found):
                    found.append(whole)
            if found:
                self.dead_ends.discard(identifier)
                return tuple(found)
        return self.moves(identifier) if identifier in self.dead_ends else ()

    def agreed(self, findings: Sequence[Finding]) -> Iterator[Finding]:
        """Yield the findings with one value of `extraArgs` in all their remedies: without what the first remedy of any removes."""
        together, accepted = self._together(findings), accepted_by(self._subject)
        for finding in findings:
            ways = list(finding.remedies)
            for place, one in enumerate(ways):
                if _EXTRA in one.changes and finding.id not in accepted:
                    own = finding.remedies[0].changes.keys() - {_EXTRA} if place else ()
                    others = {path: value for path, value in together.items() if path not in own}
                    ways[place] = self._tried(finding.id, replace(one, changes={**one.changes, **others})) or one
            yield replace(finding, remedies=tuple(ways))

    def _together(self, findings: Sequence[Finding]) -> dict[str, object]:
        """Return the changes of the first remedies that change `extraArgs`, of findings that the settings do not accept."""
        changes = [
            one.remedies[0].changes
            for one in findings
            if one.remedies and _EXTRA in one.remedies[0].changes and one.id not in accepted_by(self._subject)
        ]
        if not changes:
            return {}
        words = self._subject.resolved.deployment.vllm.extra_args
        kept = [Counter(cast("tuple[str, ...]", one[_EXTRA])) for one in changes]
        left = {word: min(one[word] for one in kept) for word in words}
        together: dict[str, object] = {path: value for one in reversed(changes) for path, value in one.items()}
        return {**together, _EXTRA: tuple(_first(words, left))}

    def cheapest_place(self) -> Remedy | None:
        """Return what the function of this name does."""
        has_room = self._subject.memory.max_concurrency >= 1
        if has_room and _completion(self._subject, self._kept) is not None:
            return None
        return next((move for identifier in sorted(self._blocking) for move in self.moves(identifier)), None)

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
            remedy = self._tried(identifier, candidate)
            if remedy is None:
                continue
            if remedy.move is not None:
                shown[group] += 1
                titles.add(remedy.title)
            yield remedy

    def _tried(self, identifier: str, candidate: Remedy) -> Remedy | None:
        """Return the candidate with its price; None if it does not qualify.

        A remedy removes its finding and adds no blocking one. A move must also fit. It includes the changes that remove the findings which
        block at its destination.
        """
        deployment = self._subject.resolved.deployment
        candidate = replace(candidate, changes=effective_changes(deployment, candidate.changes))
        outcome = self._outcome(candidate.changes)
        if outcome is None or self._remains(identifier, outcome[1]):
            return None
        if candidate.move is not None:
            rest = self._completion(candidate.changes)
            if rest is None:
                return None
            candidate = replace(candidate, changes=effective_changes(deployment, {**candidate.changes, **rest}))
            outcome = self._outcome(candidate.changes) or outcome
        after, found = outcome
        if self._remains(identifier, found) or _blocking(found) - self._blocking:
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

    def _remains(self, identifier: str, found: Mapping[str, Severity]) -> bool:
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
                if candidate.move is None and self._tried(rule.id, candidate) is not None:
                    return candidate.changes
        return None

    def _completion(self, changes: Mapping[str, object]) -> Mapping[str, object] | None:
        """Return the further changes after which nothing blocks, with the same accelerator and model; None if none exist."""
        key = repr(changes)
        if key not in self._rest:
            outcome = self._outcome(changes)
            self._rest[key] = None if outcome is None else _completion(outcome[0], self._kept)
        return self._rest[key]

    def _outcome(self, changes: Mapping[str, object]) -> tuple[Subject, Mapping[str, Severity]] | None:
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


def _first(words: Sequence[str], counts: Mapping[str, int]) -> Iterator[str]:
    """Yield the first uses of each word, as many as its count."""
    used = Counter[str]()
    for word in words:
        used[word] += 1
        if used[word] <= counts[word]:
            yield word


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
