"""What two runs sent to a local cloud: planted differences are named, and what depends on the moment is not."""

import json

import pytest

from authors import sent
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import SCENARIO, Client

PATH = "/secretmanager/v1/projects/p/secrets"


def request(method="POST", path=PATH, body=None, **parts):
    one = {"method": method, "path": path, "query": {"secretId": "a"}, "body": body or {}, "status": 200}
    return {**one, "id": "secretmanager.projects.secrets.create", "operator": True, **parts}


def found(ours, theirs):
    return [(each.where, each.first, each.second) for each in sent.compare(ours, theirs)[1]]


@pytest.mark.parametrize(
    ("one", "two", "difference"),
    [
        (request(body={"a": {"b": 1}}), request(body={"a": {"b": 2}}), ("body.a.b", "1", "2")),
        (request(body={"a": 1}), request(), ("body.a", "1", "(absent)")),
        (request(query={"secretId": "a", "updateMask": "x"}), request(), ("query.updateMask", "x", "(absent)")),
        (request(content="text/plain"), request(content="image/png"), ("content", "text/plain", "image/png")),
        (request(status=400), request(), (f"{PATH}/a status", "400", "200")),
        (request(body={"args": ["a", "b"]}), request(body={"args": ["b", "a"]}), ("body.args.0", "a", "b")),
        (
            request(body={"env": [{"name": "A", "value": "1"}, {"name": "B"}]}),
            request(body={"env": [{"name": "B"}, {"name": "A", "value": "2"}]}),
            ("body.env.A.value", "1", "2"),
        ),
    ],
)
def test_a_difference_is_named(one, two, difference):
    assert found([one], [two])[0] == difference


def test_a_request_that_one_did_not_send_and_another_order_are_named():
    steps = [request(), request("PATCH", f"{PATH}/a", query={}), request("DELETE", f"{PATH}/a", query={})]
    assert found(steps, steps[:2]) == [(f"{PATH}/a", "POST > PATCH > DELETE", "POST > PATCH")]
    assert found(steps, [steps[0], steps[2], steps[1]]) == [
        (f"{PATH}/a", "POST > PATCH > DELETE", "POST > DELETE > PATCH")
    ]
    assert found([], steps[:1]) == [(f"{PATH}/a", "(absent)", "POST")]


def test_the_order_of_different_resources_and_of_grants_is_free():
    steps = [request(query={"secretId": name}) for name in "ab"]
    assert found(steps, steps[::-1]) == []
    one, two = ({"role": "roles/x", "members": [f"user:{name}"]} for name in "ab")

    def granted(*policies):
        return [request(path=f"{PATH}/a:setIamPolicy", body={"policy": {"bindings": each}}) for each in policies]

    assert found(granted([one], [one, two]), granted([two], [two, one])) == []
    assert found(granted([one]), granted([one], [one, two])) == [(f"{PATH}/a", "(absent)", "roles/x user:b")]


@pytest.mark.parametrize(
    "other",
    [
        request("GET"),
        request(path=f"{PATH}/a:testIamPermissions"),
        request(status=409),
        request(operator=False),
        request(id=None),
    ],
)
def test_reads_repetitions_and_machines_are_left_out(other):
    assert found([request()], [request(), other]) == []


def test_what_is_ignored_and_the_ports_of_the_clouds_may_differ():
    ours, theirs = (request(body={"etag": n, "link": f"http://127.0.0.1:{n}/compute/compute/v1/x"}) for n in (1, 2))
    assert found([ours], [theirs]) == []


def test_the_log_of_a_local_cloud_is_kept_and_compared(tmp_path, monkeypatch):
    logs = []
    for label in ("a", "b"):
        with idle_cloud.start(scenario=SCENARIO) as cloud:
            client = Client(cloud.base_url, cloud.token)
            body = {"replication": {"automatic": {}}, "labels": {"x": label}}
            client.ok("POST", "/secretmanager/v1/projects/local-project/secrets", body, secretId="one")
            monkeypatch.setenv("LOCALCLOUD_URL", cloud.base_url)
            monkeypatch.setenv("LOCALCLOUD_TOKEN", cloud.token)
            target = tmp_path / f"{label}.json"
            assert sent.main([str(target)]) == 0
            logs.append(json.loads(target.read_text()))
    compared, differences = sent.compare(*logs)
    assert compared == 1
    assert [str(each) for each in differences] == ["secretmanager.projects.secrets.create: body.labels.x: a | b"]
