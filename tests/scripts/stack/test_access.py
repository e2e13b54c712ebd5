import asyncio
import base64
import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.auth import aws, identity_pool
from google.auth.exceptions import RefreshError

from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.scripts.stack import access
from gemma_serving.scripts.stack.access import AccessError, IdTokenSource, ServerAccess, open_access, open_stack_access
from loadtest.client.openai import call_once
from loadtest.client.urls import socket_path
from loadtest.client.wire import Origin, WireConnection, request_bytes, request_head
from localcloud.tests import idle_cloud
from tests.answers import served
from tests.polling import until
from tests.scripts.sample_outputs import sample_outputs

ROOT = Path(__file__).parents[3]
CALLS = (
    "scripts.smoke --url {url} --ready-budget-s 0.1",
    "scripts.connect chat hello --url {url}",
    "scripts.bench --url {url} --concurrency 1 --requests 1 --out {out}",
    "loadtest --url {url} --concurrency 1 --requests 1 --out {out}",
)
"""Commands that send requests to an address."""

# A stand-in for `gcloud ... ssh -- -N -L SOCKET:host:port`: forwards by a child of its own, as gcloud does by ssh.
FORWARDER = """
import asyncio, subprocess, sys
if sys.argv[1] == "parent":
    sys.exit(subprocess.call([sys.executable, "-c", open(sys.argv[2]).read(), "child", *sys.argv[2:]]))
local, host, port = sys.argv[sys.argv.index("-L") + 1].split(":")
async def pipe(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
async def serve(reader, writer):
    there = await asyncio.open_connection(host, int(port))
    await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))
async def main():
    async with await asyncio.start_unix_server(serve, local) as server:
        await server.serve_forever()
asyncio.run(main())
"""


@dataclass
class Tunnel:
    argv: list
    local_port: int = 8000


@pytest.fixture
def forwarder(tmp_path, url):
    script = tmp_path / "forward.py"
    script.write_text(FORWARDER)
    port = url.rsplit(":", 1)[1]
    return Tunnel([sys.executable, str(script), "parent", str(script), "-N", "-L", f"8000:127.0.0.1:{port}"])


def processes_with(word):
    """Return the processes of this machine that have a word in their command."""
    found = subprocess.run(["pgrep", "-f", word], capture_output=True, text=True, check=False).stdout
    return {int(line) for line in found.split()}


def gone(path):
    """Wait until no process of the tunnel to a socket is left."""
    until(lambda: not processes_with(path), "the tunnel's processes end")
    return not Path(path).parent.exists()


def listening_ports(group):
    """Return the ports of this machine on which the processes of a group listen."""
    inodes = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and os.getpgid(int(entry.name)) == group:
                inodes |= {str(fd.readlink()) for fd in (entry / "fd").iterdir()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes
    }


def test_the_local_end_of_a_tunnel_is_a_socket_that_only_its_owner_can_open_and_it_ends_with_its_children(forwarder):
    with open_access(endpoint="http://127.0.0.1:8000", auth="tunnel", tunnel=forwarder) as way:
        path = socket_path(way.base_url)
        assert stat.S_ISSOCK(Path(path).stat().st_mode)
        assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
        groups = {os.getpgid(process) for process in processes_with(path)}
        assert len(processes_with(path)) == 2
        assert [listening_ports(group) for group in groups] == [set()]
        assert call_once(way.base_url, way.headers, "GET", "/health", limit_s=30).status == 200
        exchange = asyncio.run(streamed(way.base_url))
        assert (exchange.status, exchange.error) == (200, None)
    assert gone(path)


async def streamed(url):
    """Send one request as the benchmark does."""
    origin = Origin.of(url)
    _, connection = await asyncio.get_running_loop().create_unix_connection(WireConnection, origin.socket)
    head = request_head(origin, "/v1/completions", {})
    body = json.dumps({"model": "timed", "prompt": "a", "max_tokens": 4, "stream": True}).encode()
    exchange, done = connection.exchange(request_bytes(head, body))
    await asyncio.wait_for(done, 60)
    connection.close()
    return exchange


def test_a_tunnel_is_closed_when_what_runs_in_it_breaks(forwarder):
    def broken():
        with open_access(endpoint="http://127.0.0.1:8000", auth="tunnel", tunnel=forwarder) as way:
            paths.append(socket_path(way.base_url))
            raise KeyboardInterrupt

    paths = []
    with pytest.raises(KeyboardInterrupt):
        broken()
    assert gone(paths[0])


def open_tunnel(tunnel):
    with open_access(endpoint="http://127.0.0.1:8000", auth="tunnel", tunnel=tunnel):
        pass


def test_a_machine_that_refuses_the_login_names_both_ways_out():
    words = "import sys; sys.exit('me@vm: Permission denied (publickey).')"
    with pytest.raises(AccessError, match=r"osLoginExternalUser.*gemma-serving:tpu\.ssh: metadata-key"):
        open_tunnel(Tunnel([sys.executable, "-c", words, "-L", "8000:127.0.0.1:8000"]))


def test_a_tunnel_that_never_opens_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr(access, "TUNNEL_OPEN_LIMIT_S", 0.4)
    with pytest.raises(AccessError, match="did not open within 0 s: no output"):
        open_tunnel(Tunnel([sys.executable, "-c", "import time; time.sleep(60)", "-L", "8000:127.0.0.1:8000"]))


def test_a_tunnel_may_take_as_long_as_the_first_connection_of_gcloud():
    start_s, update_of_metadata_s, attempts_s = 20, 60, 10 * 5 + 10
    assert start_s + update_of_metadata_s + attempts_s < access.TUNNEL_OPEN_LIMIT_S


@pytest.mark.parametrize("state", ["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"])
def test_a_stack_whose_capacity_has_not_come_is_not_reached_for(state):
    queued = {"target": "tpu", "auth": "tunnel", "location": "us-east5-a", "state": state}
    with pytest.raises(
        AccessError, match=rf"its request in us-east5-a was {state} .*\. To check for it, run `gemma up "
    ):
        open_stack_access(from_json(StackOutputs, sample_outputs(**queued)))


def test_a_tunnel_command_that_is_not_there_is_named():
    with pytest.raises(AccessError, match="cannot run the tunnel command 'no-such-command'"):
        open_tunnel(Tunnel(["no-such-command", "-L", "8000:127.0.0.1:8000"]))


def test_an_identity_token_goes_where_the_platform_looks_for_it():
    tokens = IdTokenSource("https://s.run.app", lambda audience: f"token for {audience}")
    alone = ServerAccess(base_url="https://s.run.app", auth="id-token", id_tokens=tokens)
    assert alone.headers() == {"Authorization": "Bearer token for https://s.run.app"}
    with_key = ServerAccess(base_url="https://s.run.app", auth="id-token", id_tokens=tokens, api_key="canary")
    assert with_key.headers() == {
        "Authorization": "Bearer canary",
        "X-Serverless-Authorization": "Bearer token for https://s.run.app",
    }
    assert ServerAccess(base_url="http://h", auth="none").headers() == {}
    assert "canary" not in repr(with_key)


def tokens_at(token, times_s):
    """Return the number of tokens that were fetched when a caller has asked for one at each of these times."""
    now, fetched, counts = [0.0], [], []
    source = IdTokenSource("a", lambda audience: fetched.append(audience) or token, clock=lambda: now[0])
    for now[0] in times_s:
        assert source.token() == token
        counts.append(len(fetched))
    return counts


def test_a_token_is_kept_until_it_is_about_to_run_out():
    last_s = max(access.TOKEN_LIFE_S - access.TOKEN_MARGIN_S, access.TOKEN_LIFE_S / 2)
    assert tokens_at("no token at all", [0, 1, last_s - 1, last_s]) == [1, 1, 1, 2]


def test_a_token_that_comes_half_spent_is_renewed_before_it_runs_out():
    claims = base64.urlsafe_b64encode(json.dumps({"exp": int(time.time()) + 600}).encode()).decode().rstrip("=")
    half_spent = f"e30.{claims}.c2ln"
    assert tokens_at(half_spent, [0, 200, 301]) == [1, 1, 2]


def test_the_audience_is_the_services_address_without_a_path(monkeypatch):
    asked = []
    monkeypatch.setattr(access, "fetch_id_token", lambda audience: asked.append(audience) or "t")
    with open_access(endpoint="https://s.run.app/v1/", auth="id-token") as way:
        way.headers()
    assert asked == ["https://s.run.app"]


def test_without_any_credentials_the_sentence_names_both_ways_out(tmp_path):
    """No key file, no metadata server, no gcloud: asked in a process of its own, whose environment has none of them."""
    code = "from gemma_serving.scripts.stack.access import fetch_id_token\nfetch_id_token('https://s.run.app')"
    env = {
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "NO_GCE_CHECK": "true",
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none.json"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert "no identity token for https://s.run.app" in done.stderr
    assert "`gcloud auth login`" in done.stderr
    assert "gcloud: 'not installed'" in done.stderr


@pytest.mark.parametrize(
    ("accepts", "token"),
    [('"$4" = "--audiences=https://s.run.app"', "of-an-account"), ('-z "$4"', "of-a-person")],
)
def test_gcloud_is_asked_for_the_services_audience_and_for_a_persons_login_without_one(
    tmp_path, monkeypatch, accepts, token
):
    """gcloud 528.0.0: "Invalid account type for `--audiences`. Requires valid service account." for a person's login."""
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(f'#!/bin/sh\n[ "$1 $2" = "auth print-identity-token" ] && [ {accepts} ] && echo {token}\n')
    gcloud.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert access._gcloud_token("https://s.run.app") == (token, "")


ACCOUNT = "/v1/projects/-/serviceAccounts/ci@p.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("status", "impersonates", "said"),
    [(200, True, ""), (403, True, "TokenCreator"), (200, False, "has no service account")],
)
def test_a_workload_identity_federation_has_the_token_of_its_account(tmp_path, monkeypatch, status, impersonates, said):
    asked = []

    def answer(request):
        """Answer as the token service, and as IAM Credentials for one account."""
        asked.append((request.path, request.headers.get("Authorization"), request.body))
        federated = {"access_token": "federated", "issued_token_type": "t", "token_type": "Bearer", "expires_in": 3600}
        account = {"accessToken": "of-the-account", "expireTime": "2099-01-01T00:00:00Z"}
        answers = {
            "/sts": (200, federated),
            f"{ACCOUNT}:generateAccessToken": (200, account),
            f"{ACCOUNT}:generateIdToken": (status, {"token": "the-id-token"}),
        }
        return answers[request.path]

    lookup = "_is_regional_access_boundary_lookup_required"
    monkeypatch.setattr(identity_pool.Credentials, lookup, lambda _self: False)
    with served(answer) as base:
        configure_federation(tmp_path, monkeypatch, base, impersonates=impersonates)
        token, reason = access._federated_token("https://s.run.app")
    assert (token, said in reason) == (None if said else "the-id-token", True)
    if not said:
        path, bearer, body = asked[-1]
        assert (path, bearer) == (f"{ACCOUNT}:generateIdToken", "Bearer of-the-account")
        assert json.loads(body) == {"audience": "https://s.run.app", "includeEmail": True}


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ({"url": "http://169.254.169.254/metadata/identity", "format": {"type": "text"}}, identity_pool.Credentials),
        ({"environment_id": "aws1", "regional_cred_verification_url": "https://sts.{region}.invalid"}, aws.Credentials),
    ],
    ids=["Azure", "AWS"],
)
def test_a_federation_of_another_cloud_has_the_credentials_of_that_cloud(tmp_path, monkeypatch, source, kind):
    def subject(_self, _request):
        raise RefreshError("no such cloud here")

    monkeypatch.setattr(kind, "retrieve_subject_token", subject)
    configure_federation(tmp_path, monkeypatch, "http://127.0.0.1:9", impersonates=True, source=source)
    assert access._federated_token("https://s.run.app") == (None, "no such cloud here")


def configure_federation(tmp_path, monkeypatch, base, *, impersonates, source=None):
    (tmp_path / "subject").write_text("a-token-of-the-workflow")
    config = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/g",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{base}/sts",
        "credential_source": source or {"file": str(tmp_path / "subject")},
        **({"service_account_impersonation_url": f"{base}{ACCOUNT}:generateAccessToken"} if impersonates else {}),
    }
    (tmp_path / "federation.json").write_text(json.dumps(config))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "federation.json"))
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAMCREDENTIALS", f"{base}/")


def test_a_service_accounts_file_gives_a_token_for_the_service(monkeypatch):
    with idle_cloud.start() as cloud:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(cloud.credentials))
        token = access.fetch_id_token("https://s.run.app")
        assert cloud.cloud.tokens.id_token(token).audience == "https://s.run.app"


@pytest.mark.parametrize("line", CALLS)
def test_a_key_of_another_client_is_sent_to_no_server_and_the_variable_of_this_one_is(tmp_path, line):
    sent = []

    def refuse(request):
        sent.append(request.headers.get("Authorization"))
        return 401, {"error": {"message": "who are you?"}}

    with served(refuse) as url:
        words = line.format(url=url, out=tmp_path).split()
        environment = {**os.environ, "OPENAI_API_KEY": "sk-of-openai", "GEMMA_API_KEY": "of-this-server"}
        for variables, expected in (
            (environment, "Bearer of-this-server"),
            ({**environment, "GEMMA_API_KEY": ""}, None),
        ):
            sent.clear()
            command = [sys.executable, "-m", *words]
            done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
            assert {*sent} == {expected}, done.stderr
    assert "et GEMMA_API_KEY" in done.stdout + done.stderr, "the last words name the variable"
