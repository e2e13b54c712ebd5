"""cloudRun.rollout, readinessProbe and ingress: defaults, limits, and what they mean for the plan."""

import pytest

from scripts.doctor.permissions import permissions_of
from stacks.loading import SettingsError
from stacks.planned import to_deployment
from tests.stacks.test_loading import changed, load


def with_key(key, value):
    return load(changed("l4-qat", f"cloudRun.{key}", value)).cloud_run


def test_the_plan_knows_that_a_second_revision_runs():
    assert to_deployment(load(changed("l4-qat", "cloudRun.rollout", {}))).cloud_run.rollout is not None
    assert to_deployment(load(changed("l4-qat", "cloudRun.cpu", 8))).cloud_run.rollout is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rollout", {"steps": [10, 100]}, "moves all traffic in one step"),
        ("rollout", {"traffic": {"gemma-x-1": 90}}, "traffic adds up to 90 percent; expected 100"),
        ("rollout", {"traffic": {}}, "traffic adds up to 0 percent"),
        ("rollout", {"traffic": {"Gemma": 100}}, "a revision's name"),
        ("rollout", {"traffic": {"gemma-x-1": 0, "gemma-x-2": 100}}, "traffic"),
        ("readinessProbe", {"period": "301s"}, "period is 301s; expected 1s to 300s"),
        ("readinessProbe", {"period": "5s", "timeout": "6s"}, "timeout is 6s; expected 1s to 5s, the period"),
        ("ingress", "outside", "ingress"),
    ],
)
def test_values_outside_their_limits_are_refused(key, value, words):
    with pytest.raises(SettingsError, match=words):
        with_key(key, value)


def test_the_doctor_asks_for_the_rights_that_a_roll_out_needs():
    def held(settings):
        return {permission for each in permissions_of(settings) for permission in each.permissions}

    without, with_rollout = (
        load(changed("l4-qat", "cloudRun.cpu", 8)),
        load(changed("l4-qat", "cloudRun.rollout", {})),
    )
    assert held(with_rollout) - held(without) == {"run.revisions.list", "run.operations.get"}
