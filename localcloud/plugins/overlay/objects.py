"""Objects in buckets: uploaded whole, uploaded again when their content changes."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from localcloud.plugins.coding import encode_body
from localcloud.plugins.diffing import Detail, Details, PropertyChange
from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.resource import RestResource
from localcloud.plugins.rest import GoogleApiError, PluginError
from localcloud.plugins.schema import Object, ValueKind
from localcloud.plugins.values import Asset, Properties, Unknown, Value, text_of

_UPLOAD: Final = "upload/storage/v1"
_UNCHANGED: Final = "different hash"
_SNIFFED: Final = 512
_CONTROL: Final = frozenset(range(9)) | {11} | set(range(14, 27)) | set(range(28, 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObjectLifecycle(RestResource):
    """An object in a bucket."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Upload, then read."""
        bucket, name = text_of(inputs, "bucket"), text_of(inputs, "name")
        content = _content(inputs)
        boundary = f"localcloud-{hashlib.sha256(content).hexdigest()[:32]}"
        metadata = encode_body(self.fields, inputs, context.scope(inputs))
        media_type = text_of(inputs, "contentType") or _media_type(content)
        try:
            await context.rest.send(
                "POST",
                f"{_UPLOAD}/b/{bucket}/o",
                query={"name": name, "uploadType": "multipart"},
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
                body=_multipart(boundary.encode(), metadata, media_type, content),
            )
        except GoogleApiError as error:
            raise PluginError(f"Error uploading object {name}: {error}") from error
        return await settled(f"{bucket}-{name}", inputs, self.must_read(context, f"{bucket}-{name}", inputs))

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET the object's metadata. The content stays what the program gave, as long as its hash is the one in the bucket."""
        if not given:
            raise PluginError(
                f"{resource_id!r}: the real provider cannot import bucket objects, and neither can this one"
            )
        found = await RestResource.read(self, context, resource_id, _quoted(given))
        if found is None:
            return None
        md5 = text_of(found.state, "md5hash")
        # As in the real provider: the constant while the bucket holds what the program gave, else the hash that is there, which shows as drift.
        expected = _md5_of(given)
        detected = md5 if expected and expected != md5 else _UNCHANGED
        found.state.update({"name": given.get("name"), "md5hexhash": _hex(md5), "detectMd5hash": detected})
        return found

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Upload again where the content changes, else PATCH what changes."""
        if wanted.changed & {"content", "source", "detectMd5hash", "sourceMd5hash"}:
            return await self.create(context, wanted.inputs)
        changed = {name: each for name, each in self.fields.items() if name in wanted.changed}
        body = encode_body(changed, wanted.inputs, context.scope(wanted.inputs), update=True)
        await context.rest.call("PATCH", self.path(self.item, context, _quoted(wanted.inputs), ""), body=body)
        return await self.must_read(context, wanted.id, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """DELETE; 404 is success."""
        await RestResource.delete(self, context, resource_id, _quoted(state))


def _quoted(values: Properties) -> Properties:
    return {**values, "name": quote(text_of(values, "name"), safe="")}


def _content(inputs: Properties) -> bytes:
    source = inputs.get("source")
    if not isinstance(source, Asset):
        return text_of(inputs, "content").encode()
    if source.text is not None:
        return source.text.encode()
    path = Path(source.path or "")
    if not path.is_file():
        raise PluginError(
            f"the source {str(path)!r} of object {text_of(inputs, 'name')!r} is not a file (relative to {Path.cwd()})"
        )
    return path.read_bytes()


def _md5_of(values: Properties) -> str:
    """Return the content's MD5 as the storage API writes it; empty where the content is not at hand."""
    if isinstance(values.get("content"), Unknown) or not {"content", "source"} & set(values):
        return ""
    try:
        content = _content(values)
    except (PluginError, OSError):
        return ""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _media_type(content: bytes) -> str:
    """Return what Google's Go client, which the real provider uses, takes for the type: text unless control characters are in it."""
    return "application/octet-stream" if _CONTROL & set(content[:_SNIFFED]) else "text/plain; charset=utf-8"


def _multipart(boundary: bytes, metadata: Object, media_type: str, content: bytes) -> bytes:
    head = b"--" + boundary + b"\r\nContent-Type: application/json\r\n\r\n" + json.dumps(metadata).encode() + b"\r\n"
    media = b"--" + boundary + b"\r\nContent-Type: " + media_type.encode() + b"\r\n\r\n" + content + b"\r\n"
    return head + media + b"--" + boundary + b"--\r\n"


def _hex(md5: str) -> str:
    try:
        return base64.b64decode(md5).hex()
    except ValueError:
        return ""


def _new_content(details: Details, state: Mapping[str, Value], inputs: Mapping[str, Value]) -> Details:
    """Add the new hashes and generation of new content. A file is compared by its hash, since its name says nothing about it."""
    if isinstance(inputs.get("source"), Asset):
        details = {path: detail for path, detail in details.items() if path[0] not in {"source", "detectMd5hash"}}
        if _md5_of(dict(inputs)) != state.get("md5hash"):
            details[("source",)] = Detail(change=PropertyChange.UPDATE, replaces=True)
    if not {("content",), ("source",), ("detectMd5hash",)} & set(details):
        return details
    follow = {
        (name,): Detail(change=PropertyChange.UPDATE) for name in ("crc32c", "detectMd5hash", "generation", "md5hash")
    }
    return {**details, **follow}


OBJECTS: Final[Mapping[str, TypeOverlay]] = {
    "gcp:storage/bucketObject:BucketObject": TypeOverlay(
        message="storage.v1#Object",
        properties={
            "eventBasedHold": {"unset_update": False},
            "temporaryHold": {"unset_update": False},
            "name": {"local": True, "create_only": False},
            "outputName": {"api": "name"},
            # A path in the schema; the SDK makes it an asset.
            "source": {"kind": ValueKind.ASSET},
        },
        lifecycle=partial(
            BucketObjectLifecycle,
            noun="object",
            collection="",
            item="storage/storage/v1/b/{bucket}/o/{name}",
        ),
        foresee=_new_content,
    )
}
