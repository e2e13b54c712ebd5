"""The gcloud stand-in as a command on PATH."""

import asyncio
import getpass
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gemma_serving.stacks.tpu import ssh_tunnel
from localcloud.running.shims import OPERATOR_TOKEN, install
from localcloud.running.shims.gcloud import CommandError, listen, parse_tunnel
from localcloud.tests.conftest import Client
from localcloud.tests.idle_cloud import IdleMachines, Started
from localcloud.tests.running.running_server import Answer, ask, environment
from localcloud.tests.server.gcloud_commands import clean, installed
from tests.agreement.test_tunnel_rights import NODE, node
from tests.polling import until

__all__ = ["node"]

SSH = [
    "alpha",
    "compute",
    "tpus",
    "tpu-vm",
    "ssh",
    "n1",
    "--project=local-project",
    "--zone=us-east5-a",
    "--tunnel-through-iap",
    "--",
    "-N",
    "-L",
]
USER_KEY = f"{getpass.getuser()}:ssh-rsa simulated-key-of-{getpass.getuser()} {getpass.getuser()}@localcloud"
OTHERS = {"enable-guest-attributes": "TRUE", "ssh-keys": "somebody:ssh-rsa AAAA"}
"""Metadata of the node, which has no OS Login and does not know the user's key."""
Gcloud = Callable[..., subprocess.Popen[str]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def gcloud(own_cloud: Started, tmp_path: Path) -> Gcloud:
    """Return a function that starts the installed command."""
    token = own_cloud.cloud.tokens.issue_access_token(own_cloud.cloud.operator)
    command = install(tmp_path / "bin", environment={OPERATOR_TOKEN: token}) / "gcloud"

    def started(*words: str, **variables: str) -> subprocess.Popen[str]:
        around = environment(LOCALCLOUD_URL=own_cloud.base_url, **variables)
        return subprocess.Popen(
            [command, *words], env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return started


def result(gcloud: Gcloud, *words: str, **variables: str) -> tuple[int, str, str]:
    process = gcloud(*words, **variables)
    out, err = process.communicate()
    return process.returncode, out, err


def through(port: int) -> Answer | None:
    """Return the answer of the server behind a tunnel; None if the tunnel is closed."""
    with suppress(OSError):
        return ask(f"http://127.0.0.1:{port}/admin")
    return None


def test_it_says_once_that_it_is_simulated_and_prints_tokens(gcloud: Gcloud, own_cloud: Started):
    code, out, err = result(gcloud, "auth", "print-identity-token", "--audiences=https://x")
    assert (code, out.count("."), err.count("simulated")) == (0, 2, 1)
    token = result(gcloud, "auth", "print-access-token")[1].strip()
    assert Client(own_cloud.base_url, token).call("GET", "/admin/clock")[0] == 200


def test_a_tunnel_carries_requests_until_it_is_told_to_stop(gcloud: Gcloud, node: Client, own_cloud: Started):
    """The server behind it is the local cloud's own, which names its address to a caller of another one."""
    machines, port = own_cloud.cloud.runtimes.machines, free_port()
    assert isinstance(machines, IdleMachines)
    address = own_cloud.base_url.removeprefix("http://")
    machines.listening[8000] = ("127.0.0.1", int(address.partition(":")[2]))
    process = gcloud(*SSH, f"{port}:127.0.0.1:8000")
    answer = until(lambda: through(port), "the tunnel opens", process=process)
    assert f"only answers requests to {address}" in answer.text
    process.terminate()
    process.communicate(timeout=60)
    assert through(port) is None


@pytest.mark.parametrize("words", ["run services list", "iam roles undelete x --project=p"])
def test_what_it_does_not_know_is_one_sentence_and_code_2(gcloud: Gcloud, words: str):
    code, out, err = result(gcloud, *words.split())
    assert (code, out) == (2, "")
    assert f"the stand-in does not support `gcloud {words}`" in err


def test_the_installed_command_is_the_owners_whoever_the_shell_belongs_to(gcloud: Gcloud, own_cloud: Started):
    code, out, err = result(gcloud, "config", "get", "account", GOOGLE_OAUTH_ACCESS_TOKEN="somebody-else")
    assert (code, out.strip()) == (0, own_cloud.cloud.owner), err


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
    assert (tunnel.node, tunnel.remote_port) == (NODE.replace("/local-project/", "/p-123456/"), 8000)


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
def test_a_tunnel_outside_the_alpha_track_is_refused_in_the_words_of_gcloud(gcloud: Gcloud, track: list[str]):
    code, out, err = result(gcloud, *track, *REFUSED)
    recorded = err.partition("\n")[2]
    assert (code, out) == (2, "")
    assert recorded.startswith("ERROR: (gcloud.")
    assert "gcloud alpha compute tpus tpu-vm" in recorded


@pytest.mark.long
@pytest.mark.parametrize("track", [[], ["beta"]])
def test_gcloud_itself_refuses_a_tunnel_outside_the_alpha_track_in_these_words(
    gcloud: Gcloud, tmp_path: Path, track: list[str]
):
    real, path = installed(), shutil.which("gcloud")
    if real is None or path is None:
        pytest.skip("gcloud with its alpha track is not installed")
    if real.version != "528.0.0":
        pytest.skip("the words were recorded from gcloud 528.0.0")
    recorded = result(gcloud, *track, *REFUSED)[2].partition("\n")[2]
    around = {"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false"}
    done = subprocess.run(
        [path, *track, *REFUSED],
        env=clean(CLOUDSDK_CORE_DISABLE_PROMPTS="1", **around),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (2, recorded)


def test_the_first_tunnel_adds_a_key_to_the_metadata_and_waits_for_it(gcloud: Gcloud, node: Client):
    node.ok("PATCH", f"/tpu/v2alpha1/{NODE}", {"metadata": OTHERS}, updateMask="metadata")
    slow = {"operations": {"instant": False}, "tpu": {"durations_s": {"ssh_key": 120}}}
    node.ok("PUT", "/admin/scenario", slow, merge="true")
    wait_s, port = 120 / node.ok("GET", "/admin/clock")["speed"], free_port()
    process = gcloud(*SSH, f"{port}:127.0.0.1:8000")
    assert process.stderr is not None
    assert [process.stderr.readline().strip() for _ in range(3)][1:] == [
        "Propagating SSH public key to all TPU workers...",
        "SSH: Attempting to connect to worker 0...",
    ]
    began_s = time.monotonic()
    until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the node accepts the key", process=process)
    assert time.monotonic() - began_s > wait_s / 2
    process.terminate()
    process.communicate(timeout=60)
    metadata = node.ok("GET", f"/tpu/v2alpha1/{NODE}")["metadata"]
    assert metadata == {**OTHERS, "ssh-keys": f"{OTHERS['ssh-keys']}\n{USER_KEY}"}
