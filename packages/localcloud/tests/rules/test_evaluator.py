"""The evaluator of the tests of alerts: what it rejects, which rules it keeps, and whether the local cloud's parser agrees with Prometheus'."""

import asyncio

import pytest

from localcloud.services.monitoring_rules import ExpressionError as UnparsedError
from localcloud.services.monitoring_rules import metrics_in
from localcloud.tests.rules.alert_cases import CASES
from localcloud.tests.rules.built import evaluated, evaluator_program
from localcloud.tests.rules.evaluator import Evaluator, EvaluatorExitedError, ExpressionError, Scrape

T = 1_800_000_000_000
INVALID = (
    "",
    "sum(rate(x[5m])",
    "rate(x)",
    "x[5m] > 1",
    "x{}[5m:",
    'x{a=~"("}',
    'x{a="b"',
    '{a=""}',
    "no_such_function(x)",
    "sum by (a b) (x)",
    "x and on (a) group_left y",
    "x[1.5m]",
    "x offset y",
    "1 +",
)


def scrape(text):
    return Scrape(text=text, labels={"namespace": "g"}, up=True)


def test_the_local_cloud_accepts_and_rejects_the_same_expressions_as_prometheus():
    async def work(evaluator):
        for expression in sorted({case.expression for case in CASES}):
            await evaluator.check(expression)
            assert metrics_in(expression) != []
        for expression in INVALID:
            with pytest.raises(ExpressionError):
                await evaluator.check(expression)
            with pytest.raises(UnparsedError):
                metrics_in(expression)

    evaluated(work)


def test_a_broken_scrape_stores_nothing():
    async def work(evaluator):
        with pytest.raises(ExpressionError):
            await evaluator.scrape(T, scrape("a 1\nthis is not an exposition\n"))
        await evaluator.set_rule("r", "a", for_s=0, labels={})
        return (await evaluator.evaluate(T, ["r"])).alerts

    assert evaluated(work) == ()


def test_a_replaced_rule_forgets():
    async def work(evaluator):
        states = []
        for step, (expression, for_s) in enumerate([("a > 0", 60), ("a > 0", 60), ("a > 0.5", 60)]):
            at = T + step * 60_000
            await evaluator.scrape(at, scrape("a 1\n"))
            if step != 1:
                await evaluator.set_rule("r", expression, for_s=for_s, labels={"own": "label"})
            states += [alert.firing for alert in (await evaluator.evaluate(at, ["r"])).alerts]
        return states, (await evaluator.evaluate(T + 180_000, ["another"])).errors

    assert evaluated(work) == ([False, True, False], {"another": "no such rule"})


def test_a_rule_that_fails_does_not_stop_the_others():
    async def work(evaluator):
        await evaluator.scrape(T, scrape('a{x="1"} 1\na{x="2"} 1\n'))
        await evaluator.set_rule("bad", "a * on (namespace) a > 0", for_s=0, labels={})
        await evaluator.set_rule("good", "a > 0", for_s=0, labels={})
        return await evaluator.evaluate(T, ["bad", "good"])

    result = evaluated(work)
    assert "many-to-many matching not allowed" in result.errors["bad"]
    assert {alert.rule for alert in result.alerts} == {"good"}


def test_a_stopped_evaluator_leaves_nothing(tmp_path):
    program = evaluator_program()

    async def run():
        evaluator = await Evaluator.start(program, tmp_path)
        await evaluator.scrape(T, scrape("a 1\n"))
        assert list((tmp_path).iterdir())
        await evaluator.stop()

    asyncio.run(run())
    assert list((tmp_path).iterdir()) == []


def test_an_evaluator_that_exited_is_an_error_not_a_wait():
    async def work(evaluator):
        evaluator._process.kill()
        await evaluator._process.wait()
        with pytest.raises(EvaluatorExitedError):
            await evaluator.check("a")

    evaluated(work)
