"""What a failed revision's log says, read from the local cloud: Google's refusals, lag, dead and slow endpoints, secrets."""

import asyncio
import re
import socket

import pulumi
import pytest

from gemma_serving.cloud.clock import SPEED_VARIABLE
from gemma_serving.contracts.masking import MASK
from gemma_serving.stacks.google_project.propagation import NewGrants
from gemma_serving.stacks.hooks import run_failures
from gemma_serving.stacks.hooks.run_failures import FailureReport
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import PROJECT_POLICY, Client, grant
from localcloud.world import run_messages
from localcloud.world.run_messages import LogLine
from localcloud.world.scenario import Logging, OperationDurations, Scenario, Services
from tests.stacks.failed_start import PROJECT, failed_start

CANARY = "hf_canary0123456789"
SERVICE = "gemma-l4-12b-qat"
REVISION = f"projects/{PROJECT}/locations/us-east4/services/{SERVICE}/revisions/{SERVICE}-00002-abc"
TEMPLATE = {
    "containers": [
        {
            "name": "vllm",
            "ports": [{"containerPort": 8000}],
            "startupProbe": {"httpGet": {"path": "/health", "port": 8000}},
        }
    ]
}
MESSAGE = "Error waiting to update Service: Error code 9, message: " + run_messages.with_logs_url(
    run_messages.not_started(TEMPLATE), REVISION
)
TRACEBACK = ["Traceback (most recent call last):", *(f"  frame {number}" for number in range(60))]


@pytest.fixture
def report():
    return FailureReport(start=failed_start(), service=SERVICE, secrets=["stack-secret-canary"], grants=NewGrants())


@pytest.fixture
def project(monkeypatch):
    """A local cloud whose Cloud Logging the program reads."""
    with idle_cloud.start(scenario=Scenario(operations=OperationDurations(instant=True))) as cloud:
        use(monkeypatch, cloud.base_url, cloud.token)
        yield cloud


def use(monkeypatch, base_url, token="nobody's"):  # noqa: S107 - no token
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING", f"{base_url}/logging/")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", token)
    monkeypatch.setenv(SPEED_VARIABLE, "200")


def write(cloud, *lines, revision=REVISION):
    async def all_lines():
        for line in lines:
            cloud.cloud.logs.write(run_messages.entry(line, revision))

    asyncio.run_coroutine_threadsafe(all_lines(), cloud.loop).result(10)


def printed(*texts):
    return [LogLine(stream="stderr", text=text) for text in texts]


def handled(report, *errors, **inputs):
    """Return what the hook of the service answers to a failure."""
    return asyncio.run(report.handle(pulumi.ErrorHookArgs("urn", "", "vllm", "t", errors=list(errors), **inputs)))


def explained(report):
    return asyncio.run(report.text(f"{SERVICE}-00002-abc"))


def test_a_known_cause_is_shown_with_its_line_and_without_the_others(project, report):
    error = "ValueError: No available memory for the cache blocks (Available KV cache memory: -1.22 GiB)."
    write(project, *printed(error, *TRACEBACK), *run_messages.exited(1, TEMPLATE, service=SERVICE))
    write(project, *printed("a line of another revision"), revision=REVISION.replace("00002", "00001"))
    text = explained(report)
    assert text.startswith(f"Revision {SERVICE}-00002-abc did not start. No memory is left for the KV cache")
    assert text.endswith(f" To read its log, run `gemma logs l4-12b-qat`.\n  {error}")


def test_without_a_known_cause_the_last_lines_are_shown(project, report):
    write(project, *printed(*TRACEBACK), *run_messages.exited(1, TEMPLATE, service=SERVICE))
    write(project, *printed("a line of another revision"), revision=REVISION.replace("00002", "00001"))
    text = explained(report)
    assert "no log line shows a known cause. To read its log, run `gemma logs l4-12b-qat`. Its last lines:\n" in text
    assert (
        "[stderr]   frame 59\n  [system] Container called exit(1).\n  [system] STARTUP HTTP probe failed 1 time" in text
    )
    assert "  frame 20\n" not in text
    assert "another revision" not in text


def test_an_error_without_a_known_cause_is_shown_instead_of_the_traceback_that_follows_it(project, report):
    """vllm-project/vllm#42005: the API server's traceback is longer than the lines that are shown."""
    error = "NotImplementedError: Speculative Decoding with draft models does not support multimodal models yet"
    last = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    texts = [f"(EngineCore pid=7) ERROR 05-08 10:00:00 [core.py:1136] {error}", *TRACEBACK, f"(APIServer pid=1) {last}"]
    write(project, *printed(*texts), *run_messages.exited(1, TEMPLATE, service=SERVICE))
    text = explained(report)
    assert text.endswith(
        f"did not start. Its error has no known cause. To read its log, run `gemma logs l4-12b-qat`.\n  {error}"
    )


def test_a_refused_quota_is_followed_by_what_the_service_needs_and_the_command(report, monkeypatch):
    shown = []
    monkeypatch.setattr(pulumi.log, "error", shown.append)
    for said in (
        "Quota violated:\nMemAllocPerProjectRegion requested: 68719476736 allowed: 42949672960",
        "Revision 'x' is not ready and cannot serve traffic. Quota exceeded for total allowable CPU per project per region.",
    ):
        assert handled(report, said) is False
    assert len(shown) == 2
    assert "in us-east4 do not allow cloudRun.maxInstances 1 x one GPU, 4 vCPU and 16Gi" in shown[0]
    assert "run `gemma doctor l4-12b-qat`; or lower cloudRun.maxInstances" in shown[1]
    redundant = FailureReport(
        start=failed_start(run={"zonal_redundancy": True}), service=SERVICE, secrets=[], grants=NewGrants()
    )
    said = "You do not have quota for using GPUs with zonal redundancy."
    handled(redundant, said)
    assert "or set cloudRun.zonalRedundancy: false, which uses another GPU quota, or lower" in shown[2]


def test_no_secret_of_the_containers_output_is_shown(project, report):
    write(
        project,
        *printed(
            f"non-default args: {{'served_model_name': ('{CANARY}',)}}",
            "HF says stack-secret-canary",
            f"error near {CANARY}",
        ),
        *run_messages.exited(1, TEMPLATE, service=SERVICE),
    )
    text = explained(report)
    assert "canary" not in text
    assert text.count(MASK) == 3


def test_lines_that_come_late_are_waited_for(monkeypatch, report):
    with idle_cloud.start(scenario=Scenario(logging=Logging(lag_s=100))) as cloud:
        use(monkeypatch, cloud.base_url, cloud.token)
        write(cloud, *printed("late"), *run_messages.exited(1, TEMPLATE, service=SERVICE))
        assert "[stderr] late" in explained(report)


def test_a_log_without_lines_is_said(project, report):
    assert explained(report).endswith("has no log lines of it yet. To read its log, run `gemma logs l4-12b-qat`.")


def test_who_may_not_read_the_log_gets_the_grant_and_the_command(project, report, monkeypatch):
    account = "x@y.iam.gserviceaccount.com"
    role, owner = "roles/serviceusage.serviceUsageConsumer", Client(project.base_url, project.token)
    grant(owner, PROJECT_POLICY, role, member=f"serviceAccount:{account}")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", project.cloud.tokens.issue_access_token(account))
    text = explained(report)
    assert "Permission denied for all log views. You need logging.logEntries.list" in text
    assert "--role=roles/logging.viewer" in text


def test_an_api_that_is_off_is_said_with_its_command(monkeypatch, report):
    with idle_cloud.start(scenario=Scenario(services=Services(enabled=()))) as cloud:
        use(monkeypatch, cloud.base_url, cloud.token)
        assert f"gcloud services enable logging.googleapis.com --project={PROJECT}" in explained(report)


def test_a_dead_endpoint_is_said(monkeypatch, report):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        use(monkeypatch, f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert "its log cannot be read: no connection to 127.0.0.1" in explained(report)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (MESSAGE, True),
        ("Error code 5, message: Revision 'x' is not ready and cannot serve traffic. Image 'x' not found.", False),
        ("googleapi: Error 403: Permission 'run.services.create' denied", False),
        ("", False),
    ],
)
def test_only_a_container_that_failed_is_explained_and_nothing_is_tried_again(monkeypatch, report, message, told):
    said = []

    async def text(_report, _message):
        return "explained"

    monkeypatch.setattr(FailureReport, "text", text)
    monkeypatch.setattr(run_failures.pulumi.log, "error", said.append)
    assert handled(report, *([message] if message else [])) is False
    assert said == (["explained"] if told else [])


def test_a_fault_of_the_report_does_not_hide_googles_error(monkeypatch, report):
    said = []

    async def text(_report, _message):
        raise KeyError("x")

    monkeypatch.setattr(FailureReport, "text", text)
    monkeypatch.setattr(run_failures.pulumi.log, "warn", said.append)
    assert handled(report, MESSAGE) is False
    assert said == ["Cannot explain the log of the revision (KeyError)."]


def service_with(secret: str, version: str) -> dict[str, object]:
    reference = {"secretKeyRef": {"secret": secret, "version": version}}
    envs = [{"name": "HF_HOME", "value": "/x"}, {"name": "VLLM_API_KEY", "valueSource": reference}]
    return {"template": {"containers": [{"envs": envs}]}}


@pytest.mark.parametrize(
    ("old", "new", "is_told"),
    [
        (service_with("api-key", "2"), service_with("api-key", "3"), True),
        (service_with("projects/p/secrets/one", "2"), service_with("projects/p/secrets/two", "2"), True),
        (service_with("api-key", "2"), service_with("api-key", "2"), False),
        ({"template": {"containers": [{}]}}, service_with("api-key", "2"), False),
        (service_with("api-key", "2"), {"template": {}}, False),
        (None, service_with("api-key", "2"), False),
    ],
)
def test_a_failed_revision_with_a_rotated_key_says_that_the_old_key_still_works(monkeypatch, report, old, new, is_told):
    said: list[str] = []
    monkeypatch.setattr(run_failures.pulumi.log, "warn", said.append)
    assert handled(report, "refused", new_inputs=new, old_inputs=old, failed_operation="update") is False
    assert bool(said) is is_told
    if is_told:
        assert "OLD KEY STILL WORKS (version 2 of secret" in said[0]
        assert re.search(r"`gcloud secrets versions disable 2 --secret=(api-key|one) --project=[\w-]+`", said[0])
