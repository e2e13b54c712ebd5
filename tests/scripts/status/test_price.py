"""The price of served tokens: cost and tokens of the same time, unknown is never 0, and a break-even at which both cost the same."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.cloud.served_tokens import served_tokens, tokens_query
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.stack_facts import CloudFacts
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.status.__main__ import COMMAND
from gemma_serving.scripts.status.price import token_price
from gemma_serving.scripts.status.report import ServerFacts
from localcloud.services.monitoring import set_alerts
from localcloud.services.monitoring_rules import metrics_in
from tests.cloud.populated import PROJECT, open_world
from tests.laws import examples
from tests.scripts.sample_outputs import sample_outputs

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TOKENS = st.tuples(st.sampled_from([0.0, 7e5, 9e6]), st.sampled_from([0.0, 1.0, 2e6]))
ANSWER = st.one_of(st.just(Unknown("denied")), st.just(Absent()), TOKENS.map(Present))
USD = st.sampled_from([None, 0.0, 0.5, 40.0])
SPEED = 900


def outputs(target):
    return from_json(StackOutputs, sample_outputs(target=target))


@st.composite
def histories(draw):
    """The reports of Google, Cloud Monitoring and the server on a stack that started some hours ago."""
    hours = draw(st.sampled_from([1, 23, 24, 25, 70]))
    cloud = CloudFacts(
        state="READY",
        since=(NOW - timedelta(hours=hours)).isoformat(),
        usd=draw(USD),
        usd_is_least=draw(st.booleans()),
        usd_last_day=draw(USD),
        running_usd_per_hour=draw(st.sampled_from([None, 1.35, 5.4])),
    )
    restarted_h = draw(st.none() | st.sampled_from([0, 1, 5]))
    server = ServerFacts(
        health="ready",
        tokens=draw(st.none() | TOKENS),
        started_s=None if restarted_h is None else NOW.timestamp() - restarted_h * 3600,
    )
    return hours, cloud, draw(st.none() | st.just(server)), (draw(ANSWER), draw(ANSWER))


def modelled(usd, answer):
    """Return the price of tokens: a number, "none" or "unknown"."""
    if not isinstance(answer, Present):
        return "unknown"
    if not answer.value[1]:
        return "none"
    return usd / answer.value[1] * 1e6 if usd else "unknown"


def shown(cost):
    if cost.unknown:
        assert cost.usd_per_million_output_tokens is None
        return "unknown"
    return "none" if cost.usd_per_million_output_tokens is None else pytest.approx(cost.usd_per_million_output_tokens)


@effort(max_examples=examples(test=300, part=1000, night=5000))
@given(histories(), st.sampled_from(["tpu", "cloud-run"]), st.sampled_from([(0.0, 0.4), (0.15, 0.6), (30.0, 30.0)]))
def test_dollars_by_tokens_agree_and_at_the_break_even_the_api_costs_as_much(history, target, api):
    hours, cloud, server, answers = history
    counted = (server.tokens, server.started_s) if server and server.tokens and server.started_s else None
    price = token_price(cloud, outputs(target), counted, answers, api=api, now=NOW)
    expected, since_h = modelled(None if cloud.usd_is_least else cloud.usd, answers[0]), hours
    rate = cloud.running_usd_per_hour
    if expected == "unknown" and server and server.tokens and server.started_s and rate:
        since_h = (NOW.timestamp() - server.started_s) / 3600
        expected = modelled(rate * since_h, Present(server.tokens))
    assert expected == shown(price.since_start)
    assert price.since_start.since_s == NOW.timestamp() - since_h * 3600
    day = price.since_start if hours <= 24 else price.last_day
    assert (price.last_day is price.since_start) is (hours <= 24)
    assert hours <= 24 or modelled(cloud.usd_last_day, answers[1]) == shown(day)
    latest = price.since_start if day.usd_per_million_output_tokens is None else day
    made = price.break_even_output_tokens_per_day
    if latest.usd_per_million_output_tokens is None:
        assert made is None or target == "tpu"
    if made is None:
        return
    inputs = made * latest.tokens[0] / latest.tokens[1]
    assert (made * api[1] + inputs * api[0]) / 1e6 == pytest.approx(price.usd_per_day)
    lived_h = (NOW.timestamp() - latest.since_s) / 3600
    assert price.usd_per_day == pytest.approx(24 * rate if target == "tpu" else 24 / lived_h * latest.usd)
    most = SPEED * 3600 * price.usd_per_day / rate if rate else None
    assert most is None or made < most


def test_after_a_day_without_requests_the_mix_of_input_and_output_is_that_since_the_start():
    cloud = CloudFacts(state="READY", since=(NOW - timedelta(days=5)).isoformat(), usd=3.0, usd_last_day=0.0)
    answers = (Present((4e6, 1e6)), Present((0.0, 0.0)))
    price = token_price(cloud, outputs("cloud-run"), None, answers, api=(0.25, 1.0), now=NOW)
    assert price.api_usd_per_million_output_tokens == pytest.approx(2.0)
    assert price.break_even_output_tokens_per_day == pytest.approx(0.6 / 2 * 1e6)


def test_a_stack_without_a_start_has_no_price_and_one_that_is_too_slow_never_costs_less():
    cloud = CloudFacts(state="ACTIVE", usd=0.0)
    assert token_price(cloud, outputs("tpu"), None, (Absent(), Absent()), api=None, now=NOW) is None
    started = replace(cloud, since=NOW.isoformat(), usd=4.0, running_usd_per_hour=5.4)
    slow = token_price(started, outputs("tpu"), None, (Present((1.0, 1.0)),) * 2, api=(0.1, 0.2), now=NOW)
    assert slow.break_even_output_tokens_per_day is None
    assert slow.api_text.endswith("; never more than the stack at the planned speed")


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({"prompt": 900, "generation": 30}, Present((900.0, 30.0))),
        ({"prompt": 0, "generation": 0}, Present((0.0, 0.0))),
        ({"prompt": None, "generation": None}, "no metrics of its first hours"),
        ({}, "has no result of the query"),
    ],
)
def test_tokens_come_from_cloud_monitoring_or_are_unknown(results, expected):
    with open_world() as world:
        queries = {tokens_query(kind, "gemma-x", 24, 60): value for kind, value in results.items()}
        for query in queries:
            assert len(metrics_in(query)) == 1
        set_alerts(world.cloud.cloud, {"project": PROJECT, "queries": queries})
        since_start, day = served_tokens(world.api, PROJECT, "gemma-x", 59.5 * 3600)
        assert isinstance(since_start, Unknown)
        assert day == expected or expected in day.why


@pytest.mark.parametrize("age_s", [0.0, 10.0, 3 * 3600.0, 3 * 3600.1, 1e6])
def test_google_accepts_the_query_of_each_age(age_s):
    asked = []

    def post(_api, _path, body):
        asked.append(body["query"])
        return {"data": {"result": [{"metric": {}, "value": [0, "5"]}]}}

    assert served_tokens(SimpleNamespace(post=post), "p", "gemma-x", age_s) == (Present((5.0, 5.0)),) * 2
    assert [len(metrics_in(query)) for query in asked] == [1] * 4


def test_where_cloud_monitoring_is_refused_the_tokens_are_unknown():
    def refused(*_):
        raise TimeoutError("no answer")

    found = served_tokens(SimpleNamespace(post=refused), "p", "gemma-x", 0.0)
    assert [one.why for one in found] == ["Cloud Monitoring: no answer"] * 2


@pytest.mark.parametrize("text", ["", "a", "-1", "1,2,3", "1,0", "nan", "1,inf", "0"])
def test_a_price_of_an_api_that_is_none_is_refused_with_the_allowed_form(text, capsys):
    assert run_command(COMMAND, [f"--api-price={text}"]) == 2
    assert "it must be dollars per million tokens: one price, or IN,OUT" in capsys.readouterr().err
