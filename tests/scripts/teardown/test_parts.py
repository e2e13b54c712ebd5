"""The parts of a teardown: what a state says, what is waited for, and how protection leaves the state."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.engine.deployment import deployment_of, unprotected
from gemma_serving.engine.state import of_deployment
from gemma_serving.scripts.stack.labelled import existing_creations, pending_creations
from gemma_serving.scripts.teardown.pending import wait
from localcloud.tests.google_bodies import google_answer
from tests.cloud.populated import owner
from tests.cloud.test_deletion import Patience

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SUBNETWORK = {"project": "p", "region": "us-east5", "name": "gemma-x"}


def state(*operations, resources=(), written=NOW):
    creating = [
        {"type": "creating", "resource": {"urn": "u", "type": kind, "inputs": inputs}} for kind, inputs in operations
    ]
    deployment = {
        "manifest": {"time": written.isoformat()},
        "resources": list(resources),
        "pending_operations": creating,
    }
    return of_deployment("x", deployment_of("x", {"version": 3, "deployment": deployment}))


def resource(kind, **inputs):
    return {"type": kind, "urn": f"urn:{kind}", "inputs": inputs, "outputs": dict(inputs)}


@pytest.mark.parametrize(
    ("kind", "inputs", "names"),
    [
        ("gcp:compute/subnetwork:Subnetwork", SUBNETWORK, ["projects/p/regions/us-east5/subnetworks/gemma-x"]),
        (
            "gcp-tpu:index:QueuedResource",
            {"project": "p", "zones": ["a", "b"], "queuedResourceId": "q"},
            [f"projects/p/locations/{zone}/queuedResources/q" for zone in "ab"],
        ),
        (
            "gcp:cloudrunv2/service:Service",
            {"project": "p", "location": "l", "name": "s"},
            ["projects/p/locations/l/services/s"],
        ),
        ("gcp:storage/bucket:Bucket", {"name": "b"}, ["projects/_/buckets/b"]),
        ("gcp:compute/subnetwork:Subnetwork", {"project": "p"}, None),
        ("gcp:projects/service:Service", {"project": "p"}, None),
    ],
)
def test_a_creation_that_was_begun_has_a_name(kind, inputs, names):
    found = pending_creations(state((kind, inputs)))
    assert [list(item.names) for item in found] == ([names] if names else [])


def test_a_state_names_projects_zones_and_buckets():
    found = state(
        resources=[
            resource("gcp:compute/network:Network", project="second"),
            resource("gcp-tpu:index:QueuedResource", project="first", zones=["a", "b"], zone="c"),
            resource("gcp:storage/bucketIAMMember:BucketIAMMember", bucket="b/theirs"),
            {"type": "pulumi:pulumi:Stack", "urn": "s", "outputs": {"project": "first"}},
        ]
    )
    assert (found.projects, found.zones, found.buckets) == (("first", "second"), ("c", "a", "b"), ("theirs",))
    assert len(found.resources) == 3


def written(deployment):
    return json.loads(deployment.text())["deployment"]


def test_protection_leaves_the_state_and_everything_else_stays():
    exported = {
        "version": 3,
        "deployment": {
            "resources": [
                {**resource("gcp:cloudrunv2/service:Service", deletionProtection=True, name="s"), "protect": True},
                {
                    **resource("gcp:storage/bucket:Bucket", name="b"),
                    "resourceHooks": {"BeforeDelete": ["gemma teardown x"]},
                },
            ],
            "pending_operations": [{"type": "creating", "resource": resource("a:b:C")}],
        },
    }
    before, deployment = json.dumps(exported), deployment_of("x", exported)
    service, bucket = written(unprotected(deployment, keep_bucket=False))["resources"]
    assert service == resource("gcp:cloudrunv2/service:Service", deletionProtection=False, name="s")
    assert bucket == resource("gcp:storage/bucket:Bucket", name="b")
    assert written(unprotected(deployment, keep_bucket=True))["resources"][1]["retainOnDelete"] is True
    assert "pending_operations" in written(deployment)
    assert "pending_operations" not in written(deployment.changed(pending=()))
    assert json.dumps(exported) == before


class Google:
    """A subnetwork that is being made: an operation runs for some looks, and then it is there. Bodies follow Google's documents."""

    def __init__(self, looks, runs=True, stack="x"):
        self.looks, self.runs, self.stack = looks, runs, stack

    def get(self, api, path):
        self.looks -= 1
        if self.looks > 0:
            raise GoogleListError(404, "not found", "")
        body = {"name": "gemma-x", "description": owner(self.stack).description}
        return google_answer("GET", f"{api}/{path}", body)

    def pages(self, api, path):
        link = "https://www.googleapis.com/compute/v1/projects/p/regions/us-east5/subnetworks/gemma-x"
        operation = {"targetLink": link, "status": "RUNNING" if self.runs else "DONE"}
        yield google_answer("GET", f"{api}/{path}", {"items": [operation]})


def waited_s(google, written):
    patience, said = Patience(), []
    found = state(("gcp:compute/subnetwork:Subnetwork", SUBNETWORK), written=written)
    moving = {"now": lambda: NOW + timedelta(seconds=patience.now_s), "report": said.append, "clock": patience.clock}
    wait(google, [found], **moving)
    assert len(said) == (patience.now_s > 0)
    return patience.now_s


def test_an_operation_that_runs_is_waited_for_however_old_the_state_is():
    assert waited_s(Google(100), NOW - timedelta(days=1)) == 2 * 99


def test_without_an_operation_the_wait_ends_two_minutes_after_the_state_was_written():
    assert 118 <= waited_s(Google(10**6, runs=False), NOW) <= 122
    assert waited_s(Google(10**6, runs=False), NOW - timedelta(minutes=3)) == 0


def test_a_creation_that_was_begun_is_ours_only_if_its_labels_name_the_stack():
    """Another stack can have made a resource of that name in the meantime."""
    begun = state(("gcp:compute/subnetwork:Subnetwork", SUBNETWORK))
    assert [item.owner for item in existing_creations(Google(0), begun)] == [owner("x")]
    assert [*existing_creations(Google(0, stack="y"), begun)] == []
