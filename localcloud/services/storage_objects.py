"""Cloud Storage v1: live objects. Content is in files of the state folder, metadata in the store."""

import base64
import hashlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
from aiohttp import web

from localcloud.json_values import JsonObject, part, parts
from localcloud.rest.call import Call, merged, page
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method, visible
from localcloud.world.cloud import Cloud

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
        data.append((rest & 0x7F) | (0x80 if rest > 0x7F else 0))  # noqa: PLR2004 - seven bits a byte
        rest >>= 7
        if not rest:
            return base64.b64encode(bytes(data)).decode()


def settable(document: JsonObject) -> JsonObject:
    """Return the fields that a client can set."""
    return {key: value for key, value in document.items() if key in SETTABLE}


class Objects(ApiService):
    """Objects of all buckets, without uploads."""

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
    def get(self, call: Call) -> JsonObject | web.StreamResponse:
        """Return metadata, or the content for alt=media and the download path."""
        document = self._named(call)
        check_conditions(call.query, document)
        if call.media != "download":
            return self.shown(document)
        headers = {
            "Content-Type": document.get("contentType", "application/octet-stream"),
            "X-Goog-Hash": f"crc32c={document['crc32c']},md5={document['md5Hash']}",
            "X-Goog-Generation": document["generation"],
            "X-Goog-Metageneration": document["metageneration"],
            "X-Goog-Stored-Content-Length": document["size"],
            "X-Goog-Storage-Class": document["storageClass"],
        }
        return web.FileResponse(self.content(document), headers=headers, chunk_size=_CHUNK_BYTES)

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return objects and, with a delimiter, the common prefixes."""
        bucket, query = call.path["bucket"], call.query
        self.bucket(bucket)
        if query.get("matchGlob") or query.get("softDeleted"):
            raise CloudError.unimplemented(
                "storage.objects.list: matchGlob and softDeleted are not modelled by the local cloud."
            )
        prefix, delimiter = query.get("prefix") or "", query.get("delimiter") or ""
        start, end = query.get("startOffset") or "", query.get("endOffset")
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

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        """Change metadata; null removes a field."""
        document = self._named(call)
        return self._change(call, document, merged(document, settable(call.body)))

    @method("update")
    def update(self, call: Call) -> JsonObject:
        """Replace metadata."""
        document = self._named(call)
        kept = {key: value for key, value in document.items() if key not in SETTABLE or key == "storageClass"}
        return self._change(call, document, {**kept, **settable(call.body)})

    @method("delete")
    def delete(self, call: Call) -> web.Response:
        """Delete the live object."""
        document = self._named(call)
        check_conditions(call.query, document)
        self._store.delete(OBJECTS, f"{document['bucket']}/{document['name']}")
        self.content(document).unlink(missing_ok=True)
        return web.Response(status=204)

    @method("copy")
    def copy(self, call: Call) -> JsonObject:
        """Copy an object."""
        source = self.found(call.path["sourceBucket"], call.path["sourceObject"], call.query.get("sourceGeneration"))
        target = self.new_file()
        shutil.copyfile(self.content(source), target)
        metadata = {**settable(source), **settable(call.body)}
        return self.put(call.path["destinationBucket"], call.path["destinationObject"], target, metadata, call.query)

    @method("rewrite")
    def rewrite(self, call: Call) -> JsonObject:
        """Rewrite an object; it is always done in one call."""
        resource = self.copy(call)
        size = resource["size"]
        return {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": size,
            "objectSize": size,
            "done": True,
            "resource": resource,
        }

    @method("compose")
    def compose(self, call: Call) -> JsonObject:
        """Join up to 32 objects of one bucket."""
        sources: list[JsonObject] = parts(call.body, "sourceObjects")
        if not 1 <= len(sources) <= 32:  # noqa: PLR2004 - Cloud Storage's limit
            raise CloudError.invalid(f"The number of source components provided ({len(sources)}) must be from 1 to 32.")
        bucket = call.path["destinationBucket"]
        documents = [self.found(bucket, str(source.get("name", "")), source.get("generation")) for source in sources]
        target = self.new_file()
        with target.open("wb") as out:
            for document in documents:
                with self.content(document).open("rb") as source:
                    shutil.copyfileobj(source, out)
        metadata = settable(part(call.body, "destination"))
        shown = self.put(bucket, call.path["destinationObject"], target, metadata, call.query)
        return {**shown, "componentCount": len(sources)}

    def put(  # noqa: PLR0917 - what one object is made of
        self,
        bucket: str,
        name: str,
        content: Path,
        metadata: JsonObject,
        conditions: Mapping[str, Any],
        given: JsonObject | None = None,
    ) -> JsonObject:
        """Store the file `content` as the object. Check conditions and given checksums first; remove the file if one fails."""
        try:
            self.bucket(bucket)
            _check_name(name)
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
            "md5Hash": md5,
            "crc32c": crc32c,
            "timeCreated": now,
            "updated": now,
            "timeStorageClassUpdated": now,
            "_file": content.name,
        }
        self._store.put(OBJECTS, f"{bucket}/{name}", document)
        if old is not None:
            self.content(old).unlink(missing_ok=True)
        return self.shown(document)

    def _named(self, call: Call) -> JsonObject:
        """Return the document of the object that the call names."""
        return self.found(call.path["bucket"], call.path["object"], call.query.get("generation"))

    def found(self, bucket: str, name: str, generation: int | str | None) -> JsonObject:
        """Return an object's document. Raise 404 if it, or that generation of it, does not exist."""
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

    def _change(self, call: Call, document: JsonObject, updated: JsonObject) -> JsonObject:
        check_conditions(call.query, document)
        updated["metageneration"] = str(int(document["metageneration"]) + 1)
        updated["updated"] = self._cloud.timeline.stamp()
        return self.shown(self._store.put(OBJECTS, f"{document['bucket']}/{document['name']}", updated))


def check_conditions(query: Mapping[str, Any], document: JsonObject | None) -> None:
    """Raise 412 if ifGenerationMatch or a similar condition does not hold. Generation 0 means that there is no live object."""
    generation = int(document.get("generation", 0)) if document else 0
    metageneration = int(document["metageneration"]) if document else 0
    for key, current in (("ifGeneration", generation), ("ifMetageneration", metageneration)):
        wanted, unwanted = query.get(f"{key}Match"), query.get(f"{key}NotMatch")
        if (wanted is not None and int(wanted) != current) or (unwanted is not None and int(unwanted) == current):
            raise CloudError.condition_not_met(NOT_HELD)


def digests(content: Path) -> tuple[str, str, int]:
    """Return MD5 and CRC32C of a file in Cloud Storage's notation, and its size in bytes."""
    md5, crc32c, size = hashlib.md5(usedforsecurity=False), google_crc32c.Checksum(), 0
    with content.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            md5.update(chunk)
            crc32c.update(chunk)  # pyright: ignore[reportUnknownMemberType] - the package has no types
            size += len(chunk)
    return base64.b64encode(md5.digest()).decode(), base64.b64encode(crc32c.digest()).decode(), size


def _check_name(name: str) -> None:
    if not name:
        raise CloudError.required("Required")
    if len(name.encode()) > 1024 or "\r" in name or "\n" in name or name in {".", ".."}:  # noqa: PLR2004 - Cloud Storage's limit in bytes
        raise CloudError.invalid(f"Invalid object name: '{name[:80]}'.")
