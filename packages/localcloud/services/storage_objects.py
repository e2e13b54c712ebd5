"""Cloud Storage v1: live objects. Content is in files of the state folder, metadata in the store."""

import base64
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
from aiohttp import hdrs, web

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, page
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method, visible
from localcloud.world.cloud import Cloud
from localcloud.world.downloads import SIMULATED_BYTES

OBJECTS = "storage.objects"
SETTABLE = (
    "contentType",
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "customTime",
    "metadata",
    "storageClass",
    "temporaryHold",
    "eventBasedHold",
)
_CHUNK_BYTES = 1 << 20
NO_BUCKET = "The specified bucket does not exist."
NOT_HELD = "At least one of the pre-conditions you specified did not hold."


def etag(number: int) -> str:
    """Return the etag of a metageneration: base64 of a one-field protocol buffer message, such as CAE= for 1."""
    data, rest = bytearray([8]), number
    while True:
        data.append((rest & 0x7F) | (0x80 if rest > 0x7F else 0))  # noqa: PLR2004 - seven bits per byte
        rest >>= 7
        if not rest:
            return base64.b64encode(bytes(data)).decode()


def settable(document: JsonObject) -> JsonObject:
    """Return the fields that a client can set."""
    return {key: value for key, value in document.items() if key in SETTABLE}


class Objects(ApiService):
    """Objects of all buckets, without uploads and copies."""

    prefix = "storage.objects"

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._folder = cloud.state / "objects"
        self._folder.mkdir(exist_ok=True)

    def content(self, document: JsonObject) -> Path:
        """Return the file with an object's bytes."""
        return self._folder / str(document["_file"])

    def new_file(self) -> Path:
        """Return the path of a new file for content."""
        return self._folder / f"{time.time_ns():x}-{self._store.count_up('storage.files')}"

    @method("get")
    async def get(self, call: Call) -> JsonObject | web.StreamResponse:
        """Return metadata, or the content for alt=media and the download path."""
        document = self._named(call)
        check_conditions(call.query, document)
        if call.media != "download":
            return self.shown(document)
        headers = {
            "Content-Type": document.get("contentType", "application/octet-stream"),
            "X-Goog-Hash": ",".join(
                f"{name}={document[key]}" for name, key in (("crc32c", "crc32c"), ("md5", "md5Hash")) if key in document
            ),
            "X-Goog-Generation": document["generation"],
            "X-Goog-Metageneration": document["metageneration"],
            "X-Goog-Stored-Content-Length": document["size"],
            "X-Goog-Storage-Class": document["storageClass"],
        }
        await self._transfer(call, document)
        return web.FileResponse(self.content(document), headers=headers, chunk_size=_CHUNK_BYTES)

    async def _transfer(self, call: Call, document: JsonObject) -> None:
        """Wait as long as a machine's network takes for the bytes that the request reads. The operator is not on a machine.

        Raises CloudError for a range outside the object.
        """
        size = int(document["size"])
        try:
            span = call.http.http_range
        except ValueError:  # not a valid range: the whole object is sent
            span = slice(None)
        if span.start is not None and span.start >= size:
            # An empty object has no range that can be satisfied (googleapis/google-cloud-go#242).
            headers = {"Content-Range": f"bytes */{size}"}
            text = f"Request range not satisfiable: {call.http.headers[hdrs.RANGE]}"
            raise CloudError(416, "OUT_OF_RANGE", text, reason="requestedRangeNotSatisfiable", headers=headers)
        is_instant = call.caller.operator or self._cloud.scenario.operations.instant
        if is_instant or call.http.method == hdrs.METH_HEAD:
            return
        wanted = len(range(*span.indices(size)))
        simulated = int(part(document, "metadata").get(SIMULATED_BYTES, size))
        served = round(simulated * wanted / size) if size else 0
        await self._cloud.downloads.serve(call.caller.email, served)

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return objects and, with a delimiter, the common prefixes."""
        bucket, query = call.path["bucket"], call.query
        self.bucket(bucket)
        if query.get("matchGlob") or query.get("softDeleted"):
            raise CloudError.unimplemented(
                "storage.objects.list: the local cloud does not model matchGlob and softDeleted."
            )
        prefix = query.get("prefix") or ""
        delimiter = query.get("delimiter") or ""
        start = query.get("startOffset") or ""
        end = query.get("endOffset")
        entries: dict[str, JsonObject] = {}
        for full, document in self._store.under(OBJECTS, f"{bucket}/{prefix}"):
            name = full.split("/", 1)[1]
            if name < start or (end and name >= end):
                continue
            below = name.find(delimiter, len(prefix)) if delimiter else -1
            if below >= 0:
                common = name[: below + len(delimiter)]
                entries[common] = {"_prefix": common}
            else:
                entries[name] = self.shown(document)
        found, following = page(
            sorted(entries.items()), size=query.get("maxResults"), token=query.get("pageToken"), default=1000
        )
        answer: JsonObject = {"kind": "storage#objects", "items": [item for item in found if "_prefix" not in item]}
        prefixes = [item["_prefix"] for item in found if "_prefix" in item]
        return {
            **answer,
            **({"prefixes": prefixes} if prefixes else {}),
            **({"nextPageToken": following} if following else {}),
        }

    @method("delete")
    def delete(self, call: Call) -> web.Response:
        """Delete the live object."""
        document = self._named(call)
        check_conditions(call.query, document)
        self.remove(document)
        return web.Response(status=204)

    def remove(self, document: JsonObject) -> None:
        """Delete an object and its content."""
        self._store.delete(OBJECTS, f"{document['bucket']}/{document['name']}")
        self.content(document).unlink(missing_ok=True)

    def put(  # noqa: PLR0917 - the parts of one object
        self,
        bucket: str,
        name: str,
        content: Path,
        metadata: JsonObject,
        conditions: Mapping[str, Any],
        given: JsonObject | None = None,
        components: int | None = None,
    ) -> JsonObject:
        """Store the file `content` as the object. First check conditions and given checksums; remove the file if one fails.

        A composite object has a number of components and no MD5.
        """
        try:
            self.bucket(bucket)
            check_name(name)
            old = self._store.get(OBJECTS, f"{bucket}/{name}")
            check_conditions(conditions, old)
            md5, crc32c, size = digests(content)
            for key, value in (("md5Hash", md5), ("crc32c", crc32c)):
                if (given or {}).get(key) not in (None, value):
                    raise CloudError.invalid(
                        f"Provided {key} '{(given or {})[key]}' doesn't match calculated {key} '{value}'."
                    )
        except CloudError:
            content.unlink(missing_ok=True)
            raise
        now = self._cloud.timeline.stamp()
        document: JsonObject = {
            "contentType": "application/octet-stream",
            "storageClass": self.bucket(bucket)["storageClass"],
            **metadata,
            "name": name,
            "bucket": bucket,
            "generation": str(max(time.time_ns() // 1000, int(old["generation"]) + 1 if old else 0)),
            "metageneration": "1",
            "size": str(size),
            **({"md5Hash": md5} if components is None else {"componentCount": components}),
            "crc32c": crc32c,
            "timeCreated": now,
            "updated": now,
            "timeStorageClassUpdated": now,
            "_file": content.name,
        }
        self._store.put(OBJECTS, f"{bucket}/{name}", document)
        self._cloud.written_objects[f"{bucket}/{name}"] += 1
        if old is not None:
            self.content(old).unlink(missing_ok=True)
        return self.shown(document)

    def _named(self, call: Call) -> JsonObject:
        """Return the document of the object that the call names."""
        return self.found(call.path["bucket"], call.path["object"], call.query.get("generation"))

    def found(self, bucket: str, name: str, generation: int | str | None) -> JsonObject:
        """Return an object's document. Raise 404 if it, or the requested generation, does not exist."""
        self.bucket(bucket)
        document = self._store.get(OBJECTS, f"{bucket}/{name}")
        if document is None or (generation is not None and str(generation) != document["generation"]):
            raise CloudError.not_found(f"No such object: {bucket}/{name}")
        return document

    def shown(self, document: JsonObject) -> JsonObject:
        """Return the object as the API shows it."""
        bucket, path = document["bucket"], quote(document["name"], safe="")
        return {
            "kind": "storage#object",
            "id": f"{bucket}/{document['name']}/{document['generation']}",
            "selfLink": f"{self._cloud.base_url}/storage/storage/v1/b/{bucket}/o/{path}",
            "mediaLink": f"{self._cloud.base_url}/download/storage/v1/b/{bucket}/o/{path}?generation={document['generation']}&alt=media",
            "etag": etag(int(document["metageneration"])),
            **visible(document),
        }

    def bucket(self, name: str) -> JsonObject:
        """Return a bucket's document. Raise 404 if it does not exist."""
        return self.stored("storage.buckets", name, NO_BUCKET)


def check_conditions(query: Mapping[str, Any], document: JsonObject | None, *, of: str = "") -> None:
    """Raise 412 if ifGenerationMatch or a similar condition is not met. Generation 0 means that no live object exists.

    `of` is `Source` for the conditions on the source of a copy.
    """
    generation = int(document.get("generation", 0)) if document else 0
    metageneration = int(document["metageneration"]) if document else 0
    for key, current in ((f"if{of}Generation", generation), (f"if{of}Metageneration", metageneration)):
        wanted, unwanted = query.get(f"{key}Match"), query.get(f"{key}NotMatch")
        if (wanted is not None and int(wanted) != current) or (unwanted is not None and int(unwanted) == current):
            raise CloudError.condition_not_met(NOT_HELD)


def digests(content: Path) -> tuple[str, str, int]:
    """Return MD5 and CRC32C of a file in Cloud Storage's notation, and its size in bytes."""
    md5 = hashlib.md5(usedforsecurity=False)
    crc32c = google_crc32c.Checksum()
    size = 0
    with content.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            md5.update(chunk)
            crc32c.update(chunk)  # pyright: ignore[reportUnknownMemberType] - the package has no types
            size += len(chunk)
    return base64.b64encode(md5.digest()).decode(), base64.b64encode(crc32c.digest()).decode(), size


def check_name(name: str) -> None:
    """Raise 400 for a name that no object can have: docs.cloud.google.com/storage/docs/objects (General requirements).

    NUL is a Unicode character, which the page allows. That it is rejected is assumed.
    """
    if not name:
        raise CloudError.required("Required")
    is_bad = any(character in name for character in "\r\n\0") or name in {".", ".."}
    if is_bad or name.startswith(".well-known/acme-challenge/") or len(_utf8(name)) not in range(1, 1025):
        raise CloudError.invalid(f"Invalid object name: {name[:80]!r}.")


def _utf8(name: str) -> bytes:
    """Return a name as UTF-8. Empty if it is not valid Unicode."""
    try:
        return name.encode()
    except UnicodeEncodeError:
        return b""
