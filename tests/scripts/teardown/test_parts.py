"""The parts of a teardown: what a state says, what is waited for, and how protection leaves the state."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.kinds import by_name
from gemma_serving.engine.exported_state import deployment_of, unprotected
from gemma_serving.engine.state import of_deployment
from gemma_serving.scripts.teardown.pending import wait
from localcloud.tests.google_bodies import google_answer
from tests.cloud.test_deletion import Patience
from tests.laws import examples

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SUBNETWORK = {"project": "p", "region": "us-east5", "name": "gemma-x"}


def state(*operations, resources=(), written=NOW):
    creating = [
        {"type": "creating", "resource": {"urn": "u", "type": kind, "inputs": inputs}} for kind, inputs in operations
    ]
    deployment = {
        "manifest": {"time": written.isoformat()} if written else {},
        "resources": list(resources),
        "pending_operations": creating,
    }
    return of_deployment("x", deployment_of("x", {"version": 3, "deployment": deployment}))


def resource(kind, **inputs):
    return {"type": kind, "urn": f"urn:{kind}", "inputs": inputs, "outputs": dict(inputs)}


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


PENDING = {
    "subnetwork": (
        ("gcp:compute/subnetwork:Subnetwork", SUBNETWORK),
        ["projects/p/regions/us-east5/subnetworks/gemma-x"],
    ),
    "TPU queued resource": (
        ("gcp-tpu:index:QueuedResource", {"project": "p", "zones": ["a", "b"], "queuedResourceId": "gemma-x"}),
        [f"projects/p/locations/{zone}/queuedResources/gemma-x" for zone in "ab"],
    ),
    "Cloud Run service": (
        ("gcp:cloudrunv2/service:Service", {"project": "p", "location": "l", "name": "gemma-x"}),
        ["projects/p/locations/l/services/gemma-x"],
    ),
    "secret": (
        ("gcp:secretmanager/secret:Secret", {"project": "p", "secretId": "gemma-x"}),
        ["projects/p/secrets/gemma-x"],
    ),
}
"""Creations that a state can have, with the names that they may get. Secret Manager has no operations."""


def operation(kind, name, *, is_done):
    """Return an operation on a resource, in the form of its API, and the key of the list."""
    if kind == "subnetwork":
        link = f"https://www.googleapis.com/compute/v1/{name}"
        return "items", {"targetLink": link, "status": "DONE" if is_done else "RUNNING"}
    metadata = {"target": name} if kind == "TPU queued resource" else {"name": name}
    return "operations", {"metadata": metadata, **({"done": True} if is_done else {})}


@dataclass(frozen=True)
class Case:
    """What Google shows by the seconds since the start. By default nothing, and no operation runs."""

    kind: str = "subnetwork"
    age_s: int | None = 10**6
    """Age of the state; None if it names no time."""
    appears_s: int = 10**6
    ends_s: int = 0
    """End of its operation."""
    place: int = 0
    """Which of its names it gets."""
    is_denied: bool = False
    """True if the list of operations cannot be read."""

    @property
    def name(self):
        names = PENDING[self.kind][1]
        return names[self.place % len(names)]

    @property
    def waits_s(self):
        """Seconds until the end of the wait, which looks every two seconds."""
        has_operations = self.kind != "secret" and not self.is_denied

        def is_over(now_s):
            is_young = self.age_s is not None and self.age_s + now_s < 120
            is_coming = is_young or (has_operations and now_s < self.ends_s)
            return now_s >= self.appears_s or not is_coming or now_s > 1800

        return next(now_s for now_s in range(0, 10**4, 2) if is_over(now_s))


@dataclass(frozen=True)
class Google:
    """The answers of a case, at the time of a clock."""

    case: Case
    clock: Patience

    def get(self, api, path):
        if path != by_name(self.case.kind).address(self.case.name) or self.clock.now_s < self.case.appears_s:
            raise GoogleListError(404, "not found", "")
        return {"name": self.case.name}

    def pages(self, api, path):
        kind, (parent, _, _) = by_name(self.case.kind), self.case.name.rsplit("/", 2)
        if self.case.is_denied:
            raise GoogleListError(403, "denied", "")
        shown = [operation(self.case.kind, f"{parent}/others/theirs", is_done=False)]
        if path == f"{kind.prefix}{parent}/operations":
            is_done = self.clock.now_s >= self.case.ends_s
            shown.append(operation(self.case.kind, self.case.name, is_done=is_done))
        yield from (google_answer("GET", f"{api}/{path}", {key: [item]}) for key, item in shown)


SECONDS = st.integers(0, 200) | st.just(10**6)


@settings(max_examples=examples(test=100, part=500, night=5000))
@given(
    st.builds(
        Case,
        kind=st.sampled_from(sorted(PENDING)),
        age_s=st.none() | SECONDS,
        appears_s=SECONDS,
        ends_s=st.integers(0, 200),
        place=st.integers(0, 1),
        is_denied=st.sampled_from([False, False, True]),
    )
)
@example(Case(ends_s=10**6))
@example(Case(age_s=0, kind="secret"))
def test_a_wait_ends_when_a_creation_is_visible_or_can_no_longer_appear(case):
    clock, said = Patience(), []
    found = state(PENDING[case.kind][0], written=None if case.age_s is None else NOW - timedelta(seconds=case.age_s))
    google, now = Google(case, clock), lambda: NOW + timedelta(seconds=clock.now_s)
    wait(google, [found], clock=clock.clock, now=now, report=said.append)
    assert clock.now_s == case.waits_s
    assert said == ["waiting for pending operations to finish: gemma-x"] * (case.waits_s > 0)
