"""The server's way to the metadata server: the slice's shape and no credentials, and what happens where the rule cannot be set."""

import resource
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.contracts.serving_document import parse_document
from gemma_serving.vm_agent import bounded, metadata_guard
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.metadata_guard import MetadataGuard, guard_rule
from tests.answers import Request, served
from tests.laws import examples
from tests.polling import until
from tests.vm_agent.machine import Machine, document, free_port

SERVED = parse_document(document(8000))


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The calls of iptables, which take effect nowhere."""
    calls: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str]:
        calls.append(argv)
        return 0, ""

    monkeypatch.setattr(metadata_guard, "run_command", run)
    return calls


@pytest.fixture
def guard(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GEMMA_SERVING_CGROUPS", str(tmp_path / "cgroup"))
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/cgroup.controllers").touch()
    guard = MetadataGuard(MetadataClient(), port=free_port())
    yield guard
    guard.close()


def ask(guard: MetadataGuard, path: str, *, data: bytes | None = None, flavor: str = "Google") -> tuple[int, str]:
    method = "GET" if data is None else "PUT"
    asked = urllib.request.Request(f"http://127.0.0.1:{guard.port}{path}", data=data, method=method)
    if flavor:
        asked.add_header("Metadata-Flavor", flavor)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310 - http
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


ROOT = "/computeMetadata/v1"
PROBED = ("/", ROOT, f"{ROOT}/")
READ = tuple(
    f"{ROOT}/{place}"
    for place in ("project/project-id", "instance/zone", "instance/attributes/", "instance/network-interfaces/0/ip")
)
CLOSED = (
    *(
        f"{ROOT}/instance{end}"
        for end in ("", "/", "/zone/token", "/service-accounts/", "/service-accounts/default/token")
    ),
    *(f"{ROOT}/project", f"{ROOT}/project/attributes/", f"{ROOT}beta1/instance/zone", "/0.1/meta-data/zone"),
)
BELOW = ("", "", "/../service-accounts/default/token", "/%2e%2e/service-accounts", "//service-accounts")


def test_a_server_reads_no_credentials_and_no_list_of_them_and_names_itself(guard: MetadataGuard, rules):
    asked = list[tuple[str, str | None]]()

    def metadata(request: Request) -> tuple[int, str]:
        asked.append((request.path, request.headers.get("Metadata-Flavor")))
        return 200, "shape"

    @settings(max_examples=examples(test=80, part=300, night=3000))
    @given(
        st.sampled_from([*PROBED, *READ, *READ, *CLOSED]),
        st.sampled_from(BELOW),
        st.sampled_from(["", "?recursive=true"]),
        st.sampled_from(["Google", ""]),
    )
    def law(place: str, below: str, query: str, flavor: str) -> None:
        asked.clear()
        path = f"{place}{below}{query}"
        is_open = not below and (place in READ or (place in PROBED and not query))
        assert ask(guard, path, flavor=flavor)[0] == (200 if is_open else 403)
        assert asked == [(path, flavor or None)] * is_open

    with served(metadata) as url:
        guard.metadata = MetadataClient(url.removeprefix("http://"))
        assert guard.options(SERVED) == (("--cgroup-parent=gemmaserving.slice",), "")
        law()
        assert ask(guard, f"{ROOT}/instance/guest-attributes/gemma-serving/phase", data=b"ready")[0] == 501
    guard.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", guard.port))


def test_the_rule_is_set_anew_before_each_container_and_never_absent_meanwhile(guard: MetadataGuard, monkeypatch):
    """The container that downloads another model is started while the server runs."""
    rules, asked, counts = list[str](), list[list[str]](), list[int]()

    def run(argv: list[str]) -> tuple[int, str]:
        asked.append(argv)
        if argv[4] == "-A":
            rules.append("rule")
        elif argv[4] == "-D":
            rules.pop()
        counts.append(len(rules))
        return (0 if rules else 1), ""

    monkeypatch.setattr(metadata_guard, "run_command", run)
    for one in (guard.options(SERVED), guard.fetch_options(), guard.options(SERVED)):
        assert one == (("--cgroup-parent=gemmaserving.slice",), "")
    assert [argv[4] for argv in asked] == ["-C", "-A", *("-C", "-A", "-D") * 2]
    assert counts == [0, 1, 1, 2, 1, 1, 2, 1]
    assert asked[1] == guard_rule("-A", guard.port)
    assert {"169.254.169.254", "80", "gemmaserving.slice", "REDIRECT"} <= set(asked[1])


def test_a_download_that_is_not_guarded_is_logged(guard: MetadataGuard, rules, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", guard.port)):
        assert guard.fetch_options()[0] == ()
    said = capsys.readouterr().err
    assert f"can read the TPU VM's token, because the agent cannot guard it: cannot use port {guard.port}" in said
    assert guard.fetch_options()[0], "the port is free again"
    assert capsys.readouterr().err == ""


def test_what_cannot_be_guarded_is_said_and_costs_no_start(guard: MetadataGuard, rules, tmp_path: Path, monkeypatch):
    streams = parse_document(document(8000, args=["gs://bucket/model", "--port=8000"]))
    assert guard.options(streams) == ((), "the server reads from Cloud Storage itself")
    assert guard.fetch_options()[0], "its download from the hub does not"
    monkeypatch.setattr(metadata_guard, "run_command", lambda argv: (0, "") if "-D" in argv else (4, "no such match"))
    options, why = guard.options(SERVED)
    assert (options, why) == ((), "iptables rejected the rule: no such match")
    (tmp_path / "cgroup/cgroup.controllers").unlink()
    assert "no version 2 control groups" in guard.options(SERVED)[1]


IDLE = """
import socket, sys, time
first = b"" if sys.argv[3] == "silent" else b"GET /computeMetadata/v1/instance/id HTTP/1.1\\r\\nX: "
opened = []
for _ in range(int(sys.argv[2])):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    try:
        one.sendall(first)
    except OSError:
        pass
    opened.append(one)
print("open", flush=True)
time.sleep(600)
"""


def answers(guard: MetadataGuard) -> bool:
    try:
        return ask(guard, "/computeMetadata/v1/instance/attributes/tpu-env") == (200, "shape")
    except OSError:
        return False


@pytest.mark.parametrize("kind", ["silent", "half a request"])
def test_hundreds_of_idle_connections_leave_the_agent_its_descriptors_and_the_next_request_is_answered(
    guard: MetadataGuard, machine: Machine, rules, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr(bounded, "SILENT_S", 600)  # so that only their number closes them
    machine.attributes["tpu-env"] = "shape"
    guard.options(SERVED)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/dev/fd").iterdir()))
    argv = [sys.executable, "-IS", "-c", IDLE, str(guard.port), "600", kind]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as idle:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 253, hard))
        try:
            assert idle.stdout
            assert idle.stdout.readline() == "open\n"
            until(lambda: len(list(Path("/dev/fd").iterdir())) - used < 100, "the oldest ones are closed")
            # While they end, a new connection may be closed; the first answer comes after all of them.
            until(lambda: answers(guard), "a request is answered")
            for _ in range(3):
                assert answers(guard)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            idle.kill()


def test_a_silent_connection_is_closed_after_its_time(guard: MetadataGuard, rules, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded, "SILENT_S", 0.1)
    guard.options(SERVED)
    with socket.create_connection(("127.0.0.1", guard.port), timeout=30) as silent:
        assert silent.recv(1) == b""


def test_an_agent_that_starts_again_answers_for_the_container_that_runs(
    guard: MetadataGuard, machine: Machine, monkeypatch
):
    asked: list[str] = []

    def run(argv: list[str]) -> tuple[int, str]:
        asked.append(argv[4])
        return (1 if argv[4] == "-C" else 0), ""

    monkeypatch.setattr(metadata_guard, "run_command", run)
    guard.keep()
    assert asked == ["-C", "-A"], "the rule of before may have gone with a reboot of the TPU VM's network"
    assert ask(guard, "/computeMetadata/v1/instance/attributes/none")[0] == 404
