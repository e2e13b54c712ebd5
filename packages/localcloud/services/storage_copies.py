"""Cloud Storage v1: objects created from other objects without an upload: compose, copy and rewrite."""

import json
import secrets
import shutil
from pathlib import Path

from localcloud.json_values import JsonObject, part, parts
from localcloud.rest.call import Call
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method
from localcloud.services.storage_objects import OBJECTS, Objects, check_conditions, settable
from localcloud.world.cloud import Cloud

_REWRITES = "storage.rewrites"
_MOST_SOURCES = 32
"""Cloud Storage's limit for one compose."""
_MIB = 1 << 20
_BYTES_PER_CALL = 64 * _MIB
"""Bytes that one rewrite call copies to another location or storage class. Google states no figure; this one is small so programs run
the loop."""


class Copies(ApiService):
    """The methods of objects that copy or join stored content."""

    prefix = "storage.objects"

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._objects = Objects(cloud)

    @method("compose")
    def compose(self, call: Call) -> JsonObject:
        """Join 1 to 32 objects of one bucket. The result has their components and no MD5."""
        sources: list[JsonObject] = parts(call.body, "sourceObjects")
        if not 1 <= len(sources) <= _MOST_SOURCES:
            raise CloudError.invalid(f"The number of source components provided ({len(sources)}) must be from 1 to 32.")
        bucket = call.path["destinationBucket"]
        documents = [self._component(bucket, source) for source in sources]
        if len({document["storageClass"] for document in documents}) > 1:
            raise CloudError.invalid("All source objects of a compose must have the same storage class.")
        target = self._objects.new_file()
        with target.open("wb") as out:
            for document in documents:
                with self._objects.content(document).open("rb") as source:
                    shutil.copyfileobj(source, out)
        shown = self._objects.put(
            bucket,
            call.path["destinationObject"],
            target,
            {"storageClass": documents[0]["storageClass"], **settable(part(call.body, "destination"))},
            call.query,
            components=sum(int(document.get("componentCount", 1)) for document in documents),
        )
        if call.body.get("deleteSourceObjects"):
            for document in documents:
                if document["name"] != shown["name"]:
                    self._objects.remove(document)
        return shown

    @method("copy")
    def copy(self, call: Call) -> JsonObject:
        """Copy an object."""
        source = self._source(call)
        return self._copied(call, source, call.body, moves=self._moves(call, source, call.body))

    @method("rewrite")
    def rewrite(self, call: Call) -> JsonObject:
        """Rewrite an object: in one call within a location and storage class, otherwise some bytes per call."""
        source = self._source(call)
        token = call.query.get("rewriteToken")
        request = _request(call, source)
        done = 0
        if token:
            session = self._store.get(_REWRITES, token)
            if session is None or any(value not in {"", session["request"][key]} for key, value in request.items()):
                raise CloudError.invalid(
                    "The rewriteToken is invalid: it is unknown, or the request differs from the first."
                )
            request, done = session["request"], int(session["done"])
            self._store.delete(_REWRITES, token)
        step = int(request["step"] or _BYTES_PER_CALL)
        if step <= 0 or step % _MIB:
            raise CloudError.invalid(f"maxBytesRewrittenPerCall is {step}; it must be a multiple of 1048576.")
        body: JsonObject = json.loads(request["body"] or "{}")
        moves = self._moves(call, source, body)
        size = int(source["size"])
        done = min(done + step, size) if moves else size
        answer: JsonObject = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(done),
            "objectSize": str(size),
            "done": done == size,
        }
        if done == size:
            return {**answer, "resource": self._copied(call, source, body, moves=moves)}
        token = secrets.token_urlsafe(48)
        self._store.put(_REWRITES, token, {"request": request, "done": done})
        return {**answer, "rewriteToken": token}

    def _component(self, bucket: str, source: JsonObject) -> JsonObject:
        document = self._objects.found(bucket, str(source.get("name", "")), source.get("generation"))
        check_conditions(part(source, "objectPreconditions"), document)
        return document

    def _source(self, call: Call) -> JsonObject:
        source = self._objects.found(
            call.path["sourceBucket"], call.path["sourceObject"], call.query.get("sourceGeneration")
        )
        check_conditions(call.query, source, of="Source")
        old = self._store.get(OBJECTS, f"{call.path['destinationBucket']}/{call.path['destinationObject']}")
        check_conditions(call.query, old)
        return source

    def _moves(self, call: Call, source: JsonObject, body: JsonObject) -> bool:
        """Return whether the copy is in another location or storage class."""
        before = self._objects.bucket(call.path["sourceBucket"])
        after = self._objects.bucket(call.path["destinationBucket"])
        wanted = body.get("storageClass") or after["storageClass"]
        return (before["location"], source["storageClass"]) != (after["location"], wanted)

    def _copied(self, call: Call, source: JsonObject, body: JsonObject, *, moves: bool) -> JsonObject:
        target: Path = self._objects.new_file()
        shutil.copyfile(self._objects.content(source), target)
        destination = self._objects.bucket(call.path["destinationBucket"])
        metadata = {**settable(source), "storageClass": destination["storageClass"], **settable(body)}
        components = source.get("componentCount")
        return self._objects.put(
            call.path["destinationBucket"],
            call.path["destinationObject"],
            target,
            metadata,
            call.query,
            components=None if components is None else 1 if moves else int(components),
        )


def _request(call: Call, source: JsonObject) -> dict[str, str]:
    """Return the parameters that must be the same in all calls of one rewrite. Empty if a later call omits them."""
    return {
        "objects": json.dumps(call.path),
        "generation": str(source["generation"]),
        "body": json.dumps(call.body) if call.body else "",
        "step": str(call.query.get("maxBytesRewrittenPerCall") or ""),
    }
