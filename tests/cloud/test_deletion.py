"""A deletion reads again what it deletes, keeps what changed hands, and says why it failed."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.deletion import delete_all
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.grants import PolicyHolder, found_grant
from gemma_serving.cloud.kinds import KINDS, by_name, order_of
from gemma_serving.cloud.search import Scope, resource_of, search
from localcloud.tests.google_bodies import google_body
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, asker, open_world, owner
from tests.laws import examples

LABELS = dict(owner("x").labels)
INSTANT = OperationDurations(instant=True)


class Patience:
    """A clock that only records the requested waits, and takes whole seconds for each, so that limits are met exactly."""

    def __init__(self):
        self.now_s, self.pauses = 0.0, []

    def sleep(self, pause_s):
        self.pauses.append(pause_s)
        assert self.now_s < 10**5, "the wait has no end"
        self.now_s += math.ceil(pause_s)

    @property
    def clock(self):
        return WaitClock(now_s=lambda: self.now_s, sleep=self.sleep)


def delete(api, found, patience=None):
    return delete_all(api, found, asker("x"), report=lambda _line: None, clock=(patience or Patience()).clock)


def found_in(world, stack="x"):
    scope = Scope(projects=[PROJECT], asker=asker(stack))
    return search(world.api, scope, clock=Patience().clock).found


def test_what_a_network_consists_of_goes_before_it_and_a_request_before_its_node():
    steps = [
        ("Cloud Run service", "TPU queued resource", "TPU instance", "alert policy"),
        ("TPU node", "notification channel", "dashboard"),
        ("router", "firewall rule"),
        ("subnetwork",),
        ("network",),
    ]
    for number, kinds in enumerate(steps):
        assert {order_of(kind) for kind in kinds} == {number}
    assert {order_of(kind.kind) for kind in KINDS} | {order_of("IAM grant")} == set(range(10))


def test_a_grant_that_somebody_changes_at_the_same_time_is_read_again():
    """The first write meets another etag, as when two people change the policy of a project."""
    faults = (Fault(method="cloudresourcemanager.projects.setIamPolicy", nth=2, count=1, status=409),)
    with open_world(Scenario(operations=INSTANT, faults=faults)) as world:
        email = world.account("gemma-x", owner("x").description)
        world.grant("roles/logging.logWriter", f"serviceAccount:{email}")
        patience = Patience()
        grants = [item for item in found_in(world) if item.kind == "IAM grant"]
        assert [item.outcome for item in delete(world.api, grants, patience)] == ["deleted"]
        assert len(patience.pauses) == 1
        assert not any(email in member for _, member in world.policy())


def test_what_uses_a_network_keeps_it_and_google_says_what():
    with open_world() as world:
        world.network("gemma-x", owner("x").description)
        rule = {
            "name": "by-hand",
            "network": f"projects/{PROJECT}/global/networks/gemma-x",
            "allowed": [{"IPProtocol": "tcp"}],
            "sourceRanges": ["10.0.0.0/8"],
        }
        world.call("POST", "compute", f"compute/v1/projects/{PROJECT}/global/firewalls", rule)
        done = {item.resource.kind: item for item in delete(world.api, found_in(world))}
        assert done["network"].outcome == "failed"
        assert "is already being used by" in done["network"].detail
        assert "firewalls/by-hand" in done["network"].detail
        assert done["router"].outcome == "deleted"
        assert world.exists("compute", f"compute/v1/projects/{PROJECT}/global/firewalls/by-hand")


class Versioned:
    """A bucket with versions of an object in pages, which keep it. Each has the status of its deletion; 404: it was deleted since."""

    def __init__(self, pages):
        self.listed = [
            [(f"{page}/{number}", status) for number, status in enumerate(of)] for page, of in enumerate(pages)
        ]
        self.statuses, self.is_gone = dict(version for page in self.listed for version in page), False

    def get(self, _api, _path):
        if self.is_gone:
            raise GoogleListError(404, "gone", "")
        return {"name": "b", "labels": LABELS, "metageneration": 3}

    def pages(self, _api, path):
        assert path == "storage/v1/b/b/o?versions=true"
        for page in self.listed:
            yield {"items": [{"name": "o/p", "generation": generation} for generation, _ in page]} if page else {}

    def delete(self, _api, path, _proof, _asker, *, parameters):
        if path == "storage/v1/b/b":
            assert parameters == {"ifMetagenerationMatch": "3"}
            assert not self.statuses, "The bucket you tried to delete is not empty."
            self.is_gone = True
            return {}
        assert path == "storage/v1/b/b/o/o%2Fp"
        if self.statuses[parameters["generation"]] == 403:
            raise GoogleListError(403, "refused", "")
        if self.statuses.pop(parameters["generation"]):
            raise GoogleListError(404, "gone", "")
        return {}


@settings(max_examples=examples(test=60, part=300, night=3000))
@given(st.lists(st.lists(st.sampled_from([0, 0, 404, 403]), max_size=3), max_size=3))
def test_a_bucket_goes_after_each_version_of_its_objects(pages):
    item = google_body("storage.v1", "Bucket", {"name": "b"})
    bucket = resource_of(by_name("bucket"), item, project=PROJECT, owner=owner("x"))
    google, is_refused = Versioned(pages), any(403 in of for of in pages)
    assert [item.outcome for item in delete(google, [bucket])] == ["failed" if is_refused else "deleted"]
    assert google.is_gone is not is_refused


@pytest.mark.parametrize(("status", "outcome"), [(404, "already deleted"), (403, "failed")])
def test_a_grant_goes_with_its_holder(status, outcome):
    class Refused:
        """An API that refuses to read a policy."""

        def post(self, *_):
            raise GoogleListError(status, "refused", "")

    holder = PolicyHolder(kind="project", project="p", name="projects/p")
    grant = found_grant(holder, "roles/viewer", "user:a@b.com", {}, owner("x"))
    assert [item.outcome for item in delete(Refused(), [grant])] == [outcome]
