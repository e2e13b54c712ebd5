"""Laws about an absence: no answer of a list but a whole one, and no answer of a resource but its own name or 404, proves that nothing is left."""

import json
from types import SimpleNamespace

import pytest

from gemma_serving.cloud.google_api import GoogleApi, listed, lookup_resource
from gemma_serving.cloud.kinds import KINDS, LOCATIONS
from gemma_serving.cloud.search import READ, search
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.labelled import SearchedStacks
from gemma_serving.scripts.teardown import removal
from gemma_serving.scripts.teardown.output import text_of
from gemma_serving.scripts.teardown.removal import Teardown
from gemma_serving.scripts.teardown.teardown_options import TeardownOptions
from tests.cloud.populated import PROJECT, open_world
from tests.cloud.test_deletion import Patience

GONE = {"error": {"code": 404, "message": "Requested entity was not found.", "status": "NOT_FOUND"}}
ANSWERS = {
    "404": (404, GONE),
    "410": (410, GONE),
    "an error with status 200": (200, {"error": {"code": 8, "message": "Quota exceeded."}}),
    "no second page": (200, {"nextPageToken": "second"}),
    "nothing": (200, {}),
}
"""What a list of a place can answer while the place holds a resource. `nothing` is of the lists of locations, which are never empty."""
SEARCHED = SearchedStacks(
    stack="x",
    states=[StackState(stack="x", status="missing", projects=(PROJECT,))],
    settings={},
    projects=[PROJECT],
    is_name_known=True,
)


class Replay:
    """A session that answers as the local cloud did, but for one path."""

    def __init__(self, session):
        self.session, self.stored, self.path, self.answer = session, {}, "", ""

    def request(self, verb, url, **given):
        token = (given.get("params") or {}).get("pageToken", "")
        if self.path and url.partition("?")[0].endswith(f"/{self.path}"):
            return Response(url, *(ANSWERS["404"] if token else ANSWERS[self.answer]))
        key = (verb, url, token)
        if key not in self.stored:
            found = self.session.request(verb, url, **{**given, "stream": False})
            self.stored[key] = (found.status_code, found.json())
        return Response(url, *self.stored[key])


class Response:
    """The part of an answer of `requests` that is read."""

    def __init__(self, url, status, body):
        self.url, self.status_code, self.ok, self.headers = url, status, status < 400, {}
        self.content = json.dumps(body).encode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def iter_content(self, _):
        yield self.content


@pytest.fixture(scope="module")
def empty():
    """A project in which every list is whole and has nothing of a stack, and the paths of its lists."""
    with open_world() as world:
        replay = Replay(world.api.session)
        api = GoogleApi(replay, world.api.projects)
        calls = search(api, SEARCHED.scope(()), clock=Patience().clock).calls
        assert {call.outcome for call in calls} == {READ}
        assert {call.kind for call in calls} >= {kind.kind for kind in KINDS}
        yield SimpleNamespace(api=api, replay=replay, calls=calls)


def torn_down(api, monkeypatch):
    """Return the receipt of a dry run, and what it prints."""
    monkeypatch.setattr(removal, "progress", lambda _: None)
    teardown = Teardown(
        options=TeardownOptions(stack="x", dry_run=True), known=SEARCHED, api=api, clock=Patience().clock
    )
    teardown.run()
    receipt = teardown.receipt()
    return receipt, text_of(receipt)


def test_a_project_without_a_resource_is_clean(empty, monkeypatch):
    receipt, text = torn_down(empty.api, monkeypatch)
    assert (receipt.clean, "nothing to delete: every list was read" in text) == (True, True)


def test_no_list_without_a_whole_answer_proves_that_nothing_is_left(empty, monkeypatch, subtests):
    """What each list could show is the only resource of the world: the others have none."""
    locations = {path.format(p=PROJECT).partition("?")[0] for path in LOCATIONS.values()}
    for api, path in ((call.api, call.path) for call in empty.calls):
        for answer in ANSWERS:
            if answer == "nothing" and path not in locations:
                continue
            with subtests.test(f"{path}: {answer}"), monkeypatch.context() as patch:
                patch.setattr(empty.replay, "path", path)
                patch.setattr(empty.replay, "answer", answer)
                receipt, text = torn_down(empty.api, monkeypatch)
                assert (receipt.clean, "nothing to delete" in text) == (False, False)
                unread = listed(empty.api, api, path).answer
                assert isinstance(unread, Unknown) or answer == "nothing"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_only_404_says_that_a_resource_is_gone_and_only_its_own_name_that_it_is_there(empty, monkeypatch, kind):
    name = kind.named(dict.fromkeys(kind.needs, "one"))
    own = {"name": name.rpartition("/")[2] if kind.api in {"storage", "compute"} else name}
    bodies = {
        "its name": (200, own),
        "another": (200, {"name": f"{own['name']}-2"}),
        "operation": (200, {"done": True}),
    }
    monkeypatch.setattr(empty.replay, "path", kind.address(name))
    found = {}
    for answer, body in {**ANSWERS, **bodies}.items():
        monkeypatch.setitem(ANSWERS, answer, body)
        monkeypatch.setattr(empty.replay, "answer", answer)
        found[answer] = type(lookup_resource(empty.api, kind, name))
    assert found == {**dict.fromkeys(found, Unknown), "404": Absent, "410": Absent, "its name": Present}
