"""Objects in buckets: uploaded whole, uploaded again when their content changes."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from localcloud.plugins.diffing import Detail, Details, PropertyChange
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType, UpdateRequest, settled
from localcloud.plugins.rest import GoogleApiError, PluginError
from localcloud.plugins.schema import Object, PropertySpec, ValueKind, flag, outputs, text, texts_by_key, whole
from localcloud.plugins.table.common import DELETION_POLICY
from localcloud.plugins.values import Asset, Properties, Unknown, Value, is_object, text_of

_API: Final = "storage/storage/v1"
_UPLOAD: Final = "upload/storage/v1"
_TEXTS: Final = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "storageClass",
    "kmsKeyName",
)
_SNIFFED: Final = 512
_CONTROL: Final = frozenset(range(9)) | {11} | set(range(14, 27)) | set(range(28, 32))

_FIELDS: Final[Mapping[str, PropertySpec]] = {
    "deletionPolicy": DELETION_POLICY,
    "bucket": text(required=True, force_new=True),
    "name": text(autoname=True, force_new=True),
    "content": text(secret=True),
    "source": PropertySpec(kind=ValueKind.ASSET),
    "contentType": text(computed=True, force_new=True),
    "cacheControl": text(force_new=True),
    "contentDisposition": text(force_new=True),
    "contentEncoding": text(force_new=True),
    "contentLanguage": text(force_new=True),
    "storageClass": text(computed=True, force_new=True),
    "kmsKeyName": text(computed=True, force_new=True),
    "metadata": texts_by_key(),
    "eventBasedHold": flag(),
    "temporaryHold": flag(),
    "detectMd5hash": text(default="different hash"),
    "sourceMd5hash": text(),
    **outputs(
        crc32c=text(),
        generation=whole(),
        md5hash=text(),
        md5hexhash=text(),
        mediaLink=text(),
        outputName=text(),
        selfLink=text(),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObject:
    """An object."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Upload, then read."""
        bucket, name = text_of(inputs, "bucket"), text_of(inputs, "name")
        content = _content(inputs)
        boundary = f"localcloud-{hashlib.sha256(content).hexdigest()[:32]}"
        body = _multipart(boundary.encode(), _metadata(inputs), _media_type(content), content)
        try:
            await context.rest.send(
                "POST",
                f"{_UPLOAD}/b/{bucket}/o",
                query={"name": name, "uploadType": "multipart"},
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
                body=body,
            )
        except GoogleApiError as error:
            raise PluginError(f"Error uploading object {name}: {error}") from error
        return await settled(f"{bucket}-{name}", inputs, self._must_read(context, f"{bucket}-{name}", inputs))

    async def _must_read(self, context: OperationContext, resource_id: str, inputs: Properties) -> Created:
        found = await self.read(context, resource_id, inputs)
        if found is None:
            raise PluginError(
                f"Error reading object {resource_id!r}: it is gone right after the request that made or changed it"
            )
        return found

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET the object's metadata. The content stays what the program gave, as long as its hash is the one in the bucket."""
        if not given:
            raise PluginError(
                f"{resource_id!r}: the real provider cannot import bucket objects, and neither can this one"
            )
        body = await context.rest.find(_path(given))
        if body is None:
            return None
        state: Properties = {
            name: str(body.get(name, "")) for name in (*_TEXTS, "crc32c", "mediaLink", "selfLink", "name", "bucket")
        }
        md5 = str(body.get("md5Hash", ""))
        state |= {"md5hash": md5, "md5hexhash": _hex(md5), "outputName": state["name"]}
        state |= {
            "generation": int(str(body.get("generation", 0))),
            "eventBasedHold": body.get("eventBasedHold") is True,
        }
        state |= {"temporaryHold": body.get("temporaryHold") is True}
        metadata = body.get("metadata")
        if isinstance(metadata, dict) and metadata:
            state["metadata"] = {key: str(value) for key, value in metadata.items()}
        state |= {
            name: given[name] for name in ("content", "source", "deletionPolicy", "sourceMd5hash") if name in given
        }
        # As in the real provider: the constant while the bucket holds what the program gave, else the hash that is there, which shows as drift.
        expected = _md5_of(given)
        state["detectMd5hash"] = md5 if expected and expected != md5 else "different hash"
        return Created(id=resource_id, state=state)

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Upload again where the content changes, PATCH the metadata and holds otherwise."""
        if wanted.changed & {"content", "source", "detectMd5hash", "sourceMd5hash"}:
            return await self.create(context, wanted.inputs)
        body: Object = {}
        for name in ("eventBasedHold", "temporaryHold"):
            if name in wanted.changed:
                body[name] = wanted.inputs.get(name) is True
        if "metadata" in wanted.changed:
            new, old = wanted.inputs.get("metadata"), wanted.state.get("metadata")
            kept = {key: str(value) for key, value in new.items()} if is_object(new) else {}
            gone = [key for key in old if key not in kept] if is_object(old) else []
            body["metadata"] = {**kept, **dict.fromkeys(gone)}
        await context.rest.call("PATCH", _path(wanted.inputs), body=body)
        return await self._must_read(context, wanted.id, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """DELETE; 404 is success."""
        try:
            await context.rest.call("DELETE", _path(state))
        except GoogleApiError as error:
            if not error.is_missing:
                raise PluginError(f"Error deleting object {resource_id!r}: {error}") from error


def _path(values: Properties) -> str:
    return f"{_API}/b/{text_of(values, 'bucket')}/o/{quote(text_of(values, 'name'), safe='')}"


def _content(inputs: Properties) -> bytes:
    source = inputs.get("source")
    if isinstance(source, Asset):
        if source.text is not None:
            return source.text.encode()
        path = Path(source.path or "")
        if not path.is_file():
            raise PluginError(
                f"the source {str(path)!r} of object {text_of(inputs, 'name')!r} is no file (looked from {Path.cwd()})"
            )
        return path.read_bytes()
    if "content" not in inputs:
        raise PluginError(f"object {text_of(inputs, 'name')!r}: one of content and source has to be set")
    return text_of(inputs, "content").encode()


def _md5_of(values: Properties) -> str:
    """The content's MD5 as the storage API writes it; empty where the content is not at hand."""
    if isinstance(values.get("content"), Unknown):
        return ""
    try:
        content = _content(values)
    except (PluginError, OSError):
        return ""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _metadata(inputs: Properties) -> Object:
    metadata: Object = {"bucket": text_of(inputs, "bucket")}
    metadata |= {name: text_of(inputs, name) for name in _TEXTS if text_of(inputs, name)}
    metadata |= {name: True for name in ("eventBasedHold", "temporaryHold") if inputs.get(name) is True}
    labels = inputs.get("metadata")
    if is_object(labels) and labels:
        metadata["metadata"] = {key: str(value) for key, value in labels.items()}
    return metadata


def _media_type(content: bytes) -> str:
    """What Google's Go client, which the real provider uses, takes for the media's type: text unless control characters are in it."""
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
    """New content has new hashes and a new generation; a file is compared by its hash, since its name says nothing about it."""
    if isinstance(inputs.get("source"), Asset):
        details = {path: detail for path, detail in details.items() if path[0] not in {"source", "detectMd5hash"}}
        if _md5_of(dict(inputs)) != state.get("md5hash"):
            details[("source",)] = Detail(change=PropertyChange.UPDATE)
    if not {("content",), ("source",), ("detectMd5hash",)} & set(details):
        return details
    follow = {
        (name,): Detail(change=PropertyChange.UPDATE) for name in ("crc32c", "detectMd5hash", "generation", "md5hash")
    }
    return {**details, **follow}


OBJECTS: Final = (
    ResourceType(
        type_name="gcp:storage/bucketObject:BucketObject",
        fields=_FIELDS,
        lifecycle=BucketObject(),
        foresee=_new_content,
    ),
)
