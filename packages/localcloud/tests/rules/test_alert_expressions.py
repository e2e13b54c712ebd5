"""Each alert of a serving stack fires on the series that it is for and is silent on its neighbour, on time stamps and without waiting."""

import pytest

from localcloud.services.monitoring_rules import ExpressionError as UnparsedError
from localcloud.services.monitoring_rules import metrics_in
from localcloud.tests.rules.alert_cases import CASES, START_S, Case, Part
from localcloud.tests.rules.built import evaluated
from localcloud.tests.rules.evaluator import Alert, Evaluator, ExpressionError, Scrape

_STEP_S = 30


def scrapes(parts: list[Part]) -> list[tuple[int, Scrape]]:
    """The scrapes of a series, in the order of time."""
    found = []
    for part in parts:
        first, last = (int(minute * 60) for minute in part.minutes)
        for count, second in enumerate(range(first, last + 1, _STEP_S)):
            text = "".join(f"{name} {start + count * growth}\n" for name, (start, growth) in part.samples.items())
            found.append(
                (second, Scrape(text=text, labels={"namespace": "g", "instance": "i1", "job": part.job}, up=part.up))
            )
    return sorted(found, key=lambda each: each[0])


async def firing(evaluator: Evaluator, case: Case, parts: list[Part]) -> list[Alert]:
    """Return the alerts that fire at the end of a series. Rules with a duration are evaluated at each step of it."""
    await evaluator.set_rule(case.name, case.expression, for_s=case.for_s, labels={})
    series = scrapes(parts)
    for second, scrape in series:
        await evaluator.scrape((START_S + second) * 1000, scrape)
    end = series[-1][0]
    for second in range(max(0, end - int(case.for_s) - _STEP_S), end + 1, _STEP_S):
        result = await evaluator.evaluate((START_S + second) * 1000, [case.name])
        assert result.errors == {}
    return [alert for alert in result.alerts if alert.firing]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_alert_fires_on_its_series_and_not_on_its_neighbour(case):
    fired = evaluated(lambda evaluator: firing(evaluator, case, case.fires))
    assert [alert.labels.get("namespace", "g") for alert in fired] == ["g"]
    assert evaluated(lambda evaluator: firing(evaluator, case, case.silent)) == []


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
