"""Images, sounds and videos that a request names by URL.

vLLM reads any host unless `--allowed-media-domains` is set, and follows redirects unless VLLM_MEDIA_URL_ALLOW_REDIRECTS is 0
(multimodal/media/connector.py, envs.py). This server only reads addresses of this machine, which it never leaves. Any other host counts as
read, except names that no DNS resolves.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

import aiohttp

from localcloud.json_values import JsonObject, as_list, as_object
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.requests import MEDIA, RequestError

_LIMIT_S: Final = 5.0
"""VLLM_IMAGE_FETCH_TIMEOUT."""


async def read_media(body: JsonObject, arguments: Arguments, *, redirects: bool) -> None:
    """Read the media of a chat. Raises RequestError."""
    for message in map(as_object, as_list(body.get("messages"))):
        for part in map(as_object, as_list(message.get("content"))):
            kind = str(part.get("type"))
            if kind in MEDIA and kind != "input_audio":
                url = str(as_object(part.get(kind)).get("url", ""))
                if _is_read(url, arguments):
                    await _get(url, redirects=redirects)


def _is_read(url: str, arguments: Arguments) -> bool:
    """Return whether a URL is one of this machine. Raises RequestError for one that vLLM does not read."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise RequestError(f"Failed to parse: {url}") from error
    if parts.scheme == "file" and not arguments.allowed_local_media_path:
        raise RequestError("Cannot load local files without `--allowed-local-media-path`.")
    if parts.scheme not in {"data", "file", "http", "https"}:
        raise RequestError("The URL must be either a HTTP, data or file URL.")
    return parts.scheme.startswith("http") and _is_here(parts, arguments.allowed_media_domains)


def _is_here(parts: SplitResult, domains: Sequence[str]) -> bool:
    host, allowed = parts.hostname or "", list(domains)
    if allowed and host not in allowed:
        raise RequestError(f"The URL must be from one of the allowed domains: {allowed}. Input URL domain: {host}")
    if host.endswith(".invalid"):
        raise _not_read(f"Cannot connect to host {host}:{parts.port or 80} [Name or service not known]")
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
