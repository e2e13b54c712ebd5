"""The `gcp` stand-in against the recordings of the real provider: the same requests for the same inputs, in the same order."""

import functools
import json
from typing import Any

import pytest

from localcloud.tests.plugins.harness import (
    Engine,
    Recorder,
    Replay,
    Resource,
    Sent,
    create_all,
    declared,
    engine,
    oracle,
    run,
    secret,
    with_property,
)

# The recorded `up` of changes, as its README lists them.
CHANGES: dict[str, list[tuple[str, Any]]] = {
    "sa": [("display_name", "X")],
    "secret": [("labels", {"a": "b"})],
    "version": [("secret_data", secret("new"))],
    "bucket": [("labels", {"a": "b"}), ("public_access_prevention", "inherited")],
    "repo": [("description", "d")],
    "net": [("routing_mode", "GLOBAL")],
    "subnet": [("private_ip_google_access", False)],
    "fw": [("source_ranges", ["10.0.0.0/8"])],
    "nat": [("min_ports_per_vm", 128)],
    "svc": [("template.max_instance_request_concurrency", 8), ("template.containers.0.args", ["serve", "x"])],
    "channel": [("display_name", "x")],
    "alert": [("display_name", "x")],
    "dash": [("dashboard_json", json.dumps({"displayName": "other", "gridLayout": {"widgets": []}}))],
}


def is_read(method: str, path: str) -> bool:
    return method == "GET" or path.endswith(":getIamPolicy")


def recorded(name: str, *, reads: bool) -> list[dict[str, Any]]:
    requests = [exchange["request"] for exchange in oracle(name)]
    return [each for each in requests if is_read(each["method"], each["path"]) == reads]


def shown(request: Sent) -> dict[str, Any]:
    return {"method": request.method, "path": request.path, "query": request.query, "body": request.body}


def changes(sent: list[Sent]) -> list[dict[str, Any]]:
    return [shown(each) for each in sent if not is_read(each.method, each.path)]


def reads(sent: list[Sent]) -> set[str]:
    return {json.dumps(shown(each), sort_keys=True) for each in sent if is_read(each.method, each.path)}


async def change_all(attached: Engine, made: dict[str, Resource]) -> dict[str, Resource]:
    """Take the steps that the engine takes: replacements that are not deleted first lose the old resource at the end."""
    after, late = dict(made), []
    for name, edits in CHANGES.items():
        resource = made[name]
        wanted = declared()[name]["inputs"]
        for path, value in edits:
            wanted = (
                with_property(wanted, path, value)
                if not isinstance(value, dict) or "value" not in value
                else {**wanted, "secretData": value}
            )
        news = await attached.check(resource.type, name, wanted, resource.inputs)
        answer = await attached.diff(resource, news)
        if not answer.replaces:
            after[name] = await attached.update(resource, news)
            continue
        if answer.deleteBeforeReplace:
            await attached.delete(resource)
        else:
            late.append(resource)
        after[name] = await attached.create(resource.type, name, news)
    for resource in late:
        await attached.delete(resource)
    return after


@functools.cache
def played() -> dict[str, list[Sent]]:
    """Everything that was sent for creation, change and deletion of the recorded resources."""

    async def play() -> dict[str, list[Sent]]:
        created = Recorder(Replay("create.jsonl"))
        async with engine(created, project="p1", region="us-east4") as attached:
            made = await create_all(attached)
        updated = Recorder(Replay("update.jsonl"))
        async with engine(updated, project="p1", region="us-east4") as attached:
            after = await change_all(attached, made)
        deleted = Recorder(Replay("delete.jsonl"))
        async with engine(deleted, project="p1", region="us-east4") as attached:
            for resource in reversed(after.values()):
                await attached.delete(resource)
        return {"create.jsonl": created.sent, "update.jsonl": updated.sent, "delete.jsonl": deleted.sent}

    return run(play())


def expected(name: str) -> list[dict[str, Any]]:
    requests = recorded(name, reads=False)
    for request in requests:
        # The store behind the recordings wrote the conditions' names into the object that was recorded as the request: no client can
        # know them before the policy exists.
        if request["method"] == "POST" and request["path"].endswith("/alertPolicies"):
            for condition in request["body"]["conditions"]:
                del condition["name"]
    return requests


@pytest.mark.parametrize("name", ["create.jsonl", "update.jsonl", "delete.jsonl"])
def test_every_change_is_sent_with_the_recorded_method_path_query_and_body_in_the_recorded_order(name):
    assert changes(played()[name]) == expected(name)


@pytest.mark.parametrize("name", ["create.jsonl", "update.jsonl", "delete.jsonl"])
def test_nothing_is_read_that_the_real_provider_does_not_read(name):
    allowed = {json.dumps(each, sort_keys=True) for each in recorded(name, reads=True)}
    assert reads(played()[name]) - allowed == set()


def test_every_recorded_read_of_a_creation_is_made_but_for_the_projects_number():
    allowed = {json.dumps(each, sort_keys=True) for each in recorded("create.jsonl", reads=True)}
    missing = {json.loads(each)["path"] for each in allowed - reads(played()["create.jsonl"])}
    # The real provider requests the id of the bucket's project number from Compute Engine; the stand-in knows its project.
    assert missing == {"/compute/compute/beta/projects/1234567890"}


def test_every_request_carries_a_bearer_token_and_no_secret_is_in_a_path_or_header():
    for requests in played().values():
        for each in requests:
            assert each.headers["Authorization"].startswith("Bearer ")
            assert "hf_canary" not in each.path + str(each.query) + str(each.headers)
