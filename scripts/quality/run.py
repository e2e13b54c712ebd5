"""Ask the questions, one at a time, and judge the answers.

One at a time because the requests that are computed together change the rounding, and so, at temperature 0, some answers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

from engine.children import run_async
from loadtest.client.events import first_message, was_cut
from loadtest.client.openai import OpenAIClient, ServerAnswer, ServerError, UnreachableError
from loadtest.errors import SweepError
from loadtest.server import ServerInfo, inspect_server
from scripts.cli.access import AccessError, ServerAccess
from scripts.cli.reach import DENIED, not_reached
from scripts.quality.items import KINDS, Kind, QualityItem
from scripts.quality.judges import expected_text, judge, text_of
from scripts.quality.results import AnswerVerdict, Ending, JudgedAnswer, QualityHeader
from scripts.quality.store import QualityStore

_LOST: Final = 3
"""Questions in a row without a response after which the server counts as unreachable."""
_UNSUPPORTED: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_IMPLEMENTED}
)
_TOO_LONG: Final = ("context length", "max_model_len")
"""Words of vLLM's message for a request that exceeds max-model-len."""
_TEXT_LIMIT: Final = 4_000
"""Characters of a response that are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRequest:
    """What to ask, and how."""

    items: tuple[QualityItem, ...]
    model: str
    max_model_len: int | None
    thinking: bool
    request_timeout_s: float


@dataclass(slots=True)
class QualityProgress:
    """State of a run. It survives an interruption."""

    answers: list[JudgedAnswer] = field(default_factory=list[JudgedAnswer])
    unsupported: dict[Kind, str] = field(default_factory=dict[Kind, str])
    too_long: list[str] = field(default_factory=list[str])
    """Questions that exceed max-model-len by the server's own count of tokens."""
    lost: int = 0
    """Questions in a row without a response."""


Report = Callable[[QualityProgress, QualityItem], None]
"""Shows the progress before a question is sent."""


def inspect(access: ServerAccess, model: str | None) -> ServerInfo:
    """Return what the server says about itself. Raises AccessError if it cannot be reached or does not serve the model."""

    async def ask() -> ServerInfo:
        async with OpenAIClient(access.base_url, access.headers) as client:
            return await inspect_server(client, model, chat=True)

    try:
        return run_async(ask())
    except (ServerError, SweepError) as error:
        raise AccessError(not_reached(access, error) or str(error)) from None


def selected(
    items: Sequence[QualityItem],
    *,
    kinds: Sequence[Kind],
    max_model_len: int | None,
    max_context: int | None,
    thinking: bool,
    has_tools: bool | None,
) -> tuple[tuple[QualityItem, ...], Mapping[str, str]]:
    """Return the questions for a server, and the reason for each group that is left out. `has_tools` is None if unknown."""
    left_out: dict[str, str] = {kind: "not requested (--kind)" for kind in KINDS if kind not in kinds}
    if has_tools is False and "tools" in kinds:
        left_out["tools"] = "the stack's settings have no tool-call parser"
    limits = [limit for limit in (max_model_len, max_context) if limit is not None]
    limit = min(limits) if limits else None
    wanted = [one for one in items if one.kind not in left_out]
    chosen = tuple(one for one in wanted if one.fits(limit, thinking=thinking))
    if len(chosen) < len(wanted):
        source = "--max-context" if limit is not None and limit == max_context else "the server's max-model-len"
        left_out["long"] = f"{len(wanted) - len(chosen)} questions are longer than {source} {limit:,}"
    return chosen, left_out


def measure(
    access: ServerAccess,
    asked: QualityRequest,
    store: QualityStore,
    *,
    header: QualityHeader,
    state: QualityProgress,
    report: Report,
) -> tuple[QualityHeader, Ending]:
    """Ask all questions that have no answer yet. Return the header with what the server does not support, and how the run ended."""
    try:
        ending = run_async(_ask_all(access, asked, store, state, report))
    except KeyboardInterrupt:
        ending = "interrupted"
    header = _with_rejected(header, asked, state)
    store.change(header)
    return header, ending


def _with_rejected(header: QualityHeader, asked: QualityRequest, state: QualityProgress) -> QualityHeader:
    """Return the header without the questions that the server rejected, and with the reasons."""
    left = len(state.too_long) + sum(one.kind in state.unsupported for one in asked.items)
    reasons: dict[str, str] = {**header.left_out, **state.unsupported}
    if state.too_long:
        reasons["rejected"] = f"{', '.join(state.too_long)}: too long by the server's count of tokens"
    return replace(header, planned=header.planned - left, left_out=reasons)


async def _ask_all(
    access: ServerAccess, asked: QualityRequest, store: QualityStore, state: QualityProgress, report: Report
) -> Ending:
    done = {one.id for one in state.answers}
    async with OpenAIClient(access.base_url, access.headers) as client:
        for item in asked.items:
            if item.id in done or item.kind in state.unsupported:
                continue
            report(state, item)
            answer = await _ask(access, client, asked, item, state)
            if answer is not None:
                state.answers.append(answer)
                store.append(answer)
            if state.lost >= _LOST:
                return "unreachable"
    return "done"


async def _ask(
    access: ServerAccess, client: OpenAIClient, asked: QualityRequest, item: QualityItem, state: QualityProgress
) -> JudgedAnswer | None:
    """Return the judged answer; None if the server rejects the question as such."""
    start_s = time.monotonic()
    body = item.body(asked.model, asked.max_model_len, thinking=asked.thinking)
    try:
        response = await client.post("/v1/chat/completions", body, limit_s=asked.request_timeout_s)
    except (UnreachableError, AccessError) as error:
        why = not_reached(access, error)
        state.lost += _LOST if why else 1
        return _answer(item, "unknown", fault=why or str(error), elapsed_s=time.monotonic() - start_s)
    state.lost = 0
    if response.status in DENIED:
        raise AccessError(f"the server denied access ({response.status}): {response.message}")
    if response.status == HTTPStatus.OK:
        return _judged(item, response)
    if _is_too_long(item, response):
        state.too_long.append(item.id)
        return None
    if response.status in _UNSUPPORTED and not any(one.kind == item.kind for one in state.answers):
        state.unsupported[item.kind] = f"the server rejects such requests ({response.status}): {response.message}"
        return None
    fault = f"status {response.status}: {response.message}"
    return _answer(item, "unknown", fault=fault, elapsed_s=response.elapsed_s)


def _is_too_long(item: QualityItem, response: ServerAnswer) -> bool:
    return (
        item.kind == "retrieval"
        and response.status == HTTPStatus.BAD_REQUEST
        and any(words in response.message.lower() for words in _TOO_LONG)
    )


def _judged(item: QualityItem, response: ServerAnswer) -> JudgedAnswer:
    message = first_message(response.body)
    if not message:
        fault = "The response has no message."
        return _answer(item, "unknown", fault=fault, elapsed_s=response.elapsed_s)
    found = judge(item.kind, item.expected, message, cut=was_cut(response.body))
    usage = response.usage
    return replace(
        _answer(item, "right" if found.is_right else "wrong", fault=found.fault, elapsed_s=response.elapsed_s),
        found=found.found,
        text=text_of(message)[:_TEXT_LIMIT],
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
    )


def _answer(item: QualityItem, verdict: AnswerVerdict, *, fault: str, elapsed_s: float) -> JudgedAnswer:
    return JudgedAnswer(
        id=item.id,
        kind=item.kind,
        verdict=verdict,
        asked=item.ask,
        expected=expected_text(item.kind, item.expected),
        found="",
        fault=fault,
        text="",
        prompt_tokens=None,
        completion_tokens=None,
        elapsed_s=round(elapsed_s, 3),
    )
