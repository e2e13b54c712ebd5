"""What is deployed and what was spent count in every server. No engine: the states are stored ones."""

import json
from contextlib import nullcontext, suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.cloud.kinds import QUEUED
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.stack_facts import CloudFacts, StatedResource
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.engine.exported_state import StateUnreadableError, deployment_of
from gemma_serving.engine.state import StackState, of_deployment
from gemma_serving.scripts.agent import spending
from gemma_serving.scripts.agent.bounds import Bound
from gemma_serving.scripts.agent.spending import deployed_now, usd_per_hour_of
from gemma_serving.scripts.agent.tool_server import build
from gemma_serving.scripts.stack import facts
from tests.scripts.agent.conftest import STACK, call, keep

STATES = Path(__file__).parents[2] / "fixtures" / "state"
UNREADABLE = StackState(stack="x", status="unreadable", detail="It is cut off.")


def state(stack, *, without=(), **changes):
    """Return a stored state, with some resources left out and inputs of the others changed."""
    document = json.loads((STATES / f"{stack}.json").read_text())
    resources = document["deployment"]["resources"]
    kept_ones = [resource for resource in resources if not any(word in resource["type"] for word in without)]
    for resource in kept_ones:
        resource.get("inputs", {}).update(changes)
    document["deployment"]["resources"] = kept_ones
    return of_deployment(stack, deployment_of(stack, document))


# From the states.


def test_a_state_that_cannot_be_read_or_priced_is_unknown_and_not_free():
    with pytest.raises(CommandRefusedError, match=r"cost of stack x is unknown.*cut off.*gemma up x"):
        usd_per_hour_of(UNREADABLE)
    unpriced = state("tpu-v6e4", without=("pulumi:pulumi:Stack", "StackDetails"), acceleratorType="v9-4")
    with pytest.raises(CommandRefusedError, match="The price list does not have its hardware"):
        usd_per_hour_of(unpriced)
    assert usd_per_hour_of(StackState(stack="x", status="missing")) is None


CAPACITY = "gcp-tpu:index:QueuedResource"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Present(CloudFacts(state="ACTIVE")), r"Google has its server, .*`gemma up tpu-v6e4`"),
        (Unknown("no network"), "Cannot check whether its server exists: no network"),
        (Absent(), None),
    ],
)
def test_a_server_that_the_state_may_lack_is_not_free_until_google_has_none(monkeypatch, answer, why):
    """A creation that was answered by nobody is in no state, and costs money."""
    lacking = state("tpu-v6e4", without=(CAPACITY,))
    named = StatedResource(kind=QUEUED, names=["q"], project="p", inputs={}, is_recorded=False)
    monkeypatch.setattr(facts, "named_server", lambda _state: named)
    monkeypatch.setattr(facts, "_report", lambda *_arguments, **_options: answer)
    with pytest.raises(CommandRefusedError, match=why) if why else nullcontext():
        assert usd_per_hour_of(lacking) is None


def test_every_stack_of_the_backend_is_read_and_a_service_counts_with_all_instances(monkeypatch):
    rows = [{"name": "organization/gemma-serving/l4-qat"}, {"name": "tpu-v6e4"}]
    asked = []
    monkeypatch.setattr(spending.runner, "query", lambda _words: json.dumps(rows))
    idle = {"scaling": {"minInstanceCount": 0, "maxInstanceCount": 2}}
    monkeypatch.setattr(spending, "read", lambda stack: asked.append(stack) or state(stack, template=idle))
    found = deployed_now()
    assert sorted(asked) == ["l4-qat", "tpu-v6e4"]
    assert found == {"l4-qat": pytest.approx(2 * 1.3345), "tpu-v6e4": pytest.approx(5.4)}

    def failing(_words):
        raise StateUnreadableError("Pulumi is not logged in.", cut_off=False)

    monkeypatch.setattr(spending.runner, "query", failing)
    with pytest.raises(CommandRefusedError, match=r"current deployments is unknown.*not logged in"):
        deployed_now()


FREE = Bound(text="", usd=0.0)
RATES = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 5).map(float),
    st.sampled_from([None, CommandRefusedError, ScriptError, "open"]),
)
"""A stack, the price of its deployment, and how it ends; an open one still runs."""


@pytest.mark.law
@given(
    st.lists(st.tuples(RATES, st.dictionaries(st.sampled_from("abc"), st.integers(1, 5).map(float))), max_size=8),
    st.integers(1, 10),
)
def test_all_stacks_cost_at_most_the_limit_per_hour_and_nothing_below_it_is_refused(drawn, limit_usd):
    """A stack counts as deployed, and while it changes, and until the states are read again, at the higher of its prices."""
    deployed: dict[str, float] = {}
    running: dict[str, float] = {}
    limit = spending.SpendingLimit(states=lambda: deployed, usd_per_hour_limit=limit_usd, usd_limit=0.0)
    for (stack, usd, ending), deployed in drawn:
        counted = deployed | {name: max(rate, deployed.get(name, 0.0)) for name, rate in running.items()}
        others = {name: rate for name, rate in counted.items() if name != stack}
        if sum(others.values()) + usd > limit_usd:
            listed = "".join(rf", {name} \${others[name]:.2f}" for name in sorted(others))
            said = rf"\${usd:.2f} per hour, \${sum(others.values()) + usd:.2f} with the other deployments{listed}; the limit is \${limit_usd:.2f} per"
            for refuse in (limit.require, lambda *given: limit.reserved(*given).__enter__()):
                with pytest.raises(CommandRefusedError, match=said):
                    refuse(stack, usd, FREE)
            continue
        limit.require(stack, usd, FREE)
        if stack in running:
            continue  # one deployment of a stack at a time
        run = limit.reserved(stack, usd, FREE)
        run.__enter__()
        running[stack] = usd
        counted[stack] = max(usd, counted.get(stack, 0.0))
        if ending != "open":
            with suppress(CommandRefusedError, ScriptError):
                run.__exit__(ending, ending and ending(""), None)
            del running[stack]
        listed = ", ".join(f"{name} ${rate:.2f}" for name, rate in sorted(counted.items())) or "nothing is deployed"
        hourly = f"${sum(counted.values()):.2f} of ${limit_usd:.2f} per hour is counted ({listed})"
        assert limit.sentence().startswith(hourly)


# In all.


DEPLOYMENTS = st.tuples(
    st.sampled_from("abc"),
    st.builds(Bound, text=st.just(""), usd=st.integers(0, 30).map(float), is_new=st.booleans()),
    st.sampled_from([None, CommandRefusedError, ScriptError]),
)
"""A stack, what its deployment costs at most, and how it ends."""


@pytest.mark.law
@given(st.lists(DEPLOYMENTS, max_size=12), st.integers(1, 100))
def test_all_that_a_server_deploys_costs_at_most_its_total_and_nothing_below_it_is_refused(drawn, usd_limit):
    """A run costs its bound once, and a change of it the higher one. A refused deployment costs nothing; one that failed may have started."""
    limit = spending.SpendingLimit(states=dict, usd_per_hour_limit=1.0, usd_limit=usd_limit)
    runs: list[float] = []
    current: dict[str, int] = {}
    for stack, bound, ending in drawn:
        at = len(runs) if bound.is_new or stack not in current else current[stack]
        after = [*runs, 0.0] if at == len(runs) else [*runs]
        after[at] = max(after[at], bound.usd)
        if sum(after) > usd_limit:
            for refuse in (limit.require, lambda *given: limit.reserved(*given).__enter__()):
                with pytest.raises(
                    CommandRefusedError, match=rf"\${sum(after):.2f} with .* is \${usd_limit:.2f}\. .* --max-usd"
                ):
                    refuse(stack, 0.0, bound)
            continue
        limit.require(stack, 0.0, bound)
        with suppress(CommandRefusedError, ScriptError), limit.reserved(stack, 0.0, bound):
            if ending is not None:
                raise ending("")
        if ending is not CommandRefusedError:
            runs, current[stack] = after, at
        assert f"${sum(runs):.2f} of ${usd_limit:.2f} in all" in limit.sentence()


def test_a_deployment_beyond_the_total_of_a_server_is_refused_with_the_amounts(bench_of, audit, commands):
    agent = bench_of("up", usd_limit=15.0)
    server = build(agent, audit)
    first = anyio.run(lambda: call(server, "up", keep(agent, "one")))
    assert "$8.00 of $15.00 in all" in first.structured_content["budget"]
    seen = anyio.run(lambda: call(server, "preview", {"stack": "two"}))
    refused = anyio.run(lambda: call(server, "up", keep(agent, "two")))
    said = (
        "Stack two costs up to $8.00 in all, $16.00 with what this server has deployed; the limit is $15.00. "
        "The user has to start the server again, or with a higher --max-usd."
    )
    assert (seen.structured_content["allowed"], seen.structured_content["budget"]) == (False, said)
    assert said in refused.content[0].text
    assert [argv[argv.index("--stack") + 1] for argv in commands.run if "--yes" in argv] == ["one"]


def test_a_server_refuses_what_costs_money_while_a_state_is_unknown(bench_of, audit, commands):
    agent = bench_of("up")

    def unknown():
        raise CommandRefusedError("What stack x costs is unknown.")

    agent.spending.states = unknown
    refused = anyio.run(lambda: call(build(agent, audit), "up", keep(agent)))
    assert "What stack x costs is unknown." in refused.content[0].text
    assert commands.run == []
    seen = anyio.run(lambda: call(build(agent, audit), "preview", {"stack": STACK}))
    assert seen.structured_content["budget"] == "What stack x costs is unknown."
