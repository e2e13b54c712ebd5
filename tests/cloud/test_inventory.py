"""A search finds everything of a stack wherever it is, names what it could not read, and never names what is not ours."""

import os
from contextlib import nullcontext

import pytest
from tenacity import wait_none

from gemma_serving.cloud import google_api
from gemma_serving.cloud import search as searching
from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.kinds import by_name
from gemma_serving.cloud.search import NO_SUCH_PLACE, NOT_ENABLED, Scope, search
from gemma_serving.contracts.answers import Absent, Unknown
from gemma_serving.contracts.search_results import Inventory
from localcloud.tests.google_bodies import google_answer, google_body
from localcloud.world.scenario import Fault, OperationDurations, Scenario, Services
from tests.answers import served
from tests.cloud.populated import ALL_KINDS, PROJECT, asker, open_world, owner

INSTANT = OperationDurations(instant=True)
LABELS = dict(owner("x").labels)


def scope(stack="x", stated=frozenset(), **more):
    return Scope(projects=[PROJECT], asker=asker(stack, stated=stated), **more)


@pytest.fixture(scope="module")
def world():
    """Everything of the stack x, in a zone and a region that no settings name, beside things of others."""
    with open_world() as opened:
        opened.everything("x", zone="asia-northeast1-b")
        opened.strangers("x")
        yield opened


def assert_complete(found: Inventory):
    """Fail unless the search saw every kind that a stack can make."""
    assert {item.kind for item in found.found} == ALL_KINDS
    assert found.unknown == ()


def test_everything_of_a_stack_is_found_wherever_it_is_and_nothing_else(world):
    found = search(world.api, scope())
    assert_complete(found)
    assert all("theirs" not in item.name for item in found.found)
    assert {item.owner for item in found.found} == {owner("x")}
    assert len(found.found) == len(ALL_KINDS)


def test_an_empty_cloud_proves_that_nothing_is_left():
    with open_world() as world:
        found = search(world.api, scope(places={"tpu": ["us-nowhere1-a"]}))
        assert (found.found, found.unknown) == ((), ())
        outcomes = {call.path: call.outcome for call in found.calls}
        parent = f"v2alpha1/projects/{PROJECT}/locations/us-nowhere1-a"
        assert outcomes[f"{parent}/queuedResources"] == NO_SUCH_PLACE


def test_an_api_that_is_off_proves_nothing_unless_the_stacks_do_not_use_it():
    """Google says the same of an API that was never enabled and of one that was turned off while its resources run."""
    enabled = ("cloudresourcemanager.googleapis.com", "compute.googleapis.com", "iam.googleapis.com")
    with open_world(Scenario(operations=INSTANT, services=Services(enabled=enabled))) as world:
        found = search(world.api, scope(places={"tpu": ["us-east5-a"]}))
        unused = search(world.api, scope(apis=frozenset({"compute", "iam", "cloudresourcemanager"})))
        some = search(world.api, scope(apis=frozenset({"compute", "tpu"})))
    assert isinstance(found.answer_about(()), Unknown)
    off = " ".join(
        f"{api}.googleapis.com" for api in ("artifactregistry", "monitoring", "run", "secretmanager", "storage", "tpu")
    )
    (sentence,) = found.unknown
    assert f"Run `gcloud services enable {off} --project={PROJECT}`, then the same command again." in sentence
    assert {call.outcome for call in found.calls if call.api == "tpu"} == {NOT_ENABLED}
    assert (unused.found, unused.unknown, unused.answer_about(())) == ((), (), Absent())
    assert [f"enable tpu.googleapis.com --project={PROJECT}" in line for line in some.unknown] == [True]


@pytest.mark.parametrize("comes", [True, False])
def test_an_api_that_was_enabled_a_moment_ago_is_waited_for(comes):
    """Service Usage calls it enabled at once, and for minutes it answers as if it were off."""
    service = f"v1/projects/{PROJECT}/services/run.googleapis.com"
    with open_world(Scenario(operations=INSTANT, services=Services(lag_s=1e9))) as world:
        world.service("gemma-x", dict(owner("x").labels))
        world.call("POST", "serviceusage", f"{service}:disable", {})
        world.call("POST", "serviceusage", f"{service}:enable", {})
        waited, said = [0.0], []

        def sleep(seconds):
            waited[0] += seconds
            if comes and sum(waited) > 60:
                world.api.session.post(f"{world.cloud.base_url}/admin/advance", json={"seconds": 2e9}, timeout=30)

        clock = WaitClock(now_s=lambda: waited[0], sleep=sleep)
        found = search(world.api, scope(), clock=clock, say=said.append)
    assert said == ["waiting up to 300 s for run.googleapis.com (recently enabled)"]
    if comes:
        assert [item.kind for item in found.found] == ["Cloud Run service"]
        assert found.unknown == ()
    else:
        assert waited[0] == searching.START_LIMIT_S
        assert [line.endswith("then the same command again.") for line in found.unknown] == [True]


def test_a_zone_that_google_refuses_is_unknown_where_a_state_has_something_in_it():
    with open_world() as world:
        gone = {"places": {"tpu": ["us-nowhere1-a"]}}
        assert search(world.api, scope(**gone)).unknown == ()
        held = search(world.api, scope(**gone, stated=frozenset({"locations/us-nowhere1-a/queuedResources/q"})))
    (sentence,) = held.unknown
    assert "(TPU queued resource, TPU node)" in sentence
    assert "us-nowhere1-a" in sentence


def test_a_login_without_a_project_for_quota_proves_nothing():
    """Google refuses it with the reason of an API that is off."""
    with open_world() as world, pytest.MonkeyPatch.context() as patch:
        person = world.cloud.cloud.tokens.issue_access_token("ann@example.com")
        patch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", person)
        found = search(google_api.connect(), Scope(projects=[PROJECT], asker=asker(None)))
        assert any("requires a quota project" in sentence for sentence in found.unknown)
        assert NOT_ENABLED not in {call.outcome for call in found.calls}


def test_a_login_that_google_rejects_is_one_sentence_of_all_projects_with_its_command():
    with open_world(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "expired")
        (sentence,) = search(
            google_api.connect(PROJECT), Scope(projects=[PROJECT, "other-project"], asker=asker(None))
        ).unknown
    assert f"in project {PROJECT}, other-project (" in sentence
    assert sentence.count("GOOGLE_OAUTH_ACCESS_TOKEN") == 2
    assert sentence.endswith("Run `unset GOOGLE_OAUTH_ACCESS_TOKEN`, then the same command again.")


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


def test_what_cannot_be_read_is_not_called_gone():
    faults = (
        Fault(method="tpu.*.queuedResources.list", nth=1, count=1, status=403),
        Fault(method="run.projects.locations.list", nth=1, count=1, status=403),
        Fault(method="cloudresourcemanager.projects.getIamPolicy", nth=1, count=1, status=403),
    )
    with open_world(Scenario(operations=INSTANT, faults=faults)) as world:
        found = search(world.api, scope())
    (sentence,) = found.unknown
    kinds = "locations of run, IAM grant, TPU queued resource"
    assert sentence.startswith(f"Could not read 3 lists in project {PROJECT} ({kinds}), so resources may still exist: ")
    assert isinstance(found.answer_about(()), Unknown)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (None, "No connection to 127.0.0.1:9 ("),
        ((500, "{}"), "failed 4 times (HTTP 500)"),
        ((429, "{}"), "failed 4 times (HTTP 429)"),
        ((200, "<html>Log in to this network.</html>"), "returned a response that is not JSON."),
    ],
)
def test_one_cause_of_all_unread_lists_is_one_sentence_and_proves_nothing(world, monkeypatch, answer, cause):
    monkeypatch.setattr(google_api, "_PAUSES", wait_none())
    with served(lambda _: answer) if answer else nullcontext("http://127.0.0.1:9") as address:
        for name in [name for name in os.environ if name.startswith("CLOUDSDK_API_ENDPOINT_OVERRIDES_")]:
            monkeypatch.setenv(name, f"{address}/")
        found = search(world.api, scope())
    (sentence,) = found.unknown
    assert f"lists in project {PROJECT} (" in sentence
    assert "kinds of resources), so resources may still exist: " in sentence
    assert cause in sentence
    assert isinstance(found.answer_about(()), Unknown)


class Pages:
    """A session that answers one list by hand; all others are empty. Bodies are checked against Google's documents."""

    def __init__(self, kind, page):
        path = by_name(kind).path.format(p=PROJECT, l="here")
        self.path, self.page = path, google_answer("GET", f"{by_name(kind).api}/{path}", page)

    def pages(self, api, path):
        if path.partition("?")[0].endswith("/locations"):
            yield {"locations": [{"locationId": "us-central1"}]}
        elif path.replace("us-central1", "here") == self.path:
            yield self.page
        else:
            yield {}

    def get(self, api, path):
        return {}

    def post(self, api, path, body):
        return {}


@pytest.mark.parametrize(
    ("kind", "page", "named"),
    [
        ("TPU node", {"unreachable": ["projects/p/locations/us-central1"]}, "projects/p/locations/us-central1"),
        ("Cloud Run service", {"unreachable": ["us-central1"]}, "us-central1"),
        ("bucket", {"unreachable": ["projects/_/buckets/b"]}, "projects/_/buckets/b"),
        ("router", {"items": {"regions/us-east5": {"warning": {"code": "UNREACHABLE"}}}}, "regions/us-east5"),
        ("subnetwork", {"items": {}, "unreachables": ["regions/us-east4"]}, "regions/us-east4"),
        ("network", {"items": [], "warning": {"code": "UNREACHABLE", "message": "try again"}}, "try again"),
    ],
)
def test_an_answer_that_leaves_something_out_proves_nothing(kind, page, named):
    path = by_name(kind).path.format(p=PROJECT, l="us-central1").partition("?")[0]
    sentence = f"Could not check whether a {kind} still exists: {path} answered: {named} could not be reached"
    assert search(Pages(kind, page), scope()).unknown == (sentence,)


@pytest.mark.parametrize(
    ("kind", "page"),
    [("network", {"items": "none"}), ("secret", {"secrets": {}}), ("router", {"items": {"regions/r": {"routers": 0}}})],
)
def test_an_answer_of_another_form_proves_nothing(kind, page):
    world = Pages(kind, {})
    world.page = page
    (sentence,) = search(world, scope()).unknown
    assert sentence.startswith(f"Could not check whether a {kind} still exists: ")
    assert "is not a list" in sentence


def test_a_region_without_results_is_no_warning():
    page = {"items": {"regions/us-east5": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}}
    assert search(Pages("router", page), scope()).unknown == ()


# Whose it is


@pytest.mark.parametrize(
    ("item", "ours"),
    [
        ({"labels": dict(LABELS)}, True),
        ({"labels": {**LABELS, "gemma-serving-stack": "y"}}, False),
        ({"labels": {"managed-by": "gemma-serving"}}, False),
        ({"description": "managed-by=gemma-serving gemma-serving-project=gemma-serving gemma-serving-stack=x"}, True),
        ({"description": "managed-by=gemma-serving gemma-serving-project=gemma-serving gemma-serving-stack=xy"}, False),
        ({}, False),
    ],
)
def test_ours_means_all_three_labels_or_all_three_words(item, ours):
    assert (
        by_name("image repository").owner(google_body("artifactregistry.v1", "Repository", item)) == owner("x")
    ) is ours


def test_a_queued_resource_carries_its_labels_in_its_nodes():
    def queued(*labels):
        specs = [{"node": {"labels": item}} for item in labels]
        return google_body("tpu.v2alpha1", "QueuedResource", {"tpu": {"nodeSpec": specs}})

    kind = by_name("TPU queued resource")
    assert kind.owner(queued(LABELS, LABELS)) == owner("x")
    assert kind.owner(queued(LABELS, {**LABELS, "gemma-serving-stack": "y"})) is None
    assert kind.owner(queued({})) is None


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


def test_resources_of_other_stacks_in_a_stacks_network_are_named_and_nothing_else():
    """Google deletes no network in use, and a machine's own stack has to go first."""
    with open_world() as world:
        for stack in ("x", "y", "z"):
            world.network(f"gemma-{stack}", owner(stack).description)
        for stack, network in (("y", "x"), ("z", "z"), (None, "x")):
            world.call(
                "POST",
                "compute",
                f"compute/v1/projects/{PROJECT}/global/firewalls",
                {
                    "name": f"rule-{stack}-in-{network}".lower(),
                    "network": f"projects/{PROJECT}/global/networks/gemma-{network}",
                    "allowed": [{"IPProtocol": "tcp", "ports": ["8000"]}],
                    "sourceRanges": ["10.64.0.0/24"],
                    "description": owner(stack).description if stack else "mine",
                },
            )
        assert [(item.kind, item.id, item.owner) for item in search(world.api, scope("x")).guests] == [
            ("firewall rule", "rule-y-in-x", owner("y"))
        ]
        assert search(world.api, scope("y")).guests == ()
        assert search(world.api, scope(None)).guests == ()
