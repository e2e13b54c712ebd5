"""Causes that pass by themselves: the machine waits for the hub, the registry or storage, confined, and serves when they answer again."""

from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.contracts import guest_attributes
from gemma_serving.contracts.guest_attributes import RETRYING, WAITING, WAITING_FOR_DOCKER, WITH_REASON
from gemma_serving.contracts.rollout import RolloutLimits
from gemma_serving.contracts.server_errors import server_error, waiting_phase
from gemma_serving.contracts.serving_document import parse_document
from gemma_serving.vm_agent.containers import refused_by_registry
from gemma_serving.vm_agent.stored_state import AgentPacing
from tests.contract_keys import keys
from tests.vm_agent.docker import CONFINED_FAULT, REGISTRY_FAULT
from tests.vm_agent.in_process import Serving, calls, written
from tests.vm_agent.machine import IMAGE, Machine, document
from tests.vm_agent.test_confinement import runs

HUB, REGISTRY, STORAGE = "waiting for the hub", "waiting for the registry", "waiting for storage"
URL = "https://huggingface.co/google/gemma-4-E2B-it/resolve/main/config.json"
FRAME = (
    'File "/usr/local/lib/python3.12/site-packages/huggingface_hub/utils/_http.py", line 402, in hf_raise_for_status'
)
ENGINE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
OUTAGES = {
    "503": f"huggingface_hub.errors.HfHubHTTPError: 503 Server Error: Service Unavailable for url: {URL}",
    "429": f"huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: {URL}\nWe had to rate limit you.",
    "httpx": f"httpx.HTTPStatusError: Server error '502 Bad Gateway' for url '{URL}'",
    "reset": f"{FRAME}\nrequests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
    "name": f"{FRAME}\nhttpx.ConnectError: [Errno -3] Temporary failure in name resolution",
    "timeout": f"{FRAME}\nhttpx.ReadTimeout: The read operation timed out",
    "transformers": "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
    "cache": "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find "
    "the requested files in the local cache. Please check your connection and try again or make sure your Internet connection is on.",
    "pool": "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded\"))",
}
"""Last words of vLLM (huggingface_hub, utils/_http.py and file_download.py; transformers, utils/hub.py; requests; httpx)."""
VERDICTS = {
    "gated": f"huggingface_hub.errors.GatedRepoError: 401 Client Error.\n\nCannot access gated repo for url {URL}.",
    "forbidden": f"huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: {URL}",
    "absent": "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.\n"
    "OSError: google/x is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    "memory after a retried request": f"WARNING HTTP Error 503 thrown while requesting GET {URL}. Retrying in 1s [Retry 1/5].\n"
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 2G",
    "another host": "httpx.ConnectError: [Errno -3] Temporary failure in name resolution",
    "no exception": f"INFO GET {URL} 503 Server Error",
    "nothing": "INFO starting",
}


@pytest.fixture
def serving(machine: Machine):
    return Serving(machine, waiting_delay_s=0.05)


def test_the_last_exception_decides(subtests: pytest.Subtests):
    for name, said in OUTAGES.items():
        with subtests.test(name):
            lines = ["INFO starting", "Traceback (most recent call last):", *said.splitlines(), "Traceback:", ENGINE]
            assert (
                waiting_phase([f"(APIServer pid=1) ERROR 11-21 00:16:04 [core.py:1] {line}" for line in lines]) == HUB
            )
    for name, said in VERDICTS.items():
        with subtests.test(name):
            assert waiting_phase(["INFO starting", *said.splitlines(), ENGINE]) == ""
    of_storage = (
        "google.api_core.exceptions.ServiceUnavailableError: 503 Server Error: GET https://storage.googleapis.com/x"
    )
    assert waiting_phase([of_storage, ENGINE]) == STORAGE


def test_each_key_and_phase_is_listed_with_its_meaning_and_has_a_reason():
    named = {name: value for name, value in vars(guest_attributes).items() if isinstance(value, str) and name.isupper()}
    assert {value for name, value in named.items() if name.endswith("_KEY")} == set(keys()["guest-attributes"])
    assert set(keys()["phases"]) <= set(named.values())
    assert {HUB, REGISTRY, STORAGE, WAITING_FOR_DOCKER} == WAITING
    assert set(keys()["phases"]) > WAITING
    assert WITH_REASON > WAITING


def test_an_outage_of_the_hub_at_the_first_start_is_waited_for_in_a_confined_container(
    serving: Serving, machine: Machine
):
    (machine.root / CONFINED_FAULT).write_text(f"1\n{OUTAGES['503']}\n{ENGINE}")
    asked = serving.ask()
    serving.sees(HUB, asked, "")
    assert OUTAGES["503"] in machine.guest()["detail"], "the server's last words are kept"
    machine.until(lambda: len(runs(machine)) > 6, "it is started more often than restarts allow")
    assert "failed" not in written(machine, "phase")
    assert serving.agent.publisher.restarts == 0, "an outage is no restart of a server"
    (machine.root / CONFINED_FAULT).unlink()
    serving.sees("ready", asked, asked)
    assert not any(runs(machine))
    assert machine.guest()["container"].startswith("confined")


def test_a_refusal_of_the_hub_stays_a_verdict(serving: Serving, machine: Machine):
    (machine.root / CONFINED_FAULT).write_text(f"1\n{VERDICTS['gated']}\n{ENGINE}")
    serving.sees("failed", serving.ask(), "")
    assert len(runs(machine)) == 1, "another start would end in the same way"
    assert machine.guest()["detail"].endswith(f"\nCannot access gated repo for url {URL} (exit code 1)")


REFUSED = "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.\nRevision Not Found for url: {}.\nInvalid rev id: {}"


@pytest.mark.parametrize(
    ("said", "line", "is_repeated"),
    [
        (REFUSED.format(URL, "abc"), "Invalid rev id: abc", True),
        (VERDICTS["absent"], VERDICTS["absent"].splitlines()[-1], True),
        ("vllm serve: error: unrecognized arguments: --x", "vllm serve: error: unrecognized arguments: --x", True),
        (
            "1 validation error for CacheConfig\nblock_size\n  Input should be 16 [type=literal_error]\nmore",
            "1 validation error for CacheConfig block_size Input should be 16",
            True,
        ),
        ("1 validation error for ModelConfig\n  Value error, Invalid repository ID", "", False),
        (f"{REFUSED.format(URL, 'abc')}\n{OUTAGES['503']}", "Invalid rev id: abc", False),
        (VERDICTS["forbidden"], VERDICTS["forbidden"].removeprefix("huggingface_hub.errors."), False),
        (f"torch.OutOfMemoryError: CUDA out of memory\n{ENGINE}", "OutOfMemoryError: CUDA out of memory", False),
        ("INFO starting", "", False),
    ],
)
def test_the_line_that_shows_why_a_server_stopped_is_named_and_only_known_ones_end_the_attempts(
    said, line, is_repeated
):
    lines = [f"(APIServer pid=1) ERROR 11-21 00:16:04 [core.py:1] {text}" for text in said.splitlines()]
    assert server_error(["INFO starting", *lines]) == (line, is_repeated)


def test_an_exception_that_a_warning_names_is_no_error():
    """vLLM 0.32.0 on a machine with a limit of open files, of which an engine was killed."""
    warning = (
        "(APIServer pid=1) WARNING 11-26 09:48:16 [system_utils.py:255] Found ulimit of 20000 and failed to automatically increase with error "
        "current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing"
    )
    assert server_error([warning, "INFO:     Shutting down"]) == ("", False)


def test_the_log_of_a_server_that_was_ready_ends_no_attempts_and_one_with_unread_secrets_is_not_quoted(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
):
    """The first may contain a caller's text, the second a secret that cannot be masked."""
    plain = parse_document(document(1, secretEnv={}))
    monkeypatch.setattr("gemma_serving.vm_agent.serving.container_log", lambda: (VERDICTS["absent"],))
    stopped = serving.agent._stopped
    assert (stopped(1, plain).retry, str(stopped(1, plain)).endswith("models' (exit code 1)")) == (False, True)
    secret = stopped(1, parse_document(document(1)))
    assert (secret.retry, str(secret)) == (False, "The server stopped with exit code 1.")
    serving.agent._ready_at = 1.0
    assert stopped(1, plain).retry


@pytest.mark.parametrize(
    "said",
    [
        "Error response from daemon: received unexpected HTTP status: 503 Service Unavailable",
        "toomanyrequests: You have reached your pull rate limit.",
        'Error response from daemon: Get "https://us-docker.pkg.dev/v2/": dial tcp: lookup us-docker.pkg.dev: no such host',
    ],
)
def test_an_outage_of_the_registry_is_waited_for(serving: Serving, machine: Machine, said: str):
    (machine.root / REGISTRY_FAULT).write_text(said)
    asked = serving.ask()
    serving.sees(REGISTRY, asked, "")
    assert said in machine.guest()["detail"]
    machine.until(lambda: len(calls(machine, "pull")) > 6, "it is pulled more often than restarts allow")
    (machine.root / REGISTRY_FAULT).unlink()
    serving.sees("ready", asked, asked)


def test_only_artifact_registry_may_still_grant_what_it_denies():
    denied = "denied: requested access to the resource is denied"
    assert refused_by_registry("", denied, IMAGE).retry
    assert not refused_by_registry("", denied, "docker.io/my/vllm@sha256:1").retry


@pytest.mark.parametrize("said", ["manifest unknown: manifest unknown", "denied: Permission denied on resource"])
def test_a_refusal_of_the_registry_stays_a_verdict(machine: Machine, said: str):
    (machine.root / REGISTRY_FAULT).write_text(f"Error response from daemon: {said}")
    serving = Serving(machine, waiting_delay_s=0.05, denied_budget_s=0.0)
    serving.sees("failed", serving.ask(), "")


@pytest.mark.parametrize(("path", "phase"), [("/storage/", STORAGE), ("/secretmanager/", RETRYING)])
def test_an_outage_of_a_google_api_is_waited_for(machine: Machine, waits: list[float], path: str, phase: str):
    machine.objects["models/gemma/model.safetensors"] = b"weights"
    machine.secrets["projects/p/secrets/s/versions/3"] = b"value"
    machine.fail_next[path] = 10**6
    serving = Serving(machine, waiting_delay_s=0.05)
    weights = {"mode": "bucket", "uri": "gs://models/models/gemma", "path": str(machine.root / "weights")}
    asked = serving.ask(weights=weights, secretEnv={"HF_TOKEN": "projects/p/secrets/s/versions/3"})
    machine.until(lambda: len(waits) > 8 * 4, "it is tried more often than restarts allow")
    assert (phase in written(machine, "phase"), "failed" in written(machine, "phase")) == (True, False)
    machine.fail_next.clear()
    serving.sees("ready", asked, asked)


def test_a_full_disk_is_a_verdict_with_the_setting(serving: Serving, machine: Machine):
    said = "failed to register layer: write /usr/lib/x: no space left on device"
    (machine.root / REGISTRY_FAULT).write_text(said)
    # Beside a fetch of weights that has not ended, the pull would be tried again alone (test_together.py).
    serving.sees("failed", serving.ask(args=["/models/gemma", f"--port={serving.port}"]), "")
    assert machine.guest()["detail"].endswith(f"{said}. Set tpu.bootDiskSizeGb; this replaces the capacity.")
    assert len(calls(machine, "pull")) == 1


def test_a_run_that_ends_ends_the_wait(machine: Machine):
    serving = Serving(machine, waiting_delay_s=600.0, restart_delays_s=())
    (machine.root / CONFINED_FAULT).write_text(f"1\n{OUTAGES['503']}")
    serving.agent.publisher.heartbeat_s = 0.1
    serving.sees(HUB, serving.ask(), "")
    seen = machine.guest()["updated-at"]
    machine.until(lambda: machine.guest()["updated-at"] > seen, "a machine that waits reports that it does")
    soon = datetime.now(UTC) + timedelta(seconds=60)
    serving.agent.run_end.set(soon.isoformat())
    machine.until(lambda: machine.guest()["phase"] == "ending", "the wait ends with the run")


def test_a_changed_document_waits_while_the_old_one_serves_and_fails_with_its_time(serving: Serving, machine: Machine):
    good = serving.good()
    (machine.root / REGISTRY_FAULT).write_text("received unexpected HTTP status: 503 Service Unavailable")
    began_s = machine.clock.now()
    newer = serving.ask(image=IMAGE.replace("a" * 64, "b" * 64), limits=RolloutLimits(ready_timeout_s=3.0))
    serving.sees(REGISTRY, newer, good)
    machine.until(lambda: len(calls(machine, "pull")) > 6, "it is pulled more often than attempts allow")
    serving.sees("failed", newer, good)
    assert 3.0 <= machine.clock.now() - began_s < 4.0
    reasons = ("503 Service Unavailable", "not ready within 3 s")  # of a pull, or of the wait for the next one
    assert any(reason in machine.guest()["detail"] for reason in reasons)


def test_a_server_that_was_ready_is_restarted_and_not_waited_for(serving: Serving, machine: Machine):
    serving.good()
    log = machine.vm.log("gemma-serving")
    log.write_text(f"{log.read_text()}{OUTAGES['503']}\n")
    serving.server_ends(1)
    machine.until(lambda: len(runs(machine)) == 2, "it is restarted")
    assert HUB not in written(machine, "phase")


def test_the_attempts_come_every_five_minutes_in_the_end():
    pacing = AgentPacing()
    assert [pacing.waiting_delay_of_s(attempt) for attempt in range(1, 8)] == [2, 10, 40, 120, 300, 300, 300]
