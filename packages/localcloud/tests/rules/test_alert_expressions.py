"""Each alert of a serving stack fires on the series that it is for and is silent on its neighbour, on time stamps and without waiting."""

import pytest

from localcloud.services.monitoring_rules import ExpressionError, metrics_in
from localcloud.tests.rules.alert_cases import CASES, NAMESPACE, RULES, START_S
from localcloud.tests.rules.evaluator import answers

_STEP_S = 30


def scrapes(parts):
    """Return second and request of each scrape, in the order of time."""
    found = []
    for part in parts:
        labels = {"namespace": NAMESPACE, "instance": "i1", "job": part.job}
        up = {} if part.up is None else {"up": part.up}
        first, last = (int(minute * 60) for minute in part.minutes)
        for count, second in enumerate(range(first, last + 1, _STEP_S)):
            text = "".join(f"{name} {start + count * growth}\n" for name, (start, growth) in part.samples.items())
            at_ms = (START_S + second) * 1000
            found.append((second, {"op": "scrape", "atMs": at_ms, "text": text, "labels": labels, **up}))
    return sorted(found, key=lambda each: each[0])


def firing(rule, parts):
    """Return the namespaces for which a rule fires at the end of a series. A rule with a duration is evaluated at each step of it."""
    series = scrapes(parts)
    end = series[-1][0]
    start = max(0, end - int(rule.for_s) - _STEP_S)
    given = answers(
        [
            {"op": "rule", "name": "r", "expr": rule.expression, "forS": rule.for_s, "labels": {}},
            *(scrape for _, scrape in series),
            *(
                {"op": "eval", "atMs": (START_S + second) * 1000, "names": ["r"]}
                for second in range(start, end + 1, _STEP_S)
            ),
        ]
    )
    assert [answer for answer in given if answer.get("error") or answer.get("errors")] == []
    return [alert["labels"].get("namespace", NAMESPACE) for alert in given[-1]["alerts"] if alert["state"] == "firing"]


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        pytest.param(condition, name, id=f"{condition[1]}, {name}")
        for condition, cases in CASES.items()
        for name in cases
    ],
)
def test_an_alert_fires_on_its_series_and_not_on_its_neighbour(condition, name):
    fires, silent = CASES[condition][name]
    assert firing(RULES[condition], fires) == [NAMESPACE]
    assert firing(RULES[condition], silent) == []


def test_every_condition_of_a_stack_has_a_case():
    judged = {RULES[condition] for condition in CASES}
    assert [condition for condition, rule in RULES.items() if rule not in judged] == []


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
    valid = sorted({rule.expression for rule in RULES.values()})
    given = answers([{"op": "check", "expr": expression} for expression in (*valid, *INVALID)])
    assert ["error" in answer for answer in given] == [False] * len(valid) + [True] * len(INVALID)
    for expression in valid:
        assert metrics_in(expression) != []
    for expression in INVALID:
        with pytest.raises(ExpressionError):
            metrics_in(expression)
