"""A deletion reads again what it deletes, keeps what changed hands, and says why it failed."""

import math

import pytest

from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.deletion import delete_all
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError
from gemma_serving.cloud.grants import PolicyHolder, found_grant
from gemma_serving.cloud.kinds import KINDS, by_name, order_of
from gemma_serving.cloud.search import Scope, resource_of, search
from localcloud.tests.google_bodies import google_body
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, asker, open_world, owner

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
    return search(world.api, Scope(projects=[PROJECT], asker=asker(stack))).found


def test_what_a_network_consists_of_goes_before_it():
    names = ["Cloud Run service", "TPU queued resource", "router", "subnetwork", "network", "bucket"]
    assert sorted(names, key=order_of) == names
    assert {order_of(kind.kind) for kind in KINDS} | {order_of("IAM grant")} == set(range(10))


@pytest.mark.parametrize("labels", [{"managed-by": "hand"}, dict(owner("y").labels)], ids=["nobody", "another stack"])
def test_what_carries_other_labels_by_now_stays(labels):
    with open_world() as world:
        world.secret("gemma-x-hf-token", LABELS)
        found = found_in(world)
        path = f"v1/projects/{PROJECT}/secrets/gemma-x-hf-token?updateMask=labels"
        world.call("PATCH", "secretmanager", path, {"labels": labels})
        (deletion,) = delete(world.api, found)
        assert deletion.outcome == "not owned"
        assert world.exists("secretmanager", f"v1/projects/{PROJECT}/secrets/gemma-x-hf-token")


def test_what_is_gone_already_counts_as_gone():
    with open_world() as world:
        world.secret("gemma-x-hf-token", LABELS)
        found = found_in(world)
        world.call("DELETE", "secretmanager", f"v1/projects/{PROJECT}/secrets/gemma-x-hf-token")
        assert [item.outcome for item in delete(world.api, found)] == ["already deleted"]


def test_an_account_that_gets_the_email_during_the_deletion_stays(monkeypatch):
    with open_world() as world:
        email = world.account("gemma-x", owner("x").description)
        (found,) = found_in(world)
        delete_it = GoogleApi.delete

        def after_another(*arguments, **more):
            monkeypatch.setattr(GoogleApi, "delete", delete_it)
            world.call("DELETE", "iam", f"v1/projects/{PROJECT}/serviceAccounts/{email}")
            world.account("gemma-x", "precious")
            return delete_it(*arguments, **more)

        monkeypatch.setattr(GoogleApi, "delete", after_another)
        delete(world.api, [found])
        assert world.exists("iam", f"v1/projects/{PROJECT}/serviceAccounts/{email}")


@pytest.mark.parametrize("status", [409, 412])
def test_a_grant_that_somebody_changes_at_the_same_time_is_read_again(status):
    """The first write meets another etag, as when two people change the policy of a project."""
    faults = (Fault(method="cloudresourcemanager.projects.setIamPolicy", nth=2, count=1, status=status),)
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


@pytest.mark.parametrize("count", [1, 250])
def test_a_bucket_is_emptied_with_all_its_pages(count):
    with open_world() as world:
        world.bucket("weights-of-x", LABELS, *[f"part-{number:04}" for number in range(count)])
        assert [item.outcome for item in delete(world.api, found_in(world))] == ["deleted"]
        assert not world.exists("storage", "storage/v1/b/weights-of-x")


class Versioned:
    """A bucket with an object and an older version of it, which Google lists only on request and which keeps the bucket."""

    def __init__(self, refusal=0):
        self.generations, self.is_gone, self.refusal = {"1", "2"}, False, refusal
        """Status of the deletion of the older version; 404: it was deleted since."""

    def get(self, _api, _path):
        if self.is_gone:
            raise GoogleListError(404, "gone", "")
        return {"name": "b", "labels": LABELS}

    def pages(self, _api, path):
        shown = self.generations if "versions=true" in path else {"2"}
        yield {"items": [{"name": "o", "generation": generation} for generation in shown]}

    def delete(self, _api, path, _proof, _asker, *, parameters):
        if path.endswith("/o/o"):
            status = self.refusal if parameters["generation"] == "1" else 0
            self.generations = self.generations - ({parameters["generation"]} if status in {0, 404} else set())
            if status:
                raise GoogleListError(status, "refused", "")
        elif self.generations:
            raise GoogleListError(409, "The bucket you tried to delete is not empty.", "")
        else:
            self.is_gone = True
        return {}


@pytest.mark.parametrize(("refusal", "outcome"), [(0, "deleted"), (404, "deleted"), (403, "failed")])
def test_a_versioned_bucket_is_emptied_of_older_versions(refusal, outcome):
    item = google_body("storage.v1", "Bucket", {"name": "b"})
    bucket = resource_of(by_name("bucket"), item, project=PROJECT, owner=owner("x"))
    google = Versioned(refusal)
    assert [item.outcome for item in delete(google, [bucket])] == [outcome]
    assert google.is_gone is (outcome == "deleted")


def test_only_the_version_that_was_read_is_deleted():
    found = {
        kind: by_name(kind).deletion({"etag": "e", "metageneration": 3}) for kind in ("secret", "bucket", "router")
    }
    assert found == {"secret": {"etag": "e"}, "bucket": {"ifMetagenerationMatch": "3"}, "router": {}}


@pytest.mark.parametrize(("status", "outcome"), [(404, "already deleted"), (403, "failed")])
def test_a_grant_goes_with_its_holder(status, outcome):
    class Refused:
        """An API that refuses to read a policy."""

        def post(self, *_):
            raise GoogleListError(status, "refused", "")

    holder = PolicyHolder(kind="project", project="p", name="projects/p")
    grant = found_grant(holder, "roles/viewer", "user:a@b.com", {}, owner("x"))
    assert [item.outcome for item in delete(Refused(), [grant])] == [outcome]
