"""Cloud Storage v1: simple (media) and multipart uploads. Content is written to a file while it arrives."""

import mmap
import re
from itertools import pairwise
from pathlib import Path

from localcloud.json_values import JsonObject
from localcloud.rest import bodies, validation
from localcloud.rest.call import Call
from localcloud.rest.errors import CloudError, ErrorStyle
from localcloud.services.service import ApiService, method
from localcloud.services.storage_objects import Objects, check_name, settable
from localcloud.world.cloud import Cloud

_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 8192
"""Maximum bytes of a header line inside a multipart body."""


class Uploads(ApiService):
    """The method storage.objects.insert in two of its three forms."""

    prefix = "storage.objects"

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._objects = Objects(cloud)

    @method("insert")
    async def insert(self, call: Call) -> JsonObject:
        """Upload an object by its uploadType."""
        if call.media != "upload":
            raise CloudError.invalid("Uploads go to /upload/storage/v1/b/BUCKET/o with an uploadType.")
        kind = call.http.query.get("uploadType")
        if kind == "media":
            return await self._media(call)
        if kind == "multipart":
            return await self._multipart(call)
        if kind == "resumable":
            raise CloudError.unimplemented(
                "The local cloud has no resumable uploads. Use uploadType media or multipart."
            )
        raise CloudError.invalid(f"Invalid upload type '{kind}': media, multipart and resumable are allowed.")

    async def _media(self, call: Call) -> JsonObject:
        name = str(call.query.get("name") or "")
        check_name(name)
        target = self._objects.new_file()
        try:
            await _receive(call, target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        metadata = {"contentType": call.http.headers.get("Content-Type", "application/octet-stream")}
        return self._objects.put(call.path["bucket"], name, target, metadata, call.query)

    async def _multipart(self, call: Call) -> JsonObject:
        received, target = self._objects.new_file(), self._objects.new_file()
        try:
            await _receive(call, received)
            metadata, content_type = _split(call.http.headers.get("Content-Type", ""), received, target)
            body = self._checked(call, metadata)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        finally:
            received.unlink(missing_ok=True)
        chosen = {"contentType": content_type, **settable(body)}
        name = str(call.query.get("name") or body.get("name") or "")
        return self._objects.put(call.path["bucket"], name, target, chosen, call.query, given=body)

    def _checked(self, call: Call, text: bytes) -> JsonObject:
        return validation.request_body(call.document, call.method, bodies.parsed(text))


async def _receive(call: Call, target: Path) -> None:
    """Write the request's content."""
    with target.open("wb") as out:
        try:
            async for chunk in call.http.content.iter_chunked(_CHUNK_BYTES):
                out.write(chunk)
        except bodies.BROKEN as error:
            raise bodies.refusal(error, ErrorStyle.STORAGE) from None


def _split(content_type: str, received: Path, target: Path) -> tuple[bytes, str]:
    """Write the content of a multipart/related body to `target`; return its metadata and content type. Raises CloudError.

    The body is memory-mapped because it can be larger than the memory.
    """
    # gcloud's library puts the boundary in single quotes, which RFC 2045 does not define and Google accepts.
    found = re.search(r"""boundary=["']?([^"';]+)""", content_type)
    if not content_type.startswith("multipart/") or found is None:
        raise CloudError.invalid(
            f"Invalid multipart request: the content type is '{content_type}', multipart/related with a boundary is needed."
        )
    with received.open("rb") as file:
        if not received.stat().st_size:
            raise _wrong_parts(0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            (metadata_at, metadata_end), (content_at, content_end) = _two_parts(
                data, b"--" + found[1].encode("latin-1")
            )
            headers, content_at = _headers(data, content_at, content_end)
            _, text_at = _headers(data, metadata_at, metadata_end)
            if metadata_end - text_at > bodies.LONGEST_BYTES:
                raise CloudError.invalid("Invalid multipart request: the metadata are too long.")
            with target.open("wb") as out:
                for at in range(content_at, content_end, _CHUNK_BYTES):
                    out.write(data[at : min(at + _CHUNK_BYTES, content_end)])
            return data[text_at:metadata_end], headers.get("content-type", "application/octet-stream")


def _two_parts(data: mmap.mmap, mark: bytes) -> list[tuple[int, int]]:
    """Return the start and end of the metadata and the content between the boundaries. Raises CloudError."""
    # gcloud's library ends lines with only LF.
    end = b"\r\n" if data.find(mark + b"\r\n") >= 0 else b"\n"
    starts = [0] if data[: len(mark)] == mark else []
    while len(starts) < 4:  # noqa: PLR2004 - metadata, content, end, and one too many
        at = data.find(end + mark, max(0, starts[-1] if starts else 0))
        if at < 0:
            break
        starts.append(at + len(end))
    if len(starts) != 3 or data[starts[2] + len(mark) : starts[2] + len(mark) + 2] != b"--":  # noqa: PLR2004 - metadata, content, end
        raise _wrong_parts(max(len(starts) - 1, 0))
    edges = pairwise(starts)
    # An empty part only has the line end of its boundary.
    return [(begin + len(mark) + len(end), max(begin + len(mark) + len(end), stop - len(end))) for begin, stop in edges]


def _wrong_parts(count: int) -> CloudError:
    return CloudError.invalid(f"Invalid multipart request with {count} mime parts; two are needed.")


def _headers(data: mmap.mmap, begin: int, stop: int) -> tuple[dict[str, str], int]:
    """Return the headers of a part, and where its content starts."""
    found: dict[str, str] = {}
    while begin < stop:
        line_end = data.find(b"\n", begin, min(stop, begin + _LONGEST_LINE))
        if line_end < 0 and stop - begin > _LONGEST_LINE:
            raise CloudError.invalid("Invalid multipart request: the line of a part's header is too long.")
        after = stop if line_end < 0 else line_end + 1
        line = data[begin:after].decode("latin-1").strip()
        begin = after
        if not line:
            break
        name, _, value = line.partition(":")
        found[name.strip().lower()] = value.strip()
    return found, begin
