"""The gcloud stand-in as a command on PATH, against a cloud of fixed answers."""

import asyncio
import contextlib
import getpass
import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from gemma_serving.stacks.tpu import ssh_tunnel
from localcloud.running.shims import OPERATOR_TOKEN, install
from localcloud.running.shims.gcloud import CommandError, listen, parse_tunnel
from localcloud.tests.idle_cloud import Started
from localcloud.tests.running.running_server import ask, environment

SSH = [
    "alpha",
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
USER_KEY = f"{getpass.getuser()}:ssh-rsa simulated-key-of-{getpass.getuser()} {getpass.getuser()}@localcloud"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def nothing(_: web.Request) -> web.Response:
    return web.json_response({})


@contextlib.asynccontextmanager
async def cloud(metadata: dict[str, str] | None = None, *, ssh_key_s: float = 0.0) -> AsyncIterator[str]:
    """A cloud with one node. `metadata` is the node's and is updated; without it the node knows the user's key."""
    known = {"ssh-keys": USER_KEY} if metadata is None else metadata

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
        if request.method == "PATCH":
            assert request.query["updateMask"] == "metadata"
            known.clear()
            known.update((await request.json())["metadata"])
            return web.json_response({"name": "projects/p/locations/us-east5-a/nodes/n1", "done": False})
        return web.json_response({"name": NODE, "metadata": known, "done": True})

    async def clock(_: web.Request) -> web.Response:
        return web.json_response({"speed": 100, "instant": False})

    async def scenario(_: web.Request) -> web.Response:
        return web.json_response({"tpu": {"durations_s": {"ssh_key": ssh_key_s}}})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="through the tunnel")

    app = web.Application()
    app.add_routes(
        [
            web.post("/admin/tokens", tokens),
            web.get("/admin/tunnel", tunnel),
            web.get("/health", health),
            web.get("/tpu/{path:.*}", node),
            web.patch("/tpu/{path:.*}", node),
            web.post("/tpu/{path:.*}", nothing),
            web.get("/compute/{path:.*}", nothing),
            web.get("/admin/ssh", nothing),
            web.get("/admin/clock", clock),
            web.get("/admin/scenario", scenario),
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
            for _ in range(1200):
                with contextlib.suppress(OSError):
                    answer = await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/health")
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("the tunnel did not open")
            assert answer.text == "through the tunnel"
            process.terminate()
            await asyncio.wait_for(process.wait(), 60)
            with pytest.raises(OSError):  # noqa: PT011 - refused
                await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/health")

    asyncio.run(run())


@pytest.mark.parametrize("words", ["run services list", "secrets delete x --project=p"])
def test_what_it_does_not_know_is_one_sentence_and_code_2(tmp_path: Path, words: str):
    code, out, err = result(tmp_path, *words.split())
    assert (code, out) == (2, "")
    assert f"the stand-in does not support `gcloud {words}`" in err


def test_the_installed_command_is_the_owners_whoever_the_shell_belongs_to(own_cloud: Started, tmp_path: Path):
    token = own_cloud.cloud.tokens.issue_access_token(own_cloud.cloud.operator)
    command = install(tmp_path / "bin", environment={OPERATOR_TOKEN: token}) / "gcloud"
    shell = {"LOCALCLOUD_URL": own_cloud.base_url, "GOOGLE_OAUTH_ACCESS_TOKEN": "somebody-else"}
    said = subprocess.run(
        [command, "config", "get", "account"], env=environment(**shell), capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout.strip()) == (0, own_cloud.cloud.owner), said.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["n1", "--zone=z"], "--project=PROJECT and --zone=ZONE"),
        (["n1", "--project=p", "--zone=z", "--command=ls"], "only opens tunnels"),
        (["n1", "--project=p", "--zone=z", "--tunnel-through-iap", "--", "-L", "1:h:2"], "only opens tunnels"),
        (["n1", "--project=p", "--zone=z", "--", "-N", "-L", "1:h:2"], "Pass --tunnel-through-iap"),
    ],
)
def test_an_ssh_that_is_no_tunnel_is_refused(words: list[str], says: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with pytest.raises(CommandError, match=says) as refused:
        parse_tunnel(words)
    assert refused.value.code == 2


REFUSED = [*SSH[1:], "0:127.0.0.1:8000"]


def test_a_tunnel_of_a_tpu_stack_is_understood():
    argv = ssh_tunnel(node=NODE, zone="us-east5-a", project="p-123456").argv
    tunnel = parse_tunnel(argv[argv.index("ssh") + 1 :])
    assert argv[1] == "alpha"
    assert (tunnel.node, tunnel.remote_port) == (NODE.replace("/p/", "/p-123456/"), 8000)


def forwarding(local):
    return parse_tunnel(
        ["n1", "--project=p", "--zone=z", "--tunnel-through-iap", "--", "-N", "-L", f"{local}:127.0.0.1:8000"]
    )


def test_the_local_end_may_be_a_socket_that_only_its_user_can_open(tmp_path: Path):
    async def listened() -> None:
        server = await listen(forwarding(tmp_path / "s"))
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        server.close()

    asyncio.run(listened())


def test_a_socket_is_refused_as_ssh_refuses_it(tmp_path: Path):
    (tmp_path / "taken").touch()
    with pytest.raises(CommandError, match=r"unix_listener: cannot bind to path .*/taken: Address already in use"):
        asyncio.run(listen(forwarding(tmp_path / "taken")))
    with pytest.raises(CommandError, match=r"^Bad local forwarding specification '/d+:127\.0\.0\.1:8000'$"):
        forwarding("/" + "d" * 107)
    assert forwarding("/" + "d" * 106).local == "/" + "d" * 106


@pytest.mark.parametrize("track", [[], ["beta"]])
def test_a_tunnel_outside_the_alpha_track_is_refused_in_the_words_of_gcloud(tmp_path: Path, track: list[str]):
    code, out, err = result(tmp_path, *track, *REFUSED)
    recorded = err.partition("\n")[2]
    assert (code, out) == (2, "")
    assert recorded.startswith("ERROR: (gcloud.")
    assert "gcloud alpha compute tpus tpu-vm" in recorded


@pytest.fixture
def gcloud_itself() -> tuple[str, str]:
    """The path and the version of an installed gcloud that has the alpha track."""
    path = shutil.which("gcloud")
    if path is not None:
        asked = [path, "version", "--format=json"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
        components = json.loads(said.stdout) if said.returncode == 0 else {}
        if "alpha" in components:
            return path, components["Google Cloud SDK"]
    pytest.skip("gcloud with its alpha track is not installed")


def real_answer(folder: Path, path: str, *words: str) -> tuple[int, str]:
    """Exit code and stderr of the real gcloud without any account."""
    settings = {"CLOUDSDK_CONFIG": str(folder), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CLOUDSDK_", "GOOGLE_"))}
    done = subprocess.run(
        [path, *words],
        env={**kept, **settings, "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("track", [[], ["beta"]])
def test_gcloud_itself_refuses_a_tunnel_outside_the_alpha_track_in_these_words(
    gcloud_itself: tuple[str, str], tmp_path: Path, track: list[str]
):
    path, version = gcloud_itself
    if version != "528.0.0":
        pytest.skip("the words were recorded from gcloud 528.0.0")
    recorded = result(tmp_path, *track, *REFUSED)[2].partition("\n")[2]
    assert real_answer(tmp_path, path, *track, *REFUSED) == (2, recorded)


def test_the_first_tunnel_adds_a_key_to_the_metadata_and_waits_for_it(tmp_path: Path):
    port, metadata = free_port(), {"startup-script": "#!", "ssh-keys": "somebody:ssh-rsa AAAA"}

    async def run() -> None:
        async with cloud(metadata, ssh_key_s=60.0) as url:
            process = await gcloud(tmp_path, url, *SSH, f"{port}:127.0.0.1:8000")
            assert process.stderr is not None
            said = [(await process.stderr.readline()).decode().strip() for _ in range(3)]
            assert said[1:] == [
                "Propagating SSH public key to all TPU workers...",
                "SSH: Attempting to connect to worker 0...",
            ]
            with pytest.raises(OSError):  # noqa: PT011 - refused until the key is accepted
                socket.create_connection(("127.0.0.1", port), 20)
            began = asyncio.get_running_loop().time()
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 20).close()
                    break
                await asyncio.sleep(0.02)
            assert asyncio.get_running_loop().time() - began > 0.3
            process.terminate()
            await process.wait()

    asyncio.run(run())
    assert metadata == {"startup-script": "#!", "ssh-keys": f"somebody:ssh-rsa AAAA\n{USER_KEY}"}
