"""HTTP as it really goes over the wire, against a server on the loopback interface."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import google.oauth2.credentials
import pytest
from aiohttp import web

from gcp_tpu_provider.errors import GoogleError, NoAnswerError, ProjectError, TpuProviderError
from gcp_tpu_provider.http_transport import HttpTpuTransport, google_error
from gcp_tpu_provider.transport import Pacing, find

# Where something is expected to come, a busy machine may take its time; only what is expected to be given up has short limits.
PATIENT = Pacing(
    call_timeout_s=60,
    retry_budget_s=60,
    first_contact_s=60,
    refusal_budget_s=60,
    retry_first_s=0.005,
    retry_most_s=0.02,
)
QUICK = Pacing(
    call_timeout_s=60,
    retry_budget_s=0.4,
    first_contact_s=0.2,
    refusal_budget_s=0.1,
    retry_first_s=0.005,
    retry_most_s=0.02,
)


@dataclass
class Server:
    """Answers with a queue of (status, body, headers); then with 200 {}."""

    answers: list[tuple[int, Any, dict[str, str]]] = field(default_factory=list)
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    is_silent: bool = False
    """It answers no request. A handler ends when its client closes the connection."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.text())
        if self.is_silent:
            await asyncio.Event().wait()
        if not self.answers:
            return web.json_response({})
        status, body, headers = self.answers.pop(0)
        if status == 0:
            assert request.transport
            request.transport.close()
            return web.Response()
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, headers=headers)


def talk(
    server: Server,
    work: Callable[[HttpTpuTransport], Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
    pacing: Pacing = PATIENT,
) -> Any:
    async def main() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", server.handle)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", f"http://127.0.0.1:{port}/tpu/")
        transport = HttpTpuTransport(pacing)
        try:
            return await work(transport)
        finally:
            await transport.close()
            await runner.cleanup()

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "canary-token")


def error(status: int, code: str, message: str, reason: str = "") -> tuple[int, Any, dict[str, str]]:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}] if reason else []
    return status, {"error": {"code": status, "status": code, "message": message, "details": details}}, {}


def test_a_broken_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    server = Server(answers=[(0, "", {}), (200, "no json", {}), (200, {"a": 1}, {})])
    assert talk(server, lambda transport: transport.call("GET", "v2alpha1/x"), monkeypatch) == {"a": 1}
    assert len(server.seen) == 3


def test_google_says_how_long_to_wait(monkeypatch: pytest.MonkeyPatch):
    server = Server(answers=[(503, "", {"Retry-After": "60"})])
    with pytest.raises(GoogleError):  # a minute does not fit the budget, so it is not waited for
        talk(server, lambda transport: transport.call("GET", "v2alpha1/x"), monkeypatch)
    assert len(server.seen) == 1
    server = Server(answers=[(503, "", {"Retry-After": "0"}), (200, {}, {})])
    assert talk(server, lambda transport: transport.call("GET", "v2alpha1/x"), monkeypatch) == {}


@pytest.mark.parametrize("status", [400, 401, 403, 409, 412])
def test_a_refusal_is_final_and_in_googles_words(monkeypatch: pytest.MonkeyPatch, status: int):
    server = Server(answers=[error(status, "CODE", "Quota 'X' exceeded in zone z.")])
    with pytest.raises(GoogleError) as refused:
        talk(
            server, lambda transport: transport.call("POST", "v2alpha1/x", body={"secret": "canary-body"}), monkeypatch
        )
    assert str(refused.value) == f"Google returned {status} CODE: Quota 'X' exceeded in zone z."
    assert len(server.seen) == 1


PROJECT_PATH = "v2alpha1/projects/p-1/locations/z/queuedResources"
DISABLED = "Cloud TPU API has not been used in project 42 before or it is disabled."


def error_info(reason: str, message: str, **metadata: str) -> tuple[int, Any, dict[str, str]]:
    status, body, headers = error(403, "PERMISSION_DENIED", message, reason)
    body["error"]["details"][0]["metadata"] = metadata
    return status, body, headers


def test_an_api_that_was_enabled_a_moment_ago_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    assert Pacing().retry_budget_s == 120
    server = Server(answers=[error_info("SERVICE_DISABLED", DISABLED)] * 2)
    assert talk(server, lambda transport: transport.call("GET", PROJECT_PATH), monkeypatch) == {}
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("answer", "start", "command"),
    [
        (
            error_info("SERVICE_DISABLED", DISABLED, service="tpu.googleapis.com", consumer="projects/42"),
            "The API tpu.googleapis.com is disabled in project 42. Run",
            "gcloud services enable tpu.googleapis.com --project=42",
        ),
        (
            error_info("IAM_PERMISSION_DENIED", "The caller does not have permission", permission="tpu.nodes.create"),
            "The caller lacks tpu.nodes.create in project p-1, or the resource does not exist. Check its name, or run",
            "gcloud projects add-iam-policy-binding p-1 --member=user:YOUR_EMAIL --role=roles/tpu.admin",
        ),
    ],
)
def test_a_refusal_about_the_project_is_one_sentence_with_the_command_that_fixes_it(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any, dict[str, str]], start: str, command: str
):
    server = Server(answers=[answer] * 200)
    with pytest.raises(ProjectError) as refused:
        talk(server, lambda transport: transport.call("GET", PROJECT_PATH), monkeypatch, QUICK)
    assert str(refused.value).startswith(f"{start} `{command}`")
    assert str(refused.value).endswith(f"{answer[1]['error']['message'].rstrip('.')}).")


def test_a_persons_calls_count_for_the_project_that_they_are_about(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
    later = datetime(2100, 1, 1, tzinfo=UTC).replace(tzinfo=None)  # google-auth wants no time zone
    person = google.oauth2.credentials.Credentials("canary", quota_project_id="other", expiry=later)

    def default(**_: Any) -> tuple[Any, str]:
        return person, "other"

    monkeypatch.setattr("google.auth.default", default)
    server = Server()
    talk(server, lambda transport: transport.call("GET", PROJECT_PATH), monkeypatch)
    assert server.seen[0].headers["x-goog-user-project"] == "p-1"


def test_a_spent_quota_is_not_asked_for_as_long_as_an_unavailable_api(monkeypatch: pytest.MonkeyPatch):
    pacing = Pacing(retry_budget_s=30, refusal_budget_s=0.02, retry_first_s=0.01, retry_most_s=0.02)
    server = Server(answers=[error(429, "RESOURCE_EXHAUSTED", "Quota limit reached") for _ in range(50)])
    with pytest.raises(GoogleError, match="Quota limit reached"):
        talk(server, lambda transport: transport.call("POST", "v2alpha1/x", creation=True), monkeypatch, pacing)
    assert len(server.seen) < 10


def test_a_server_that_never_answers_is_given_up_and_may_have_acted(monkeypatch: pytest.MonkeyPatch):
    server = Server(is_silent=True)
    with pytest.raises(NoAnswerError, match="timed out") as lost:
        talk(
            server,
            lambda transport: transport.call("POST", "v2alpha1/x"),
            monkeypatch,
            Pacing(call_timeout_s=0.05, first_contact_s=0.05),
        )
    assert lost.value.sent


def test_an_outage_in_the_middle_of_a_wait_is_sat_out_longer_than_an_endpoint_that_never_answered(
    monkeypatch: pytest.MonkeyPatch,
):
    pacing = Pacing(retry_budget_s=60, first_contact_s=0.0, retry_first_s=0.001, retry_most_s=0.002)
    server = Server(answers=[(0, "", {})])
    with pytest.raises(NoAnswerError):
        talk(server, lambda transport: transport.call("POST", "v2alpha1/x"), monkeypatch, pacing)
    server = Server(answers=[(200, {}, {}), *[(0, "", {})] * 5, (200, {"a": 1}, {})])

    async def twice(transport: HttpTpuTransport) -> Any:
        await transport.call("POST", "v2alpha1/x")
        return await transport.call("POST", "v2alpha1/x")

    assert talk(server, twice, monkeypatch, pacing) == {"a": 1}


def test_a_dead_endpoint_is_given_up_and_cannot_have_acted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "http://127.0.0.1:9/")

    async def main() -> None:
        transport = HttpTpuTransport(QUICK)
        try:
            await transport.call("POST", "v2alpha1/x", body={"secret": "canary-body"})
        finally:
            await transport.close()

    with pytest.raises(NoAnswerError) as lost:
        asyncio.run(main())
    assert not lost.value.sent
    assert "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU is http://127.0.0.1:9/" in str(lost.value)
    assert "canary" not in str(lost.value)


def test_an_answer_that_is_not_googles_is_shown_cut_short():
    assert str(google_error(502, "<html>" + "x" * 1000)).startswith("Google returned 502 Bad Gateway: <html>xxx")
    assert len(str(google_error(502, "<html>" + "x" * 1000))) < 400
    assert google_error(429, json.dumps(error(429, "R", "m", "RATE_LIMIT_EXCEEDED")[1])).reason == "RATE_LIMIT_EXCEEDED"


def test_without_credentials_the_way_to_them_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    server = Server()
    with pytest.raises(TpuProviderError, match="gcloud auth application-default login"):
        talk(server, lambda transport: transport.call("GET", "v2alpha1/x"), monkeypatch)
    assert server.seen == []


def test_googles_time_is_that_of_its_last_answer(monkeypatch: pytest.MonkeyPatch):
    server = Server(answers=[(200, {}, {"Date": "Fri, 20 Nov 2026 11:00:00 GMT"}), (200, {}, {"Date": "nonsense"})])

    async def ask(transport: HttpTpuTransport) -> None:
        assert abs(transport.now() - datetime.now(UTC)) < timedelta(hours=1), "before the first answer: this machine's"
        await transport.call("GET", "v2alpha1/projects/p/locations")
        eleven = datetime(2026, 11, 20, 11, tzinfo=UTC)
        assert eleven <= transport.now() < eleven + timedelta(hours=1)
        await transport.call("GET", "v2alpha1/projects/p/locations")
        assert eleven <= transport.now() < eleven + timedelta(hours=1), "an invalid time changes nothing"

    talk(server, ask, monkeypatch)


def test_a_refusal_of_a_second_attempt_says_that_the_first_one_may_have_acted(monkeypatch: pytest.MonkeyPatch):
    server = Server(answers=[(0, "", {}), error(401, "UNAUTHENTICATED", "the token has expired")])
    with pytest.raises(GoogleError) as refused:
        talk(server, lambda transport: transport.call("POST", "v2alpha1/x", creation=True), monkeypatch)
    assert refused.value.may_have_acted
    server = Server(answers=[error(403, "PERMISSION_DENIED", "no")])
    with pytest.raises(GoogleError) as refused:
        talk(server, lambda transport: transport.call("POST", "v2alpha1/x", creation=True), monkeypatch)
    assert not refused.value.may_have_acted


@pytest.mark.parametrize("answer", [{}, {"error": {"code": 8, "message": "no capacity"}}, {"name": "nodes/b"}])
def test_a_document_without_its_own_name_proves_neither_that_a_resource_exists_nor_that_it_is_gone(answer):
    class Answering:
        async def call(self, *_: Any) -> Any:
            return answer

    with pytest.raises(NoAnswerError, match="only one without the name of what was asked for"):
        asyncio.run(find(Answering(), "v2alpha1/nodes/a"))
