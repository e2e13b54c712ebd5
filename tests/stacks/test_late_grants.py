"""How long a first `up` waits for the grants of its server's account, by the local cloud's clock: as long as Google takes, and seven minutes at most."""

import asyncio
import contextlib
from types import SimpleNamespace

import pulumi
import pytest

from cloud.google_calls import GoogleCallError
from contracts.labels import Ownership
from contracts.resource_types import SERVICE_TYPE
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import Client
from localcloud.world.scenario import Iam, Images, OperationDurations, Scenario
from stacks.hooks import container_logs
from stacks.hooks.run_failures import FailureReport
from stacks.project import late_grants
from stacks.project.late_grants import LateGrants
from stacks.project.propagation import SPEED_VARIABLE, NewGrants
from tests.stacks.failed_start import PROJECT, failed_start

IMAGE = "us-docker.pkg.dev/cloudrun/container/hello"
PARENT = f"projects/{PROJECT}/locations/us-east4"
NAME = "gemma-l4-12b-qat"
OWNER = Ownership(project="gemma-serving", stack="l4-12b-qat")
START = failed_start()
BY_SECRET = {
    "containers": [
        {"image": IMAGE, "env": [{"name": "T", "valueSource": {"secretKeyRef": {"secret": "s", "version": "1"}}}]}
    ]
}
BY_BUCKET = {
    "containers": [{"image": IMAGE, "volumeMounts": [{"name": "models", "mountPath": "/mnt/models"}]}],
    "volumes": [{"name": "models", "gcs": {"bucket": START.bucket}}],
}


class FirstUp:
    """What the engine does with a service after the grants of its account, without the engine."""

    def __init__(self, monkeypatch, cloud):
        self.cloud, self.client = cloud.cloud, Client(cloud.base_url, cloud.token)
        self.loop, self.slept_s, self.said, self.explained = cloud.loop, 0.0, [], []
        for api in ("RUN", "LOGGING"):
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", f"{cloud.base_url}/{api.lower()}/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.token)
        monkeypatch.setenv(SPEED_VARIABLE, "1")
        for module in (late_grants, container_logs):
            monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=self.sleep))
        monkeypatch.setattr(container_logs, "monotonic", self.now_s)
        monkeypatch.setattr(pulumi, "get_stack", lambda: OWNER.stack)
        monkeypatch.setattr(pulumi.log, "info", self.said.append)
        monkeypatch.setattr(pulumi.log, "warn", self.said.append)
        monkeypatch.setattr(pulumi.log, "error", self.explained.append)
        self.grants = NewGrants()
        late = LateGrants(project=PROJECT, ownership=OWNER, account=START.account, grants=self.grants, clock=self.now_s)
        self.report = FailureReport(start=START, service=NAME, secrets=(), late=late)

    def now_s(self):
        return self.cloud.timeline.simulated_s()

    async def sleep(self, seconds):
        self.slept_s += seconds
        self.advance(seconds)

    def advance(self, seconds):
        self.client.ok("POST", "/admin/advance", {"seconds": seconds})

    def prepare(self):
        """Make the account, the secret and the bucket, and grant the account both."""
        account, client = START.account, self.client
        client.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": account.partition("@")[0]})
        client.ok(
            "POST", f"/secretmanager/v1/projects/{PROJECT}/secrets?secretId=s", {"replication": {"automatic": {}}}
        )
        client.ok("POST", f"/secretmanager/v1/projects/{PROJECT}/secrets/s:addVersion", {"payload": {"data": "eA=="}})
        bucket = {"name": START.bucket, "location": "US-EAST4", "iamConfiguration": {}}
        client.ok("POST", f"/storage/storage/v1/b?project={PROJECT}", bucket)
        member = f"serviceAccount:{account}"
        secret = {"bindings": [{"role": "roles/secretmanager.secretAccessor", "members": [member]}]}
        client.ok("POST", f"/secretmanager/v1/projects/{PROJECT}/secrets/s:setIamPolicy", {"policy": secret})
        path = f"/storage/storage/v1/b/{START.bucket}/iam"
        policy = client.ok("GET", path)
        policy["bindings"].append({"role": "roles/storage.objectViewer", "members": [member]})
        client.ok("PUT", path, policy)
        self.grants.newest_s = self.now_s()

    def deploy(self, template, *, labels=OWNER.labels):
        """Create the service as often as the hook wants it. Return whether it came up."""
        body = {"labels": dict(labels), "template": {"serviceAccount": START.account, **template}}
        errors = []
        while True:
            made = self.client.ok("POST", f"/run/v2/{PARENT}/services?serviceId={NAME}", body)
            ended = self.client.ok("POST", f"/run/v2/{made['name']}:wait", {"timeout": "60s"})
            if "error" not in ended:
                return True
            error = ended["error"]
            errors.insert(
                0, f"Error waiting to create Service: Error code {error['code']}, message: {error['message']}"
            )
            failure = pulumi.ErrorHookArgs(
                "urn",
                "",
                "vllm",
                SERVICE_TYPE,
                new_inputs={"location": "us-east4", "name": NAME},
                failed_operation="create",
                errors=errors,
            )
            if not asyncio.run(self.report.handle(failure)):
                return False

    def services(self):
        return self.client.ok("GET", f"/run/v2/{PARENT}/services").get("services", [])


@pytest.fixture
def first_up(monkeypatch):
    def start(lag_s):
        cloud = stack.enter_context(
            idle_cloud.start(
                speed=0.001,
                scenario=Scenario(
                    operations=OperationDurations(instant=True), iam=Iam(lag_s=lag_s), images=Images(existing=(IMAGE,))
                ),
            )
        )
        up = FirstUp(monkeypatch, cloud)
        up.prepare()
        return up

    with contextlib.ExitStack() as stack:
        yield start


TEMPLATES = pytest.mark.parametrize("template", [BY_SECRET, BY_BUCKET], ids=["secret", "bucket"])


@TEMPLATES
def test_a_grant_that_works_at_once_is_not_waited_for(first_up, template):
    up = first_up(0)
    assert up.deploy(template)
    assert (up.slept_s, up.said) == (0, [])


@TEMPLATES
def test_a_grant_of_two_minutes_is_waited_for_two_minutes_with_progress(first_up, template):
    up = first_up(120)
    assert up.deploy(template)
    assert 120 <= up.slept_s <= 190
    assert len(up.said) >= 3
    assert all(text.startswith(f"Waiting up to 7 min for {START.account} to get access to ") for text in up.said)
    (service,) = up.services()
    assert service["terminalCondition"]["state"] == "CONDITION_SUCCEEDED"
    assert up.explained == []


@TEMPLATES
def test_a_grant_that_never_works_ends_after_seven_minutes_with_a_sentence(first_up, template):
    up = first_up(10**6)
    assert not up.deploy(template)
    assert 420 <= up.slept_s <= 600
    assert f" for {START.account} was still unavailable after 7 min" in up.said[-1]
    assert f"Run `pulumi up --stack {OWNER.stack}` again. " in up.said[-1]
    assert len(up.services()) == 1


def test_without_a_grant_of_this_run_nothing_is_waited_for(first_up):
    up = first_up(120)
    up.grants.newest_s = None
    assert not up.deploy(BY_SECRET)
    assert (up.slept_s, up.said) == (0, [])


def test_a_service_that_is_not_this_stacks_is_never_removed(first_up):
    up = first_up(120)
    assert not up.deploy(BY_SECRET, labels={"managed-by": "hand"})
    assert len(up.services()) == 1
    assert up.slept_s == 0


def test_a_service_that_may_not_be_read_is_not_tried_again(first_up, monkeypatch):
    async def refuse(*_arguments, **_options):
        raise GoogleCallError(403, "Permission 'run.services.get' denied")

    up = first_up(120)
    monkeypatch.setattr(late_grants, "call", refuse)
    assert not up.deploy(BY_SECRET)
    assert up.said[-1].startswith("Cannot delete the failed service, so it will not be tried again: Permission")
