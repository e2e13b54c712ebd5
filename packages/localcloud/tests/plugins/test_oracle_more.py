"""The `gcp` stand-in against the real provider 10.2.0 on this project's own local cloud: 61 changes, each also reverted."""

import functools
import json
import re
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc.aio

from localcloud.plugins.rest import LocalCloudTransport, Rest, TransportReply
from localcloud.server.app import Options, open_cloud
from localcloud.tests.idle_cloud import idle_runtimes
from localcloud.tests.plugins.harness import (
    KINDS,
    CheckFailedError,
    Engine,
    Resource,
    Sent,
    create_all,
    declared,
    engine,
    operation_of,
    oracle,
    recorded_details,
    row_id,
    run,
    with_property,
)
from localcloud.tests.server.test_replay import IMAGE, REPLACED
from localcloud.world.scenario import Images, Scenario

ROWS = oracle("more.jsonl")
# Changes before this one in the recording: a service's computed values keep them when the program removes them.
BEFORE = [
    ("gcp:storage/bucket:Bucket", "versioning", {"enabled": True}),
    ("gcp:compute/subnetwork:Subnetwork", "ip_cidr_range", "10.10.0.0/23"),
    ("gcp:compute/routerNat:RouterNat", "min_ports_per_vm", 128),
]
ARGS = ["serve", "/mnt/models/gemma-4-26B-A4B-it-qat-w4a16-ct", "--max-model-len=8192"]


@dataclass
class Wire:
    """The transport to the local cloud, which records the requests."""

    inner: LocalCloudTransport
    sent: list[Sent] = field(default_factory=list)

    async def send(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> TransportReply:
        parsed = json.loads(body) if body is not None and headers.get("Content-Type") == "application/json" else None
        self.sent.append(Sent(method, f"/{path}", dict(query), parsed))
        for refused, accepted in REPLACED.items():
            body = None if body is None else body.replace(refused.encode(), accepted.encode())
        reply = await self.inner.send(method, path, query, headers, body)
        text = reply.text
        for refused, accepted in REPLACED.items():
            text = text.replace(accepted, refused)
        return replace(reply, text=text)

    async def close(self) -> None:
        await self.inner.close()

    def writes(self) -> list[dict[str, Any]]:
        taken = [each for each in self.sent if each.method != "GET" and not each.path.endswith(":getIamPolicy")]
        self.sent = []
        return [{"method": each.method, "path": each.path, "query": each.query, "body": each.body} for each in taken]


async def changed(attached: Engine, wire: Wire, resource: Resource, wanted: dict[str, Any]) -> tuple[Resource, Any]:
    """Take a resource to other inputs where that is an update: the resulting resource, and the provider's messages and requests."""
    news = await attached.check(resource.type, resource.name, wanted, resource.inputs)
    answer = await attached.diff(resource, news)
    operation = operation_of(answer)
    details = {path: KINDS[each.kind] for path, each in answer.detailedDiff.items()}
    said: dict[str, Any] = {"diff": [operation, details, answer.deleteBeforeReplace]}
    if operation == "update":
        wire.writes()
        try:
            resource = await attached.update(resource, news)
        except grpc.aio.AioRpcError as error:
            said["error"] = error.details()
        said["requests"] = wire.writes()
    return resource, said


@asynccontextmanager
async def on_local_cloud() -> AsyncGenerator[tuple[Engine, Wire, Rest]]:
    """Connect the stand-in to a local cloud of its own; yield it with its transport and a client of the same cloud."""
    with tempfile.TemporaryDirectory() as folder:
        options = Options(project="p1", scenario=Scenario(images=Images(existing=(IMAGE,))))
        cloud = await open_cloud(Path(folder), options, idle_runtimes)
        try:
            token = cloud.cloud.tokens.issue_access_token(cloud.cloud.operator, lifetime_s=3600)
            wire = Wire(LocalCloudTransport(cloud.base_url))
            async with (
                engine(wire, token=token, project="p1", region="us-east4") as attached,
                Rest(LocalCloudTransport(cloud.base_url), token=token) as rest,
            ):
                yield attached, wire, rest
        finally:
            await cloud.close()


@functools.cache
def answers() -> list[dict[str, Any]]:
    async def scenario() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with on_local_cloud() as (attached, wire, _):
            wanted = {each["type"]: each["inputs"] for each in declared(args=ARGS).values()}
            made = {each.type: each for each in (await create_all(attached, args=ARGS)).values()}
            for kind, name, value in BEFORE:
                other, _ = await changed(attached, wire, made[kind], with_property(wanted[kind], name, value))
                made[kind], _ = await changed(attached, wire, other, wanted[kind])
            for row in ROWS:
                kind = row["type"]
                try:
                    other = with_property(wanted[kind], row["property"], row["to"])
                    made[kind], said = await changed(attached, wire, made[kind], other)
                except CheckFailedError as error:
                    found.append({"check_failures": error.failures})
                    continue
                if "requests" in said:
                    made[kind], back = await changed(attached, wire, made[kind], wanted[kind])
                    said |= {f"{each} when taken out": value for each, value in back.items()}
                found.append(said)
        return found

    return run(scenario(), limit_s=120)


def alike(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Requests without the numbers that the local cloud draws by lot, and without the client's own query."""
    text = json.dumps(requests)
    text = re.sub(r"(alertPolicies|notificationChannels|conditions|projects)/\d{2,}", r"\1/NUMBER", text)
    text = re.sub(r'"etag": "[^"]+"', '"etag": "ETAG"', text)
    shown = json.loads(text.replace("projects/NUMBER", "projects/p1"))
    for each in shown:
        each["query"] = {name: value for name, value in each["query"].items() if name not in {"alt", "prettyPrint"}}
    return shown


def test_there_are_60_rows():
    assert len(ROWS) == 60


def test_a_change_leads_to_the_recorded_operation_properties_and_order_of_replacement(subtests):
    for index, row in enumerate(ROWS):
        with subtests.test(row_id(index, row)):
            said = answers()[index]
            if "check_failures" in row:
                # In any order: the real provider goes through a Go map.
                assert sorted(map(tuple, said["check_failures"])) == sorted(map(tuple, row["check_failures"]))
            else:
                operation, details, delete_first = row["diff"]
                assert said["diff"] == [operation, recorded_details(row, details), delete_first]


def test_a_change_sends_the_recorded_requests(subtests):
    for index, row in enumerate(ROWS):
        with subtests.test(row_id(index, row)):
            said = answers()[index]
            assert alike(said.get("requests", [])) == alike(row.get("requests", []))


def test_taking_a_change_out_again_does_what_was_recorded(subtests):
    for index, row in enumerate(ROWS):
        with subtests.test(row_id(index, row)):
            said = answers()[index]
            if "taken_out" in row:
                assert said["diff when taken out"] == row["taken_out"]
            if "requests_when_taken_out" in row:
                assert alike(said["requests when taken out"]) == alike(row["requests_when_taken_out"])
