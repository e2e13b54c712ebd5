"""A deployment whose server cannot be reached, through the real smoke checks; and one whose server is bad."""

import http.server
import json
import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from contracts.fields import from_json, json_object
from contracts.outputs import StackOutputs
from localcloud.running.shims import gcloud_login
from scripts.cli import access
from scripts.cli.command import run_command
from scripts.deploy.run import DeployRequest, deploy_stack
from scripts.deploy.steps import EngineSteps, ScriptRun
from scripts.smoke import __main__ as smoke
from scripts.smoke import checks_basic
from tests.scripts.sample_outputs import sample_outputs

NEW, GOOD = "b" * 40, "a" * 40


class Front(http.server.BaseHTTPRequestHandler):
    """Answers each request with one status, as Google's front end does for Cloud Run."""

    status = 403

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def front():
    handler = type("Front", (Front,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}", handler=handler)
        server.shutdown()


@pytest.fixture
def deploy(monkeypatch, tmp_path, capsys):
    """Deploy with the real smoke command against a server; the engine and the tag are planted."""
    done = []
    monkeypatch.setattr(EngineSteps, "good_commit", lambda _: GOOD)
    monkeypatch.setattr(EngineSteps, "model", lambda _: "m")
    monkeypatch.setattr(EngineSteps, "up", lambda _: done.append("up"))
    monkeypatch.setattr(EngineSteps, "up_at", lambda _, commit: done.append(f"up at {commit[0]}"))
    monkeypatch.setattr(EngineSteps, "remember", lambda _, commit: done.append(f"remember {commit[0]}"))
    monkeypatch.setattr("scripts.smoke.keep.SmokeRecorder.keep", lambda *_: None)  # its import keeps the real plan
    monkeypatch.setattr(
        "scripts.cli.measured.planned.deployed_plan", lambda *_: SimpleNamespace(smoke=None, answers=None)
    )
    monkeypatch.setattr("scripts.smoke.failure.ServerFailure.__call__", lambda _: None)
    monkeypatch.setattr(checks_basic, "ACCESS_GRACE_S", 0.2)
    monkeypatch.setattr(checks_basic, "FORBIDDEN_GRACE_S", 0.2)

    def script(_name, *arguments):
        code = run_command(smoke.COMMAND, list(arguments))
        shown = capsys.readouterr()
        sys.stderr.write(shown.err)
        return ScriptRun(code=code, report=json_object(shown.out))

    monkeypatch.setattr(EngineSteps, "_script", staticmethod(script))

    def run(**changes):
        raw = sample_outputs(**changes)
        raw["smoke"]["startupBudgetS"] = 1.0
        outputs = from_json(StackOutputs, raw)
        monkeypatch.setattr("engine.stack.stack_outputs", lambda _: outputs)
        steps = EngineSteps(stack="x", out=tmp_path, source=None, threshold=0.1)
        report = deploy_stack(DeployRequest(stack="x", commit=NEW, bench=False), steps, lambda _: None)
        return report, done, capsys.readouterr().err

    return run


def tunnel(*argv):
    port = free_port()
    return {
        "target": "tpu",
        "auth": "tunnel",
        "endpoint": f"http://127.0.0.1:{port}",
        "tunnel": {"argv": [*argv, "-L", f"{port}:127.0.0.1:{port}"], "localPort": port},
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kept(report, done):
    assert report.outcome == "not verified"
    assert done == ["up"]
    assert f"`git checkout {GOOD}`" in report.reason


def test_a_tunnel_that_gcloud_refuses_rolls_nothing_back(deploy, tmp_path):
    says = tmp_path / "says.txt"
    says.write_text(f"ERROR: {gcloud_login.NO_INSTANCE}\n")
    report, done, err = deploy(**tunnel("sh", "-c", f"cat {says} >&2; exit 1"))
    kept(report, done)
    assert "the tunnel exited with code 1 before it opened: ERROR: gcloud crashed (AttributeError)" in err


def test_a_tunnel_that_opens_to_a_machine_where_nothing_serves_rolls_back(deploy):
    """ssh takes the connection and resets it: the machine is reached, and its server is not there."""
    code = (
        "import socket, sys; forward = next(word for word in sys.argv if word.count(':') == 2); "
        "server = socket.socket(socket.AF_UNIX); server.bind(forward.split(':')[0]); server.listen()\n"
        "while True: server.accept()[0].close()"
    )
    report, done, _ = deploy(**tunnel(sys.executable, "-c", code))
    assert report.reason.startswith("The smoke checks failed.")
    assert done == ["up", "up at a"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_caller_that_cloud_run_refuses_rolls_nothing_back(deploy, front, status):
    front.handler.status = status
    report, done, err = deploy(endpoint=front.url, auth="none")
    kept(report, done)
    assert "Grant roles/run.invoker to the caller" in " ".join(err.split())


def test_a_network_that_is_down_rolls_nothing_back(deploy):
    report, done, err = deploy(endpoint=f"http://127.0.0.1:{free_port()}", auth="none")
    kept(report, done)
    assert "cannot reach the server; its health is unknown" in " ".join(err.split())


def test_an_account_without_an_identity_token_rolls_nothing_back(deploy, front, monkeypatch):
    def refuse(_):
        raise access.AccessError("no identity token")

    monkeypatch.setattr(access, "fetch_id_token", refuse)
    kept(*deploy(endpoint=front.url, auth="id-token")[:2])


@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_server_that_answers_badly_rolls_back(deploy, front, status):
    front.handler.status = status
    report, done, _ = deploy(endpoint=front.url, auth="none")
    assert report.reason.startswith("The smoke checks failed.")
    assert done == ["up", "up at a"]
    assert json.dumps(report.to_json())
