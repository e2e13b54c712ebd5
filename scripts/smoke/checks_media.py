"""Checks of images, sound and video: their tokens reach the model, and the response names their content.

The server's own count of prompt tokens proves that an item reached the model. A wrong response is only a warning, because it can be the
model's skill. A rejected or ignored item is a failure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from gemma_serving.scripts.smoke import media
from gemma_serving.scripts.smoke.chat_request import StatusError, answered, content_of, request, send, shorten, user
from gemma_serving.scripts.smoke.context import CheckContext
from gemma_serving.scripts.smoke.results import Outcome, failed, failed_or_passed, passed, skipped, warned
from loadtest.client.media import MediaKind, media_part

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
"""vLLM's limit without a setting. A rejected item of such a kind is only a warning."""
MOST_ITEMS: Final = 8
"""Limits above it are not tested, because the request is too large."""
BEEP_WORDS: Final = "4|four"


@dataclass(frozen=True, slots=True, kw_only=True)
class _MediaQuestion:
    """A question about files. `words`: expected in this order; `|` separates forms of a word."""

    kind: MediaKind
    files: Sequence[bytes]
    text: str
    words: Sequence[str]
    tokens: tuple[int, int | None]
    """Minimum and maximum of the tokens that the files add to the prompt."""
    setting: str
    """Settings key of the tokens."""
    limit: int
    """Items of this kind that the settings allow."""

    @property
    def span(self) -> str:
        """The tokens, as text."""
        least, most = self.tokens
        return f"{least} or more" if most is None else f"{least} to {most}"

    @property
    def said(self) -> str:
        """The expected words, as text."""
        return ", ".join(word.partition("|")[0] for word in self.words)


async def image(context: CheckContext) -> Outcome:
    """Check the color and the tokens of an image."""
    return await _images(context, ("blue",), "What color is this image? Answer with one word.")


async def two_images(context: CheckContext) -> Outcome:
    """Check the colors and their order."""
    text = "What color is the first image, and what color is the second image?"
    return await _images(context, ("red", "yellow"), f"{text} Answer with the two colors in this order.")


async def _images(context: CheckContext, colors: Sequence[str], text: str) -> Outcome:
    count = len(colors)
    features = context.features()
    if 0 < features.images < count:
        return skipped("one image per request in the settings")
    tokens = features.image_tokens
    question = _MediaQuestion(
        kind="image",
        files=[media.picture(color) for color in colors],
        text=text,
        words=colors,
        tokens=(int(count * tokens * LEAST_SHARE), count * (tokens + MARKS)),
        setting="imageTokens",
        limit=features.images,
    )
    return await _judge(context, question)


async def sound(context: CheckContext) -> Outcome:
    """Check that a sound reaches the model. Gemma 4 is trained on speech, not on beeps."""
    text = "How many beeps are in this recording? Answer with one number."
    question = _MediaQuestion(
        kind="audio",
        files=[media.sound(BEEPS)],
        text=text,
        words=[BEEP_WORDS],
        tokens=(round(media.sound_s(BEEPS) * AUDIO_TOKENS_PER_S * LEAST_SHARE), None),
        setting="audios",
        limit=context.features().audios,
    )
    return await _judge(context, question)


async def video(context: CheckContext) -> Outcome:
    """Check the colors of a video and their order."""
    text = "This video shows one color after another. Name the colors in the order in which they appear."
    question = _MediaQuestion(
        kind="video",
        files=[media.video()],
        text=text,
        words=media.VIDEO_COLORS,
        tokens=(FRAME_TOKENS, None),
        setting="videos",
        limit=context.features().videos,
    )
    return await _judge(context, question)


async def limits(context: CheckContext) -> Outcome:
    """Check that more items than the settings allow are rejected."""
    context.wanted = "400 for more items than allowed"
    measured: list[str] = []
    faults: list[str] = []
    features = context.features()
    of_kinds: tuple[tuple[MediaKind, int, bytes], ...] = (
        ("image", features.images, media.picture("red")),
        ("video", features.videos, media.video()),
    )
    for kind, limit, file in of_kinds:
        if limit > MOST_ITEMS:
            continue
        content = [*([media_part(file, kind)] * (limit + 1)), {"type": "text", "text": "What is this?"}]
        answer = await send(context, request(context, [user(content)], max_tokens=ANSWER_TOKENS))
        measured.append(f"{limit + 1} {kind}s: {answer.status}")
        if answer.status != HTTPStatus.BAD_REQUEST:
            allowed = f"the settings allow {limit} (`vllm.multimodal.{kind}s`)"
            faults.append(f"{limit + 1} {kind}s returned {answer.status}, but {allowed}")
    if not measured:
        return skipped("the settings set no limit on images and videos")
    return failed_or_passed(", ".join(measured), "; ".join(faults))


async def _judge(context: CheckContext, question: _MediaQuestion) -> Outcome:
    """Send the request with the files, and once without them to compare the prompt tokens."""
    kind = question.kind
    if question.limit < 1:
        return skipped(f"no {kind} input in the settings or the model")
    context.wanted = f"{question.span} tokens, {question.said}"
    text = {"type": "text", "text": question.text}
    content = [*(media_part(file, kind) for file in question.files), text]
    try:
        answer = await answered(context, request(context, [user(content)], max_tokens=ANSWER_TOKENS))
    except StatusError as error:
        detail = f"the server rejected the {kind}: {error}"
        if question.limit != UNSET:
            return failed(f"status {error.status}", detail)
        hint = f"Set `vllm.multimodal.{kind}s` to 0, or to the items that you need."
        return warned(f"status {error.status}", f"{detail} {hint}")
    plain = await send(context, request(context, [user([text])], max_tokens=1))
    if answer.usage is None or plain.usage is None:
        return failed("no usage", f"without usage, nothing proves that the {kind} reached the model.")
    return _judged(question, content_of(answer), answer.usage.prompt_tokens - plain.usage.prompt_tokens)


def _judged(question: _MediaQuestion, text: str, tokens: int) -> Outcome:
    kind = question.kind
    least, most = question.tokens
    is_right = _has_in_order(text, question.words)
    measured = f"{tokens} tokens, {shorten(text, 40)!r}"
    values = {"media_tokens": tokens, "right": is_right}
    if tokens < MARKS:
        fault = (
            f"the server accepted the {kind} but did not pass it to the model, because it added {tokens} prompt tokens."
        )
        return failed(measured, fault, values)
    if tokens < least or (most is not None and tokens > most):
        fault = f"the {kind} has {tokens} tokens, but the settings lead to {question.span}."
        return failed(measured, f"{fault} Check `vllm.multimodal.{question.setting}`.", values)
    if is_right:
        return passed(measured, values)
    doubt = (
        f"the {kind} reached the model, but the response does not contain {question.said}. It can be the model's skill."
    )
    return warned(measured, doubt, values)


def _has_in_order(text: str, words: Sequence[str]) -> bool:
    """Return whether each word (a pattern) is in the text after the one before it."""
    pattern = ".*".join(rf"\b(?:{word})\b" for word in words)
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None
