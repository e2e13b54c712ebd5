"""Revisions: the real server under the real probe, on a fast clock."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localcloud.running import probes
from localcloud.running.fronts import DEFAULT_LIMITS
from localcloud.running.processes import PlannedStart
from localcloud.running.revisions import May, SimulatedRevisions, is_other_program, memory_mib
from localcloud.running.starters import GoogleAccess
from localcloud.tests.conftest import in_loop
from localcloud.tests.running.machine_world import until
from localcloud.tests.running.running_server import ask
from localcloud.world.run_messages import LogLine
from localcloud.world.runtime import OPEN, Egress, RevisionFailedError, RevisionSpec
from localcloud.world.scenario import parse
from localcloud.world.timeline import Clock

SERVICE = "projects/p/locations/us-east4/services/gemma"
NAME = f"{SERVICE}/revisions/gemma-00001-abc"
MODEL = "gemma-4-26B-A4B-it-qat-w4a16-ct"
BUCKETS = {"models": {f"{MODEL}/config.json": 10, f"{MODEL}/model-00001.safetensors": 10}}
CANARY = "hf_canary0123456789"
PROBE_FAILED = "The user-provided container failed the configured startup probe checks. Logs for this revision might contain more information."
"""Google's message for every container that was not ready, if the template has a startup probe."""
# The start over FUSE takes 779 simulated seconds: 664 of two reads, 103 of compiling and warm-up.
PASSES = {
    "initialDelaySeconds": 240,
    "periodSeconds": 60,
    "failureThreshold": 12,
    "httpGet": {"path": "/health", "port": 8000},
}


def template(**changes: Any) -> dict[str, Any]:
    container: dict[str, Any] = {
        "image": "us-docker.pkg.dev/p/r/vllm@sha256:0",
        "command": ["vllm", "serve"],
        "args": [
            f"/mnt/models/{MODEL}",
            "--port=8000",
            "--max-model-len=16384",
            "--kv-cache-dtype=fp8",
            "--safetensors-load-strategy=prefetch",
        ],
        "ports": [{"containerPort": 8000}],
        "env": [
            {"name": "HF_TOKEN", "valueSource": {"secretKeyRef": {"secret": "token", "version": "3"}}},
            {"name": "VLLM_LOGGING_LEVEL", "value": "INFO"},
        ],
        "resources": {"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}},
        "startupProbe": PASSES,
        "volumeMounts": [{"name": "weights", "mountPath": "/mnt/models"}],
    }
    return {
        "containers": [container | changes.pop("container", {})],
        "volumes": [
            {
                "name": "weights",
                "gcs": {"bucket": changes.pop("bucket", "models"), "mountOptions": changes.pop("options", [])},
            }
        ],
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "serviceAccount": "server@p.iam.gserviceaccount.com",
        "maxInstanceRequestConcurrency": 4,
        "scaling": {"maxInstanceCount": 2},
        "timeout": "600s",
        **changes,
    }


TINY = template(container={"args": ["simulated/tiny", "--port=8000"]})


@contextlib.asynccontextmanager
async def revisions(
    state: Path,
    *,
    uid: int = 0,
    lines: list[LogLine] | None = None,
    may: May = lambda *_: True,
    clock: Clock | None = None,
    google: GoogleAccess | None = None,
    faults: Callable[[], str] = str,
) -> AsyncIterator[SimulatedRevisions]:
    def secret(name: str, account: str) -> str:
        if (name, account) != ("projects/p/secrets/token/versions/3", "server@p.iam.gserviceaccount.com"):
            raise RevisionFailedError(f"Permission denied on secret: {name} for Revision service account {account}.")
        return CANARY

    def write_log(revision: str, line: LogLine) -> None:
        assert revision == NAME
        if lines is not None:
            lines.append(line)

    running = SimulatedRevisions(
        clock=clock or Clock(speed=1500),
        state=state,
        read_secret=secret,
        list_objects=BUCKETS.get,
        write_log=write_log,
        user_of=lambda _: uid,
        may=may,
        google=google,
        faults=faults,
    )
    try:
        yield running
    finally:
        await asyncio.gather(*(running.stop(name) for name in list(running._instances)))


def start(state: Path, given: dict[str, Any], *, egress: Egress = OPEN, **options: Any) -> str:
    """Start one revision, request its models, stop it; return the models. The options are those of `revisions`."""

    async def run() -> str:
        async with revisions(state, **options) as running:
            url = await running.start(RevisionSpec(name=NAME, service=SERVICE, template=given, egress=egress))
            return (await asyncio.to_thread(ask, f"{url}/v1/models")).json["data"][0]["id"]

    return asyncio.run(run())


def failure(state: Path, given: dict[str, Any], **options: Any) -> str:
    """Start a revision that fails and return the operation's message."""
    with pytest.raises(RevisionFailedError) as failed:
        start(state, given, **options)
    return str(failed.value)


def logged(state: Path, given: dict[str, Any], **options: Any) -> tuple[list[str], list[str]]:
    """Start a revision that fails; return the container's output, and Cloud Run's log as `SEVERITY text`.

    The operation has Google's sentence and none of the container's output.
    """
    lines: list[LogLine] = []
    assert failure(state, given, lines=lines, **options) == PROBE_FAILED
    own = [line.text for line in lines if line.stream != "varlog/system"]
    return own, [f"{line.severity} {line.text}".strip() for line in lines if line.stream == "varlog/system"]


def test_a_named_program_runs_in_place_of_the_simulated_server_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$VLLM_SIM_BIND_HOST $*"\nexit 7\n', encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setenv("LOCALCLOUD_VLLM", str(program))
    own, said = logged(tmp_path, template())
    assert own == [f"127.0.0.1 vllm serve {' '.join(template()['containers'][0]['args'])}"]
    assert "Container called exit(7)." in " ".join(said)


def test_any_other_program_is_replaced_by_one_answer(tmp_path: Path):
    web = template(container={"image": "us-docker.pkg.dev/p/r/web:1", "command": [], "args": ["--workers=2"]})
    web["containers"][0]["startupProbe"] = {"httpGet": {"path": "/ready", "port": 8000}, "failureThreshold": 1}

    async def run():
        async with revisions(tmp_path) as running:
            url = await running.start(RevisionSpec(name=NAME, service=SERVICE, template=web))
            got = await asyncio.to_thread(ask, f"{url}/any/path")
            posted = await asyncio.to_thread(ask, url, {"a": "body"})
            return got, posted

    for answer in asyncio.run(run()):
        assert (answer.status, answer.headers["x-simulated"]) == (200, "container")
        assert (
            answer.text
            == "Simulated: the local cloud does not run the program of gemma. Every request gets this answer.\n"
        )


def test_which_containers_the_local_cloud_runs_itself(subtests: pytest.Subtests):
    hello, vllm = "us-docker.pkg.dev/cloudrun/container/hello", "docker.io/vllm/vllm-openai:v0.31.0@sha256:0"
    for name, image, command, arguments, is_other in (
        ("an image's own command", hello, (), (), True),
        ("arguments for it", hello, (), ("--port=8080",), True),
        ("a program of the image", hello, ("/app/web",), (), True),
        ("a Python module that is not vLLM's", hello, ("python3", "-m", "http.server"), (), True),
        ("vLLM's image without a model", vllm, (), (), False),
        ("a program that vLLM's image does not have", vllm, ("/app/web",), (), False),
        ("vLLM in a built image", "us-docker.pkg.dev/p/r/built", ("vllm", "serve"), ("m",), False),
        ("a Python text", "us-docker.pkg.dev/p/r/built", ("python3", "-c"), ("text", "vllm"), False),
    ):
        with subtests.test(name):
            assert is_other_program(image, command, arguments) == is_other


def test_a_probe_budget_shorter_than_the_start_fails_the_revision_in_cloud_runs_words(tmp_path: Path):
    short = {**PASSES, "failureThreshold": 5}  # 240 + 5 x 60 = 540 s
    own, system = logged(tmp_path, template(container={"startupProbe": short}))
    assert any("Loading safetensors checkpoint shards" in line for line in own)
    said = (
        'ERROR STARTUP HTTP probe failed 5 times consecutively for container "gemma-1" on port 8000 path "/health". '
        "The instance was not started.\nConnection failed with status ERROR_CONNECTION_FAILED."
    )
    assert system == [said]


def test_buffered_reads_are_as_slow_as_the_network_unless_direct_vpc_takes_all_traffic(tmp_path: Path):
    """16.4 GB take 219 s at 75 MB/s and 21 s at the mount's own rate; compiling takes 115 s more."""
    short = {**PASSES, "initialDelaySeconds": 0, "failureThreshold": 4}
    buffered = {"container": {"startupProbe": short}, "options": ["enable-buffered-read=true"]}
    assert "failed the configured startup probe checks" in failure(tmp_path, template(**buffered))
    private = {"egress": "PRIVATE_RANGES_ONLY"}
    assert "startup probe" in failure(tmp_path, template(**buffered, vpcAccess=private))
    assert start(tmp_path, template(**buffered, vpcAccess={"egress": "ALL_TRAFFIC"}))


class RecordingClock(Clock):
    """A clock whose sleeps are noted."""

    def __init__(self) -> None:
        super().__init__(speed=1500)
        self.slept: list[float] = []

    async def sleep(self, simulated_s: float) -> None:
        self.slept.append(simulated_s)
        await super().sleep(simulated_s)


def test_an_instance_with_direct_vpc_waits_for_its_first_connections(tmp_path: Path):
    for access, waits in (({}, 0), ({"vpcAccess": {"egress": "ALL_TRAFFIC"}}, 1)):
        clock = RecordingClock()
        assert start(tmp_path, template(**access), clock=clock)
        assert clock.slept.count(60.0) == waits


@pytest.mark.parametrize(("egress", "serves"), [(OPEN, True), (Egress(internet=False), False)])
def test_a_model_of_the_hub_needs_a_way_to_the_internet(tmp_path: Path, egress: Egress, serves: bool):
    """The requests end without a response, and vLLM with them: huggingface_hub waits 10 s for each (constants.py of ee0a4510)."""
    hub = template(container={"args": ["google/gemma-4-E2B-it", "--port=8000", "--max-model-len=8192"]})
    if serves:
        assert start(tmp_path, hub, egress=egress)
    else:
        own, said = logged(tmp_path, hub, egress=egress)
        assert "OSError: We couldn't connect to 'https://huggingface.co' to load the files" in " ".join(own)
        assert "Container called exit(1)." in " ".join(said)


def test_without_a_way_to_google_a_streamer_and_a_starter_fail(tmp_path: Path):
    """A starter waits for Cloud Storage until the startup probe has failed."""
    closed = Egress(google=False)
    streamed = template(container={"args": [f"gs://models/{MODEL}", "--load-format=runai_streamer", "--port=8000"]})
    own, _ = logged(tmp_path, streamed, egress=closed)
    assert "google.api_core.exceptions.RetryError: Timeout of 120.0s exceeded" in " ".join(own)
    words = ["python3", "-c", "import os; os.execvp('vllm', ['vllm', 'serve', *os.sys.argv[1:]])"]
    starter = template(container={"command": words, "args": [f"/mnt/models/{MODEL}", "--port=8000"]})
    clock = RecordingClock()
    unreachable = GoogleAccess(base_url="", access_token=lambda *_: "", id_token=lambda *_: "")
    assert failure(tmp_path, starter, egress=closed, clock=clock, google=unreachable) == PROBE_FAILED
    assert clock.slept.count(240 + 12 * 60.0) == 1


@pytest.mark.parametrize(("delay_s", "attempts"), [(0, 78), (240, 1)])
def test_a_server_is_ready_with_the_first_probe_that_it_answers(
    monkeypatch: pytest.MonkeyPatch, delay_s: int, attempts: int
):
    """180 attempts, 10 s apart: each comes when it is due, and the first that is answered ends the start."""
    given = {"initialDelaySeconds": delay_s, "periodSeconds": 10, "failureThreshold": 180, "timeoutSeconds": 5}
    probe = probes.read_probe({**given, "httpGet": {"path": "/health"}}, 8000)
    pauses: list[float] = []
    answers = iter([False] * (attempts - 1) + [True])

    async def ask_once(*_arguments: object) -> bool:
        return next(answers)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(probes, "_attempt", ask_once)
    # Only in this module: threads of other tests sleep too.
    monkeypatch.setattr(probes, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    planned = PlannedStart(port=8000, start_s=60)
    assert asyncio.run(probes.passes(probe, clock=Clock(speed=1), port=1, planned=planned))
    assert len(pauses) == attempts
    # The clock is frozen for this probe: each pause lasts until its attempt.
    assert [round(pause, -1) for pause in (pauses[0], pauses[-1])] == [delay_s, delay_s + 10 * (attempts - 1)]


def test_without_a_probe_the_default_of_240_s_applies_and_google_speaks_of_the_port(tmp_path: Path):
    lines: list[LogLine] = []
    said = failure(tmp_path, template(container={"startupProbe": {}}), lines=lines)
    assert said.startswith(
        "The user-provided container failed to start and listen on the port defined provided by the PORT=8000 environment variable "
        "within the allocated timeout. This can happen when the container port is misconfigured or if the timeout is too short."
    )
    refused = 'Default STARTUP TCP probe failed 1 time consecutively for container "gemma-1" on port 8000.'
    assert any(line.text.startswith(refused) for line in lines), "the server may still write a line"
    quick = {"startupProbe": {}, "args": ["simulated/tiny", "--port=8000"]}
    assert start(tmp_path, template(container=quick)) == "simulated/tiny"


def test_a_container_that_exceeds_its_memory_is_killed_and_only_the_log_says_so(tmp_path: Path):
    _, system = logged(tmp_path, template(container={"resources": {"limits": {"memory": "16Gi"}}}))
    assert system[0].startswith("ERROR Memory limit of 16384 MiB exceeded with 16793 MiB used. Consider increasing")
    assert system[1] == "WARNING Container terminated on signal 9."
    assert "Connection failed with status CANCELLED." in system[2]


@pytest.mark.parametrize(
    ("changes", "uid", "says"),
    [
        ({}, 2000, "Permission denied: '/mnt/models/"),
        ({"container": {"args": ["simulated/tiny", "--prot=8000"]}}, 0, "unrecognized arguments: --prot=8000"),
    ],
)
def test_what_the_container_says_stands_in_its_log_alone(tmp_path: Path, changes: dict[str, Any], uid: int, says: str):
    own, system = logged(tmp_path, template(**changes), uid=uid)
    assert any(says in line for line in own)
    assert system[0] in {"WARNING Container called exit(1).", "WARNING Container called exit(2)."}


def test_a_bucket_that_cannot_be_mounted_stops_the_instance_before_the_container(tmp_path: Path):
    own, system = logged(tmp_path, template(bucket="nobodys"))
    assert own == []
    assert "code = NotFound desc = The specified bucket does not exist." in system[0]
    assert system[1:3] == [
        "WARNING Container called exit(255).",
        "ERROR terminated: Application failed to run: volume (type: gcs, name: weights): mount operation failed",
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"serviceAccount": "other@p"}, "Permission denied on secret"),
        ({"container": {"resources": {"limits": {"memory": "lots"}}}}, "'lots' is not a quantity"),
    ],
)
def test_what_is_refused_before_the_start_stands_in_the_condition(tmp_path: Path, changes: dict[str, Any], says: str):
    assert says in failure(tmp_path, template(**changes))


def test_an_account_that_can_only_list_the_bucket_cannot_read_its_files(tmp_path: Path):
    lines: list[LogLine] = []
    assert (
        failure(tmp_path, template(), lines=lines, may=lambda *asked: asked[2] == "storage.objects.list")
        == PROBE_FAILED
    )
    assert any("PermissionError: [Errno 13] Permission denied: '/mnt/models/" in line.text for line in lines)


def test_mount_options_with_the_images_uid_make_the_weights_readable(tmp_path: Path):
    assert start(tmp_path, template(options=["implicit-dirs", "uid=2000", "gid=0"]), uid=2000) == f"/mnt/models/{MODEL}"


def test_a_gs_model_is_refused_without_the_right_to_list_the_bucket_and_served_with_it(tmp_path: Path):
    args = [f"gs://models/{MODEL}", "--port=8000", "--load-format=runai_streamer", "--max-model-len=16384"]
    given = template(container={"args": args, "volumeMounts": []}, volumes=[], options=[])
    lines: list[LogLine] = []
    assert failure(tmp_path, given, lines=lines, may=lambda *_: False) == PROBE_FAILED
    assert any(
        "Forbidden: 403 GET https://storage.googleapis.com/storage/v1/b/models/o: server@p.iam.gserviceaccount.com "
        "does not have storage.objects.list access" in line.text
        for line in lines
    )
    assert start(tmp_path, given) == f"gs://models/{MODEL}"


def test_a_secret_reaches_the_server_and_cloud_logging_but_no_file(tmp_path: Path):
    """Google stores a container's output unchanged."""
    leaky = {"args": ["simulated/tiny", "--port=8000", f"--served-model-name={CANARY}", f"--nonsense={CANARY}"]}
    lines: list[LogLine] = []
    assert CANARY not in failure(tmp_path, template(container=leaky), lines=lines)
    assert any(CANARY in line.text for line in lines)
    assert any("[removed]" in path.read_text() for path in (tmp_path / "logs").iterdir())
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or CANARY not in path.read_text(), path


@in_loop
async def test_a_start_takes_what_was_measured_and_limits_follow_it_and_the_template(tmp_path: Path):
    async with revisions(tmp_path) as running:
        url = await running.start(RevisionSpec(name=NAME, service=SERVICE, template=template()))
        limits = running.limits(url)
        assert (limits.concurrent, limits.timeout_s) == (8, 600)  # two instances of four
        assert limits.queue_s == 600  # 3.5 starts are longer than the request may take
        assert running.limits("http://127.0.0.1:1") == DEFAULT_LIMITS
    log = (tmp_path / "logs" / "gemma-00001-abc.log").read_text()
    assert "Loading weights took 664" in log
    assert "Application startup complete." in log


@in_loop
async def test_a_server_has_the_faults_of_the_scenario(tmp_path: Path):
    planted = parse({"model_server_faults": [{"path": "/v1/models", "status": 418}]}, "test").model_server_faults
    text = json.dumps([asdict(fault) for fault in planted])
    async with revisions(tmp_path, faults=lambda: text) as running:
        url = await running.start(RevisionSpec(name=NAME, service=SERVICE, template=TINY))
        answers = [(await asyncio.to_thread(ask, f"{url}/v1/models")).status for _ in range(2)]
    assert answers == [418, 200]


@in_loop
async def test_an_instance_that_crashes_is_replaced_at_the_same_address(tmp_path: Path):
    async with revisions(tmp_path) as running:
        url = await running.start(RevisionSpec(name=NAME, service=SERVICE, template=TINY))
        before = running._instances[NAME].server
        assert before is not None
        os.kill(before._process.pid, signal.SIGKILL)
        await before.ended()
        for _ in range(1200):
            await asyncio.sleep(0.05)
            with contextlib.suppress(OSError):
                if (await asyncio.to_thread(ask, f"{url}/health")).status == 200:
                    break
        else:
            raise AssertionError("the instance did not come back")
        assert running._instances[NAME].server is not before


@in_loop
async def test_an_instance_that_crashed_comes_back_only_while_its_secrets_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("localcloud.running.revisions._RESTART_PAUSE_S", 0.01)
    async with revisions(tmp_path) as running:
        await running.start(RevisionSpec(name=NAME, service=SERVICE, template=TINY))
        before, read_secret = running._instances[NAME].server, running._read_secret
        assert before is not None

        def destroyed(name: str, _account: str) -> str:
            raise RevisionFailedError(f"Secret Version [{name}] is in DESTROYED state.")

        running._read_secret = destroyed
        await before.stop()
        await asyncio.sleep(0.5)
        assert running._instances[NAME].server is before
        running._read_secret = read_secret
        await until(lambda: running._instances[NAME].server is not before, "a new instance")


def test_stopping_leaves_no_process(tmp_path: Path):
    async def run() -> int:
        async with revisions(tmp_path) as running:
            await running.start(RevisionSpec(name=NAME, service=SERVICE, template=TINY))
            server = running._instances[NAME].server
            assert server is not None
            return server._process.pid

    pid = asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(("text", "mib"), [("32Gi", 32768), ("512Mi", 512), ("1G", 953), ("2048", 0)])
def test_quantities_are_read_in_mib(text: str, mib: int):
    assert memory_mib(text) == mib


def await_readiness(running: SimulatedRevisions, url: str, expected: bool) -> None:
    end = time.monotonic() + 60
    while running.ready(url) is not expected and time.monotonic() < end:
        time.sleep(0.05)  # the thread of the probe signals nothing
    assert running.ready(url) is expected


@pytest.mark.parametrize(("path", "expected"), [("/health", True), ("/nothing", False)])
@in_loop
async def test_a_readiness_probe_decides_about_new_requests_and_ends_nothing(tmp_path: Path, path: str, expected: bool):
    probe = {"periodSeconds": 10, "failureThreshold": 2, "httpGet": {"path": path, "port": 8000}}
    async with revisions(tmp_path) as running:
        given = template(container={"readinessProbe": probe})
        url = await running.start(RevisionSpec(name=NAME, service=SERVICE, template=given))
        assert running.ready(url) is True
        await asyncio.to_thread(await_readiness, running, url, expected)
        assert (await asyncio.to_thread(ask, f"{url}/health")).status == 200
