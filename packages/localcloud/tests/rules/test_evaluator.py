"""The protocol of the evaluator: what it stores, what it answers, and Prometheus' words for what it rejects."""

import asyncio

import pytest

from localcloud.rules.evaluator import Evaluator, EvaluatorExitedError, ExpressionError, Scrape
from localcloud.tests.rules.built import evaluated, evaluator_program

T = 1_800_000_000_000
LABELS = {"service_name": "s"}
RESOURCE = {"namespace": "g"}


def scrape(text, **changes):
    return Scrape(**{"text": text, "labels": LABELS, "resource": RESOURCE, "up": True, **changes})


def stored(text, **changes):
    """What is stored of one scrape: (name, labels without those of the target, value)."""

    async def work(evaluator):
        await evaluator.scrape(T, scrape(text, **changes))
        found = (await evaluator.query(T, '{__name__=~".+"}'))["result"]
        return sorted(
            (each["metric"].pop("__name__"), tuple(sorted(each["metric"].items())), each["value"][1]) for each in found
        )

    return evaluated(work)


OWN = (("namespace", "g"), ("service_name", "s"))


def test_samples_get_the_labels_of_target_and_resource_and_up():
    assert stored('# TYPE a gauge\na{b="c"} 2\n') == [("a", (("b", "c"), *OWN), "2"), ("up", OWN, "1")]


def test_a_target_that_did_not_answer_is_down():
    assert stored("", up=False) == [("up", OWN, "0")]


def test_relabelling_sees_the_targets_labels_and_not_the_resources():
    keep = [{"source_labels": ["__name__", "service_name", "namespace"], "regex": "a;s;", "action": "keep"}]
    assert [name for name, _, _ in stored("a 1\nb 1\n", relabel=keep)] == ["a", "up"]


def test_a_label_of_the_sample_that_the_target_has_too_is_exported():
    assert stored('a{namespace="own"} 1\n', up=None) == [("a", (("exported_namespace", "own"), *OWN), "1")]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("this is not an exposition\n", {}),
        ("a 1\n", {"relabel": [{"action": "keeep"}]}),
        ("a 1\n", {"relabel": [{"regex": "("}]}),
    ],
)
def test_a_broken_scrape_stores_nothing(text, changes):
    async def work(evaluator):
        with pytest.raises(ExpressionError):
            await evaluator.scrape(T, scrape(text, **changes))
        return (await evaluator.query(T, '{__name__=~".+"}'))["result"]

    assert evaluated(work) == []


def test_a_check_names_the_metrics_and_those_without_a_sample():
    async def work(evaluator):
        await evaluator.scrape(T, scrape("a 1\n"))
        return await evaluator.check('sum(rate(a[5m])) / on () {"b:c"} > vector(1)')

    checked = evaluated(work)
    assert (checked.metrics, checked.unknown) == (("a", "b:c"), ("b:c",))


def test_a_replaced_rule_forgets_and_a_dropped_rule_is_gone():
    async def work(evaluator):
        states = []
        for step, (expression, for_s) in enumerate([("a > 0", 60), ("a > 0", 60), ("a > 0.5", 60)]):
            at = T + step * 60_000
            await evaluator.scrape(at, scrape("a 1\n"))
            if step != 1:
                await evaluator.set_rule("r", expression, for_s=for_s, labels={"own": "label"})
            states += [alert.firing for alert in (await evaluator.evaluate(at, ["r"])).alerts]
        await evaluator.drop_rule("r")
        return states, (await evaluator.evaluate(T + 180_000, ["r"])).errors

    assert evaluated(work) == ([False, True, False], {"r": "no such rule"})


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
