"""The gcloud stand-in as a command on PATH, against a cloud of fixed answers."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from localcloud.running.shims import install
from localcloud.running.shims.gcloud import CommandError, parse_tunnel
from tests.localcloud.running.running_server import ask, environment

SSH = [
    "compute",
    "tpus",
    "tpu-vm",
    "ssh",
    "n1",
    "--project=p",
    "--zone=us-east5-a",
    "--tunnel-through-iap",
    "--",
    "-N",
    "-L",
]
NODE = "projects/p/locations/us-east5-a/nodes/n1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def cloud() -> AsyncIterator[str]:
    async def tokens(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response(
            {"idToken": f"id-for-{body['audience']}"} if "audience" in body else {"accessToken": "access"}
        )

    async def tunnel(request: web.Request) -> web.Response:
        assert request.query["node"] == NODE
        if request.query["port"] != "8000":
            return web.json_response({"error": {"message": "Nothing listens there."}}, status=404)
        return web.json_response({"host": "127.0.0.1", "port": runner.addresses[0][1]})

    async def node(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer access"
        if not request.path.endswith("/nodes/n1"):
            return web.json_response({"error": {"message": "Resource not found."}}, status=404)
        return web.json_response({"name": NODE})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="through the tunnel")

    app = web.Application()
    app.add_routes(
        [
            web.post("/admin/tokens", tokens),
            web.get("/admin/tunnel", tunnel),
            web.get("/health", health),
            web.get("/tpu/{path:.*}", node),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def gcloud(folder: Path, url: str, *words: str) -> asyncio.subprocess.Process:
    command = install(folder / "bin") / "gcloud"
    return await asyncio.create_subprocess_exec(
        command,
        *words,
        env=environment(LOCALCLOUD_URL=url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def result(folder: Path, *words: str) -> tuple[int, str, str]:
    async def run() -> tuple[int, str, str]:
        async with cloud() as url:
            process = await gcloud(folder, url, *words)
            out, err = await process.communicate()
            assert process.returncode is not None
            return process.returncode, out.decode(), err.decode()

    return asyncio.run(run())


def test_it_says_once_that_it_is_simulated_and_prints_tokens(tmp_path: Path):
    code, out, err = result(tmp_path, "auth", "print-identity-token", "--audiences=https://x")
    assert (code, out) == (0, "id-for-https://x\n")
    assert err.count("simulated") == 1
    assert result(tmp_path, "auth", "print-access-token")[1] == "access\n"


def test_a_tunnel_carries_requests_until_it_is_told_to_stop(tmp_path: Path):
    port = free_port()

    async def run() -> None:
        async with cloud() as url:
            process = await gcloud(tmp_path, url, *SSH, f"{port}:127.0.0.1:8000")
            for _ in range(200):
                with contextlib.suppress(OSError):
                    answer = await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/health")
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("the tunnel did not open")
            assert answer.text == "through the tunnel"
            process.terminate()
            await asyncio.wait_for(process.wait(), 10)
            with pytest.raises(OSError):  # noqa: PT011 - refused
                await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/health")

    asyncio.run(run())


def test_a_port_where_nothing_listens_breaks_the_connection_and_not_the_tunnel(tmp_path: Path):
    port = free_port()

    async def run() -> None:
        async with cloud() as url:
            process = await gcloud(tmp_path, url, *SSH, f"{port}:127.0.0.1:9000")
            assert process.stderr is not None
            await process.stderr.readline()
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                await asyncio.sleep(0.05)
            assert b"open failed: connect failed: 404 Nothing listens there." in await process.stderr.readline()
            assert process.returncode is None
            process.terminate()
            await process.wait()

    asyncio.run(run())


def test_a_node_that_does_not_exist_is_refused_at_once(tmp_path: Path):
    words = [word.replace("n1", "n2") for word in SSH]
    code, _, err = result(tmp_path, *words, "0:127.0.0.1:8000")
    assert code == 1
    assert "ERROR: (gcloud) 404 Resource not found." in err


def test_what_it_does_not_know_is_one_sentence_and_code_2(tmp_path: Path):
    code, out, err = result(tmp_path, "run", "services", "list")
    assert (code, out) == (2, "")
    assert "the stand-in does not know `gcloud run services list`" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["n1", "--zone=z"], "--project=PROJECT and --zone=ZONE"),
        (["n1", "--project=p", "--zone=z", "--command=ls"], "opens tunnels only"),
        (["n1", "--project=p", "--zone=z", "--", "-L", "1:h:2"], "opens tunnels only"),
    ],
)
def test_an_ssh_that_is_no_tunnel_is_refused(words: list[str], says: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with pytest.raises(CommandError, match=says) as refused:
        parse_tunnel(words)
    assert refused.value.code == 2
