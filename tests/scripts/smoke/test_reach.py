"""A server that cannot be reached is unknown, and a bad one fails, through the whole command."""

import socket
import sys
from types import SimpleNamespace

import pytest

from gemma_serving.contracts.fields import from_json, json_object
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.stack_facts import StackFacts
from gemma_serving.contracts.three_answers import Absent
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.smoke import __main__ as smoke
from gemma_serving.scripts.smoke import checks_basic
from localcloud.running.shims import gcloud_login
from tests.answers import served
from tests.scripts.sample_outputs import sample_outputs


@pytest.fixture
def smoked(monkeypatch, capsys):
    """Run the command against a server, and return its exit code, its verdict and what it said."""
    monkeypatch.setattr(
        "gemma_serving.scripts.stack.deployed_plan.deployed_plan", lambda *_: SimpleNamespace(smoke=None, answers=None)
    )
    monkeypatch.setattr("gemma_serving.scripts.smoke.failure.ServerFailure.__call__", lambda _: None)
    monkeypatch.setattr(checks_basic, "ACCESS_GRACE_S", 0.2)
    monkeypatch.setattr(checks_basic, "FORBIDDEN_GRACE_S", 0.2)

    def run(**changes):
        raw = sample_outputs(**changes)
        raw["smoke"]["startupBudgetS"] = 1.0
        outputs = from_json(StackOutputs, raw)
        facts = StackFacts(stack="x", state=Absent(), outputs=Absent())
        monkeypatch.setattr("gemma_serving.scripts.stack.serves.serving_facts", lambda _: (facts, outputs))
        code = run_command(smoke.COMMAND, ["--stack", "x", "--json"])
        shown = capsys.readouterr()
        return code, json_object(shown.out).get("verdict"), " ".join(shown.err.split())

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


UNKNOWN, FAILED = (2, "unreachable"), (1, "failed")


def test_a_tunnel_that_gcloud_refuses_is_unknown(smoked, tmp_path):
    says = tmp_path / "says.txt"
    says.write_text(f"ERROR: {gcloud_login.NO_INSTANCE}\n")
    *found, said = smoked(**tunnel("sh", "-c", f"cat {says} >&2; exit 1"))
    assert found == [2, None], "no check ran"
    assert "the tunnel exited with code 1 before it opened: ERROR: gcloud crashed (AttributeError)" in said


def test_a_tunnel_that_opens_to_a_machine_where_nothing_serves_fails(smoked):
    """ssh takes the connection and resets it: the machine is reached, and its server is not there."""
    code = (
        "import socket, sys; forward = next(word for word in sys.argv if word.count(':') == 2); "
        "server = socket.socket(socket.AF_UNIX); server.bind(forward.split(':')[0]); server.listen()\n"
        "while True: server.accept()[0].close()"
    )
    assert smoked(**tunnel(sys.executable, "-c", code))[:2] == FAILED


@pytest.mark.parametrize("status", [401, 403])
def test_a_caller_that_cloud_run_refuses_is_unknown(smoked, status):
    with served(lambda _: (status, "")) as front:
        *found, said = smoked(endpoint=front, auth="none")
    assert tuple(found) == UNKNOWN
    assert f"The address returned {status}: no reason given." in said


def test_a_network_that_is_down_is_unknown(smoked):
    *found, said = smoked(endpoint=f"http://127.0.0.1:{free_port()}", auth="none")
    assert tuple(found) == UNKNOWN
    assert "cannot reach the server; its health is unknown" in said


@pytest.mark.parametrize("status", [404, 503])
def test_a_server_that_answers_badly_fails(smoked, status):
    with served(lambda _: (status, "")) as front:
        assert smoked(endpoint=front, auth="none")[:2] == FAILED


def at_url(url, capsys, *words):
    """Return the exit code with the verdict, the detail of the first check, and the seconds of the command with --url."""
    code = run_command(smoke.COMMAND, ["--url", url, "--json", *words])
    report = json_object(capsys.readouterr().out)
    return (code, report["verdict"]), report["checks"][0]["detail"], report["elapsed_s"]


def fail_lookups(monkeypatch, code, words):
    """Make each lookup of a name end as a resolver's answer does."""

    def refuse(*_, **__):
        raise socket.gaierror(code, words)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_name_without_an_address_is_unknown_at_once(monkeypatch, capsys):
    fail_lookups(monkeypatch, socket.EAI_NONAME, "Name or service not known")
    found, detail, elapsed_s = at_url("http://nohost.invalid/v1", capsys)
    assert found == UNKNOWN
    assert elapsed_s < 60, "it does not wait for --ready-budget-s"
    assert detail == (
        "GET /health failed: the name nohost.invalid has no address (Name or service not known). "
        "Pass --url with the address of a server, such as http://127.0.0.1:8000."
    )


def test_a_lookup_that_failed_for_now_is_tried_again(monkeypatch, capsys):
    fail_lookups(monkeypatch, socket.EAI_AGAIN, "Temporary failure in name resolution")
    found, detail, _ = at_url("http://nohost.invalid/v1", capsys, "--ready-budget-s", "1")
    assert found == FAILED
    assert "raise --ready-budget-s" in detail


def test_an_address_where_nothing_listens_is_named(capsys):
    url = f"http://127.0.0.1:{free_port()}"
    found, detail, _ = at_url(f"{url}/v1", capsys, "--ready-budget-s", "1")
    assert found == FAILED
    assert detail.endswith(f"(Connection refused). Check that a server runs at {url}, or raise --ready-budget-s.")


def test_a_server_at_a_url_that_is_not_ready_has_a_log(capsys):
    with served(lambda _: (503, "")) as front:
        found, detail, _ = at_url(front, capsys, "--ready-budget-s", "1")
    assert found == FAILED
    assert detail.endswith(". Check the server log, or raise --ready-budget-s.")
