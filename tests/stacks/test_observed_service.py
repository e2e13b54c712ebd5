"""The service that exists is read before anything is declared; without an answer nothing is."""

import threading

import pytest

from stacks import google_calls, observed_service
from stacks.google_calls import GoogleCallError
from stacks.observed_service import ServiceNotReadError, next_step
from stacks.program import UserError

PLACE = {"project": "p", "region": "us-east4", "name": "gemma-x", "stack": "x"}


def answer(monkeypatch, given):
    def call_now(api, path, *, project, limit_s):
        assert (api, path, project) == ("run", "v2/projects/p/locations/us-east4/services/gemma-x", "p")
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(observed_service, "call_now", call_now)


def test_a_service_is_returned_as_google_has_it(monkeypatch):
    answer(monkeypatch, {"name": "n"})
    assert observed_service.observed_service(**PLACE) == {"name": "n"}


@pytest.mark.parametrize("error", [GoogleCallError(404, "no"), GoogleCallError(403, "off", "SERVICE_DISABLED")])
def test_no_service_and_an_api_that_is_off_are_a_first_deployment(monkeypatch, error):
    answer(monkeypatch, error)
    assert observed_service.observed_service(**PLACE) is None


def test_a_service_that_cannot_be_read_stops_the_program_with_a_sentence(monkeypatch):
    answer(monkeypatch, GoogleCallError(0, "no answer within 20 s"))
    with pytest.raises(ServiceNotReadError) as caught:
        observed_service.observed_service(**PLACE)
    assert "gemma-x could not be read (no answer within 20 s), and with cloudRun.rollout nothing is deployed" in str(
        caught.value
    )
    assert isinstance(caught.value, UserError)


def test_a_name_that_leaves_no_room_for_a_tag_is_refused(monkeypatch):
    answer(monkeypatch, {})
    with pytest.raises(ServiceNotReadError, match="46 characters"):
        observed_service.observed_service(**{**PLACE, "name": "g" * 43})


def test_a_call_that_never_answers_ends_with_its_limit(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(google_calls, "_ask", lambda *_: release.wait(60))
    with pytest.raises(GoogleCallError, match="no answer within 0 s"):
        google_calls.call_now("run", "v2/x", project="p", limit_s=0.05)
    release.set()


def test_an_error_in_a_call_reaches_who_waits(monkeypatch):
    def refuse(*_):
        raise GoogleCallError(403, "denied")

    monkeypatch.setattr(google_calls, "_ask", refuse)
    with pytest.raises(GoogleCallError, match="denied"):
        google_calls.call_now("run", "v2/x", project="p", limit_s=20)


def test_an_up_names_the_roll_out_only_while_a_revision_waits_for_it():
    waits = {"latestReadyRevision": "s/revisions/s-2", "trafficStatuses": [{"revision": "s-1", "percent": 100.0}]}
    assert "Revision s-2 has no requests yet" in next_step(waits, "x")
    assert "python -m scripts.rollout --stack x" in next_step(waits, "x")
    assert next_step({**waits, "latestReadyRevision": "s/revisions/s-1"}, "x") == ""
    assert next_step({}, "x") == ""
