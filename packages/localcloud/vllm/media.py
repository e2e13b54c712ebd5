"""Images, sounds and videos of a chat: how many are allowed, and what is read of those that a request names by URL.

vLLM reads any host unless `--allowed-media-domains` is set, and follows redirects unless VLLM_MEDIA_URL_ALLOW_REDIRECTS is 0
(multimodal/media/connector.py, envs.py). This server only reads addresses of this machine, which it never leaves. Any other host counts as
read, except names that no DNS resolves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from localcloud.json_values import as_list, as_object
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.recorded import Model
from localcloud.vllm.requests import MEDIA, RequestError

_UNLIMITED: Final = 999
"""vLLM's limit of a modality that `--limit-mm-per-prompt` does not name."""
_LIMIT_S: Final = 5.0
"""VLLM_IMAGE_FETCH_TIMEOUT."""
NO_EMBEDDINGS: Final = (
    "AssertionError: Expected number of multimodal embeddings to match number of input items: 1, but got len(mm_embeddings)=0 instead. "
    "This is most likely due to incorrect implementation of the model's `embed_multimodal` method."
)
"""End of the traceback of a JAX model's engine after a sound or a video: `embed_multimodal` returns only embeddings of images, and the runner requires one of
each item (tpu-inference 0.32.0, models/jax/gemma4_mm.py and models/jax/utils/multi_modal_utils.py). The server exits with its engine, as
in https://github.com/vllm-project/tpu-inference/issues/957 after a video for Qwen2.5-VL (vLLM, entrypoints/launcher.py, terminate_if_errored)."""
ENGINE_DEAD: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
"""Message of the requests that a dead engine had (vLLM, v1/engine/exceptions.py)."""
_HEARS: Final = ("E2B", "E4B", "12B", "tiny")
"""Beginnings of the names of models whose config.json has `audio_config`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRules:
    """Allowed media: hosts (empty: all), a local folder (empty: none), and whether redirects are followed."""

    domains: tuple[str, ...]
    local_path: str
    redirects: bool


def check_items(items: Sequence[str], arguments: Arguments, model: Model) -> None:
    """Reject more items of a modality than `--limit-mm-per-prompt` allows, and sounds for a model without `audio_config`. Raises RequestError."""
    for kind in ("image", "audio", "video"):
        count = items.count(kind)
        if kind == "audio" and count and not model.name.startswith(_HEARS):
            raise RequestError(
                f"Audio input was provided but the model '{arguments.served_model_names[0]}' does not have an audio tower. "
                "Audio inference is only supported for Gemma4 models that include an audio_config "
                "(i.e., models that include an audio_config)."
            )
        given: object = arguments.limit_mm_per_prompt.get(kind, _UNLIMITED)
        stated = as_object(given).get("count", given)
        limit = 0 if arguments.language_model_only else stated if isinstance(stated, int) else _UNLIMITED
        if count > limit:
            raise RequestError(f"At most {limit} {kind}(s) may be provided in one prompt.", param=kind)


async def read_media(body: Mapping[str, Any], rules: MediaRules) -> None:
    """Read the media of a chat. Raises RequestError."""
    for url in _urls(body):
        await _read(url, rules)


def _urls(body: Mapping[str, Any]) -> Iterator[str]:
    for message in map(as_object, as_list(body.get("messages"))):
        for part in map(as_object, as_list(message.get("content"))):
            kind = str(part.get("type"))
            if kind in MEDIA and kind != "input_audio":
                yield str(as_object(part.get(kind)).get("url", ""))


async def _read(url: str, rules: MediaRules) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise RequestError(f"Failed to parse: {url}") from error
    if parts.scheme == "data":
        return
    if parts.scheme == "file":
        if not rules.local_path:
            raise RequestError("Cannot load local files without `--allowed-local-media-path`.")
        return
    if not parts.scheme.startswith("http"):
        raise RequestError("The URL must be either a HTTP, data or file URL.")
    host = parts.hostname or ""
    if rules.domains and host not in rules.domains:
        raise RequestError(
            f"The URL must be from one of the allowed domains: {list(rules.domains)}. Input URL domain: {host}"
        )
    if host.endswith(".invalid"):
        raise _not_read(f"Cannot connect to host {host}:{parts.port or 80} [Name or service not known]")
    if _is_here(host):
        await _get(url, redirects=rules.redirects)


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _get(url: str, *, redirects: bool) -> None:
    timeout = aiohttp.ClientTimeout(total=_LIMIT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=redirects) as answer,
        ):
            answer.raise_for_status()
            await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _not_read(str(error)) from error


def _not_read(why: str) -> RequestError:
    return RequestError(why, status=500, kind="InternalServerError")
