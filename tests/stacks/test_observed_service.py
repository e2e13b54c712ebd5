"""The service that exists is read before anything is declared; without an answer nothing is."""

import threading
from dataclasses import replace

import pulumi
import pytest

from cloud import google_calls
from cloud.google_calls import GoogleCallError
from contracts.errors import CommandRefusedError
from contracts.service_traffic import BY_REVISION
from stacks.hooks import observed_service
from stacks.hooks.observed_service import ServicePlace, require_revisions
from stacks.program import UserError

PLACE = ServicePlace(project="p", region="us-east4", name="gemma-x", stack="x")
SERVES = {"trafficStatuses": [{"type": BY_REVISION, "revision": "gemma-x-2", "percent": 100}]}


def answer(monkeypatch, given):
    def call_now(api, path, *, project, limit_s):
        assert (api, path, project) == ("run", "v2/projects/p/locations/us-east4/services/gemma-x", "p")
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(observed_service, "call_now", call_now)


def test_an_api_that_is_off_lets_a_service_be_made_and_none_be_changed(monkeypatch, declare):
    """A change would declare the traffic anew, and move it."""
    transforms = []
    monkeypatch.setattr(pulumi.runtime, "register_stack_transformation", transforms.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    answer(monkeypatch, GoogleCallError(403, "off", "SERVICE_DISABLED"))
    declare(lambda: observed_service.observed_service(PLACE))
    (transform,) = transforms
    given = pulumi.ResourceTransformationArgs(None, "gcp:cloudrunv2/service:Service", "n", {}, pulumi.ResourceOptions())
    hooks = transform(given).opts.hooks
    assert hooks.before_create is None
    (hook,) = hooks.before_update
    with pytest.raises(CommandRefusedError, match=r"Service gemma-x was not changed, because its traffic is unknown"):
        hook.callback(pulumi.ResourceHookArgs("urn", "", "vllm", "t"))


def test_a_service_that_cannot_be_read_stops_the_program_with_a_sentence(monkeypatch):
    answer(monkeypatch, GoogleCallError(0, "no answer within 20 s"))
    with pytest.raises(CommandRefusedError) as caught:
        observed_service.observed_service(PLACE)
    assert (
        "Cannot read the traffic of service gemma-x: no answer within 20 s. Nothing was deployed, because cloudRun.rollout must keep"
        in str(caught.value)
    )
    assert isinstance(caught.value, UserError)


def test_shares_that_google_does_not_say_stop_the_program(monkeypatch):
    """Without them a changed template would follow the latest revision: all requests would move."""
    for statuses in ([], [{"revision": "gemma-x-1", "percent": 90}]):
        answer(monkeypatch, {"latestReadyRevision": "s/revisions/gemma-x-1", "trafficStatuses": statuses})
        with pytest.raises(CommandRefusedError, match="Google did not return the traffic split of service gemma-x"):
            observed_service.observed_service(PLACE)


def test_a_name_that_leaves_no_room_for_a_tag_is_refused(monkeypatch):
    answer(monkeypatch, {})
    with pytest.raises(CommandRefusedError, match="46 characters"):
        observed_service.observed_service(replace(PLACE, name="g" * 43))


def pages(monkeypatch, *answers):
    """Plant the pages of the list of revisions; return the paths that were asked for."""
    asked, left = [], list(answers)

    def call_now(api, path, **_):
        asked.append(path.removeprefix(PLACE.path))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(observed_service, "call_now", call_now)
    return asked


def revision(name, *, started=True):
    conditions = [{"type": "Ready", "state": "CONDITION_SUCCEEDED" if started else "CONDITION_FAILED"}]
    return {"name": f"projects/p/locations/us-east4/services/gemma-x/revisions/{name}", "conditions": conditions}


def test_shares_of_revisions_that_started_pass_on_any_page(monkeypatch):
    asked = pages(
        monkeypatch,
        {"revisions": [revision("gemma-x-3")], "nextPageToken": "a/b"},
        {"revisions": [revision("gemma-x-1")]},
    )
    require_revisions(PLACE, SERVES, {"gemma-x-1": 50, "gemma-x-2": 50})
    assert asked == ["/revisions", "/revisions?pageToken=a%2Fb"]


@pytest.mark.parametrize("found", [[], [revision("gemma-x-1", started=False)]])
def test_shares_of_a_revision_that_cannot_serve_are_refused_with_those_that_can(monkeypatch, found):
    pages(monkeypatch, {"revisions": [revision("gemma-x-2"), *found]})
    with pytest.raises(CommandRefusedError, match=r"gemma-x-1 of gemma-x does not exist .*Ready revisions: gemma-x-2"):
        require_revisions(PLACE, SERVES, {"gemma-x-1": 100})


def test_shares_without_a_service_or_a_list_are_refused(monkeypatch):
    with pytest.raises(CommandRefusedError, match="Ready revisions: none"):
        require_revisions(PLACE, None, {"gemma-x-1": 100})
    pages(monkeypatch, GoogleCallError(403, "Forbidden."))
    with pytest.raises(CommandRefusedError, match=r"Cannot list the revisions of gemma-x, .*: Forbidden"):
        require_revisions(PLACE, SERVES, {"gemma-x-1": 100})


def test_a_call_that_never_answers_ends_with_its_limit(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(google_calls, "_ask", lambda *_, **__: release.wait(60))
    with pytest.raises(GoogleCallError, match="no response within 0 s"):
        google_calls.call_now("run", "v2/x", project="p", limit_s=0.05)
    release.set()
