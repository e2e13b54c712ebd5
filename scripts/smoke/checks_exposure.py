"""Check of what a server gives to whom it does not serve: callers without credentials, web pages, and whoever names a URL to read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from loadtest.client.openai import ServerAnswer, UnreachableError
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, Verdict, skipped

CALL_LIMIT_S: Final = 30.0
_PROMPT: Final[Mapping[str, object]] = {"prompt": "Hi", "max_tokens": 1}
GUARDED: Final[Mapping[str, Mapping[str, object] | None]] = {
    "/v1/models": None,
    "/metrics": None,
    "/invocations": _PROMPT,
    "/tokenize": _PROMPT,
}
"""Paths that a caller without credentials tries, with the body of a POST. vLLM's own check of the key covers only the first
(vLLM docs/usage/security.md); /invocations runs the model."""
ORIGIN: Final = "https://smoke.invalid"
MEDIA_URL: Final = "http://smoke.invalid/image.png"
"""A URL that no server can read: no DNS has the name (RFC 6761). A closed server refuses it by the name, without a look-up."""
_REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
_NO_MEDIA: Final = ("allowed domains", "not a multimodal model", "at most 0 ", "does not support")
"""Words of vLLM's refusals of an image that it does not read: its domain is not allowed, or no image is."""


@dataclass(slots=True)
class _Seen:
    """What the parts of the check saw."""

    measured: list[str] = field(default_factory=list[str])
    open: list[str] = field(default_factory=list[str])
    """What is open, as the end of a sentence."""
    unknown: list[str] = field(default_factory=list[str])
    """What no answer says."""


async def anonymous(context: CheckContext) -> Outcome:
    """Check that callers without credentials are refused on every path, web pages get no answer, and no URL of a caller is read."""
    access, target = context.access, context.target
    if not access.private and target.stack is None:
        return skipped("no credentials were given")
    seen = _Seen()
    wanted: list[str] = []
    if access.private and (access.auth != "tunnel" or access.api_key is not None):
        wanted.append("401 or 403 without credentials")
        for path, body in GUARDED.items():
            await _try_path(context, path, body, seen)
    if not target.opens_origins:
        wanted.append("no answer for web pages")
        await _try_page(context, seen)
    wanted.append("no URL read")
    await _try_media(context, seen)
    return Outcome(
        verdict=_verdict(context, seen),
        measured=", ".join(seen.measured),
        wanted=", ".join(wanted),
        detail=_detail(context, seen),
    )


def _verdict(context: CheckContext, seen: _Seen) -> Verdict:
    if seen.open:
        # Without a stack no settings say that the server should be closed; an identity check in front says it.
        is_meant_closed = context.target.stack is not None or context.access.id_tokens is not None
        return "failed" if is_meant_closed else "warned"
    return "unknown" if seen.unknown else "passed"


def _detail(context: CheckContext, seen: _Seen) -> str:
    said = [f"open: {'; '.join(seen.open)}"] if seen.open else []
    said += [f"unknown: {'; '.join(seen.unknown)}"] if seen.unknown else []
    if seen.open and context.target.stack is not None:
        said.append(
            "see the callers of the service (cloudRun.invokers, cloudRun.public), and run `pulumi up` if the server is older than its settings"
        )
    return f"{'. '.join(said)}." if said else ""


async def _try_path(context: CheckContext, path: str, body: Mapping[str, object] | None, seen: _Seen) -> None:
    """Call a path without credentials: refused, open, or unknown where nobody answers for the server."""
    method = "GET" if body is None else "POST"
    try:
        answer = await context.client.request(method, path, body=body, limit_s=CALL_LIMIT_S, anonymous=True)
    except UnreachableError:
        seen.measured.append(f"{path} no answer")
        seen.unknown.append(f"{path} gave no answer")
        return
    seen.measured.append(f"{path} {answer.status}")
    if _says_nothing(answer):
        seen.unknown.append(f"{path} answered {answer.status}")
    elif answer.status not in _REFUSED and not _is_redirect(answer):
        seen.open.append(f"anyone can call {path}")


async def _try_page(context: CheckContext, seen: _Seen) -> None:
    """Call as a web page does: an answer that the page may read is open."""
    answer = await context.client.request("GET", "/health", limit_s=CALL_LIMIT_S, extra={"Origin": ORIGIN})
    allowed = answer.headers.get("access-control-allow-origin")
    if _says_nothing(answer):
        seen.measured.append("web pages unknown")
        seen.unknown.append(f"/health answered {answer.status} to a web page")
    elif allowed is None:
        seen.measured.append("web pages refused")
    else:
        seen.measured.append("web pages let in")
        seen.open.append(f"web pages of {'any origin' if allowed == '*' else allowed} can call it (--allowed-origins)")


async def _try_media(context: CheckContext, seen: _Seen) -> None:
    """Ask about an image of a host that does not exist. Only a refusal by its name says that the server does not read URLs."""
    image = {"type": "image_url", "image_url": {"url": MEDIA_URL}}
    body = {
        "model": context.target.model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, image]}],
        "max_tokens": 1,
    }
    answer = await context.client.post("/v1/chat/completions", body, limit_s=CALL_LIMIT_S)
    is_refusal = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
    if is_refusal and any(words in answer.message.lower() for words in _NO_MEDIA):
        seen.measured.append("URLs not read")
    elif answer.status in {HTTPStatus.OK, HTTPStatus.INTERNAL_SERVER_ERROR}:
        seen.measured.append("URLs read")
        seen.open.append(
            f"a caller can make the server read any URL from its network (vllm.allowedMediaDomains): it answered {answer.status} "
            "about an image of a host that does not exist"
        )
    else:
        seen.measured.append("URLs unknown")
        seen.unknown.append(
            f"about an image of a host that does not exist it answered {answer.status}: {answer.message}"
        )


def _says_nothing(answer: ServerAnswer) -> bool:
    return answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.TOO_MANY_REQUESTS


def _is_redirect(answer: ServerAnswer) -> bool:
    """Return whether an identity check in front sends a browser to its login."""
    return HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST
