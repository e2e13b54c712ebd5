"""Copy a checkpoint from another bucket within Google, without passing bytes through this machine."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Final, cast

from cloud.model_files import CONFIG, INDEX
from cloud.staging.bucket import BucketObject, StaleTokenError, WeightsBucket, as_json
from cloud.staging.copying import WORKERS, OnBytes, OnFile, listed, sweep
from cloud.staging.manifest import StagedFile, StagingOutcome, withdraw_manifest, write_manifest
from cloud.staging.sources import SourceFile, is_wanted, require_checkpoint
from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.parallel import each
from contracts.staged_weights import MANIFEST, PARTS, REAL_SIZE

_BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*[a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCheckpoint:
    """A checkpoint's content in a bucket at one time."""

    revision: str
    """Source in the bucket's manifest; without one, its location."""
    files: Sequence[SourceFile]
    objects: Mapping[str, BucketObject]
    """The objects of the files, by name below the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSource:
    """A checkpoint in a folder of another bucket."""

    bucket: WeightsBucket
    prefix: str
    """Without leading and trailing slashes; empty for the whole bucket."""
    config: str = CONFIG
    """The file that it must have."""

    @property
    def uri(self) -> str:
        """Its URI."""
        return f"gs://{self.bucket.name}/{self.prefix}".rstrip("/")

    def checkpoint(self) -> ListedCheckpoint:
        """List the files that vLLM reads. Raises CommandRefusedError as `require_checkpoint` does, ScriptError if Google rejects the call."""
        found = self.bucket.objects(f"{self.prefix}/" if self.prefix else "")
        names = listed(found, self.prefix) if self.prefix else found
        wanted = {name: item for name, item in sorted(names.items()) if is_wanted(name)}
        require_checkpoint(self.uri, wanted.keys(), lambda: self._text(INDEX) or "", config=self.config)
        manifest: Mapping[str, object] = self._manifest() if MANIFEST in names else {}
        return ListedCheckpoint(
            revision=str(manifest.get("revision") or self.uri), files=_files(wanted, manifest), objects=wanted
        )

    def read(self, file: SourceFile, start: int, end: int) -> bytes:
        """Return a part of a file. Raises ScriptError."""
        return self.bucket.part(f"{self.prefix}/{file.name}" if self.prefix else file.name, start, end)

    def _manifest(self) -> Mapping[str, object]:
        """Return the source's own manifest; empty if it cannot be read."""
        return _document(self._text(MANIFEST))

    def _text(self, name: str) -> str | None:
        return self.bucket.text(f"{self.prefix}/{name}" if self.prefix else name)


@dataclass(slots=True, kw_only=True)
class Rewriting:
    """A copy. `run` performs it."""

    source: BucketSource
    checkpoint: ListedCheckpoint
    target: WeightsBucket
    prefix: str
    """Folder of the checkpoint in the target."""
    on_file: OnFile
    on_bytes: OnBytes
    present: Mapping[str, BucketObject] = field(init=False)
    _tokens: dict[str, BucketObject] = field(init=False)
    """The objects with tokens, by name, as this run found or last wrote them."""
    _copied: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def run(self, *, workers: int = WORKERS) -> StagingOutcome:
        """Copy missing or different files, then write the manifest.

        Raises ScriptError if Google rejects a call, or a source object has changed.
        """
        self.present = self.target.objects(f"{self.prefix}/")
        self._tokens = dict(self.target.objects(f"{PARTS}/{self.prefix}/"))
        files = self.checkpoint.files
        kept = {file.name: staged for file in files if (staged := self._kept(file)) is not None}
        for staged in kept.values():
            self.on_file(staged.file, False)
        missing = [file for file in files if file.name not in kept]
        if missing:
            withdraw_manifest(self.target, self.prefix)
        self._copied = {file.name: 0 for file in missing}
        done = each([partial(self._rewritten, file) for file in missing], workers=workers)
        staged = {item.file.name: item for item in (*kept.values(), *done)}
        done = [staged[file.name] for file in files]
        digest = write_manifest(self.target, self.prefix, self.checkpoint.revision, done)
        sweep(self.target, self.prefix, files, workers)
        return StagingOutcome(copied=len(missing), kept=len(kept), manifest=digest)

    def _kept(self, file: SourceFile) -> StagedFile | None:
        origin, found = self.checkpoint.objects[file.name], self.present.get(f"{self.prefix}/{file.name}")
        same = found is not None and (found.size_bytes, found.crc32c) == (origin.size_bytes, origin.crc32c)
        if found is None or not same or file.sha256 not in {None, found.sha256}:
            return None
        return StagedFile(file=file, sha256=file.sha256 or found.sha256, crc32c=found.crc32c)

    def _rewritten(self, file: SourceFile) -> StagedFile:
        origin = self.checkpoint.objects[file.name]
        try:
            copy = self._attempt(file, self._token(file))
        except StaleTokenError:
            copy = self._attempt(file, None)
        if (copy.size_bytes, copy.crc32c) != (origin.size_bytes, origin.crc32c):
            self.target.delete(copy)
            raise ScriptError(
                f"The copy of {file.name} differs from {self.source.uri}, and was deleted. Run this again."
            )
        self._count(file.name, copy.size_bytes)
        with self._lock:
            self.on_file(file, True)
        return StagedFile(file=file, sha256=file.sha256, crc32c=copy.crc32c)

    def _attempt(self, file: SourceFile, token: str | None) -> BucketObject:
        name = self._token_name(file)

        def on_step(following: str, copied: int) -> None:
            # A token is valid for a week; with it, a later run resumes inside the file.
            data = as_json({"generation": self.checkpoint.objects[file.name].generation, "token": following})
            self._tokens[name] = self.target.upload(name, data, replaced=self._tokens.get(name))
            self._count(file.name, copied)

        return self.target.rewrite(
            f"{self.prefix}/{file.name}",
            self.source.bucket.name,
            self.checkpoint.objects[file.name],
            replaced=self.present.get(f"{self.prefix}/{file.name}"),
            sha256=file.sha256,
            token=token,
            on_step=on_step,
        )

    def _token(self, file: SourceFile) -> str | None:
        """Return an earlier run's token for exactly these bytes."""
        name = self._token_name(file)
        found = _document(self.target.text(name) if name in self._tokens else None)
        token, same = found.get("token"), found.get("generation") == self.checkpoint.objects[file.name].generation
        return token if same and isinstance(token, str) else None

    def _token_name(self, file: SourceFile) -> str:
        return f"{PARTS}/{self.prefix}/{file.name}/rewrite.json"

    def _count(self, name: str, copied: int) -> None:
        with self._lock:
            self._copied[name] = copied
            total = sum(self.checkpoint.objects[file].size_bytes for file in self._copied)
            self.on_bytes("copying", sum(self._copied.values()), total)


def _document(text: str | None) -> Mapping[str, object]:
    """Return the JSON object of a text; empty for any other text."""
    try:
        return as_mapping(json.loads(text or "{}"))
    except ValueError:
        return {}


def _files(objects: Mapping[str, BucketObject], manifest: Mapping[str, object]) -> Sequence[SourceFile]:
    """Return the source's files, with the hash from the object itself or from the source's manifest for these bytes."""
    entries = {one.get("name"): one for one in map(as_mapping, as_sequence(manifest.get("files")))}

    def stated(name: str, item: BucketObject) -> str | None:
        entry = entries.get(name) or {}
        same = entry.get("size_bytes") == item.size_bytes and entry.get("crc32c") in {None, item.crc32c}
        return item.sha256 or (cast("str | None", entry.get("sha256")) if same else None)

    def real(name: str) -> int:
        size = (entries.get(name) or {}).get(REAL_SIZE)
        return size if isinstance(size, int) else 0

    return [
        SourceFile(name=name, size_bytes=item.size_bytes, sha256=stated(name, item), real_bytes=real(name))
        for name, item in objects.items()
    ]


def bucket_of(text: str) -> tuple[str, str]:
    """Return bucket and folder of `gs://BUCKET/FOLDER`. Raises CommandRefusedError without a bucket."""
    name, _, folder = text.removeprefix("gs://").partition("/")
    if not _BUCKET_NAME.fullmatch(name):
        raise CommandRefusedError(f"--from is {text!r}: expected gs://BUCKET/FOLDER.")
    return name, folder.strip("/")
