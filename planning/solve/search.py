"""Search for the cheapest deployments of this project that serve a workload within limits, or for the nearest miss.

Tries each checkpoint on each accelerator with settings from conservative to aggressive, until one serves the workload within the limits; then
with the cheapest host and the fastest-starting weights mode. A solution has no blocking finding, no warning of a risk, and no memory limit
so close that it may fail. A warning about a choice (`WEIGHED_WARNINGS`) does not exclude it if it is clearly cheaper than all others of its
family. Prices are checked before memory, and memory before speed, because each is cheaper to compute than the next.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Literal

from planning.cost.subject import Subject, is_out_of_memory, subject_of
from planning.data.checkpoints import Checkpoint
from planning.data.images import DEFAULT_IMAGES
from planning.data.prices import PriceBook
from planning.errors import PlanningError
from planning.machine.hardware import CLOUD_RUN_MAX_CONCURRENCY
from planning.memory.budget import memory_plan
from planning.memory.margins import margin_of
from planning.memory.resolve import resolve
from planning.model.catalog import spec_of
from planning.question.resolved import Resolved
from planning.question.types import Band, Deployment, MemoryPlan, WeightsMode, WorkloadPlan
from planning.question.workload import Workload, check_workload
from planning.rules.findings import QUOTA_IDS, RULES, detected
from planning.solve.candidates import (
    LEAST_CONTEXT,
    WEIGHTS_MODES,
    HostShape,
    Served,
    deployment_of,
    image_for,
    knobs_of,
    longest_request,
    servings_of,
    throughput_knobs,
    tuned,
)
from planning.speed.bands import band as band_of
from planning.speed.bands import kind_of
from planning.speed.serving import server_of, workload_plan
from planning.speed.startup import startup_plan
from planning.units import HOUR_S

_MILLION: Final = 1_000_000
_MOST_TRIED: Final = 100
"""Number of nearest misses that are examined for one that can be deployed."""
_CENT: Final = 0.005
WEIGHED_WARNINGS: Final = frozenset(rule.id for rule in RULES.values() if rule.is_choice)
"""Warnings that do not exclude a solution."""
WARNING_DISCOUNT: Final = 0.1
"""Share by which a deployment with such a warning must be cheaper than the cheapest of its family without one."""
Goal = Literal["cost", "latency", "throughput"]
"""What the chosen deployment has the best value of: the price per hour, the time per request, or the price per million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Limits of the search; None for limits that were not set."""

    max_ttft_s: float | None = None
    max_tpot_s: float | None = None
    max_usd_per_hour: float | None = None
    min_context: int | None = None
    """Minimum supported request length in tokens, by default LEAST_CONTEXT; the workload's own requests must always fit."""
    conservative: bool = False
    """True to compare times at the slow end of their bands instead of their typical values."""

    def judged(self, band: Band) -> float:
        """Return the value of a time that is compared with its limit."""
        return band.high if self.conservative else band.typical

    @property
    def judged_by(self) -> str:
        """Name of that end of the bands."""
        return "high" if self.conservative else "typical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A deployment that meets the limits."""

    served: Served
    deployment: Deployment
    """Deployment with every chosen setting."""
    subject: Subject
    answer: WorkloadPlan
    warnings: tuple[str, ...] = ()
    """Ids of its warnings, all of them from WEIGHED_WARNINGS."""

    @property
    def is_price_assumed(self) -> bool:
        """True if a price of one of its locations is unknown."""
        return any(place.is_assumed for place in self.subject.cost.places)

    @property
    def usd_per_hour(self) -> float:
        """Price per hour of one slice or instance in its most expensive location."""
        return self.subject.cost.usd_per_hour

    @property
    def usd_per_million_tokens(self) -> float:
        """Price per million tokens of the workload, prompts and responses together."""
        tokens = self.answer.prompt_tokens + self.answer.workload.output_tokens
        return self.usd_per_hour / HOUR_S / (self.answer.requests_per_s.typical * tokens) * _MILLION

    @property
    def architecture(self) -> str:
        """Id of the family's bf16 checkpoint."""
        return self.served.checkpoint.architecture

    @property
    def image(self) -> str | None:
        """Name of the image that loads it, if this repository builds it; empty for the target's default."""
        name = image_for(self.served, self.subject.resolved.accelerator)
        return name if name not in DEFAULT_IMAGES.values() else None


class Stage(IntEnum):
    """Stage at which a candidate fails, in order: later values are closer to meeting the limits."""

    MEMORY = 0
    FINDING = 1
    """Has a finding that blocks or warns of a risk."""
    LOAD = 2
    """Runs fewer concurrent requests, or fewer per second, than required."""
    LIMITS = 3
    """Serves the workload but exceeds limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMiss:
    """A checkpoint on an accelerator that does not meet the limits, with the reasons."""

    served: Served
    place: HostShape
    reasons: tuple[str, ...]
    excess: float
    """Factor by which the worst value exceeds its limit; the nearest miss has the lowest."""
    stage: Stage
    """Stage that the candidate reached."""
    deployment: Deployment | None = None
    """The subject tried, with its memory settings; None if none could be planned."""

    def __str__(self) -> str:
        """Return it in one line."""
        where = f"{self.served.words} on {self.place.accelerator.name} (${self.place.usd_per_hour:.2f}/h)"
        return f"{where}: {'; '.join(self.reasons)}"


_ORDERS: Final[dict[Goal, Callable[[Solution], tuple[float, float]]]] = {
    "cost": lambda one: (round(one.usd_per_hour, 2), one.answer.request_s.typical),
    "latency": lambda one: (one.answer.request_s.typical, one.usd_per_hour),
    "throughput": lambda one: (one.usd_per_million_tokens, one.usd_per_hour),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SolutionSet:
    """Result of a search."""

    solutions: tuple[Solution, ...]
    """The best by the goal first; one for each checkpoint, precision and accelerator."""
    nearest: NearestMiss | None
    """The nearest miss, if no deployment meets the limits."""
    goal: Goal = "cost"

    @property
    def chosen(self) -> Solution | None:
        """The best solution by the goal."""
        return self.solutions[0] if self.solutions else None

    @property
    def cheapest(self) -> Solution | None:
        """Solution with the lowest price per hour; of equal prices the fastest."""
        return min(self.solutions, key=_ORDERS["cost"], default=None)

    @property
    def fastest(self) -> Solution | None:
        """Solution with the shortest time per request."""
        return min(self.solutions, key=_ORDERS["latency"], default=None)

    @property
    def cheapest_per_token(self) -> Solution | None:
        """Solution with the lowest price per million tokens."""
        return min(self.solutions, key=_ORDERS["throughput"], default=None)

    def marks(self, one: Solution) -> tuple[str, ...]:
        """Return the criteria by which a solution is the best."""
        marked = (("cheapest", self.cheapest), ("fastest", self.fastest), ("cheapest/M", self.cheapest_per_token))
        return tuple(name for name, best in marked if best is one)

    def best_per_model(self) -> tuple[Solution, ...]:
        """Return the best of each family by the goal and the best by each criterion, in the order of the solutions."""
        first = {one.architecture: one for one in reversed(self.solutions)}
        return tuple(one for one in self.solutions if first[one.architecture] is one or self.marks(one))


def _worth_their_warnings(found: list[Solution]) -> list[Solution]:
    """Return the solutions without those that have a warning and cost about as much as one of their family without."""
    least: dict[str, float] = {}
    for one in found:
        if not one.warnings:
            least[one.architecture] = min(one.usd_per_hour, least.get(one.architecture, one.usd_per_hour))
    return [
        one
        for one in found
        if not one.warnings or one.usd_per_hour < least.get(one.architecture, float("inf")) * (1 - WARNING_DISCOUNT)
    ]


def solve(
    workload: Workload,
    limits: ServiceLimits,
    *,
    goal: Goal = "cost",
    checkpoints: tuple[Checkpoint, ...],
    places: tuple[tuple[HostShape, ...], ...],
    prices: PriceBook | None = None,
) -> SolutionSet:
    """Return the deployments that serve the workload within the limits.

    Args:
        workload: The clients' workload for one slice or instance.
        limits: Limits to meet.
        goal: Value by which the chosen solution is the best. For throughput without a load, settings with the largest rate are tried first.
        checkpoints: Allowed checkpoints (`planning.solve.candidates.checkpoints_of`).
        places: Available accelerators (`planning.solve.candidates.rented`).
        prices: Prices that replace the list prices.

    Raises:
        PlanningError: for a workload without users or a rate, which leaves the queue undefined. For throughput, the server is then full.
    """
    check_workload(workload)
    if workload.users is None and workload.rate_per_s is None and goal != "throughput":
        raise PlanningError("--solve requires a load. Add users=N or rate=N to --workload.")
    search = _Search(workload=workload, limits=limits, goal=goal, prices=prices)
    pairs = [
        (served, hosts)
        for served in servings_of(checkpoints)
        for hosts in places
        if image_for(served, hosts[0].accelerator)
    ]
    affordable = [pair for pair in pairs if search.is_affordable(pair[1][0])]
    outcomes = [search.best(*pair) for pair in affordable]
    solutions = sorted(
        _worth_their_warnings([one for one in outcomes if isinstance(one, Solution)]),
        key=_ORDERS[goal],
    )
    if solutions:
        return SolutionSet(solutions=tuple(solutions), nearest=None, goal=goal)
    misses = [miss for outcome in outcomes if not isinstance(outcome, Solution) for miss in outcome]
    # Candidates above the price limit were not examined yet and may be nearer.
    misses += [miss for pair in pairs if pair not in affordable for miss in search.too_dear(*pair)]
    return SolutionSet(solutions=(), nearest=search.nearest(misses, places), goal=goal)


def _distance(miss: NearestMiss) -> tuple[int, float, float]:
    return (-miss.stage, miss.excess, miss.place.usd_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """One search."""

    workload: Workload
    limits: ServiceLimits
    goal: Goal
    prices: PriceBook | None

    def is_affordable(self, place: HostShape) -> bool:
        """Return whether the price per hour is within the limit."""
        return self.limits.max_usd_per_hour is None or place.usd_per_hour < self.limits.max_usd_per_hour + _CENT

    def nearest(self, misses: Iterable[NearestMiss], places: tuple[tuple[HostShape, ...], ...]) -> NearestMiss | None:
        """Return the nearest miss that could be deployed with looser limits; None without misses."""
        ordered = sorted(misses, key=_distance)
        for miss in ordered[:_MOST_TRIED]:
            if miss.stage < Stage.LIMITS or miss.deployment is None:
                return miss
            hosts = next(each for each in places if each[0].accelerator == miss.place.accelerator)
            outcome = self.unpriced.deployed(miss.deployment, miss.served, hosts)
            if isinstance(outcome, Solution):
                return self._with_host(miss, _place_of(outcome, hosts))
        return ordered[0] if ordered else None

    @property
    def unpriced(self) -> "_Search":
        """The same search without a price limit."""
        return replace(self, limits=replace(self.limits, max_usd_per_hour=None))

    def _with_host(self, miss: NearestMiss, place: HostShape) -> NearestMiss:
        """Return a miss with the host it needs, whose price may exceed another limit."""
        limit = self.limits.max_usd_per_hour
        if limit is None or self.is_affordable(place):
            return replace(miss, place=place)
        dear = self._dear(miss.served, place, miss.deployment, limit)
        return replace(dear, reasons=tuple(dict.fromkeys((*miss.reasons, *dear.reasons))))

    def too_dear(self, served: Served, hosts: tuple[HostShape, ...]) -> Iterator[NearestMiss]:
        """Yield the limits that a pair above the price limit exceeds, including its price."""
        limit = self.limits.max_usd_per_hour
        if limit is None:
            return
        outcome = self.unpriced.best(served, hosts)
        if isinstance(outcome, Solution):
            yield self._dear(outcome.served, _place_of(outcome, hosts), outcome.deployment, limit)
            return
        for miss in outcome:
            dear = self._dear(served, miss.place, miss.deployment, limit)
            yield replace(miss, reasons=(*miss.reasons, *dear.reasons), excess=max(miss.excess, dear.excess))

    @staticmethod
    def _dear(served: Served, place: HostShape, deployment: Deployment | None, limit: float) -> NearestMiss:
        return NearestMiss(
            served=served,
            place=place,
            reasons=(f"${place.usd_per_hour:.2f}/h exceeds --max-usd-per-hour {limit:g}",),
            excess=place.usd_per_hour / limit,
            stage=Stage.LIMITS,
            deployment=deployment,
        )

    def best(self, served: Served, hosts: tuple[HostShape, ...]) -> Solution | tuple[NearestMiss, ...]:
        """Return the most conservative settings that meet the limits on the cheapest suitable host, otherwise the miss of each."""
        need = longest_request(self.workload, self.limits.min_context)
        longest = spec_of(served.checkpoint.id).max_positions
        if need > longest:
            reason = f"requests have {need:,} tokens, but the model supports {longest:,}"
            return (
                NearestMiss(
                    served=served, place=hosts[0], reasons=(reason,), excess=need / longest, stage=Stage.MEMORY
                ),
            )
        deployment = deployment_of(served, hosts[0], self.workload, self.prices)
        if self.workload.users is None and self.workload.rate_per_s is None:
            for candidate in self._by_rate(deployment, need):
                outcome = self._outcome(candidate, served, hosts)
                if isinstance(outcome, Solution) and not outcome.warnings:
                    return outcome
        misses: list[NearestMiss] = []
        warned: Solution | None = None
        refused: set[tuple[str, ...]] = set()
        for knobs in knobs_of(deployment, need, self.workload.users or 0):
            outcome = self._outcome(tuned(deployment, knobs), served, hosts)
            if isinstance(outcome, Solution):
                if not outcome.warnings:
                    return outcome
                reasons, warned = outcome.warnings, warned or outcome
            else:
                reasons = outcome.reasons
                misses.append(outcome)
            is_found = isinstance(outcome, Solution) or outcome.stage == Stage.FINDING
            if reasons in refused and is_found and knobs.data_parallel_size is None:
                break  # more aggressive settings do not remove such a finding
            refused.add(reasons)
        return warned or tuple(misses)

    def _by_rate(self, deployment: Deployment, need: int) -> list[Deployment]:
        """Return the deployment with the settings for throughput, the highest rate first. Without memory the rate is 0."""

        def rate(candidate: Deployment) -> float:
            resolved = resolve(candidate)
            memory = memory_plan(resolved)
            if memory.max_concurrency < 1:
                return 0.0
            return workload_plan(resolved, memory, 0.0, self.workload).output_tok_per_s.typical

        candidates = [tuned(deployment, knobs) for knobs in throughput_knobs(deployment, need)]
        return sorted(candidates, key=rate, reverse=True)

    def _outcome(self, candidate: Deployment, served: Served, hosts: tuple[HostShape, ...]) -> Solution | NearestMiss:
        return self._shortfall(candidate, served, hosts[0]) or self.deployed(candidate, served, hosts)

    def _shortfall(self, deployment: Deployment, served: Served, place: HostShape) -> NearestMiss | None:
        """Return the missing memory or speed, cheapest check first; None if both suffice."""
        resolved = resolve(deployment)
        memory = memory_plan(resolved)
        too_large = _memory_reason(memory, place, resolved)
        if too_large is not None:
            reason, excess = too_large
            return NearestMiss(served=served, place=place, reasons=(reason,), excess=excess, stage=Stage.MEMORY)
        late = self._arrivals(resolved, memory)
        if late is not None:
            reason, excess = late
            return NearestMiss(served=served, place=place, reasons=(reason,), excess=excess, stage=Stage.LOAD)
        answer = workload_plan(resolved, memory, place.usd_per_hour, self.workload)
        if self.workload.users is not None and self.workload.users > answer.most_users:
            reason = f"it runs {answer.most_users:,} of {self.workload.users:,} concurrent users"
            excess = self.workload.users / answer.most_users
            return NearestMiss(served=served, place=place, reasons=(reason,), excess=excess, stage=Stage.LOAD)
        broken = tuple(self._broken(answer))
        if not broken:
            return None
        reasons, ratios = zip(*broken, strict=True)
        return NearestMiss(
            served=served, place=place, reasons=reasons, excess=max(ratios), stage=Stage.LIMITS, deployment=deployment
        )

    def _arrivals(self, resolved: Resolved, memory: MemoryPlan) -> tuple[str, float] | None:
        """Return a rate's shortfall at the low end of the band, as in WRK01, and the factor; None if the rate is sufficient."""
        rate = self.workload.rate_per_s
        if rate is None:
            return None
        server = server_of(resolved, memory, self.workload)
        most = server.load(float(server.slots), wave=0.0).requests_per_s * resolved.dp
        certain = band_of("rate", kind_of(resolved, server.prompt), most).low
        return (
            None
            if rate <= certain
            else (f"it processes at least {certain:.3g} requests/s, but {rate:g} arrive", rate / certain)
        )

    def _broken(self, answer: WorkloadPlan) -> Iterator[tuple[str, float]]:
        """Yield each exceeded time limit, with the factor by which it is exceeded."""
        for name, option, band, limit in (
            ("TTFT", "--max-ttft-s", answer.ttft_s, self.limits.max_ttft_s),
            ("TPOT", "--max-tpot-s", answer.tpot_s, self.limits.max_tpot_s),
        ):
            value = self.limits.judged(band)
            if limit is not None and value > limit:
                end = " (worst case)" if self.limits.conservative else ""
                yield f"{name} {value:.3g} s{end} exceeds {option} {limit:g}", value / limit

    def deployed(self, deployment: Deployment, served: Served, hosts: tuple[HostShape, ...]) -> Solution | NearestMiss:
        """Return the deployment on the cheapest host without findings that block or warn of a risk.

        An unset quota does not count, since quota can be requested.
        """
        reasons: tuple[str, ...] = ()
        for place in hosts:
            if not self.is_affordable(place):
                return self._dear(served, place, deployment, self.limits.max_usd_per_hour or place.usd_per_hour)
            here = replace(deployment, host_memory_gib=place.memory_gib, vcpu=place.vcpu)
            for mode in _soonest_first(here, WEIGHTS_MODES[place.platform]):
                subject = _examined(replace(here, weights_mode=mode))
                seen = detected(subject).items()
                found = tuple(name for name, severity in seen if severity != "info" and name not in QUOTA_IDS)
                answer = subject.workload
                if answer is not None and WEIGHED_WARNINGS.issuperset(found):
                    whole = subject.resolved.deployment
                    return Solution(served=served, deployment=whole, subject=subject, answer=answer, warnings=found)
                reasons = tuple(f"{name}: {RULES[name].what}" for name in found)
        return NearestMiss(served=served, place=hosts[0], reasons=reasons, excess=1.0, stage=Stage.FINDING)


def _place_of(solution: Solution, hosts: tuple[HostShape, ...]) -> HostShape:
    """Return the host of a solution."""
    return next(one for one in hosts if one.memory_gib == solution.deployment.host_memory_gib)


def _memory_reason(memory: MemoryPlan, place: HostShape, resolved: Resolved) -> tuple[str, float] | None:
    """Return the memory that is too small, and the factor by which it is exceeded; None if it is sufficient."""
    name, peak = place.accelerator.name, memory.load_peak_device_gib
    if peak > memory.usable_gib:
        return f"loading needs {peak:.1f} of {memory.usable_gib:.2f} GiB on {name}", peak / memory.usable_gib
    if is_out_of_memory(memory):
        return "no memory is left for the KV cache", memory.usable_gib / max(
            memory.budget_gib - memory.weights_gib, 1.0
        )
    if memory.max_concurrency < 1:
        length = resolved.max_model_len
        least = " (--min-context)" if length == LEAST_CONTEXT else ""
        reason = f"the KV cache holds {memory.largest_max_model_len:,} tokens of one request, not {length:,}{least}"
        return reason, 1 / max(memory.max_concurrency, 1e-6)
    margin = margin_of(memory)
    if margin is not None:
        return f"it may fail ({margin.available_gib:.2f} GiB, recommended {margin.recommended_gib:.2f})", 1.0
    return None


def _soonest_first(deployment: Deployment, modes: Iterable[WeightsMode]) -> list[WeightsMode]:
    """Return the weights modes by start time."""

    def start_s(mode: WeightsMode) -> float:
        return startup_plan(resolve(replace(deployment, weights_mode=mode))).total_s

    return sorted(modes, key=start_s)


def _examined(deployment: Deployment) -> Subject:
    """Return the figures. A Cloud Run service allows as many concurrent requests as the server runs."""
    subject = subject_of(resolve(deployment))
    answer = subject.workload
    if answer is None or deployment.cloud_run.region is None:
        return subject
    concurrency = min(answer.most_users, CLOUD_RUN_MAX_CONCURRENCY)
    here = replace(deployment, cloud_run=replace(deployment.cloud_run, concurrency=concurrency))
    return replace(subject, resolved=resolve(here))
