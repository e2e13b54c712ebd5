"""The frame of `make -C dev/judges real`: results, what a machine's docker adds to a command, and the relay. No judge is installed here."""

import json
import socket
import threading
from pathlib import Path

import pytest

from dev.judges.real.docker_here import run_arguments
from dev.judges.real.home import Need, RealHome
from dev.judges.real.relay import Link, breaking_relay
from dev.judges.real.runtime_here import drop_rights
from dev.judges.real.tests import conftest
from localcloud.running.shims.machine import Machine

CLAIMS = Path(conftest.__file__).parent


@pytest.fixture
def run(pytester, tmp_path, monkeypatch):
    """Return a function that runs claims as `make -C dev/judges real` does, and returns pytest's exit code and the report."""

    def run(text):
        home = RealHome(folder=tmp_path / "real")
        monkeypatch.setattr(conftest, "HOME", home)
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
        pytester.makepyfile(test_small_part=text)
        plugins = ("-p", conftest.__name__, "-p", "no:cacheprovider")
        result = pytester.runpytest_inprocess(*plugins, no_reraise_ctrlc=True)
        report = (home.results / conftest.REPORT).read_text(encoding="utf-8")
        assert (tmp_path / "summary").read_text(encoding="utf-8") == report
        return result.ret, report

    return run


def test_a_judge_that_is_missing_is_not_judged_and_no_success(run):
    code, report = run(
        """
        import pytest
        from dev.judges.real.service import Service

        @pytest.fixture(scope="module")
        def daemon(home, judge):
            judge("Docker 20.10")
            Service(["false"], home.results / "log").start(lambda: False)

        def test_one(daemon):
            '''A claim.'''

        @pytest.mark.skip(reason="no TPU")
        def test_two():
            '''Another one.'''
        """
    )
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "| small-part | Docker 20.10 | 0 | 0 | 2 |" in report
    assert "| small-part | A claim | not judged | false exited with 1: no output |" in report
    assert "| small-part | Another one | not judged | no TPU |" in report


def test_one_difference_fails_the_run_and_the_other_claims_are_judged(run):
    code, report = run(
        """
        import pytest

        @pytest.mark.parametrize("holds", [True, False], ids=["first", "second"])
        def test_one(holds, notes):
            '''A claim.'''
            notes += ["1 | 2", "3"]
            assert holds, f"docker gives {holds}"

        def test_two():
            '''The last one.'''
        """
    )
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "| small-part |  | 2 | 1 | 0 |" in report
    assert "| small-part | A claim: first | agrees | 1 \\| 2; 3 | 0 |" in report
    assert "| small-part | A claim: second | DIFFERS | docker gives False | 0 |" in report
    assert "| small-part | The last one | agrees |  | 0 |" in report


def test_a_signal_ends_what_a_fixture_started(run, tmp_path):
    code, report = run(
        f"""
        import os
        import signal
        from pathlib import Path

        import pytest

        @pytest.fixture(scope="module")
        def daemon(home):
            yield
            Path({str(tmp_path / "ended")!r}).touch()

        def test_one(daemon):
            '''A claim.'''
            os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    assert code == pytest.ExitCode.INTERRUPTED
    assert "| small-part | A claim | not judged | interrupted |" in report
    assert (tmp_path / "ended").exists()


def test_a_need_is_refused_before_the_disk_is_full(tmp_path):
    with pytest.raises(pytest.skip.Exception, match="needs 1e\\+06 GiB and 1 GiB of reserve"):
        RealHome(folder=tmp_path).get(Need(what="a judge", where="here", disk_gib=1e6, takes_s=1))


def test_a_machines_container_gets_its_own_folders_and_values(tmp_path, monkeypatch):
    monkeypatch.setenv("REAL_MOUNTS", "/python:/project")
    monkeypatch.setenv("REAL_SERVER_VARIABLES", json.dumps({"REAL_PYTHON": "/python/bin/python"}))
    machine = Machine(folder=tmp_path, name="n1", address="127.70.0.1", accelerator="v6e-1", clock_speed=50)
    given = [
        "-d",
        "--name=gemma-serving",
        "--volume=/mnt/models/m:/mnt/models/m:ro",
        "--volume=/dev/shm:/dev/shm",
        "IMAGE",
        "--volume=a",
    ]
    found = run_arguments(machine, given)
    assert found[-2:] == ["IMAGE", "--volume=a"], "words after the image are the server's"
    assert f"--volume={tmp_path}/mnt/models/m:/mnt/models/m:ro" in found
    assert f"--volume={tmp_path}/dev-shm:/dev/shm" in found
    assert "--volume=/python:/python:ro" in found
    assert "--env=REAL_PYTHON=/python/bin/python" in found
    assert "--env=VLLM_SIM_BIND_HOST=127.70.0.1" in found
    assert "--label=localcloud.machine=n1" in found


def test_rights_that_this_machine_lacks_are_dropped_and_no_others():
    process = {
        "rlimits": [{"type": "RLIMIT_MEMLOCK", "hard": 1}, {"type": "RLIMIT_NOFILE", "hard": 2}],
        "capabilities": {"bounding": ["CAP_IPC_LOCK", "CAP_SYS_RESOURCE"]},
    }
    drop_rights(process)
    assert process == {
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 2}],
        "capabilities": {"bounding": ["CAP_IPC_LOCK"]},
    }


def test_a_relay_breaks_off_after_the_given_bytes_and_ends_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as target:

        def answer():
            for _ in range(2):
                connection, _ = target.accept()
                with connection:
                    connection.recv(10)
                    connection.sendall(b"x" * 1000)

        threading.Thread(target=answer, daemon=True).start()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            free = probe.getsockname()
        with breaking_relay(free, target.getsockname()) as relay:
            sizes = []
            for breaks_after in (None, 10):
                relay.breaks_after = breaks_after
                with socket.create_connection(free) as client:
                    client.sendall(b"get")
                    sizes.append(len(b"".join(iter(lambda: client.recv(4096), b""))))
    assert sizes == [1000, 0]
    assert relay.broken == 1


def test_streams_of_one_link_share_its_rate_and_an_idle_link_catches_up_half_a_second():
    now_s = 100.0
    link = Link(bytes_per_s=1000, clock=lambda: now_s)
    assert [link.delay_s(500) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
    now_s = 200.0
    assert [link.delay_s(500) for _ in range(2)] == [0.0, 0.5]
    assert link.sent_bytes == 3000
    link.bytes_per_s = 0
    assert link.delay_s(10**9) == 0.0
