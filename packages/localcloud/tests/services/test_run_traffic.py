"""Cloud Run's traffic: shares, tags with their own URL, refusals, revisions that run while they are addressable, GPUs, deleted revisions."""

import asyncio
from dataclasses import replace

import pytest

from localcloud.services.run import authorizer
from localcloud.services.run_deployments import Deployments
from localcloud.tests import idle_cloud
from localcloud.tests.services.test_run_rules import (
    GPU,
    PLAIN,
    SERVICES,
    await_running,
    changed,
    deploy,
    invoke,
    patched,
)
from localcloud.world.runtime import AccessDecision

LATEST = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
BY_NAME = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"


def short(name):
    return name.rpartition("/")[2]


def named(revision, percent=0, tag=None):
    target = {"type": BY_NAME, "revision": short(revision), "percent": percent, "tag": tag}
    return {key: value for key, value in target.items() if value}


def shift(client, name, traffic, **body):
    return patched(client, name, {"traffic": traffic, **body}, updateMask="traffic")


def template(timeout_s, image="docker.io/x"):
    return {"template": {"containers": [{"image": image}], "timeout": f"{timeout_s}s"}}


@pytest.fixture
def two(own_client):
    """A service that serves its first revision, and a second one with a tag and no traffic."""
    first = deploy(own_client, "two", PLAIN)["response"]["latestReadyRevision"]
    traffic = [named(first, 100), {"type": LATEST, "tag": "next"}]
    second = patched(own_client, "two", {**template(2), "traffic": traffic})["response"]["latestReadyRevision"]
    return first, second


def test_a_revision_runs_while_it_has_traffic_or_a_tag(own_client, own_cloud, two):
    first, second = two
    runtimes = own_cloud.cloud.runtimes
    await_running(own_cloud, {first, second})
    name = shift(own_client, "two", [named(first, 100)])["response"]["name"]
    await_running(own_cloud, {first})
    assert name + "#next" not in runtimes.fronts.ports
    shift(own_client, "two", [named(second, 100)])
    await_running(own_cloud, {second})


def test_the_tags_of_a_deleted_service_are_closed(own_client, own_cloud, two):
    own_client.ok("DELETE", f"{SERVICES}/two")
    assert own_cloud.cloud.runtimes.fronts.ports == {}


def test_an_id_token_for_the_tags_url_is_refused_and_one_for_the_service_is_taken(own_client, own_cloud, two):
    service = own_client.ok("GET", f"{SERVICES}/two")
    tokens, authorize = own_cloud.cloud.tokens, authorizer(own_cloud.cloud)
    tag_url = service["trafficStatuses"][1]["uri"]
    email = "caller@example.com"
    invoke(own_client, service["name"], f"user:{email}")
    assert authorize(service["name"], tokens.issue_id_token(email, service["uri"])) is AccessDecision.ALLOWED
    assert authorize(service["name"], tokens.issue_id_token(email, tag_url)) is AccessDecision.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("traffic", "said"),
    [
        ([{"type": LATEST, "percent": 90}], "must add up to 100"),
        ([{"type": LATEST, "percent": 110}, {"type": LATEST, "percent": -10}], "none may be negative"),
        (
            [{"type": BY_NAME, "revision": "two-00009-abc", "percent": 100}],
            "Revision named 'two-00009-abc' was not found",
        ),
        ([{"type": LATEST, "percent": 100, "revision": "two-00001-abc"}], "cannot name a revision"),
        ([{"type": LATEST, "percent": 100, "tag": "Next"}], "the tag 'Next' must consist of lower-case letters"),
        ([{"type": LATEST, "percent": 100, "tag": "9"}], "begin with a letter"),
        ([{"type": LATEST, "percent": 100, "tag": "a"}, {"type": LATEST, "tag": "a"}], "the tag 'a' is given twice"),
        ([{"type": LATEST, "percent": 100, "tag": "a" * 44}], "cannot exceed 46 characters"),
    ],
)
def test_traffic_that_cloud_run_refuses_changes_nothing(own_client, two, traffic, said):
    before = own_client.ok("GET", f"{SERVICES}/two")
    status, answer = own_client.call("PATCH", f"{SERVICES}/two", {"traffic": traffic}, updateMask="traffic")
    assert (status, said in answer["error"]["message"]) == (400, True), answer
    assert own_client.ok("GET", f"{SERVICES}/two") == before


def test_a_forced_revision_of_the_same_template_gets_the_traffic_of_a_changed_one(own_client):
    small = {"template": {**PLAIN["template"], "scaling": {"maxInstanceCount": 1}}}
    first = deploy(own_client, "again", small)["response"]["latestReadyRevision"]
    before = own_client.ok("GET", f"{SERVICES}/again")
    body = {"template": before["template"]}
    same = patched(own_client, "again", {**body, "etag": before["etag"]}, updateMask="template")["response"]
    assert same["latestCreatedRevision"] == first
    force = {"forceNewRevision": "true", "updateMask": "template"}
    after = patched(own_client, "again", {**body, "etag": same["etag"]}, **force)["response"]
    second = after["latestReadyRevision"]
    assert second == after["latestCreatedRevision"] != first
    assert (after["template"], after["traffic"]) == (before["template"], before["traffic"])
    body |= {"traffic": [named(second, 100), {"type": LATEST, "tag": "next"}]}
    kept = patched(own_client, "again", body, **{**force, "updateMask": "template,traffic"})["response"]
    assert kept["latestReadyRevision"] not in {first, second}
    assert next((short(each.get("revision", "")), each.get("percent")) for each in kept["trafficStatuses"]) == (
        short(second),
        100,
    )


def test_a_revision_has_no_traffic_by_name_before_it_exists(own_client):
    body = {**PLAIN, "traffic": [{"type": BY_NAME, "revision": "early-00001-abc", "percent": 100}]}
    status, answer = own_client.call("POST", SERVICES, body, serviceId="early")
    assert (status, "was not found" in answer["error"]["message"]) == (400, True)


def test_the_second_of_two_shifts_with_the_same_etag_is_refused(own_client, two):
    first, second = two
    etag = own_client.ok("GET", f"{SERVICES}/two")["etag"]
    shift(own_client, "two", [named(first, 90), named(second, 10, "next")], etag=etag)
    body = {"traffic": [named(second, 100)], "etag": etag}
    status, answer = own_client.call("PATCH", f"{SERVICES}/two", body, updateMask="traffic")
    assert (status, answer["error"]["status"]) == (409, "ABORTED")
    assert own_client.ok("GET", f"{SERVICES}/two")["trafficStatuses"][0]["percent"] == 90


def test_after_a_failed_revision_the_tag_stays_and_traffic_can_still_be_shifted(own_client, own_cloud, two):
    first, second = two
    traffic = own_client.ok("GET", f"{SERVICES}/two")["traffic"]
    assert "error" in patched(own_client, "two", {**template(4, "docker.io/x:fails"), "traffic": traffic})
    failed = own_client.ok("GET", f"{SERVICES}/two")
    assert failed["trafficStatuses"][0]["revision"] == short(first)
    routes = own_cloud.cloud.runtimes.fronts.routes
    assert routes[failed["name"] + "#next"] == {f"http://{short(second)}.invalid": 100}
    answer = shift(own_client, "two", [named(second, 100)])
    after = own_client.ok("GET", f"{SERVICES}/two")
    assert answer["error"]["code"] == 9
    assert after["latestCreatedRevision"] == failed["latestCreatedRevision"]
    assert after["terminalCondition"]["state"] == "CONDITION_FAILED"
    assert [status["revision"] for status in after["trafficStatuses"]] == [short(second)]


def test_a_revision_beside_the_serving_one_needs_gpus_of_its_own(own_client):
    own_client.ok("PUT", "/admin/scenario", {"run": {"gpu_quota": 1}}, merge="true")
    first = deploy(own_client, "gpus", GPU)["response"]["latestReadyRevision"]
    body = changed(GPU, "template.timeout", "100s")
    body["traffic"] = [named(first, 100), {"type": LATEST, "tag": "next"}]
    answer = patched(own_client, "gpus", body)
    assert "Quota exceeded for GPUs of type nvidia-l4 in us-east4: 1 of 1 are in use" in answer["error"]["message"]
    assert own_client.ok("GET", f"{SERVICES}/gpus")["trafficStatuses"][0]["revision"] == short(first)


def test_no_revision_is_named_where_the_traffic_follows_the_latest_one(own_client, own_cloud):
    service = deploy(own_client, "follows", PLAIN)["response"]
    assert service["trafficStatuses"] == [{"type": LATEST, "percent": 100}]
    url = f"http://{short(service['latestReadyRevision'])}.invalid"
    assert own_cloud.cloud.runtimes.fronts.routes[service["name"]] == {url: 100}


@pytest.mark.parametrize("ingress", ["INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"])
def test_a_service_that_is_internal_is_not_found_from_outside(own_client, own_cloud, ingress):
    service = deploy(own_client, "inside", {**PLAIN, "ingress": ingress, "invokerIamDisabled": True})["response"]
    assert service["ingress"] == ingress
    assert authorizer(own_cloud.cloud)(service["name"], None) is AccessDecision.NOT_FOUND


def test_a_readiness_probe_gets_its_defaults(own_client):
    body = changed(GPU, "template.containers.0.readinessProbe", {"httpGet": {"path": "/health"}})
    probe = deploy(own_client, "ready", body)["response"]["template"]["containers"][0]["readinessProbe"]
    assert probe == {
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "failureThreshold": 3,
        "httpGet": {"path": "/health", "port": 8000},
    }


class TestAfterARestart:
    """The local cloud starts again, and an instance of a service that was ready does not."""

    @pytest.fixture
    def restarted(self, own_client, own_cloud):
        """Return the answer of a restart whose instance fails after this was called: `restarted(in_between)`."""
        deploy(own_client, "svc", PLAIN)
        name = SERVICES.removeprefix("/run/v2/") + "/svc"

        def restarted(in_between):
            async def run():
                revisions = idle_cloud.FailingRevisions()
                runtimes = replace(own_cloud.cloud.runtimes, revisions=revisions)
                own_cloud.cloud.attach(lambda _: runtimes)
                restart = asyncio.create_task(Deployments(own_cloud.cloud).restart(name))
                await revisions.begun.wait()
                await asyncio.to_thread(in_between)
                revisions.fail.set()
                await restart

            asyncio.run_coroutine_threadsafe(run(), own_cloud.loop).result(60)
            return own_client.call("GET", f"{SERVICES}/svc")

        return restarted

    def test_the_service_says_so(self, restarted):
        status, service = restarted(lambda: None)
        assert (status, service["terminalCondition"]["state"]) == (200, "CONDITION_FAILED")
        assert "failed to start" in service["terminalCondition"]["message"]

    def test_a_service_that_was_deleted_meanwhile_does_not_come_back(self, restarted, own_client):
        status, _ = restarted(lambda: own_client.ok("DELETE", f"{SERVICES}/svc"))
        assert status == 404
