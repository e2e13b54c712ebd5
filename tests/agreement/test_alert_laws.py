"""Two laws of the alerts of shipped TPU stacks: what costs money and serves nothing is heard in time, and a life without a fault is silent.

A life is a list of changes on one clock: the machine, its agent, its server and the time stamps of the scrapes advance together. The agent's
metrics are what the agent writes, the server's what the simulated server writes, and Prometheus' own engine evaluates the stack's expressions.
"""

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import pytest

from gemma_serving.contracts.alerts import alerts_of
from gemma_serving.contracts.collector import AGENT_JOB, AGENT_METRICS_PORT, collector_config
from gemma_serving.contracts.guest_attributes import (
    DOCUMENT_HASH_KEY,
    ENDING,
    FAILED,
    FETCHING_WEIGHTS,
    LOADING,
    PHASE_KEY,
    READY,
    RETRYING,
    STARTING,
)
from gemma_serving.contracts.naming import Names
from gemma_serving.stacks.observability import alert_values
from gemma_serving.stacks.server_command import PORT
from gemma_serving.vm_agent.observe import Observer
from localcloud.tests.rules.built import evaluated
from localcloud.tests.rules.collector_config import targets
from localcloud.tests.rules.evaluator import Scrape
from localcloud.vllm.metrics import Metrics
from tests.agreement.simulated_stacks import served, settings_of
from tests.agreement.test_alert_metrics import KEPT
from tests.agreement.test_alerts import ON_MACHINE

pytestmark = pytest.mark.long
START_S = 1_800_000_000
"""Minute 0 of each life, on the grid of 30 seconds."""
STEP_S = 30
REPORTED_LATE_S = 180
"""Delay of Google's metrics of a TPU machine (Cloud TPU, "Monitor TPU VMs"). They have one sample per minute."""
RUN_MIN, READY_TIMEOUT_MIN = 240, 60
HEARD_WITHIN_MIN = READY_TIMEOUT_MIN + 5
WAITING_FOR_THE_HUB = "waiting for the hub"


@dataclass(frozen=True, kw_only=True)
class World:
    """What is true in one minute of a life."""

    machine: bool = False
    collector: bool = False
    agent: bool = False
    google: bool = False
    """Google writes its own metric of the machine, as assumed."""
    phase: str = STARTING
    former: bool = False
    """The former document serves although the phase is another one."""
    hangs: bool = False
    """The engine answers nothing, and three requests wait."""
    requests: int = 6
    """Requests per scrape."""
    waiting: int = 0
    restarts: int = 0
    ends: float | None = None
    """Minute of the planned end, as the agent knows it."""

    @property
    def serves(self) -> bool:
        return self.machine and (self.phase == READY or self.former)

    def agent_text(self) -> str:
        """Return what the agent serves."""
        published = {PHASE_KEY: self.phase, DOCUMENT_HASH_KEY: "a" * 64}
        ends_at_s = None if self.ends is None else START_S + 60 * self.ends
        publisher = SimpleNamespace(published=published, restarts=self.restarts)
        return Observer.exposition(SimpleNamespace(publisher=publisher, run_end=SimpleNamespace(ends_at_s=ends_at_s)))


def server_text(metrics, world):
    """Return what a process of the server serves after another scrape interval. Another process starts with new counters."""
    answered = 0 if world.hangs else world.requests
    (engine,) = metrics.engines
    engine.count("request_success", answered, "stop")
    engine.count("generation_tokens", 300 * answered)
    engine.observe("time_to_first_token_seconds", 0.2, answered)
    for _ in range(answered):
        metrics.count_request("/v1/chat/completions", "POST", 200, 2.0)
    engine.show("num_requests_running", lambda: min(world.requests, 2))
    engine.show("num_requests_waiting", lambda: 3 if world.hangs else world.waiting)
    engine.show("num_requests_waiting_by_reason", lambda: 3 if world.hangs else world.waiting, "capacity")
    engine.show("kv_cache_usage_perc", lambda: 0.3)
    return metrics.text()


def boot(at, ready, *, run=RUN_MIN):
    """A machine that is created, reports after three minutes, and is ready after `ready` minutes."""
    new = {"restarts": 0, "former": False, "hangs": False, "requests": 6, "waiting": 0, "ends": None}
    return [
        (at, {"machine": True, "agent": True, "collector": False, "phase": STARTING, **new}),
        (at + 3, {"collector": True, "phase": LOADING, "ends": at + run}),
        (at + ready, {"phase": READY}),
    ]


def stopped(at, minutes):
    """A server that is replaced or restarted, and loads and compiles for some minutes."""
    return [(at, {"phase": LOADING}), (at + minutes, {"phase": READY})]


def planned_end(at):
    """The agent stops the server before Google deletes the machine."""
    return [(at - 1.5, {"phase": ENDING}), (at, {"machine": False})]


def worlds(life, until):
    """Yield the second and the world of each step."""
    world, changes = World(), sorted(life, key=lambda change: change[0])
    for second in range(0, int(until * 60) + 1, STEP_S):
        while changes and changes[0][0] * 60 <= second:
            world = replace(world, **changes.pop(0)[1])
        yield second, world


@cache
def collected():
    """Return the labels of the series of each job, as the collector's configuration sets them."""
    ports = (PORT, AGENT_METRICS_PORT)
    text = collector_config(project="p", namespace="gemma-x", cluster="tpu", ports=ports, interval_s=STEP_S)
    return {each.resource["job"]: dict(each.resource) for each in targets(text, ON_MACHINE)}


is_kept = cache(KEPT.fullmatch)


def kept(text):
    """Return the lines that the collector does not drop."""
    return "".join(f"{line}\n" for line in text.splitlines() if is_kept(line.partition(" ")[0].partition("{")[0]))


@cache
def rules_of(stack):
    """Return (title, expression, hold in seconds) of each condition of the stack's alerts, by its shipped settings."""
    settings, names = settings_of(stack), Names(project="p", stack="x")
    context = SimpleNamespace(settings=settings, subject=served(stack).subject, names=names)
    values = alert_values(context)
    assert values.ready_s == READY_TIMEOUT_MIN * 60
    has_budget = settings.alerts.daily_cost is not None
    return tuple(
        (alert.title, values.replace_in(each.expression), float(values.replace_in(each.hold).removesuffix("s")))
        for alert in alerts_of("tpu", collects=settings.collects_metrics, has_budget=has_budget)
        for each in alert.conditions
        if each.expression
    )


def is_evaluated(second, life, until):
    """Return whether rules are evaluated then: each minute for ten minutes after a change and at the end, otherwise each five minutes."""
    recent = any(0 <= second / 60 - minute <= 10 for minute, _ in life)
    return second % (60 if recent or second / 60 >= until - 5 else 300) == 0


def heard(rules, life, until):
    """Return the minute and the title of each alert that begins to fire."""

    async def work(evaluator):
        for number, (_, expression, hold_s) in enumerate(rules):
            await evaluator.set_rule(str(number), expression, for_s=hold_s, labels={})
        names, fired, before, past, server = [str(number) for number in range(len(rules))], [], set(), {}, None
        for second, world in worlds(life, until):
            past[second] = world
            server = (server or Metrics("m", {}, max_model_len=4096)) if world.serves else None
            scrapes = []
            if world.machine and world.collector:
                text = kept(server_text(server, world)) if server else ""
                scrapes.append(Scrape(text=text, labels=collected()["vllm"], up=world.serves))
                text = kept(world.agent_text()) if world.agent else ""
                scrapes.append(Scrape(text=text, labels=collected()[AGENT_JOB], up=world.agent))
            for scrape in scrapes:
                await evaluator.scrape((START_S + second) * 1000, scrape)
            then = past.get(second - REPORTED_LATE_S, World())
            if then.machine and then.google and second % 60 == 0:
                labels = 'monitored_resource="tpu_worker",node_id="gemma-x-node",zone="us-east5-b"'
                google = Scrape(text=f"tpu_googleapis_com:cpu_utilization{{{labels}}} 2.5\n")
                await evaluator.scrape((START_S + second - REPORTED_LATE_S) * 1000, google)
            if not is_evaluated(second, life, until):
                continue
            result = await evaluator.evaluate((START_S + second) * 1000, names)
            assert result.errors == {}
            now = {alert.rule for alert in result.alerts if alert.firing}
            fired += [(second / 60, rules[int(name)][0]) for name in sorted(now - before)]
            before = now
        return fired

    return evaluated(work)


def silent_life(stack):
    """A day of the shipped settings without a fault: changes, restarts, bursts, lunch, two planned ends and a night."""
    startup = served(stack).subject.startup
    first, change, restart = (seconds / 60 for seconds in (startup.total_s, startup.recompile_s, startup.restart_s))
    return [
        (0, {"google": True}),
        *boot(0, first),
        *stopped(60, change),
        *stopped(80, restart),
        (110, {"waiting": 40, "requests": 30}),
        (110.5, {"waiting": 0, "requests": 6}),
        (150, {"requests": 0}),  # lunch
        *stopped(160, restart),
        (190, {"requests": 6}),
        (205, {"requests": 0}),  # nobody asks in the last minutes of the run
        *planned_end(RUN_MIN),
        *boot(255, first),  # the next run
        (256, {"requests": 0}),  # lunch before the first request
        (256 + first + 40, {"requests": 6}),
        *stopped(400, change),
        *stopped(415, change),
        *stopped(430, restart),
        *planned_end(255 + RUN_MIN),
        *boot(23 * 60, first),  # the next morning
        *planned_end(23 * 60 + RUN_MIN),
    ]


SILENT_UNTIL = 23 * 60 + RUN_MIN + 90


def case(fault, *changes, prefix=None):
    """A fault at a minute of a life that was healthy before."""
    return fault, [*(boot(0, 12) if prefix is None else prefix), *changes]


LOUD = {
    "the first start fails": case(0, (8, {"phase": FAILED}), prefix=boot(0, 999)),
    "crash loop": case(
        40,
        *(change for number in range(30) for change in (
            (40 + 6 * number, {"phase": RETRYING, "restarts": number + 1}), (40 + 6 * number + 5, {"phase": READY})
        )),
    ),
    "the server is gone": case(40, (40, {"phase": FAILED})),
    "the server hangs": case(40, (40, {"phase": LOADING})),
    "the engine hangs while requests wait": case(40, (40, {"hangs": True})),
    "the agent is gone, and the server serves": case(40, (40, {"agent": False, "former": True})),
    "the collector is gone": case(40, (40, {"collector": False})),
    "the machine never reports": case(0, prefix=[(0, {"machine": True, "google": True})]),
    "the hub is away for hours": case(0, (5, {"phase": WAITING_FOR_THE_HUB}), prefix=boot(0, 999)),
    "preempted": case(60, (60, {"machine": False})),
    "preempted in the last hour of the run": case(
        RUN_MIN - 30, (RUN_MIN - 30, {"machine": False})
    ),
    "the next machine after a preemption never gets ready": case(
        90, (60, {"machine": False}), *boot(90, 999)
    ),
    "the next machine after a planned end never reports": case(
        300, *planned_end(RUN_MIN), (300, {"machine": True, "google": True, "collector": False, "agent": False})
    ),
    "the machine outlives its run": case(RUN_MIN, (RUN_MIN - 1.5, {"phase": ENDING})),
    "idle": case(40, (40, {"requests": 0})),
    "idle since its first start": case(0, (0, {"requests": 0})),
}  # fmt: skip
"""Minute of the fault, and life."""


@pytest.mark.parametrize("stack", ["tpu-v6e1", "tpu-v6e4"])
def test_a_life_without_a_fault_is_silent(stack):
    assert heard(rules_of(stack), silent_life(stack), SILENT_UNTIL) == []


def test_the_laws_of_one_stack_are_those_of_the_other():
    assert rules_of("tpu-v6e1") == rules_of("tpu-v6e4")


@pytest.mark.parametrize("name", LOUD)
def test_what_costs_money_and_serves_nothing_is_heard_within_the_ready_timeout_and_five_minutes(name):
    fault, life = LOUD[name]
    found = heard(rules_of("tpu-v6e1"), life, fault + HEARD_WITHIN_MIN)
    assert found, "nothing fires"
    assert found[0][0] >= fault, "it fires before the fault"


QUIET = {
    "capacity is awaited for hours": [(0, {})],
    "a change failed, and the former document serves": [*boot(0, 12), (40, {"phase": FAILED, "former": True})],
    "a change is prepared for hours while the former document serves": [
        *boot(0, 12),
        (40, {"phase": FETCHING_WEIGHTS, "former": True}),
    ],
    "a machine is deleted by a change, which tells it so": [
        *boot(0, 12),
        (60, {"phase": ENDING, "ends": 60}),
        (61, {"machine": False}),
    ],
}


@pytest.mark.parametrize("name", QUIET)
def test_a_stack_that_serves_or_costs_nothing_is_silent(name):
    assert heard(rules_of("tpu-v6e1"), QUIET[name], 130) == []
