"""Who answered is read from the body before a cause is named: Cloud Run's front, our proxy, Google's API, the server, or somewhere else."""

import asyncio
import json
from http import HTTPStatus

import pytest

from gemma_serving.scripts.connect.proxy import _error
from gemma_serving.scripts.stack.connection_errors import API_KEY_VARIABLE, explain_refusal, sender_of
from loadtest.client.events import decoded
from loadtest.client.openai import ServerAnswer
from localcloud.running.fronts import _answer

JSON = {"content-type": "application/json"}
THROUGH_FRONT = {**JSON, "server": "Google Frontend"}
GOOGLE = {"error": {"code": 403, "message": "Permission denied", "status": "PERMISSION_DENIED"}}


def answer(status, body, headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ServerAnswer(status=status, body=decoded(raw), headers=headers, elapsed_s=0.1)


def of(response):
    headers = {name.lower(): value for name, value in response.headers.items()}
    return answer(response.status, response.body, headers)


def front(status):
    return of(_answer(status, "Page not found", "The requested URL was not found on this server."))


@pytest.mark.parametrize(
    ("found", "sender", "named", "unnamed"),
    [
        (front(404), "Cloud Run", "ingress", "/v1"),
        (front(403), "Cloud Run", "cloudRun.invokers", API_KEY_VARIABLE),
        (front(401), "Cloud Run", "cloudRun.invokers", API_KEY_VARIABLE),
        (answer(404, {"detail": "Not Found"}, THROUGH_FRONT), "The server", "/v1", "ingress"),
        (answer(401, {"error": "Unauthorized"}, THROUGH_FRONT), "The server", API_KEY_VARIABLE, "invokers"),
        (answer(404, {"error": {"message": "The model `x` does not exist.", "type": "NotFoundError"}}, JSON), "The server", "The model", "ingress"),
        (answer(403, GOOGLE, JSON), "Google", "Google returned 403", "invokers"),
        (answer(404, b"<html><h1>404 Not Found</h1>nginx</html>", {"content-type": "text/html"}), "The address", "404", "ingress"),
    ],
)  # fmt: skip
def test_a_cause_is_named_only_for_the_sender_that_the_body_proves(found, sender, named, unnamed):
    assert sender_of(found) == sender
    text = explain_refusal(found)
    assert named in text
    assert unnamed not in text
    assert "<html" not in text or sender == "The address"


def test_our_proxy_is_told_from_the_server():
    async def made():
        return of(_error(HTTPStatus.UNAUTHORIZED, "send the key that `connect` printed as OPENAI_API_KEY"))

    found = asyncio.run(made())
    assert sender_of(found) == "`gemma connect`"
    assert API_KEY_VARIABLE not in explain_refusal(found).replace("OPENAI_API_KEY", "")
