"""Reports about an API that fails: after ten seconds, or before the engine, and once until the API answers."""

from datetime import UTC, datetime

import pytest
from tenacity import wait_none

from gemma_serving.cloud import google_api, troubles
from gemma_serving.cloud.clock import GoogleClock
from gemma_serving.cloud.troubles import Troubles
from gemma_serving.contracts.errors import ScriptError
from localcloud.world.scenario import Fault
from tests.cloud.populated import PROJECT, open_world


@pytest.fixture
def told(monkeypatch):
    clock, said = [0.0], []
    found = Troubles(say=said.append, now_s=lambda: clock[0])
    clock_of_google = GoogleClock(local_now=lambda: datetime(2026, 12, 1, 12, 0, 30, tzinfo=UTC))
    monkeypatch.setattr(troubles, "GOOGLE_CLOCK", clock_of_google)
    monkeypatch.setattr(google_api, "TROUBLES", found)
    return found, clock, said


def test_a_failure_that_lasts_is_told_once_until_the_api_answers(told):
    found, clock, said = told
    after_10_s = "tpu.googleapis.com fails (HTTP 500). Each call is repeated for up to 7 s, then left as unknown."
    for now_s, what, lines in (
        (0, "fails", 0), (9.9, "fails", 0), (10, "fails", 1), (30, "fails", 1), (31, "answers", 1), (32, "fails", 1), (42, "fails", 2),
    ):  # fmt: skip
        clock[0] = now_s
        if what == "fails":
            found.failed("tpu", "HTTP 500", limit_s=7)
        else:
            found.answered("tpu")
        assert said == [after_10_s] * lines, now_s


def test_before_the_engine_each_api_that_fails_is_told_at_once_with_the_end_of_the_wait(told):
    found, _, said = told
    found.failed("tpu", "HTTP 500", limit_s=7)
    found.failed("run", "HTTP 429", limit_s=7)
    found.answered("run")
    found.before_engine()
    found.before_engine()
    until = "Pulumi repeats each call for 2 min, so until 12:02:30 UTC or later."
    assert said == [f"tpu.googleapis.com fails (HTTP 500). {until}"]


def test_calls_note_what_fails_and_what_answers_also_by_a_refusal(told, monkeypatch):
    found, *_ = told
    monkeypatch.setattr(google_api, "_PAUSES", wait_none())
    with open_world() as world:
        world.cloud.cloud.scenario = world.cloud.cloud.scenario.model_copy(
            update={"faults": (Fault(method="secretmanager.*", count=4),)}
        )
        with pytest.raises(ScriptError, match="failed 4 times"):
            world.api.get("secretmanager", f"v1/projects/{PROJECT}/secrets")
        assert list(found._since) == ["secretmanager"]
        with pytest.raises(google_api.GoogleListError):
            world.api.get("secretmanager", f"v1/projects/{PROJECT}/secrets/none")
        assert found._since == {}
