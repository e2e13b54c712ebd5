"""A separate folder per checkpoint, named by its content: staging never changes a folder in use."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

from cloud.staging.bucket import BucketObject, WeightsBucket, changed
from cloud.staging.copying import FilePart, OnBytes, read_whole
from cloud.staging.sources import CheckpointSource, SourceFile
from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping
from contracts.parallel import each
from contracts.staged_weights import MANIFEST, manifest_hash, own_folder, strangers


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedSource:
    """A source with the SHA-256 of every file known before the first byte is copied."""

    inner: CheckpointSource
    hashed: Mapping[str, tuple[SourceFile, SourceFile]]
    """The file as the source lists it and the same with its hash, by name."""

    @property
    def revision(self) -> str:
        """Name of the source."""
        return self.inner.revision

    def files(self) -> Sequence[SourceFile]:
        """Return the files with their hashes."""
        return [file for _, file in self.hashed.values()]

    def read(self, file: SourceFile, start: int, end: int) -> bytes:
        """Return a part of a file. Raises ScriptError as the source does."""
        return self.inner.read(self.hashed[file.name][0], start, end)

    def verify(self, file: SourceFile, sha256: str, git_sha1: str) -> None:
        """Raise ScriptError if these bytes differ from the hashed ones, and as the source does."""
        listed, hashed = self.hashed[file.name]
        self.inner.verify(listed, sha256, git_sha1)
        if sha256 != hashed.sha256:
            raise ScriptError(f"{file.name} of the source was changed during the copy. Run this again.")


@dataclass(slots=True, kw_only=True)
class _Hashing:
    source: CheckpointSource
    part_bytes: int
    on_bytes: OnBytes
    total_bytes: int
    done_bytes: int = 0
    lock: Lock = field(default_factory=Lock)

    def hashed(self, file: SourceFile) -> SourceFile:
        """Return the file with its SHA-256, which is computed unless the source states it."""
        if file.sha256 is not None:
            return file
        reading = read_whole(self.source, file, self.part_bytes, self._count)
        return replace(file, sha256=reading.verify(self.source))

    def _count(self, part: FilePart) -> None:
        with self.lock:
            self.done_bytes += part.end - part.start
            self.on_bytes("hashing", self.done_bytes, self.total_bytes)


def hashed_source(
    source: CheckpointSource, files: Sequence[SourceFile], *, part_bytes: int, workers: int, on_bytes: OnBytes
) -> HashedSource:
    """Read the files whose hash the source does not state. Raises ScriptError as the source does."""
    total = sum(file.size_bytes for file in files if file.sha256 is None)
    hashing = _Hashing(source=source, part_bytes=part_bytes, on_bytes=on_bytes, total_bytes=total)
    found = each([partial(_with_hash, hashing, file) for file in files], workers=workers)
    by_name = {file.name: (file, known) for file, known in found}
    return HashedSource(inner=source, hashed={file.name: by_name[file.name] for file in files})


def _with_hash(hashing: _Hashing, file: SourceFile) -> tuple[SourceFile, SourceFile]:
    return file, hashing.hashed(file)


def digest_of(files: Sequence[SourceFile], crc32c: Callable[[str], str] = lambda _: "") -> str:
    """Return the future manifest hash of these files. `crc32c` returns the checksum of a file without a SHA-256."""
    entries = [
        {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256, "crc32c": crc32c(file.name)}
        for file in files
    ]
    return manifest_hash({"files": entries})


def prepared_folder(
    target: WeightsBucket, name: str, files: Sequence[SourceFile], digest: str, stack: str
) -> tuple[str, Mapping[str, BucketObject]]:
    """Return the folder for these files, and which of them it already has.

    Raises CommandRefusedError if it has anything else: a file outside the manifest, or the manifest of other weights.
    """
    folder = own_folder(name, digest)
    present = target.objects(f"{folder}/")
    uri = f"gs://{target.name}/{folder}"
    extra = strangers(present, folder, [file.name for file in files])
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CommandRefusedError(
            f"{uri} has {extra[0]}{more}, which this checkpoint does not have but a server would load. Nothing was changed. Delete it with "
            f"`gcloud storage rm {uri}/{extra[0]}`, then run this again."
        )
    if f"{folder}/{MANIFEST}" in present and _staged_hash(target, folder) != digest:
        raise CommandRefusedError(
            f"{uri} has a manifest that does not match its name. Nothing was changed. Run `gemma stage_model "
            f"{stack} --remove {folder}`, then run this again."
        )
    return folder, present


def require_same_bytes(
    target: WeightsBucket, folder: str, present: Mapping[str, BucketObject], wanted: Mapping[str, BucketObject]
) -> None:
    """Reject a source whose files differ from the folder's although the hashes match: one of the two states a wrong hash.

    A copy within Google reads no bytes, so it cannot determine which. Raises CommandRefusedError.
    """
    for name, origin in wanted.items():
        found = present.get(f"{folder}/{name}")
        if found is not None and (found.size_bytes, found.crc32c) != (origin.size_bytes, origin.crc32c):
            raise CommandRefusedError(
                f"gs://{target.name}/{folder}/{name} differs from the source, although both state the same SHA-256. Nothing was "
                "changed. Stage from the hub or a folder, which are read and hashed."
            )


def require_staged(expected: str, staged: str, folder: str) -> None:
    """Raise ScriptError if the staged weights do not match the folder's name."""
    if staged != expected:
        raise changed(f"A file of {folder}")


def _staged_hash(target: WeightsBucket, folder: str) -> str | None:
    """Return the manifest hash of a folder; None if it cannot be read."""
    try:
        document = as_mapping(json.loads(target.text(f"{folder}/{MANIFEST}") or ""))
    except ValueError:
        return None
    return manifest_hash(document) if document else None
