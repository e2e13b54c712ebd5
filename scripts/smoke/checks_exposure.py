"""Check that the server rejects callers without credentials, web pages, and media URLs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from loadtest.client.openai import ServerAnswer, UnreachableError
from scripts.cli.check_result import State
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, skipped

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
"""A URL that no server can fetch, because the name never resolves (RFC 6761). A closed server rejects it by name, without a DNS query."""
_REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
_NO_MEDIA: Final = ("allowed domains", "not a multimodal model", "at most 0 ", "does not support")
"""Parts of the errors that vLLM returns for an image it does not fetch: domain not allowed, or images not supported."""


@dataclass(slots=True)
class _Seen:
    """Observations of all parts of the check."""

    measured: list[str] = field(default_factory=list[str])
    open: list[str] = field(default_factory=list[str])
    """Open paths and features, each as the end of a sentence."""
    unknown: list[str] = field(default_factory=list[str])
    """Inconclusive responses."""


async def anonymous(context: CheckContext) -> Outcome:
    """Check that no path serves callers without credentials, that web pages are denied, and that callers' URLs are not fetched."""
    access = context.access
    target = context.target
    if not access.private and target.stack is None:
        return skipped("no credentials to omit")
    seen = _Seen()
    wanted = ["URLs not fetched"]
    if not target.opens_origins:
        wanted.insert(0, "no web origins")
    if access.private and (access.auth != "tunnel" or access.api_key is not None):
        wanted.insert(0, "401 or 403 without credentials")
        for path, body in GUARDED.items():
            await _try_path(context, path, body, seen)
    context.wanted = ", ".join(wanted)
    if not target.opens_origins:
        await _try_page(context, seen)
    await _try_media(context, seen)
    parts = [f"open: {'; '.join(seen.open)}"] if seen.open else []
    parts += [f"unknown: {'; '.join(seen.unknown)}"] if seen.unknown else []
    if seen.open and target.stack is not None:
        callers = "Check who can call the service (cloudRun.invokers, cloudRun.public)"
        parts.append(f"{callers}. Run `pulumi up` if the server is older than its settings")
    state: State = "unknown" if seen.unknown else "passed"
    if seen.open:
        # Without a stack, no settings show that the server should be closed. An identity check in front of it does.
        state = "failed" if target.stack is not None or access.id_tokens is not None else "warned"
    return Outcome(state, f"{'. '.join(parts)}." if parts else "", measured=", ".join(seen.measured))


async def _try_path(context: CheckContext, path: str, body: Mapping[str, object] | None, seen: _Seen) -> None:
    """Call a path without credentials and record it as refused, open or unknown."""
    method = "GET" if body is None else "POST"
    try:
        answer = await context.client.request(method, path, body=body, limit_s=CALL_LIMIT_S, anonymous=True)
    except UnreachableError:
        seen.measured.append(f"{path} no response")
        seen.unknown.append(f"{path} did not respond")
        return
    seen.measured.append(f"{path} {answer.status}")
    # An identity check in front of the server redirects browsers to its login page.
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST
    if _is_inconclusive(answer):
        seen.unknown.append(f"{path} returned {answer.status}")
    elif answer.status not in _REFUSED and not is_redirect:
        seen.open.append(f"anyone can call {path}")


async def _try_page(context: CheckContext, seen: _Seen) -> None:
    """Send a request as a web page does. It is open if the page can read the response."""
    answer = await context.client.request("GET", "/health", limit_s=CALL_LIMIT_S, extra={"Origin": ORIGIN})
    allowed = answer.headers.get("access-control-allow-origin")
    if _is_inconclusive(answer):
        seen.measured.append("web pages unknown")
        seen.unknown.append(f"/health returned {answer.status} to a web page")
    elif allowed is None:
        seen.measured.append("web pages refused")
    else:
        seen.measured.append("web pages allowed")
        seen.open.append(f"web pages of {'any origin' if allowed == '*' else allowed} can call it (--allowed-origins)")


async def _try_media(context: CheckContext, seen: _Seen) -> None:
    """Request an image from a host that does not exist. Only a rejection by name proves that the server does not fetch URLs."""
    image = {"type": "image_url", "image_url": {"url": MEDIA_URL}}
    body = {
        "model": context.target.model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, image]}],
        "max_tokens": 1,
    }
    answer = await context.client.post("/v1/chat/completions", body, limit_s=CALL_LIMIT_S)
    is_refusal = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
    if is_refusal and any(words in answer.message.lower() for words in _NO_MEDIA):
        seen.measured.append("URLs not fetched")
    elif answer.status in {HTTPStatus.OK, HTTPStatus.INTERNAL_SERVER_ERROR}:
        seen.measured.append("URLs fetched")
        seen.open.append(
            "callers can make the server fetch any URL from its network (vllm.allowedMediaDomains). It returned "
            f"{answer.status} for an image on a host that does not exist"
        )
    else:
        seen.measured.append("URLs unknown")
        seen.unknown.append(f"it returned {answer.status} for an image on a host that does not exist: {answer.message}")


def _is_inconclusive(answer: ServerAnswer) -> bool:
    return answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.TOO_MANY_REQUESTS
