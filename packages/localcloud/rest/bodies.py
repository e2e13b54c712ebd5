"""Request bodies: read within Google's limits, and rejected with Google's error messages if they cannot be read."""

import json
from collections.abc import Iterator
from typing import Final, NoReturn, cast

from aiohttp import http_exceptions, web
from aiohttp.client_exceptions import ClientPayloadError

from localcloud.json_values import JsonObject
from localcloud.rest.errors import CloudError, ErrorStyle

LONGEST_BYTES: Final = 10 * 1024 * 1024
"""Google's limit for a request that is not an upload (googleapis/google-cloud-go#9479: Cloud Logging)."""
DEEPEST: Final = 100
"""Maximum JSON nesting that Google's front end reads (cloudendpoints/esp#648)."""
_UNREADABLE: Final = (http_exceptions.HttpProcessingError, web.RequestPayloadError, ClientPayloadError)
BROKEN: Final = (web.HTTPRequestEntityTooLarge, *_UNREADABLE)
"""Exceptions for a body that is too long or has another encoding than its headers state."""


async def json_value(request: web.Request, style: ErrorStyle = ErrorStyle.RPC) -> object:
    """Return the JSON value of a body; None if it is empty. Raises CloudError."""
    text = await whole(request, style)
    return parsed(text) if text.strip() else None


async def json_object(request: web.Request) -> JsonObject:
    """Return the JSON object of a body; an empty one if the body is empty. Raises CloudError."""
    value = await json_value(request)
    if value is not None and not isinstance(value, dict):
        raise CloudError.invalid("Invalid JSON payload received. A JSON object is needed.")
    return cast("JsonObject", value or {})


async def whole(request: web.Request, style: ErrorStyle) -> bytes:
    """Return a body that is not object content. Raises CloudError if it is too long or its encoding is broken."""
    try:
        return await request.read()
    except BROKEN as error:
        raise refusal(error, style) from None


def refusal(error: BaseException, style: ErrorStyle) -> CloudError:
    """Return Google's error for one of BROKEN.

    Too long: 400 with this message for APIs in the style of google.rpc, 413 for the older ones (googleapis/google-cloud-ruby#31568: BigQuery).
    """
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        code = 400 if style is ErrorStyle.RPC else 413
        message = f"Request payload size exceeds the limit: {LONGEST_BYTES} bytes."
        return CloudError(code, "INVALID_ARGUMENT", message, reason="uploadTooLarge")
    return CloudError.invalid("The request's body does not have the encoding that its headers name.")


def parsed(text: bytes) -> object:
    """Return the value of a JSON text. Raises CloudError: it is not JSON, too deep, or has text that is not Unicode."""
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise CloudError.invalid(f"Invalid JSON payload received. {error}.") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [part for item in level for part in _parts(item)]
        if not level:
            return value
    raise _too_deep()


def _parts(item: object) -> Iterator[object]:
    """Yield the texts and keys of a value. Raises CloudError for text that cannot be stored."""
    if isinstance(item, str) and not item.isascii():
        try:
            item.encode()
        except UnicodeEncodeError:
            raise CloudError.invalid("Invalid JSON payload received. A string is not valid Unicode.") from None
    if isinstance(item, dict):
        for key, value in cast("dict[str, object]", item).items():
            yield from (key, value)
    elif isinstance(item, list):
        yield from cast("list[object]", item)


def _too_deep() -> CloudError:
    return CloudError.invalid(f"Message too deep. Max recursion depth reached: {DEEPEST} levels.")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"Unexpected token: {name}")
