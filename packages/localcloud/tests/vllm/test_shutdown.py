"""SIGTERM: new requests are refused first. Running ones end with `--shutdown-timeout`, and are aborted without it."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from localcloud.tests.running.running_server import Answer, ask, environment


@pytest.fixture
def timeout_s(request: pytest.FixtureRequest) -> int:
    """The server's `--shutdown-timeout`."""
    return getattr(request, "param", 60)


@pytest.fixture
def served(timeout_s: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server whose responses take some seconds, and its URL."""
    words = ["serve", "google/gemma-4-E2B-it", "--max-model-len=8192", f"--shutdown-timeout={timeout_s}"]
    variables = {"VLLM_SIM_BIND_PORT": "0", "VLLM_SIM_CLOCK_SPEED": "5000", "VLLM_SIM_ACCELERATOR": "v6e-1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "localcloud.vllm", *words],
        env=environment(**variables, VLLM_SIM_TTFT_S="0.1", VLLM_SIM_TPOT_S="0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    port = ""
    for line in process.stdout:
        port = line.split()[-1] if "listening on port" in line else port
        if "Application startup complete" in line:
            break
    yield process, f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def test_a_running_request_ends_whole_and_a_new_one_is_refused(served: tuple[subprocess.Popen[str], str]):
    process, url = served
    answers: list[Answer] = []
    body = {"prompt": "a", "model": "google/gemma-4-E2B-it", "max_tokens": 40, "min_tokens": 40}
    running = threading.Thread(target=lambda: answers.append(ask(f"{url}/v1/completions", body)))
    running.start()
    while "num_requests_running" not in (text := ask(f"{url}/metrics").text) or not _running(text):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert any("Shutting down" in line for line in process.stdout)
    assert _is_refused_before_the_end(process, url)
    running.join(120)
    assert answers[0].status == 200
    assert answers[0].json["usage"]["completion_tokens"] == 40
    assert process.wait(60) == 0


def _is_refused_before_the_end(process: subprocess.Popen[str], url: str) -> bool:
    while process.poll() is None:
        try:
            ask(f"{url}/health")
        except OSError:
            return True
    return False


def _running(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return any(float(line.split()[-1]) for line in lines)


@pytest.mark.parametrize("timeout_s", [0], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
def test_without_a_timeout_a_running_request_is_aborted_at_once(
    served: tuple[subprocess.Popen[str], str], *, stream: bool
):
    process, url = served
    answers: list[Answer] = []
    body = {"prompt": "a", "model": "google/gemma-4-E2B-it", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    running = threading.Thread(target=lambda: answers.append(ask(f"{url}/v1/completions", body)))
    running.start()
    while not _running(ask(f"{url}/metrics").text):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    running.join(120)
    last = answers[0].events()[-1] if stream else answers[0].json
    assert last["choices"][0]["finish_reason"] == "abort"
    assert process.wait(60) == 0
