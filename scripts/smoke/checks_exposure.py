"""Check that the server rejects callers without credentials, web pages, and media URLs."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from gemma_serving.scripts.cli.check_result import State
from gemma_serving.scripts.smoke.chat_request import request, send, user
from gemma_serving.scripts.smoke.context import CheckContext
from gemma_serving.scripts.smoke.results import Outcome, skipped
from loadtest.client.openai import ServerAnswer, UnreachableError

CALL_LIMIT_S: Final = 30.0
_PROMPT: Final[Mapping[str, object]] = {"prompt": "Hi", "max_tokens": 1}
GUARDED: Final[Mapping[str, Mapping[str, object] | None]] = {
    "/v1/models": None,
    "/metrics": None,
    "/invocations": _PROMPT,
    "/tokenize": _PROMPT,
}
"""Paths called without credentials, with the body of a POST. vLLM's own API key protects only the first
(vLLM docs/usage/security.md); /invocations runs the model."""
ORIGIN: Final = "https://smoke.invalid"
MEDIA_URL: Final = "http://smoke.invalid/image.png"
"""The name never resolves (RFC 6761). A closed server rejects it without a DNS query."""
_REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
_NO_MEDIA: Final = ("allowed domains", "not a multimodal model", "at most 0 ", "does not support")
"""Parts of vLLM's errors for an image that it does not fetch."""


class _ExposureResult(NamedTuple):
    """One part of the check. `sentence` states the open or inconclusive part."""

    measured: str
    state: State = "passed"
    sentence: str = ""


async def anonymous(context: CheckContext) -> Outcome:
    """Check access without credentials and of web pages, and that callers' URLs are not fetched."""
    access, target = context.access, context.target
    if not access.private and target.stack is None:
        return skipped("no credentials to omit")
    wanted, seen = ["URLs not fetched"], list[_ExposureResult]()
    if not target.opens_origins:
        wanted.insert(0, "no web origins")
    if access.private and (access.auth != "tunnel" or access.api_key is not None):
        wanted.insert(0, "401 or 403 without credentials")
        seen += [await _path(context, path, body) for path, body in GUARDED.items()]
    context.wanted = ", ".join(wanted)
    if not target.opens_origins:
        seen.append(await _page(context))
    seen.append(await _media(context))
    opened = "; ".join(one.sentence for one in seen if one.state == "failed")
    unknown = "; ".join(one.sentence for one in seen if one.state == "unknown")
    parts = [f"open: {opened}"] if opened else []
    parts += [f"unknown: {unknown}"] if unknown else []
    if opened and target.stack is not None:
        callers = "Check who can call the service (cloudRun.invokers, cloudRun.public)"
        parts.append(f"{callers}. If the server is older than its settings, run `gemma up {target.stack}`")
    state: State = "unknown" if unknown else "passed"
    if opened:
        # Without a stack, no settings show that the server should be closed. An identity check in front of it does.
        state = "failed" if target.stack is not None or access.id_tokens is not None else "warned"
    return Outcome(state, f"{'. '.join(parts)}." if parts else "", measured=", ".join(one.measured for one in seen))


async def _path(context: CheckContext, path: str, body: Mapping[str, object] | None) -> _ExposureResult:
    method = "GET" if body is None else "POST"
    try:
        answer = await context.client.request(method, path, body=body, limit_s=CALL_LIMIT_S, anonymous=True)
    except UnreachableError:
        return _ExposureResult(f"{path} no response", "unknown", f"{path} did not respond")
    measured = f"{path} {answer.status}"
    # An identity check in front of the server redirects browsers to its login page.
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST
    if _is_inconclusive(answer):
        return _ExposureResult(measured, "unknown", f"{path} returned {answer.status}")
    if answer.status in _REFUSED or is_redirect:
        return _ExposureResult(measured)
    return _ExposureResult(measured, "failed", f"anyone can call {path}")


async def _page(context: CheckContext) -> _ExposureResult:
    """Send a request as a web page does. It is open if the page can read the response."""
    answer = await context.client.request("GET", "/health", limit_s=CALL_LIMIT_S, extra={"Origin": ORIGIN})
    allowed = answer.headers.get("access-control-allow-origin")
    if _is_inconclusive(answer):
        return _ExposureResult("web pages unknown", "unknown", f"/health returned {answer.status} to a web page")
    if allowed is None:
        return _ExposureResult("web pages rejected")
    pages = f"web pages of {'any origin' if allowed == '*' else allowed} can call it (--allowed-origins)"
    return _ExposureResult("web pages allowed", "failed", pages)


async def _media(context: CheckContext) -> _ExposureResult:
    """Request an image of a host that does not exist. Only a rejection by name is proof."""
    image = {"type": "image_url", "image_url": {"url": MEDIA_URL}}
    body = request(context, [user([{"type": "text", "text": "Hi"}, image])], max_tokens=1)
    answer = await send(context, body, limit_s=CALL_LIMIT_S)
    is_refusal = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
    if is_refusal and any(words in answer.message.lower() for words in _NO_MEDIA):
        return _ExposureResult("URLs not fetched")
    returned = f"returned {answer.status} for an image on a host that does not exist"
    if answer.status in {HTTPStatus.OK, HTTPStatus.INTERNAL_SERVER_ERROR}:
        any_url = "callers can fetch any URL from the server's network (vllm.allowedMediaDomains)"
        return _ExposureResult("URLs fetched", "failed", f"{any_url}. It {returned}")
    return _ExposureResult("URLs unknown", "unknown", f"it {returned}: {answer.message}")


def _is_inconclusive(answer: ServerAnswer) -> bool:
    return answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.TOO_MANY_REQUESTS
