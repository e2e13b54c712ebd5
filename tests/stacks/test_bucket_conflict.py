"""A bucket of an earlier deployment, or of others, is named before Google answers 409."""

import asyncio

import pulumi
import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import Ownership
from gemma_serving.stacks.google_project.bucket_conflict import BucketCheck, require_free_bucket_name
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import Client
from localcloud.world.scenario import OperationDurations, Scenario

PROJECT, BUCKET = "local-project", "weights-of-a-stack"
OURS = Ownership(project="gemma-serving", stack="x")


@pytest.fixture
def make(monkeypatch):
    """Return a function that makes the bucket with labels."""
    with idle_cloud.start(scenario=Scenario(operations=OperationDurations(instant=True))) as started:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", f"{started.base_url}/storage/storage/v1/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", started.token)

        def bucket(labels):
            body = {"name": BUCKET, "location": "US-EAST4", "labels": labels}
            Client(started.base_url, started.token).ok("POST", "/storage/storage/v1/b", body, project=PROJECT)

        yield bucket


def require():
    check = BucketCheck(project=PROJECT, bucket=BUCKET, ownership=OURS)
    asyncio.run(check.require(pulumi.ResourceHookArgs("urn", "", "models", "t")))


def test_no_bucket_is_in_no_way(make, monkeypatch):
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    require()


def test_a_kept_bucket_names_the_command_that_takes_it_over(make, monkeypatch):
    make(dict(OURS.labels))
    warned = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
    require()
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    with pytest.raises(CommandRefusedError) as raised:
        require()
    assert warned == [str(raised.value)]
    assert "was retained by an earlier deployment of this stack. Run `gemma up x`, which imports it" in warned[0]


@pytest.mark.parametrize("labels", [{}, dict(Ownership(project="gemma-serving", stack="y").labels)])
def test_a_bucket_of_others_is_never_taken(make, monkeypatch, labels):
    make(labels)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    with pytest.raises(CommandRefusedError, match=r"without this stack's labels.*bucket.existing"):
        require()


def test_a_failed_check_stops_nothing_and_is_in_the_log(monkeypatch):
    noted = []
    monkeypatch.setattr(pulumi.log, "debug", noted.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "none")
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "http://127.0.0.1:9/")
    require()
    assert len(noted) == 1
    assert noted[0].startswith(f"Could not check whether {BUCKET} exists: ")
    assert "127.0.0.1:9" in noted[0]


def test_only_a_bucket_is_hooked_and_only_before_it_is_made(bound):
    hooks = bound(lambda: require_free_bucket_name(project=PROJECT, bucket=BUCKET, ownership=OURS))
    assert hooks("gcp:secretmanager/secret:Secret") is None
    of_bucket = hooks("gcp:storage/bucket:Bucket")
    assert (len(of_bucket.before_create), of_bucket.before_update or []) == (1, [])
