"""Checks of images, sound and video: their tokens reach the model, and the response names what they show.

The server's own count of prompt tokens proves that an item reached the model. A wrong response is only a warning, because it can be the
model's skill. A rejected or ignored item is a failure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from contracts.features import ServedFeatures
from loadtest.client.media import MediaKind, media_part
from loadtest.client.openai import ServerAnswer
from scripts.smoke import media
from scripts.smoke.chat_request import content_of, request, send, short, user
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, failed, judged, passed, skipped, warned

ANSWER_TOKENS: Final = 64
LEAST_SHARE: Final = 0.85
"""A square image has at least this share of the configured tokens: 121 of 140, because its sides are whole patches."""
MARKS: Final = 16
"""Maximum tokens around an item: its delimiters, and line breaks of the chat template."""
AUDIO_TOKENS_PER_S: Final = 25
"""One token for 40 ms (transformers, Gemma 4's audio feature extractor: 10 ms frames, two halvings)."""
FRAME_TOKENS: Final = 64
"""Tokens of a square video frame, of at most 70 (vLLM, model_executor/models/gemma4_mm.py)."""
BEEPS: Final = 4
UNSET: Final = 999
"""Items of a kind that vLLM allows if the settings name no limit. A rejected item of such a kind is only a warning."""
MOST_ITEMS: Final = 8
"""Limits above it are not tested, because the request would be large."""
BEEP_WORDS: Final = ("4", "four")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A question about files. `words` are the expected words in their order; each may have several forms."""

    kind: MediaKind
    files: tuple[bytes, ...]
    text: str
    words: tuple[tuple[str, ...], ...]
    tokens: tuple[int, int | None]
    """Minimum and maximum of the tokens that the files add to the prompt."""
    setting: str
    """Settings key of the tokens."""
    limit: int
    """Items of this kind that the settings allow."""


async def image(context: CheckContext, features: ServedFeatures) -> Outcome:
    """Check that the response names the color of an image, and that the image has the configured tokens."""
    if features.images < 1:
        return skipped(_without("image"))
    return await _judge(context, _images(("blue",), features, "What color is this image? Answer with one word."))


async def two_images(context: CheckContext, features: ServedFeatures) -> Outcome:
    """Check that the response names the colors of two images in their order."""
    if features.images < 2:  # noqa: PLR2004 - two images
        return skipped("one image per request in the settings" if features.images else _without("image"))
    text = (
        "What color is the first image, and what color is the second image? Answer with the two colors in this order."
    )
    return await _judge(context, _images(("red", "yellow"), features, text))


async def sound(context: CheckContext, features: ServedFeatures) -> Outcome:
    """Check that a sound reaches the model. Gemma 4 is trained on speech, so a wrong number of beeps is a warning."""
    if features.audios < 1:
        return skipped(_without("audio"))
    question = _Question(
        kind="audio",
        files=(media.sound(BEEPS),),
        text="How many beeps are in this recording? Answer with one number.",
        words=(BEEP_WORDS,),
        tokens=(round(media.sound_s(BEEPS) * AUDIO_TOKENS_PER_S * LEAST_SHARE), None),
        setting="audios",
        limit=features.audios,
    )
    return await _judge(context, question)


async def video(context: CheckContext, features: ServedFeatures) -> Outcome:
    """Check that the response names the colors of a video in their order."""
    if features.videos < 1:
        return skipped(_without("video"))
    question = _Question(
        kind="video",
        files=(media.video(),),
        text="This video shows one color after another. Name the colors in the order in which they appear.",
        words=tuple((color,) for color in media.VIDEO_COLORS),
        tokens=(FRAME_TOKENS, None),
        setting="videos",
        limit=features.videos,
    )
    return await _judge(context, question)


async def limits(context: CheckContext, features: ServedFeatures) -> Outcome:
    """Check that a request with more images or videos than the settings allow is rejected with 400."""
    measured: list[str] = []
    faults: list[str] = []
    of_kinds: tuple[tuple[MediaKind, int], ...] = (("image", features.images), ("video", features.videos))
    for kind, limit in of_kinds:
        if limit > MOST_ITEMS:
            continue
        file = media.picture("red") if kind == "image" else media.video()
        content = [*([media_part(file, kind)] * (limit + 1)), {"type": "text", "text": "What is this?"}]
        answer = await send(context, request(context, [user(content)], max_tokens=ANSWER_TOKENS))
        measured.append(f"{limit + 1} {kind}s: {answer.status}")
        if answer.status != HTTPStatus.BAD_REQUEST:
            faults.append(
                f"{limit + 1} {kind}s returned {answer.status}, but the settings allow {limit} (`vllm.multimodal.{kind}s`)"
            )
    if not measured:
        return skipped("the settings set no limit on images and videos")
    return judged(", ".join(measured), "; ".join(faults), wanted="400 for more items than allowed")


def _without(kind: MediaKind) -> str:
    return f"no {kind} input in the settings or the model"


def _images(colors: Sequence[str], features: ServedFeatures, text: str) -> _Question:
    count, tokens = len(colors), features.image_tokens
    return _Question(
        kind="image",
        files=tuple(media.picture(color) for color in colors),
        text=text,
        words=tuple((color,) for color in colors),
        tokens=(int(count * tokens * LEAST_SHARE), count * (tokens + MARKS)),
        setting="imageTokens",
        limit=features.images,
    )


async def _judge(context: CheckContext, question: _Question) -> Outcome:
    """Ask with the files, and once without them to compare the prompt tokens."""
    text = {"type": "text", "text": question.text}
    content = [*(media_part(file, question.kind) for file in question.files), text]
    wanted = _wanted(question)
    answer = await send(context, request(context, [user(content)], max_tokens=ANSWER_TOKENS))
    if answer.status != HTTPStatus.OK:
        return _rejected(question, answer)
    plain = await send(context, request(context, [user([text])], max_tokens=1))
    if answer.usage is None or plain.usage is None:
        return failed(
            "no usage",
            wanted=wanted,
            detail=f"without usage, nothing proves that the {question.kind} reached the model.",
        )
    tokens = answer.usage.prompt_tokens - plain.usage.prompt_tokens
    said = content_of(answer)
    is_right = _has_in_order(said, question.words)
    measured = f"{tokens} tokens, {short(said, 40)!r}"
    values = {"media_tokens": tokens, "right": is_right}
    fault = _token_fault(question, tokens)
    if fault:
        return failed(measured, wanted=wanted, detail=fault, values=values)
    if not is_right:
        detail = f"the {question.kind} reached the model, but the response does not say {_said(question)}. It can be the model's skill."
        return warned(measured, wanted=wanted, detail=detail, values=values)
    return passed(measured, wanted=wanted, values=values)


def _rejected(question: _Question, answer: ServerAnswer) -> Outcome:
    measured, wanted = f"status {answer.status}", _wanted(question)
    detail = f"the server rejected the {question.kind}: {answer.message}"
    if question.limit != UNSET:
        return failed(measured, wanted=wanted, detail=detail)
    return warned(
        measured,
        wanted=wanted,
        detail=f"{detail} Set `vllm.multimodal.{question.kind}s` to 0, or to the items that you need.",
    )


def _token_fault(question: _Question, tokens: int) -> str:
    least, most = question.tokens
    if tokens < MARKS:
        return f"the server accepted the {question.kind} but did not pass it to the model: it added {tokens} prompt tokens."
    if tokens < least or (most is not None and tokens > most):
        return (
            f"the {question.kind} has {tokens} tokens, but the settings lead to {least}"
            f"{' or more' if most is None else f' to {most}'}. Check `vllm.multimodal.{question.setting}`."
        )
    return ""


def _wanted(question: _Question) -> str:
    least, most = question.tokens
    return (
        f"{least} tokens or more, {_said(question)}" if most is None else f"{least} to {most} tokens, {_said(question)}"
    )


def _said(question: _Question) -> str:
    return ", ".join(forms[0] for forms in question.words)


def _has_in_order(text: str, words: Sequence[Sequence[str]]) -> bool:
    """Return whether each word is in the text after the one before it."""
    at = 0
    for forms in words:
        found = re.compile(rf"\b(?:{'|'.join(forms)})\b", re.IGNORECASE).search(text, at)
        if found is None:
            return False
        at = found.end()
    return True
