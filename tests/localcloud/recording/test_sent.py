"""What two commands sent: the stand-in against the recordings of the real provider, and planted differences."""

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from localcloud.recording.recordings import Content, RecordedExchange, Recording
from localcloud.recording.sent import compare_sent
from tests.localcloud.plugins.harness import Replay, oracle
from tests.localcloud.plugins.test_oracle_requests import expected, is_read, played

START = datetime(2026, 11, 20, tzinfo=UTC)
PHASES = ("create.jsonl", "update.jsonl", "delete.jsonl")


def recording(requests):
    exchanges = [
        RecordedExchange(
            time=START + timedelta(seconds=number),
            duration_s=0.1,
            method=each["method"],
            path=each["path"].replace("/upload/", "/storage/upload/"),
            query=each["query"],
            request=each["body"],
            status=200,
            response=each.get("response", {}),
            request_content=each.get("content"),
        )
        for number, each in enumerate(requests)
    ]
    return Recording(speed=1, exchanges=tuple(exchanges))


def real(name):
    """The recorded requests of the real provider, with the answers that hold policies."""
    changes = iter(expected(name))
    requests = []
    for exchange in oracle(name):
        request = exchange["request"]
        if is_read(request["method"], request["path"]):
            requests.append({**request, "response": exchange["response"]})
        else:
            requests.append(next(changes))
    return recording(requests)


def stand_in(name):
    answers = Replay(name)
    requests = []
    for each in played()[name]:
        _, answer = answers(each)
        body = copy.deepcopy(each.body)
        requests.append(
            {"method": each.method, "path": each.path, "query": each.query, "body": body, "response": answer}
        )
    return recording(requests)


@pytest.mark.parametrize("name", PHASES)
def test_the_stand_in_sends_what_the_real_provider_was_recorded_to_send(name):
    report = compare_sent(stand_in(name), real(name))
    assert report.found == {}
    assert sum(report.compared.values()) > 8


def with_change(name, number, **parts):
    """The stand-in's recording with another value in one of its changes."""
    whole = stand_in(name)
    changes = [each for each in whole.exchanges if not is_read(each.method, each.path) and "IamPolicy" not in each.path]
    chosen = changes[number]
    return replace(
        whole, exchanges=tuple(replace(each, **parts) if each is chosen else each for each in whole.exchanges)
    )


def found(ours, theirs):
    return {(each.what, each.where, each.recorded, each.here) for each in compare_sent(ours, theirs).found.values()}


def request(method="POST", path="/secretmanager/v1/projects/p/secrets", body=None, **parts):
    return {"method": method, "path": path, "query": {"secretId": "a"}, "body": body, **parts}


class TestPlanted:
    def test_another_body_is_named(self):
        (difference,) = found(recording([request(body={"a": {"b": 1}})]), recording([request(body={"a": {"b": 2}})]))
        assert difference == ("sent", "body.a.b", "1", "2")

    def test_another_query_is_named(self):
        one = request(query={"secretId": "a", "updateMask": "x"})
        (difference,) = found(recording([one]), recording([request()]))
        assert difference == ("sent", "query.updateMask", "x", "(absent)")

    def test_a_request_that_one_did_not_send_is_named(self):
        ours = stand_in("create.jsonl")
        less = replace(ours, exchanges=tuple(each for each in ours.exchanges if not each.path.endswith("/firewalls")))
        ((what, where, recorded, here),) = found(ours, less)
        assert (what, here) == ("sent", "(absent)")
        assert "/firewalls/" in where
        assert recorded.startswith("POST")

    def test_another_order_of_one_resource_is_named(self):
        path = "/secretmanager/v1/projects/p/secrets/a"
        steps = [request(), request("PATCH", path, {}, query={}), request("DELETE", path, query={})]
        ((what, where, recorded, here),) = found(recording(steps), recording([steps[0], steps[2], steps[1]]))
        assert (what, where) == ("order", path)
        assert (recorded, here) == ("POST > PATCH > DELETE", "POST > DELETE > PATCH")

    def test_the_order_of_different_resources_is_free(self):
        steps = [request(query={"secretId": name}) for name in "ab"]
        assert found(recording(steps), recording(steps[::-1])) == set()

    def test_another_media_type_of_an_upload_is_named(self):
        path = "/upload/storage/v1/b/x/o"
        ours, theirs = (
            recording([request(path=path, query={"name": "o"}, content=Content(type=kind, bytes=2))])
            for kind in ("text/plain", "application/json")
        )
        assert found(ours, theirs) == {("sent", "content", "text/plain, 2 bytes", "application/json, 2 bytes")}

    def test_another_grant_is_named_and_their_order_is_free(self):
        path = "/secretmanager/v1/projects/p/secrets/a"
        one, two = ({"role": "roles/x", "members": [f"user:{name}"]} for name in "ab")
        read = request("GET", f"{path}:getIamPolicy", query={}, response={"bindings": []})

        def granted(*policies):
            writes = [
                request("POST", f"{path}:setIamPolicy", {"policy": {"bindings": each}}, query={}) for each in policies
            ]
            return recording([read, *writes])

        assert found(granted([one], [one, two]), granted([two], [two, one])) == set()
        assert found(granted([one]), granted([one], [one, two])) == {("sent", path, "(absent)", "+ roles/x user:b")}

    def test_one_changed_field_of_the_recordings_is_named(self):
        theirs = with_change("create.jsonl", 3, request={"accountId": "other"})
        assert found(stand_in("create.jsonl"), theirs) != set()

    def test_what_is_ignored_is_not_named(self):
        ours, theirs = (recording([request(body={"etag": value, "a": 1})]) for value in ("x", "y"))
        assert found(ours, theirs) == set()
