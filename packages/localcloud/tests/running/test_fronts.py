"""Fronts: IAM's verdicts, streaming, limits and broken instances."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from localcloud.running.fronts import DEFAULT_LIMITS, Fronts, Limits
from localcloud.tests.conftest import in_loop
from localcloud.world.runtime import AccessDecision

SERVICE = "projects/p/locations/r/services/s"


async def echo(request: web.Request) -> web.Response:
    return web.json_response(
        {"headers": dict(request.headers), "body": (await request.read()).decode(), "path": request.path_qs}
    )


class State:
    """State that the instance shares with the test."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.streaming = asyncio.Event()
        self.in_flight = 0
        self.most = 0


STATE = web.AppKey("state", State)


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: one\n\n")
    request.app[STATE].streaming.set()
    await request.app[STATE].gate.wait()
    await response.write(b"data: two\n\n")
    return response


async def slow(request: web.Request) -> web.Response:
    state = request.app[STATE]
    state.in_flight += 1
    state.most = max(state.most, state.in_flight)
    await asyncio.sleep(0.05)
    state.in_flight -= 1
    return web.Response(text="done")


async def half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"half")
    assert request.transport is not None
    request.transport.abort()
    return response


async def broken(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class World:
    def __init__(
        self, app: web.Application, fronts: Fronts, session: aiohttp.ClientSession, url: str, instance: str
    ) -> None:
        self.app, self.fronts, self.session, self.url, self.instance = app, fronts, session, url, instance

    async def get(self, path: str, **options: Any) -> tuple[int, str]:
        async with self.session.get(self.url + path, **options) as response:
            return response.status, await response.text()


@contextlib.asynccontextmanager
async def world(
    limits: Limits | None = None, *, verdicts: dict[str | None, AccessDecision] | None = None
) -> AsyncIterator[World]:
    app = web.Application(client_max_size=2**26)
    app[STATE] = State()
    app.router.add_get("/stream", stream)
    app.router.add_get("/slow", slow)
    app.router.add_get("/half", half)
    app.router.add_get("/broken", broken)
    app.router.add_route("*", "/{path:.*}", echo)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    instance = f"http://127.0.0.1:{runner.addresses[0][1]}"

    def authorize(service: str, token: str | None) -> AccessDecision:
        assert service == SERVICE
        return AccessDecision.ALLOWED if verdicts is None else verdicts[token]

    fronts = Fronts(authorize=authorize, limits=lambda _: limits or DEFAULT_LIMITS)
    port = await fronts.open(SERVICE, port=None)
    fronts.route(SERVICE, {instance: 100})
    try:
        async with aiohttp.ClientSession() as session:
            yield World(app, fronts, session, f"http://127.0.0.1:{port}", instance)
    finally:
        await fronts.close(SERVICE)
        await runner.cleanup()


def test_iam_decides_before_a_request_reaches_the_instance():
    verdicts = {
        None: AccessDecision.FORBIDDEN,
        "stale": AccessDecision.UNAUTHENTICATED,
        "good": AccessDecision.ALLOWED,
        "": AccessDecision.UNAUTHENTICATED,
    }

    async def run() -> None:
        async with world(verdicts=verdicts) as here:
            status, text = await here.get("/x")
            assert status == 403
            assert "Your client does not have permission to get URL <code>/x</code>" in text
            async with here.session.get(here.url, headers={"Authorization": "Bearer stale"}) as refused:
                assert refused.status == 401
                assert refused.headers["WWW-Authenticate"].startswith('Bearer error="invalid_token"')
            assert (await here.get("/x", headers={"Authorization": "Basic abc"}))[0] == 401
            assert (await here.get("/x", headers={"Authorization": "Bearer good"}))[0] == 200

    asyncio.run(run())


@in_loop
async def test_the_serverless_header_is_judged_so_that_an_api_key_can_pass():
    token = "eyJh.eyJz.c2ln"
    async with world(verdicts={token: AccessDecision.ALLOWED, "key": AccessDecision.UNAUTHENTICATED}) as here:
        headers = {"X-Serverless-Authorization": f"Bearer {token}", "Authorization": "Bearer key"}
        status, text = await here.get("/x?y=1", headers=headers)
        seen = json.loads(text)
        assert status == 200
        assert seen["headers"]["Authorization"] == "Bearer key"
        assert seen["headers"]["X-Serverless-Authorization"] == "Bearer eyJh.eyJz.SIGNATURE_REMOVED_BY_GOOGLE"
        assert seen["headers"]["X-Forwarded-For"] == "127.0.0.1"
        assert seen["path"] == "/x?y=1"


@in_loop
async def test_an_id_token_reaches_the_container_without_its_signature():
    async with world() as here:
        _, text = await here.get("/x", headers={"Authorization": "Bearer eyJh.eyJz.c2ln"})
        assert json.loads(text)["headers"]["Authorization"] == "Bearer eyJh.eyJz.SIGNATURE_REMOVED_BY_GOOGLE"


@in_loop
async def test_events_pass_as_they_come():
    async with world() as here, here.session.get(f"{here.url}/stream") as response:
        assert await response.content.readuntil(b"\n\n") == b"data: one\n\n"
        here.app[STATE].gate.set()  # the second event is written only now
        assert await response.content.read() == b"data: two\n\n"


def test_large_bodies_pass_both_ways():
    body = "x" * 5_000_000

    async def run() -> None:
        async with world() as here, here.session.post(f"{here.url}/big", data=body) as response:
            assert (await response.json())["body"] == body

    asyncio.run(run())


@in_loop
async def test_requests_beyond_the_concurrency_wait_in_line():
    async with world(Limits(concurrent=2, queue_s=60, timeout_s=60)) as here:
        answers = await asyncio.gather(*(here.get("/slow") for _ in range(8)))
        assert [status for status, _ in answers] == [200] * 8
        assert here.app[STATE].most == 2


@in_loop
async def test_a_request_that_waits_too_long_is_turned_away_and_its_place_is_not_lost():
    async with world(Limits(concurrent=1, queue_s=0.5, timeout_s=60)) as here:
        held = asyncio.create_task(here.get("/stream"))
        await here.app[STATE].streaming.wait()
        status, text = await here.get("/x")
        assert status == 429
        assert "Rate exceeded." in text
        here.app[STATE].gate.set()
        assert (await held)[0] == 200
        assert (await here.get("/x"))[0] == 200


@in_loop
async def test_a_caller_that_leaves_frees_its_place():
    async with world(Limits(concurrent=1, queue_s=60, timeout_s=60)) as here:
        held = asyncio.create_task(here.get("/stream"))
        await here.app[STATE].streaming.wait()
        held.cancel()
        assert (await here.get("/x"))[0] == 200


@in_loop
async def test_a_request_longer_than_the_timeout_is_a_504():
    async with world(Limits(concurrent=1, queue_s=5, timeout_s=0.01)) as here:
        status, text = await here.get("/slow")
        assert (status, "upstream request timeout" in text) == (504, True)


@in_loop
async def test_a_response_that_breaks_off_or_takes_too_long_breaks_off_for_the_caller_too():
    async with world(Limits(concurrent=1, queue_s=5, timeout_s=1)) as here:
        for path, start in (("/half", b"half"), ("/stream", b"data: one\n\n")):
            async with here.session.get(here.url + path) as response:
                assert await response.content.readexactly(len(start)) == start
                with pytest.raises(aiohttp.ClientError):
                    await response.content.read()
        assert (await here.get("/x"))[0] == 200


@in_loop
async def test_no_route_a_dead_instance_and_a_broken_answer_are_503():
    async with world() as here:
        status, text = await here.get("/broken")
        assert status == 503
        assert "connection to the instance had an error" in text
        here.fronts.route(SERVICE, {"http://127.0.0.1:9": 100})
        assert "could not be reached" in (await here.get("/x"))[1]
        here.fronts.route(SERVICE, {})
        status, text = await here.get("/x")
        assert (status, "no ready instance" in text) == (503, True)


@in_loop
async def test_a_front_keeps_its_port_and_moves_where_it_is_taken():
    async with world() as here:
        port = await here.fronts.open(SERVICE, port=None)
        assert here.url.endswith(str(port))
        other = await here.fronts.open("other", port=port)
        assert other != port
        await here.fronts.close("other")
        await here.fronts.close("nobody")
        again = await here.fronts.open("other", port=other)
        assert again == other


async def raw(here: World, request: bytes) -> bytes:
    """Send bytes to the front, and return the bytes of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(here.url.rpartition(":")[2]))
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@in_loop
async def test_what_is_not_http_for_this_server_is_answered_with_400():
    async with world() as here:
        for request in (
            b"hello",
            b"PRI * HTTP/2.0\r\n\r\nSM",
            b"GET http://elsewhere/ HTTP/1.1",
            b"OPTIONS * HTTP/1.1",
        ):
            assert (await raw(here, request + b"\r\n\r\n")).startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), request


@in_loop
async def test_headers_that_are_too_large_are_refused():
    async with world() as here:
        many = {f"x-{number}": "y" * 7000 for number in range(10)}
        assert "headers are too large" in (await here.get("/x", headers=many))[1]


@in_loop
async def test_a_request_reaches_the_instance_as_it_was_sent():
    """Its headers, its encoded body and its path are unchanged, and a caller that waits for `100 Continue` gets it."""
    async with world() as here:
        host = here.url.removeprefix("http://").encode()
        head = b"POST /a%2Fb//c?d=%20 HTTP/1.1\r\nHost: " + host + b"\r\nX-Two: 1\r\nX-Two: 2\r\nContent-Length: 3\r\n"
        answer = await raw(here, head + b"Upgrade: h2c\r\nExpect: 100-continue\r\n\r\nabc")
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert b"Connection: close" in answer
        seen = json.loads(answer.rpartition(b"\r\n\r\n")[2])
        assert (seen["path"], seen["body"]) == ("/a%2Fb//c?d=%20", "abc")
        forwarded = {"X-Forwarded-For", "X-Forwarded-Proto", "Connection"}
        assert {*seen["headers"]} == {"Host", "X-Two", "Content-Length", *forwarded}
        chunked = b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
        head = b"POST / HTTP/1.1\r\nHost: " + host + b"\r\nTransfer-Encoding: chunked\r\n"
        assert b'"abcdef"' in await raw(here, head + b"\r\n" + chunked)
        packed = b"POST / HTTP/1.1\r\nHost: " + host + b"\r\nContent-Encoding: gzip\r\nContent-Length: 23\r\n\r\n"
        assert b'"abc"' in await raw(here, packed + gzip.compress(b"abc"))


@in_loop
async def test_requests_are_divided_exactly_by_the_shares():
    async with world() as here:
        here.fronts.route(SERVICE, {here.instance: 90, "http://127.0.0.1:9": 10})
        statuses = [(await here.get("/x"))[0] for _ in range(20)]
        assert (statuses.count(200), statuses.count(503)) == (18, 2)


@in_loop
async def test_a_request_that_runs_when_the_traffic_moves_is_completed_before_its_instance_counts_as_drained():
    async with world() as here:
        state = here.app[STATE]
        running = asyncio.create_task(here.get("/stream"))
        await asyncio.wait_for(state.streaming.wait(), 20)
        here.fronts.route(SERVICE, {"http://127.0.0.1:9": 100})
        drained = asyncio.create_task(here.fronts.drained(here.instance))
        await asyncio.sleep(0)
        assert not drained.done()
        state.gate.set()
        assert await running == (200, "data: one\n\ndata: two\n\n")
        await asyncio.wait_for(drained, 20)
        await asyncio.wait_for(here.fronts.drained("http://127.0.0.1:1"), 20)
