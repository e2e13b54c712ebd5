"""Seeded schedules of the provider on the local cloud: stock and quota of each form and zone, kills, lost answers, late grants, preemption.

A failure prints its seed, the cloud, and each step with its requests and its outcome. `EXAMPLES` says how many seeds each suite plays, and `EVERY`
which of the ends of an operation.

The laws, besides those of `CapacityWorld.watch` at each call:

- Nothing is lost: after an operation that was not killed, the state names the zone of everything that we have in the cloud. After a kill the next
  operation finds it by its label.
- Nothing is leaked: after `destroy` nothing of ours is visible, with its nodes.
- Capacity that the state names as ACTIVE is the same afterwards, whatever the program now asks for. Only `destroy` ends it. So is the only machine
  that runs, if the state does not know it after a kill and the program lists its zone, except if the program's change replaces the resource.
- After a successful `up` that changes something, exactly one request exists in the zones of the program and of the state, and the state names it:
  a late grant there is deleted.
- The requests of one operation follow the order of forms.
"""

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from gcp_tpu_provider.tests.conftest import examples
from localcloud.world.scenario import ComputeTpu, Scenario, Stock, Tpu, TpuZone
from tests.agreement.capacity_schedules import MODELS, ZONES, Program, Schedule, Step, drawn, program_of
from tests.agreement.capacity_world import GRANTED, PROJECT, SERVING, CapacityWorld, Held, Lost, Sent

EXAMPLES: Final = examples(test=12, part=200, night=4000)
EVERY: Final = examples(test=9, part=1, night=1)
"""Before a commit each ninth end of an operation is played besides the kills after a creation: an odd number, so that each kind occurs."""
A, B, C = ZONES
FLEX, SPOT, STANDARD = MODELS.values()


@dataclass
class Play:
    """Plays one schedule and checks after each step."""

    schedule: Schedule
    world: CapacityWorld
    was_killed: bool = False
    """A kill happened, and since then no operation was successful: the state can be older than the cloud."""
    story: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.account = self.world.cloud.default_account(PROJECT)

    def run(self) -> None:
        """Play all steps and the end."""
        for step in self.schedule.steps:
            self._step(step)
            self.world.pass_time(step.passed_s)
        self.end()

    def do(
        self, what: str, program: Program, *, lost: Sequence[Lost] = (), how: str = "", at: int = 0, **more: Any
    ) -> str:
        """Do one operation and return its outcome. Raises AssertionError with what it violates."""
        world, engine = self.world, self.world.engine
        timeout_s, had_state = more.pop("timeout_s", 0), engine.state is not None
        given = program.inputs(more.pop("api", self.schedule.api), self.account, **more)
        work: dict[str, Callable[[], Any]] = {
            "up": lambda: engine.up(given, timeout_s=timeout_s),
            "refresh": engine.refresh,
            "destroy": engine.destroy,
        }
        running = self._running(program) if what == "up" else None
        in_use, visible = world.in_use(), {item.identity for item in world.held() if item.state != "HIDDEN"}
        world.ceiling_usd, world.limit_s = program.ceiling_usd, program.limit_s
        engine.ops.clear()
        outcome = world.play(work[what], lost=lost, how=how, at=at)
        kind = "".join(engine.ops[-1:]) or what
        self.story.append(f"    {what} ({kind}) requested {world.requests}: {outcome}")
        self.story.append(f"    holds {[(item.zone, item.model, item.state) for item in world.held()]}")
        assert not world.violations, "; ".join(world.violations)
        assert "has a bug" not in outcome, outcome
        self._require_order(program)
        if what != "destroy" and not more.get("allowReplaceActive"):
            self._require_kept(in_use)
        if kind in {"create", "update"}:
            self._require_kept(running)
        self.was_killed = outcome == "killed" or (self.was_killed and (outcome != "done" or what == "refresh"))
        self._require_known()
        if outcome == "done" and what == "up" and kind != "same" and how != "preempt":
            self._require_one(program, world.transport.late - visible)
        if outcome == "done" and what == "destroy" and had_state:
            assert world.left() == [], "a destroy leaves nothing that is visible"
        return outcome

    def end(self) -> None:
        """One more `up` has one request, and `destroy` none; or `destroy` alone leaves none."""
        world, engine = self.world, self.world.engine
        world.settle()
        plenty = {zone: TpuZone(accelerator_types=("v6e-4",), flex_start=True) for zone in ZONES}
        compute = ComputeTpu(family_quota_chips=64)
        world.cloud.scenario = Scenario(tpu=Tpu(zones=plenty, compute=compute))
        last = self.schedule.steps[-1].program
        self.story.append(f"the end, with capacity in each zone: {last}")
        if self.schedule.last == "up" or engine.state is None:
            self._require_served(last)
        assert self.do("destroy", last) == "done"
        world.settle()
        assert world.held() == [], "nothing is left after destroy, and nothing appears afterwards"

    def _step(self, step: Step) -> None:
        engine, world = self.world.engine, self.world
        self.story.append(str(step))
        if step.do == "preempt":
            self.story.append(f"    preempted: {world.preempt()}")
            return
        if step.is_refreshed and engine.state is not None:
            self.do("refresh", step.program)
        if engine.state is None and step.do != "up":
            return
        self.do(step.do, step.program, lost=step.lost, how=step.how, at=step.at, timeout_s=step.timeout_s)

    def _require_served(self, program: Program) -> None:
        outcome = ""
        for _ in range(3):  # what the state names may be gone, and the message says to refresh
            outcome = self.do("up", program, allowReplaceActive=True)
            if outcome == "done":
                break
            if self.world.engine.state is not None:
                self.do("refresh", program)
        assert outcome == "done", "an up in a cloud with capacity"
        self._require_one(program, set())

    def _running(self, program: Program) -> Held | None:
        """Return the only request that is visible, if it runs in a zone of the program: a killed operation's, which the state may not know."""
        shown = [item for item in self.world.held() if item.state != "HIDDEN"]
        is_used = len(shown) == 1 and shown[0].state in SERVING and shown[0].zone in program.zones
        return shown[0] if is_used else None

    def _require_kept(self, in_use: Held | None) -> None:
        """Running capacity is not touched: no program of a schedule allows its deletion."""
        if in_use is not None and in_use.identity not in self.world.preempted:
            kept = [item for item in self.world.held() if item.identity == in_use.identity]
            assert kept == [in_use], f"capacity in use is kept: {in_use}, now {kept}"

    def _require_known(self) -> None:
        """The state names the zone of each request, except after a kill and of those that nobody could see."""
        state, late = self.world.engine.state, self.world.transport.late
        known = set[str]() if state is None else {*state.outputs["triedZones"], state.outputs["name"].split("/")[3]}
        held = [item for item in self.world.held() if item.identity not in late]
        lost = [item for item in held if item.zone not in known]
        assert self.was_killed or not lost, f"lost: {lost}"

    def _require_one(self, program: Program, too_late: AbstractSet[str]) -> None:
        """Exactly one request is visible in the zones of the program and of the state, has capacity, and the state names it.

        `too_late`: identities that appeared during the operation, after it had given them up. The next one deletes them.
        """
        state = self.world.engine.state
        assert state is not None
        name, searched = state.outputs["name"], {*program.zones, *state.outputs["triedZones"]}
        shown = [item for item in self.world.held() if item.state != "HIDDEN" and item.zone in searched]
        held = [item for item in shown if item.name == name or item.identity not in too_late]
        assert [item.name for item in held] == [name], f"exactly one: {held}"
        assert held[0].state in GRANTED, f"one that serves: {held}"

    def _require_order(self, program: Program) -> None:
        """All zones of a form before the next form. The first request may be in the zone of one whose answer was lost."""
        order, requests = program.order, self.world.requests
        assert set(requests) <= set(order), f"a request that the program does not list: {requests}"
        places = [order.index(request) for request in requests]
        assert places[1:] == sorted(set(places[1:])), f"requests out of order: {requests}"
        forms = [[model for model, _ in order].index(model) for model, _ in requests]
        assert forms == sorted(forms), f"a form before an earlier one: {requests}"


@contextmanager
def playing(schedule: Schedule) -> Generator[Play]:
    """Return the play of a schedule in a new cloud. An AssertionError tells the whole schedule."""
    random.seed(schedule.seed)  # the provider's jitter
    with TemporaryDirectory() as folder:
        one = Play(schedule, CapacityWorld(Path(folder), schedule.scenario, schedule.prices))
        try:
            yield one
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), str(schedule), *one.story])) from error
        finally:
            one.world.close()


def play(seed: int) -> None:
    """Play the schedule of a seed. Raises AssertionError with what is violated."""
    with playing(drawn(seed)) as one:
        one.run()


@pytest.mark.law
def test_nothing_is_lost_or_leaked_and_capacity_in_use_is_never_touched():
    for seed in range(EXAMPLES):
        play(seed)


PRICES: Final = {(model, zone): usd for model, usd in ((FLEX, 2.0), (SPOT, 3.0), (STANDARD, 5.0)) for zone in ZONES} | {
    (STANDARD, C): 9.0
}
DRY, SAYS_SO, LATE = Stock(chips=0), Stock(chips=0, dry="fails"), Stock(chips=0, lost_deletions=1, late_s=300)
APIS: Final = ("cloud-tpu", "compute-engine")
WHOLE_ORDER: Final = [
    *((FLEX, zone) for zone in ZONES),
    *((SPOT, zone) for zone in ZONES),
    (STANDARD, A),
    (STANDARD, B),
]
"""Standard costs more than the ceiling in the third zone."""


def programmed(tag: str = "a") -> Program:
    """Return a program with all forms, under a ceiling of $8 per hour."""
    return program_of(("flex-start", "spot", "standard"), PRICES, 8.0, wait_s=900, tag=tag)


def cloud_with(api: str, stock: Mapping[tuple[str, str], Stock]) -> Schedule:
    """Return a cloud with a stock of each form and zone and enough quota. A form and zone that is not listed has capacity."""
    zones = {
        zone: TpuZone(
            accelerator_types=("v6e-4",),
            flex_start=True,
            stock={form: stock[form, zone] for form in MODELS.values() if (form, zone) in stock},
        )
        for zone in ZONES
    }
    scenario = Scenario(tpu=Tpu(zones=zones, compute=ComputeTpu(family_quota_chips=64)))
    return Schedule(seed=-1, api=api, scenario=scenario, prices=PRICES, steps=(), last="destroy")


def dry_until_standard(api: str) -> Schedule:
    """Return a cloud that grants only the last request under the ceiling."""
    dry = {(FLEX, zone): DRY for zone in ZONES} | {(SPOT, zone): SAYS_SO for zone in ZONES}
    return cloud_with(api, {**dry, (STANDARD, A): SAYS_SO})


@pytest.mark.parametrize("api", APIS)
def test_all_zones_for_each_form_and_then_the_ceiling(api: str):
    with playing(dry_until_standard(api)) as one:
        assert one.do("up", programmed()) == "done"
        assert one.world.requests == WHOLE_ORDER
        assert one.do("destroy", programmed()) == "done"
        dry = {**one.world.cloud.scenario.tpu.zones}
        dry[B] = dry[B].model_copy(update={"stock": {**dry[B].stock, STANDARD: SAYS_SO}})
        one.world.cloud.scenario = Scenario(tpu=Tpu(zones=dry, compute=ComputeTpu(family_quota_chips=64)))
        assert "No zone granted v6e-4 (flex-start, then spot, then standard)." in one.do("up", programmed())
        assert one.world.requests == WHOLE_ORDER, "and none in the zone above the ceiling"
        assert one.world.engine.state is None
        assert one.world.held() == []


@pytest.mark.parametrize("api", APIS)
def test_preempted_capacity_is_replaced_in_the_order_of_forms(api: str):
    with playing(cloud_with(api, {(FLEX, zone): DRY for zone in ZONES})) as one:
        one.do("up", programmed())
        assert one.world.requests == [*WHOLE_ORDER[:3], (SPOT, A)]
        assert one.world.preempt()
        one.do("refresh", programmed())
        assert one.do("up", programmed()) == "done"
        assert one.world.requests == [*WHOLE_ORDER[:3], (SPOT, A)]


@pytest.mark.parametrize("api", APIS)
def test_a_grant_after_its_request_was_given_up_is_used_or_deleted_by_the_next_update(api: str):
    with playing(cloud_with(api, {(FLEX, zone): LATE for zone in ZONES})) as one:
        assert one.do("up", programmed()) == "done"
        one.world.settle()
        assert one.do("up", programmed("b")) == "done"
        assert len(one.world.held()) == 1
        assert one.do("destroy", programmed()) == "done"
        one.world.settle()
        assert one.world.held() == []


def ends_of(calls: Sequence[Sent]) -> Iterator[tuple[int, str]]:
    """Yield (number of the call, end) of each step: a kill before each call that is not another poll and after each that changes something.

    Ctrl-C comes at each creation, after its effect and before its answer.
    """
    seen = set[str]()
    for number, call in enumerate(calls, start=1):
        if call.method != "GET":
            yield number, "kill before"
            yield number, "kill after"
            if call.creates is not None:
                yield number, "cancel"
        elif str(call) not in seen:
            yield number, "kill before"
        seen = {*seen, str(call)} if call.method == "GET" else set()


def chosen(calls: Sequence[Sent]) -> list[tuple[int, str]]:
    """Return the ends to play: each kill after a creation, because what it left decides what follows, and each `EVERY`-th other one."""
    ends = list(ends_of(calls))
    return [
        (number, how)
        for at, (number, how) in enumerate(ends)
        if at % EVERY == 0 or (how == "kill after" and calls[number - 1].creates is not None)
    ]


SHORT_PRICES: Final = {(model, zone): 9.0 for model in MODELS.values() for zone in ZONES} | {
    (FLEX, A): 2.0,
    (SPOT, A): 3.0,
    (STANDARD, A): 5.0,
    (STANDARD, B): 5.0,
}


@pytest.mark.parametrize("api", APIS)
def test_what_a_killed_creation_left_outside_of_the_new_order_is_deleted_first(api: str):
    prices = {**SHORT_PRICES, (STANDARD, A): 9.0}
    with playing(replace(cloud_with(api, {(FLEX, A): DRY}), prices=prices)) as one:
        assert one.do("up", program_of(("flex-start",), prices, 8.0), how="kill after") == "killed"
        assert one.do("up", program_of(("standard",), prices, 8.0)) == "done"
        assert [(item.model, item.zone) for item in one.world.held()] == [(STANDARD, B)]


STEPS_OF_ORDER: Final = [(FLEX, A), (SPOT, A), (STANDARD, A), (STANDARD, B)]


@pytest.mark.law
@pytest.mark.parametrize(
    ("what", "requests"), [("up", STEPS_OF_ORDER), ("destroy", []), ("up on the other API", STEPS_OF_ORDER[:2])]
)
@pytest.mark.parametrize("api", APIS)
def test_an_end_at_each_step_and_a_second_try(api: str, what: str, requests: list[tuple[str, str]]):
    changes_api = "other" in what
    cloud = cloud_with(api, {(FLEX, A): DRY}) if changes_api else dry_until_standard(api)
    schedule = replace(cloud, prices=SHORT_PRICES)
    program = program_of(("flex-start", "spot", "standard"), SHORT_PRICES, 8.0, wait_per_zone_s=120)
    used = next(other for other in APIS if other != api) if changes_api else api

    def do(one: Play, **end: Any) -> str:
        return one.do(what.split(maxsplit=1)[0], program, api=used, **end)

    def prepare(one: Play) -> None:
        if what != "up":
            one.do("up", program, timeout_s=60 if changes_api else 0)

    with playing(schedule) as one:
        prepare(one)
        do(one)
        assert one.world.requests == requests
        ends = chosen(one.world.calls)
    for number, how in ends:
        with playing(schedule) as one:
            one.story.append(f"{what}: {how} call {number}")
            prepare(one)
            outcome = do(one, how=how, at=number)
            assert outcome == "killed" or (how == "cancel" and "interrupted" in outcome), outcome
            one.world.pass_time(600)
            assert do(one) == "done"
            if requests:
                assert [(item.model, item.zone) for item in one.world.held()] == requests[-1:]
                one.do("destroy", program)
            assert one.world.left() == []
