"""Search for the cheapest deployments of this project that serve a workload within limits, or for the nearest miss.

Each checkpoint on each accelerator is tried with at most three settings (`settings_of`), on the cheapest host.
A solution has no blocking finding, no warning of a risk, nor a memory limit so close that it may fail.
A deployment with a warning about a choice (`Rule.is_choice`) ranks after all of those without one.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property, partial
from itertools import product
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from gemma_serving.planning.cost.subject import Subject, is_out_of_memory, subject_of
from gemma_serving.planning.data.checkpoints import Checkpoint
from gemma_serving.planning.data.images import DEFAULT_IMAGES
from gemma_serving.planning.data.prices import PriceBook
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.families import NotMeasuredError
from gemma_serving.planning.machine.hardware import CLOUD_RUN_MAX_CONCURRENCY
from gemma_serving.planning.memory.budget import memory_plan
from gemma_serving.planning.memory.margins import margin_of
from gemma_serving.planning.memory.resolve import filled_in
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.question.recommendation import LEAST_CONTEXT
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import MemoryPlan, WorkloadPlan
from gemma_serving.planning.rules.findings import QUOTA_IDS, RULES, detected_findings
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.reading import require_consistent
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.solve.candidates import (
    HostShape,
    Served,
    image_for,
    longest_request,
    question_of,
    servings_of,
    settings_of,
)
from gemma_serving.planning.speed.measured_starts import card_of
from gemma_serving.planning.speed.serving import server_of
from gemma_serving.planning.speed.unknown import or_none
from gemma_serving.planning.units import HOUR_S

_MILLION: Final = 1_000_000
_CENT: Final = 0.005
_HOST_MEMORY: Final = "FIT03"
"""The only finding that a larger host ends."""
Hosts = tuple[HostShape, ...]
"""An accelerator with its hosts, the cheapest first."""


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """Limits of the search; None for limits that were not set. Times are compared by their typical values."""

    max_ttft_s: float | None = None
    max_tpot_s: float | None = None
    max_usd_per_hour: float | None = None
    min_context: int | None = None
    """Minimum length of a request in tokens, by default LEAST_CONTEXT."""


class Solution(Struct, frozen=True, kw_only=True):
    """A deployment that meets the limits, with every chosen setting."""

    served: Served
    subject: Subject
    warnings: tuple[str, ...] = ()
    """Ids of its warnings, all of them about a choice."""

    @property
    def question(self) -> Question:
        """Its question."""
        return self.subject.resolved.question

    @property
    def answer(self) -> WorkloadPlan:
        """The results for the workload."""
        return cast("WorkloadPlan", self.subject.workload)

    @property
    def is_recorded(self) -> bool:
        """True if a public log shows a server with this checkpoint, in its own precision, on this card."""
        card = card_of(self.subject.resolved.accelerator.name)
        return self.served.quantization is None and card in self.served.checkpoint.runs_on

    @property
    def is_price_assumed(self) -> bool:
        """True if a price of one of its locations is unknown."""
        return any(place.is_assumed for place in self.subject.cost.places)

    @property
    def usd_per_hour(self) -> float:
        """Price per hour of one slice or instance in its most expensive location."""
        return self.subject.cost.usd_per_hour

    @property
    def request_s(self) -> float:
        """Typical seconds of a request."""
        return self.answer.request_s.typical

    @property
    def usd_per_million_tokens(self) -> float:
        """Price per million tokens of the workload, prompts and responses together."""
        tokens = self.answer.prompt_tokens + self.answer.workload.output_tokens
        return self.usd_per_hour / HOUR_S / (self.answer.requests_per_s.typical * tokens) * _MILLION

    @property
    def image(self) -> str | None:
        """Name of the image that loads it, if this repository builds it; None for the target's default."""
        name = image_for(self.served, self.subject.resolved.accelerator)
        return name if name not in DEFAULT_IMAGES.values() else None

    @property
    def rank(self) -> tuple[float, ...]:
        """The order of solutions, the best lowest: warnings, money, whether no public log shows it running, time of a request."""
        return (len(self.warnings), round(self.usd_per_hour, 2), not self.is_recorded, self.request_s)


Stage = IntEnum("Stage", ("MEMORY", "FINDING", "LOAD", "LIMITS"))
"""Stage at which a candidate fails; later values are closer to meeting the limits."""


class NearestMiss(Struct, frozen=True, kw_only=True):
    """A checkpoint on an accelerator that does not meet the limits, with the reasons."""

    served: Served
    place: HostShape
    reasons: tuple[str, ...]
    excess: float
    """Factor by which the worst value exceeds its limit; the nearest miss has the lowest."""
    stage: Stage

    def __str__(self) -> str:
        """Return it in one line."""
        where = f"{self.served.words} on {self.place.accelerator.name} (${self.place.usd_per_hour:.2f}/h)"
        return f"{where}: {'; '.join(self.reasons)}"


class SolutionSet(Struct, frozen=True, kw_only=True, dict=True):
    """Result of a search."""

    solutions: tuple[Solution, ...]
    """The cheapest first; one for each checkpoint, precision and accelerator."""
    nearest: NearestMiss | None
    """The nearest miss, if no deployment meets the limits."""

    @property
    def chosen(self) -> Solution | None:
        """The cheapest solution."""
        return self.solutions[0] if self.solutions else None

    @cached_property
    def best(self) -> Mapping[str, Solution]:
        """The best solution by each criterion: the price per hour, the time of a request, the price per token; empty without solutions."""
        if not self.solutions:
            return {}
        return {
            "cheapest": self.solutions[0],
            "fastest": min(self.solutions, key=lambda one: (len(one.warnings), one.request_s)),
            "cheapest/M": min(self.solutions, key=lambda one: (len(one.warnings), one.usd_per_million_tokens)),
        }

    def marks(self, one: Solution) -> tuple[str, ...]:
        """Return the criteria by which a solution is the best."""
        return tuple(mark for mark, best in self.best.items() if best is one)

    def best_per_model(self) -> tuple[Solution, ...]:
        """Return the best of each family, and the best by each criterion, in order."""
        first = {one.served.checkpoint.architecture: one for one in reversed(self.solutions)}
        kept = {id(one) for one in (*first.values(), *self.best.values())}
        return tuple(one for one in self.solutions if id(one) in kept)


def solve(
    workload: Workload,
    limits: ServiceLimits,
    *,
    checkpoints: tuple[Checkpoint, ...],
    places: tuple[Hosts, ...],
    prices: PriceBook | None = None,
) -> SolutionSet:
    """Return the deployments that serve the workload within the limits.

    The workload is one slice's or instance's; `checkpoints_of` and `rentable_accelerators` of `planning.solve.candidates` return checkpoints and places.
    Raises PlanningError for a workload without users or a rate.
    """
    require_consistent(workload, "workload")
    if workload.users is None and workload.rate_per_s is None:
        raise PlanningError("--solve requires a load. Add users=N or rate=N to --workload.")
    search = _Search(workload=workload, limits=limits, prices=prices)
    found: list[Solution] = []
    misses: list[NearestMiss] = []
    for served, hosts in product(servings_of(checkpoints), places):
        if image_for(served, hosts[0].accelerator):
            outcome = search.best(served, hosts)
            if isinstance(outcome, Solution):
                found.append(outcome)
            else:
                misses += outcome
    solutions = tuple(sorted(found, key=lambda one: one.rank))
    nearest = min(misses, key=lambda one: (-one.stage, one.excess, one.place.usd_per_hour), default=None)
    return SolutionSet(solutions=solutions, nearest=None if solutions else nearest)


class _Search(Struct, frozen=True, kw_only=True):
    """One search."""

    workload: Workload
    limits: ServiceLimits
    prices: PriceBook | None

    def best(self, served: Served, hosts: Hosts) -> Solution | Sequence[NearestMiss]:
        """Return the first settings that meet the limits on the cheapest host, otherwise each miss.

        An accelerator whose speed or start is unknown is a miss: it cannot be compared with a limit, nor ranked.
        """
        try:
            return self._best(served, hosts)
        except NotMeasuredError:
            reasons = ("its speed is unknown: no public vLLM server on it was measured",)
            return [NearestMiss(served=served, place=hosts[0], reasons=reasons, excess=math.inf, stage=Stage.MEMORY)]

    def _best(self, served: Served, hosts: Hosts) -> Solution | Sequence[NearestMiss]:
        need = longest_request(self.workload, self.limits.min_context)
        longest = spec_of(served.checkpoint.id).max_positions
        if need > longest:
            reasons = (f"requests have {need:,} tokens, but the model supports {longest:,}",)
            excess = need / longest
            return [NearestMiss(served=served, place=hosts[0], reasons=reasons, excess=excess, stage=Stage.MEMORY)]
        question = question_of(served, hosts[0], self.workload, self.prices)
        misses: list[NearestMiss] = []
        warned: Solution | None = None
        for candidate in settings_of(question, need, self.workload.users or 0):
            outcome = self._outcome(filled_in(candidate), served, hosts)
            if isinstance(outcome, NearestMiss):
                misses.append(outcome)
            elif not outcome.warnings:
                return outcome
            else:
                warned = warned or outcome
        return warned or misses

    def _outcome(self, resolved: Resolved, served: Served, hosts: Hosts) -> Solution | NearestMiss:
        """Return the outcome of one candidate."""
        memory = memory_plan(resolved)
        missing = self._missing(resolved, memory)
        if missing is not None:
            stage, reason, excess = missing
            return NearestMiss(served=served, place=hosts[0], reasons=(reason,), excess=excess, stage=stage)
        outcome = _deployed(resolved, served, hosts)
        if isinstance(outcome, NearestMiss):
            return outcome
        place = next(one for one in hosts if one.memory_mib == outcome.question.cloud_run.memory_mib)
        over = list(self._exceeded(outcome.answer, place))
        if not over:
            return outcome
        return NearestMiss(
            served=served,
            place=place,
            reasons=tuple(reason for reason, _ in over),
            excess=max(factor for _, factor in over),
            stage=Stage.LIMITS,
        )

    def _missing(self, resolved: Resolved, memory: MemoryPlan) -> tuple[Stage, str, float] | None:
        """Return the missing memory or speed with its factor."""
        users, rate = self.workload.users, self.workload.rate_per_s
        if (too_large := _too_large(memory, resolved)) is not None:
            return Stage.MEMORY, *too_large
        if rate is not None:
            server = server_of(resolved, memory, self.workload)
            most = server.full.requests_per_s * resolved.dp
            certain = server.band("rate", most).low  # as in WRK01
            if rate > certain:
                return (
                    Stage.LOAD,
                    f"it processes at least {certain:.3g} requests/s, but {rate:g} arrive",
                    rate / certain,
                )
        if users is not None:
            most_users = server_of(resolved, memory, self.workload).all_slots
            if users > most_users:
                return Stage.LOAD, f"it runs {most_users:,} of {users:,} concurrent users", users / most_users
        return None

    def _exceeded(self, answer: WorkloadPlan, place: HostShape) -> Iterator[tuple[str, float]]:
        """Yield each exceeded limit with its factor."""
        limits = self.limits
        for name, option, band, limit in (
            ("TTFT", "--max-ttft-s", answer.ttft_s, limits.max_ttft_s),
            ("TPOT", "--max-tpot-s", answer.tpot_s, limits.max_tpot_s),
        ):
            value = band.typical
            if limit is not None and value > limit:
                yield f"{name} {value:.3g} s exceeds {option} {limit:g}", value / limit
        most = limits.max_usd_per_hour
        if most is not None and place.usd_per_hour >= most + _CENT:
            yield f"${place.usd_per_hour:.2f}/h exceeds --max-usd-per-hour {most:g}", place.usd_per_hour / most


def _deployed(first: Resolved, served: Served, hosts: Hosts) -> Solution | NearestMiss:
    """Return the deployment on the cheapest host without findings that block or warn of a risk. `first`: on the first host."""
    reasons: tuple[str, ...] = ()
    for place in hosts:
        here = place.host(first.question)
        subject = with_concurrency(first if here == first.question else filled_in(here))
        found = warnings_of(subject)
        if subject.workload is not None and all(RULES[name].is_choice for name in found):
            return Solution(served=served, subject=subject, warnings=found)
        reasons = tuple(f"{name}: {RULES[name].what}" for name in found)
        if _HOST_MEMORY not in found:
            break
    return NearestMiss(served=served, place=hosts[0], reasons=reasons, excess=1.0, stage=Stage.FINDING)


def warnings_of(subject: Subject) -> tuple[str, ...]:
    """Return the findings that block or warn, without an unset quota, which can be requested."""
    found = detected_findings(subject).items()
    return tuple(name for name, severity in found if severity != "info" and name not in QUOTA_IDS)


def with_concurrency(resolved: Resolved) -> Subject:
    """Return the figures. A Cloud Run service allows as many concurrent requests as the server runs, and the longest request, as a new file does."""
    question, workload, memory = resolved.question, resolved.question.settings.workload, memory_plan(resolved)
    server = None
    if workload is not None and question.cloud_run.region:
        server = or_none(partial(server_of, resolved, memory, workload))
    if server is not None:
        concurrency = min(server.all_own_slots, CLOUD_RUN_MAX_CONCURRENCY)
        run = dataclasses.replace(question.cloud_run, concurrency=concurrency, request_timeout_s=HOUR_S)
        resolved = replace_struct(resolved, question=question.changed(cloud_run=run))
    return subject_of(resolved, memory)


def _too_large(memory: MemoryPlan, resolved: Resolved) -> tuple[str, float] | None:
    """Return the memory that is too small, and the factor by which it is exceeded."""
    name, peak = resolved.accelerator.name, memory.load_peak_device_gib
    if peak > memory.usable_gib:
        return f"loading needs {peak:.1f} of {memory.usable_gib:.2f} GiB on {name}", peak / memory.usable_gib
    if is_out_of_memory(memory):
        left = max(memory.budget_gib - memory.weights_gib, 1.0)
        return "no memory is left for the KV cache", memory.usable_gib / left
    if memory.max_concurrency < 1:
        length = resolved.max_model_len
        least = " (--min-context)" if length == LEAST_CONTEXT else ""
        reason = f"the KV cache holds {memory.largest_max_model_len:,} tokens of one request, not {length:,}{least}"
        return reason, 1 / max(memory.max_concurrency, 1e-6)
    margin = margin_of(memory)
    if margin is not None:
        return f"it may fail ({margin.available_gib:.2f} GiB, recommended {margin.recommended_gib:.2f})", 1.0
    return None
