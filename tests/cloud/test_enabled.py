"""The wait for an API that was just enabled has an end, and only such an answer is waited for."""

import pytest

from gemma_serving.cloud import enabled
from gemma_serving.cloud.clock import WaitClock
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.three_answers import Absent, Present, Unknown

OFF = Unknown("the API storage.googleapis.com is off or was just enabled", "api off", "storage")


def waited(monkeypatch, answers):
    """Return the seconds that `await_api` waited for these answers, the last one repeated, and what it reported."""
    now, said, left = [0.0], [], list(answers)

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(enabled, "lookup", lambda *_: left.pop(0) if len(left) > 1 else left[0])
    clock = WaitClock(now_s=lambda: now[0], sleep=sleep)
    try:
        enabled.await_api(None, "storage", "b", say=said.append, clock=clock)
    except ScriptError as error:
        return now[0], said, str(error)
    return now[0], said, None


SAID = "waiting up to 300 s for storage.googleapis.com (recently enabled)"


@pytest.mark.parametrize(
    ("answers", "seconds", "lines"),
    [
        *(([answer], 0, []) for answer in (Present({}), Absent(), Unknown("denied", "denied"), Unknown("HTTP 500"))),
        ([OFF, OFF, Present({})], 20, [SAID]),
        ([OFF], 300, [SAID]),
    ],
)
def test_only_an_api_that_is_off_is_waited_for_and_not_for_ever(monkeypatch, answers, seconds, lines):
    waited_s, said, error = waited(monkeypatch, answers)
    assert (waited_s, said) == (seconds, lines)
    assert (error is None) is (answers != [OFF])
    assert error is None or "storage.googleapis.com is off or was just enabled" in error
