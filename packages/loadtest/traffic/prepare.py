"""Preparation of a load before the first point: probe image support, and report changes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from loadtest.client.openai import OpenAIClient, ServerAnswer, ServerError
from loadtest.errors import SweepError
from loadtest.server import CALL_LIMIT_S, ServerInfo
from loadtest.traffic.makers import (
    PromptSource,
    SyntheticSource,
    audio_parts,
    image_parts,
)
from loadtest.traffic.points import Point, Sweep
from loadtest.traffic.prompts import Calibration, Recipe
from loadtest.traffic.spec import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTraffic:
    """A load that is ready to be sent."""

    traffic: Traffic
    sweep: Sweep
    limit: int | None
    """Server's max-model-len minus images and sound."""
    image_tokens: int
    """Tokens that the images of one request add, by the server's usage."""
    audio_tokens: int
    """Tokens that the sound of one request adds, by the server's usage."""
    notes: tuple[str, ...]

    @property
    def varied(self) -> bool:
        """True if prompts of one point differ in length."""
        traffic = self.traffic
        return bool(traffic.input_lengths or traffic.turns > 1)

    def source(self, point: Point, recipe: Recipe, calibration: Calibration) -> PromptSource | None:
        """Return the source of a point's requests, or None for prompts of one length."""
        traffic = self.traffic
        media = traffic.images or traffic.audio_s
        changed = traffic.input_lengths or traffic.output_lengths or media or traffic.shares_prompts
        if not changed:
            return None
        return SyntheticSource(
            recipe=recipe,
            calibration=calibration,
            correction=recipe.count - calibration.words_for(point.input_tokens),
            input_tokens=point.input_tokens,
            output_tokens=point.output_tokens,
            most_tokens=self.limit,
            traffic=traffic,
        )


async def prepare_traffic(sweep: Sweep, info: ServerInfo, client: OpenAIClient, *, chat: bool) -> PreparedTraffic:
    """Return the load, ready to be sent. Raises SweepError if the model does not allow it."""
    traffic = sweep.traffic
    chat_only = {"--images": traffic.images, "--audio-s": traffic.audio_s, "--turns": traffic.turns > 1}
    for what in (option for option, is_given in chat_only.items() if is_given and not chat):
        raise SweepError(f"{what} requires /v1/chat/completions. Remove --completions.")
    unserved = [name for name in traffic.adapters if name not in info.served]
    if unserved:
        raise SweepError(f"--adapters has {unserved[0]}, but the server serves {', '.join(info.served)}.")
    images = image_parts(traffic.images, traffic.image_size, "probe")
    image_tokens = await _added_tokens(client, info, f"--images is {traffic.images}", "image", images)
    sounds = audio_parts(traffic.audio_s, "probe")
    audio_tokens = await _added_tokens(client, info, f"--audio-s is {traffic.audio_s:g}", "audio file", sounds)
    limit = None if info.max_model_len is None else info.max_model_len - image_tokens - audio_tokens
    if limit is not None and limit < 2:  # noqa: PLR2004 - one token of text and one of the response
        raise SweepError(
            f"The images and the sound of a request take {image_tokens + audio_tokens} tokens, which leaves no space at max-model-len"
            f" {info.max_model_len}. Pass fewer or smaller images, or less sound."
        )
    prepared = PreparedTraffic(
        traffic=traffic,
        sweep=sweep,
        limit=limit,
        image_tokens=image_tokens,
        audio_tokens=audio_tokens,
        notes=(f"load: {traffic.name}",) if traffic.name else (),
    )
    if image_tokens:
        note = f"the {traffic.images} images of a request add {image_tokens} prompt tokens by the server's usage"
        prepared = replace(prepared, notes=(*prepared.notes, note))
    if audio_tokens:
        note = f"the sound of a request adds {audio_tokens} prompt tokens by the server's usage"
        prepared = replace(prepared, notes=(*prepared.notes, note))
    return replace(prepared, notes=(*prepared.notes, *_length_notes(prepared)))


def _length_notes(prepared: PreparedTraffic) -> Sequence[str]:
    traffic = prepared.traffic
    sweep = prepared.sweep
    limit = prepared.limit
    if limit is None:
        return ()
    notes: list[str] = []
    lengths = [found for found in (traffic.input_lengths, traffic.output_lengths) if found is not None]
    most = sum(limit + 1 if found.most is None else found.most for found in lengths)
    if lengths and most + (0 if traffic.input_lengths else min(sweep.input_tokens)) > limit:
        notes.append(f"LEN01: requests longer than max-model-len {limit} are clamped to it, input first.")
    if traffic.turns > 1 and traffic.turns * (max(sweep.input_tokens) + max(sweep.output_tokens)) > limit:
        notes.append(f"LEN01: sessions end early before the conversation exceeds max-model-len {limit}.")
    return notes


async def _added_tokens(
    client: OpenAIClient, info: ServerInfo, given: str, what: str, parts: Sequence[dict[str, object]]
) -> int:
    """Return the tokens that content parts add. Raises SweepError if the model does not accept them."""
    if not parts:
        return 0
    question: dict[str, object] = {"type": "text", "text": "the"}
    try:
        plain = await _ask(client, info.model, [question])
        seen = await _ask(client, info.model, [*parts, question])
    except ServerError as error:
        raise SweepError(f"The server's response to an {what} is not available: {error}") from None
    if seen.status != HTTPStatus.OK or seen.usage is None or plain.usage is None:
        raise SweepError(
            f"{given}, but {info.model} rejects such an {what}: the server returned {seen.status}, {seen.message}"
        )
    added = seen.usage.prompt_tokens - plain.usage.prompt_tokens
    if added < 1:
        raise SweepError(
            f"{given}, but {info.model} ignores {what}s: an {what} adds no prompt tokens. Remove {given.split(maxsplit=1)[0]}."
        )
    return added


async def _ask(client: OpenAIClient, model: str, content: list[Any]) -> ServerAnswer:
    body = {"model": model, "max_tokens": 1, "temperature": 0, "messages": [{"role": "user", "content": content}]}
    return await client.post("/v1/chat/completions", body, limit_s=10 * CALL_LIMIT_S)
