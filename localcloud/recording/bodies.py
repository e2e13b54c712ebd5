"""What is kept of a body: JSON, and of everything else the media type and the length only."""

import gzip
import json
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from localcloud.recording.recordings import Content

_KEPT_BYTES: Final = 8 << 20
"""A longer body passes through without being kept."""
_CONTENT_PATHS: Final = ("/upload/", "/download/", "/resumable/", "/batch/")
_LOG_TEXTS: Final = "/entries:list"
"""The answer holds what containers wrote, which may be anything."""


class Passing:
    """A body that passes through in pieces. A short one is kept."""

    def __init__(self) -> None:
        self.length = 0
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Count a piece, and keep it while the body is short."""
        self.length += len(piece)
        if self.length <= _KEPT_BYTES:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    async def through(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces that come in."""
        async for piece in pieces:
            self.add(piece)
            yield piece

    def plain(self, encoding: str) -> bytes | None:
        """Return the whole body, decompressed; None if it was long or its encoding is unknown."""
        data = b"".join(self._pieces)
        if self.length > _KEPT_BYTES or encoding not in {"", "identity", "gzip"}:
            return None
        try:
            return gzip.decompress(data) if encoding == "gzip" else data
        except (OSError, EOFError, zlib.error):
            return None


def kept_request(
    method: str, path: str, query: Mapping[str, Any], headers: Mapping[str, str], body: Passing
) -> tuple[Any, Content | None]:
    """Return the JSON of a request's body and what is said of a body that is not kept. Contents of objects are not kept."""
    kind = headers.get("Content-Type", "")
    if any(part in path for part in _CONTENT_PATHS):
        if method == "POST" and query.get("uploadType") == "multipart":
            return _first_part(kind, body, headers.get("Content-Encoding", "")), Content(type=kind, bytes=body.length)
        if not (method == "POST" and query.get("uploadType") == "resumable"):
            return None, _content(kind, body)
    return _json_or_content(kind, headers, body)


def kept_answer(
    path: str, query: Mapping[str, Any], status: int, headers: Mapping[str, str], body: Passing
) -> tuple[Any, Content | None]:
    """Return the JSON of an answer's body and what is said of a body that is not kept."""
    kind = headers.get("Content-Type", "")
    is_content = query.get("alt") == "media" or "/download/" in path or path.endswith(_LOG_TEXTS)
    if is_content and status < 400:  # noqa: PLR2004 - HTTP: from here on it is an error body of Google's
        return None, _content(kind, body)
    return _json_or_content(kind, headers, body)


def _json_or_content(kind: str, headers: Mapping[str, str], body: Passing) -> tuple[Any, Content | None]:
    data = body.plain(headers.get("Content-Encoding", ""))
    if data is not None and not data.strip():
        return None, None
    try:
        return json.loads(data or b""), None
    except ValueError:
        return None, _content(kind, body)


def _content(kind: str, body: Passing) -> Content | None:
    return Content(type=kind, bytes=body.length) if body.length else None


def _first_part(kind: str, body: Passing, encoding: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON of the first part of a multipart upload: the object's metadata."""
    found = re.search(r"""boundary=["']?([^"';]+)""", kind)
    data = body.plain(encoding)
    if found is None or data is None:
        return None
    parts = data.split(b"--" + found[1].encode())
    _, _, document = parts[1].replace(b"\r\n", b"\n").partition(b"\n\n") if len(parts) > 1 else (b"", b"", b"")
    try:
        return json.loads(document)
    except ValueError:
        return None
