"""Objects in buckets: uploaded whole, and again when their content changes."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from localcloud.plugins.coding import encode_body
from localcloud.plugins.diffing import Detail, Details, DiffKind
from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.resource import RestResource
from localcloud.plugins.rest import PluginError
from localcloud.plugins.schema import Object, ValueKind
from localcloud.plugins.values import Asset, Properties, UnknownValue, Value, text_of

_UPLOAD: Final = "upload/storage/v1"
_UNCHANGED: Final = "different hash"
_SNIFFED: Final = 512
_CONTROL: Final = frozenset(range(9)) | {11} | set(range(14, 27)) | set(range(28, 32))


class BucketObjectLifecycle(RestResource):
    """An object in a bucket."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Upload the object and read its metadata."""
        bucket, name = text_of(inputs, "bucket"), text_of(inputs, "name")
        content = _content(inputs)
        boundary = f"localcloud-{hashlib.sha256(content).hexdigest()[:32]}"
        metadata = encode_body(self.fields, inputs, context.scope(inputs))
        media_type = text_of(inputs, "contentType") or _media_type(content)
        await context.rest.send(
            "POST",
            f"{_UPLOAD}/b/{bucket}/o",
            query={"name": name, "uploadType": "multipart"},
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            body=_multipart(boundary.encode(), metadata, media_type, content),
            doing=f"uploading object {name}",
        )
        return await settled(f"{bucket}-{name}", inputs, self.must_read(context, f"{bucket}-{name}", inputs))

    def path(self, template: str, context: OperationContext, values: Mapping[str, Value], resource_id: str) -> str:
        """Return a path template filled with the object's properties. An object's name can contain any character."""
        named = {**values, "name": quote(text_of(values, "name"), safe="")}
        return super().path(template, context, named, resource_id)

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """Read the object's metadata. The state's content is the program's while its hash equals the bucket's."""
        if not given:
            raise PluginError(
                f"{resource_id!r}: bucket objects cannot be imported, neither here nor with the real provider"
            )
        found = await super().read(context, resource_id, given)
        if found is not None:
            md5, expected = text_of(found.state, "md5hash"), _md5_of(given)
            # As in the real provider: the constant while the bucket contains the program's content, otherwise the current hash, which shows as drift.
            detected = md5 if expected and expected != md5 else _UNCHANGED
            found.state.update({"md5hexhash": _hex(md5), "detectMd5hash": detected})
        return found

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Upload the object again if its content changes, otherwise update its metadata."""
        if wanted.changed & {"content", "source", "detectMd5hash", "sourceMd5hash"}:
            return await self.create(context, wanted.inputs)
        return await super().update(context, wanted)

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        """Return the changes. A property that an update does not name stays unchanged."""
        changed = {
            name: each
            for name, each in self.fields.items()
            if inputs.get(name, each.zero) != state.get(name, each.zero)
        }
        return encode_body(changed, inputs, context.scope(inputs), update=update)


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
    """Return the content's MD5 in the storage API's format. Empty if the content is not available."""
    if isinstance(values.get("content"), UnknownValue) or not {"content", "source"} & set(values):
        return ""
    try:
        content = _content(values)
    except (PluginError, OSError):
        return ""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _media_type(content: bytes) -> str:
    """Return the content type that Google's Go client, which the real provider uses, detects: text unless it contains control characters."""
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
    """Add the new hashes and generation of new content. A file is compared by its hash because its name does not identify its content."""
    if isinstance(inputs.get("source"), Asset):
        details = {path: detail for path, detail in details.items() if path[0] not in {"source", "detectMd5hash"}}
        if _md5_of(dict(inputs)) != state.get("md5hash"):
            details[("source",)] = Detail(change=DiffKind.UPDATE, replaces=True)
    if not {("content",), ("source",), ("detectMd5hash",)} & set(details):
        return details
    follow = {(name,): Detail(change=DiffKind.UPDATE) for name in ("crc32c", "detectMd5hash", "generation", "md5hash")}
    return {**details, **follow}


OBJECTS: Final[Mapping[str, TypeOverlay]] = {
    "gcp:storage/bucketObject:BucketObject": TypeOverlay(
        message="storage.v1#Object",
        properties={
            "eventBasedHold": {"unset_update": False},
            "temporaryHold": {"unset_update": False},
            "name": {"local": True, "create_only": False},
            "outputName": {"api": "name"},
            # A path in the schema; the SDK turns it into an asset.
            "source": {"kind": ValueKind.ASSET},
        },
        lifecycle=partial(
            BucketObjectLifecycle,
            noun="object",
            item="storage/storage/v1/b/{bucket}/o/{name}",
        ),
        foresee=_new_content,
    )
}
