"""Cloud Storage v1: simple (media), multipart and resumable uploads. Content is written to a file while it arrives."""

import json
import re
import secrets
from pathlib import Path
from typing import cast

from aiohttp import web

from localcloud.json_values import JsonObject
from localcloud.rest import validation
from localcloud.rest.call import Call
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method
from localcloud.services.storage_objects import Objects, check_conditions, settable
from localcloud.world.cloud import Cloud

_SESSIONS = "storage.uploads"
_CHUNK_BYTES = 1 << 20
_RANGE = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+)|\*)/(?P<total>\d+|\*)")
_CONDITIONS = ("ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch")


class Uploads(ApiService):
    """The method storage.objects.insert in its three forms."""

    prefix = "storage.objects"

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._objects = Objects(cloud)

    @method("insert")
    async def insert(self, call: Call) -> JsonObject | web.StreamResponse:
        """Upload an object by its uploadType; a PUT continues a resumable session."""
        if call.media != "upload":
            raise CloudError.invalid("Uploads go to /upload/storage/v1/b/BUCKET/o with an uploadType.")
        if call.http.query.get("upload_id"):
            return await self._continue(call)
        kind = call.http.query.get("uploadType")
        if kind == "media":
            return await self._media(call)
        if kind == "multipart":
            return await self._multipart(call)
        if kind == "resumable":
            return await self._begin(call)
        raise CloudError.invalid(f"Invalid upload type '{kind}': media, multipart and resumable are allowed.")

    async def _media(self, call: Call) -> JsonObject:
        target = self._objects.new_file()
        await _receive(call, target)
        metadata = {"contentType": call.http.headers.get("Content-Type", "application/octet-stream")}
        return self._objects.put(call.path["bucket"], str(call.query.get("name") or ""), target, metadata, call.query)

    async def _multipart(self, call: Call) -> JsonObject:
        metadata, content_type, content = _parts(call.http.headers.get("Content-Type", ""), await call.http.read())
        body = self._checked(call, metadata)
        target = self._objects.new_file()
        target.write_bytes(content)
        chosen = {"contentType": content_type, **settable(body)}
        name = str(call.query.get("name") or body.get("name") or "")
        return self._objects.put(call.path["bucket"], name, target, chosen, call.query, given=body)

    async def _begin(self, call: Call) -> web.Response:
        text = await call.http.read()
        body = self._checked(call, text or b"{}")
        bucket, name = call.path["bucket"], str(call.query.get("name") or body.get("name") or "")
        self._objects.bucket(bucket)
        if not name:
            raise CloudError.required("Required")
        check_conditions(call.query, self._cloud.store.get("storage.objects", f"{bucket}/{name}"))
        content_type = call.http.headers.get("X-Upload-Content-Type", "application/octet-stream")
        upload_id = secrets.token_urlsafe(24)
        file = self._objects.new_file()
        file.touch()
        session: JsonObject = {
            "bucket": bucket,
            "name": name,
            "metadata": {"contentType": content_type, **settable(body)},
            "given": {key: body[key] for key in ("md5Hash", "crc32c") if key in body},
            "conditions": {key: call.query[key] for key in _CONDITIONS if key in call.query},
            "file": file.name,
        }
        self._cloud.store.put(_SESSIONS, upload_id, session)
        location = f"{call.http.scheme}://{call.http.host}{call.http.rel_url.raw_path}?uploadType=resumable&upload_id={upload_id}"
        return web.Response(status=200, headers={"Location": location, "X-GUploader-UploadID": upload_id})

    async def _continue(self, call: Call) -> JsonObject | web.StreamResponse:
        upload_id = call.http.query["upload_id"]
        session = self._cloud.store.get(_SESSIONS, upload_id)
        if session is None:
            raise CloudError.not_found(f"No upload session '{upload_id[:12]}...'; it is unknown, refused or cancelled.")
        if "finished" in session:
            return session["finished"]
        target = self._objects.content({"_file": session["file"]})
        header = call.http.headers.get("Content-Range")
        if header is None:
            await _receive(call, target)
            return self._finish(upload_id, session, target, call)
        found = _RANGE.fullmatch(header.strip())
        if found is None:
            raise CloudError.invalid(f"Invalid Content-Range '{header}'.")
        have = target.stat().st_size
        if found["first"] is not None:
            first = int(found["first"])
            if first > have:
                raise CloudError(
                    503,
                    "UNAVAILABLE",
                    f"The chunk begins at byte {first}, but {have} bytes have been received.",
                    reason="backendError",
                )
            have = await _receive(call, target, at=first)
        if found["total"] != "*" and have == int(found["total"]):
            return self._finish(upload_id, session, target, call)
        headers = {"Range": f"bytes=0-{have - 1}"} if have else {}
        return web.Response(status=308, headers=headers)

    def _finish(self, upload_id: str, session: JsonObject, target: Path, call: Call) -> JsonObject:
        """Store the object, and keep it as the answer to a client that has not heard it.

        The last request's x-goog-hash is compared like the checksums of the session's metadata.
        """
        self._cloud.store.delete(_SESSIONS, upload_id)
        shown = self._objects.put(
            session["bucket"],
            session["name"],
            target,
            session["metadata"],
            session["conditions"],
            given={**session["given"], **_hashes(call.http.headers.get("X-Goog-Hash", ""))},
        )
        self._cloud.store.put(_SESSIONS, upload_id, {"finished": shown})
        return shown

    def _checked(self, call: Call, text: bytes) -> JsonObject:
        try:
            body = json.loads(text)
        except ValueError:
            raise CloudError.invalid("Parse Error: the object's metadata is not JSON.") from None
        return validation.request_body(call.document, call.method, body)


def _hashes(header: str) -> JsonObject:
    """Return the checksums of an x-goog-hash header (`crc32c=...,md5=...`) by the object's fields."""
    given = dict(cast("tuple[str, str]", entry.strip().split("=", 1)) for entry in header.split(",") if "=" in entry)
    return {field: given[name] for name, field in (("crc32c", "crc32c"), ("md5", "md5Hash")) if name in given}


async def _receive(call: Call, target: Path, *, at: int = 0) -> int:
    """Write the request's content from byte `at` on and return the file's size."""
    target.touch()  # noqa: ASYNC240 - a local file
    with target.open("r+b") as out:
        out.seek(at)
        async for chunk in call.http.content.iter_chunked(_CHUNK_BYTES):
            out.write(chunk)
        out.truncate()
        return out.tell()


def _parts(content_type: str, data: bytes) -> tuple[bytes, str, bytes]:
    """Return metadata, content type and content of a multipart/related body."""
    # gcloud's library writes the boundary in single quotes, which RFC 2045 does not know and Google accepts.
    found = re.search(r"""boundary=["']?([^"';]+)""", content_type)
    if not content_type.startswith("multipart/") or found is None:
        raise CloudError.invalid(
            f"Invalid multipart request: the content type is '{content_type}', multipart/related with a boundary is needed."
        )
    mark = b"--" + found[1].encode()
    # The same library ends lines with LF alone.
    end = b"\r\n" if mark + b"\r\n" in data else b"\n"
    pieces = (end + data).split(end + mark)
    if len(pieces) != 4 or not pieces[3].startswith(b"--"):  # noqa: PLR2004 - preamble, metadata, content, end
        raise CloudError.invalid(
            f"Invalid multipart request with {max(len(pieces) - 2, 0)} mime parts; two are needed."
        )
    metadata, content = (_headers_and_body(piece, end) for piece in pieces[1:3])
    return metadata[1], content[0].get("content-type", "application/octet-stream"), content[1]


def _headers_and_body(piece: bytes, end: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers and the content of a part whose lines end with `end`."""
    piece = piece.removeprefix(end)
    head, body = (
        (b"", piece[len(end) :])
        if piece.startswith(end)
        else piece.split(end + end, 1)
        if end + end in piece
        else (piece, b"")
    )
    headers = dict(
        cast("tuple[str, str]", tuple(part.strip() for part in line.split(":", 1)))
        for line in head.decode("latin-1").splitlines()
        if ":" in line
    )
    return {key.lower(): value for key, value in headers.items()}, body
