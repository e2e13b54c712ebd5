"""A search finds everything of a stack wherever it is, names what it could not read, and never names what is not ours."""

from contextlib import nullcontext

import pytest
from tenacity import wait_none

from gemma_serving.cloud import google_api
from gemma_serving.cloud import search as searching
from gemma_serving.cloud.kinds import by_name
from gemma_serving.cloud.search import NOT_ENABLED, Scope
from gemma_serving.contracts.three_answers import Unknown
from localcloud.environment import API_OVERRIDES
from localcloud.tests.google_bodies import google_body
from localcloud.world.scenario import OperationDurations
from tests.answers import served
from tests.cloud.populated import PROJECT, asker, open_world, owner
from tests.cloud.test_deletion import Patience

INSTANT = OperationDurations(instant=True)
LABELS = dict(owner("x").labels)


def search(api, scope):
    """Return what a search finds that waits for nothing in earnest."""
    return searching.search(api, scope, clock=Patience().clock)


def scope(stack="x", stated=frozenset(), **more):
    return Scope(projects=[PROJECT], asker=asker(stack, stated=stated), **more)


def test_a_login_without_a_project_for_quota_proves_nothing():
    """Google refuses it with the reason of an API that is off."""
    with open_world() as world, pytest.MonkeyPatch.context() as patch:
        person = world.cloud.cloud.tokens.issue_access_token("ann@example.com")
        patch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", person)
        found = search(google_api.connect(), Scope(projects=[PROJECT], asker=asker(None)))
        assert any("requires a quota project" in sentence for sentence in found.unknown)
        assert NOT_ENABLED not in {call.outcome for call in found.calls}


def test_each_call_of_a_search_counts_for_the_project_that_it_is_about(monkeypatch):
    """An API that is off in one project says nothing about another."""
    with open_world() as world:
        ensure = {"projectId": "second-one"}
        world.api.session.post(f"{world.cloud.base_url}/admin/projects", json=ensure, timeout=30).raise_for_status()
        off = "v1/projects/local-project/services/{}.googleapis.com:disable"
        for api in ("storage", "secretmanager"):
            world.call("POST", "serviceusage", off.format(api), {})
        found = search(
            google_api.connect(PROJECT, "second-one"), Scope(projects=[PROJECT, "second-one"], asker=asker(None))
        )
        off_in = {call.path for call in found.calls if call.outcome == NOT_ENABLED}
        assert off_in
        assert not any("second-one" in path for path in off_in)
        read = [call.outcome for call in found.calls if call.kind == "bucket"]
        assert sorted(read) == [NOT_ENABLED, "read"]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (None, "No connection to 127.0.0.1:9 ("),
        ((500, "{}"), "failed 4 times (HTTP 500)"),
        ((429, "{}"), "failed 4 times (HTTP 429)"),
        ((200, "<html>Log in to this network.</html>"), "returned a response that is not a JSON object."),
    ],
)
def test_one_cause_of_all_unread_lists_is_one_sentence_and_proves_nothing(monkeypatch, answer, cause):
    monkeypatch.setattr(google_api, "_PAUSES", wait_none())
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "a")
    with served(lambda _: answer) if answer else nullcontext("http://127.0.0.1:9") as address:
        for name in API_OVERRIDES:
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}", f"{address}/")
        found = search(google_api.connect(), scope())
    (sentence,) = found.unknown
    assert f"lists in project {PROJECT} (" in sentence
    assert "kinds of resources), so resources may still exist: " in sentence
    assert cause in sentence
    assert isinstance(found.answer_about(()), Unknown)


# Whose it is


def test_a_queued_resource_has_the_labels_and_the_permission_of_its_nodes():
    def queued(*labels):
        specs = [{"node": {"labels": item}} for item in labels]
        return google_body("tpu.v2alpha1", "QueuedResource", {"tpu": {"nodeSpec": specs}})

    kind = by_name("TPU queued resource")
    assert kind.owner(queued(LABELS, LABELS)) == owner("x")
    assert kind.owner(queued(LABELS, {})) == owner("x")
    assert kind.owner(queued(LABELS, {**LABELS, "gemma-serving-stack": "y"})) is None
    assert kind.owner(queued({})) is None
    assert (kind.permission, by_name("TPU node").permission) == ("tpu.nodes.list", "tpu.nodes.list")


# Grants


def test_the_grants_of_a_deleted_account_stay_on_the_project_and_are_found():
    with open_world() as world:
        world.everything("x")
        email = f"gemma-x@{PROJECT}.iam.gserviceaccount.com"
        world.call("DELETE", "iam", f"v1/projects/{PROJECT}/serviceAccounts/{email}")
        (grant,) = [item for item in search(world.api, scope()).found if item.kind == "IAM grant"]
    assert grant.document["member"].startswith(f"deleted:serviceAccount:{email}?uid=")


def test_a_grant_on_somebody_elses_bucket_is_found():
    with open_world() as world:
        world.everything("x")
        world.bucket("their-weights", {})
        world.grant_on_bucket("their-weights", f"serviceAccount:gemma-x@{PROJECT}.iam.gserviceaccount.com")
        names = [item.name for item in search(world.api, scope()).found if item.kind == "IAM grant"]
    assert len(names) == 2
    assert names[0].startswith("projects/_/buckets/their-weights roles/storage.objectViewer ")
