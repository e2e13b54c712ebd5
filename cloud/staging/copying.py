"""Copy a folder or a hub checkpoint into a bucket in parts.

A file of more than one part is written as temporary objects `PARTS/PREFIX/NAME/START-END`, which Cloud Storage joins at the end. Their
names, sizes and CRC32C are the only state: a later run reads the source again, uploads missing or different parts, and
hashes every byte, so a part is never accepted based on an earlier run (docs/decisions/0027).
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from cloud.staging.bucket import MOST_SOURCES, BucketObject, WeightsBucket, crc32c, crc32c_text, extend_crc32c
from cloud.staging.manifest import StagedFile, StagingOutcome, withdraw_manifest, write_manifest
from cloud.staging.sources import CheckpointSource, RunningHash, SourceFile, git_blob
from contracts.errors import ScriptError
from contracts.parallel import each, in_order
from contracts.staged_weights import PARTS

PART_BYTES: Final = 32 * 1024 * 1024
WORKERS: Final = 8
"""Concurrent parts."""

OnBytes: TypeAlias = Callable[[str, int, int], None]
"""Called with a description, the bytes done, and the total bytes. Calls are serialized, from several threads."""
OnFile: TypeAlias = Callable[[SourceFile, bool], None]
"""Called after each file with whether it was copied; False if it was already complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """Source, target and part size of a copy."""

    source: CheckpointSource
    target: WeightsBucket
    prefix: str
    """Folder of the checkpoint in the bucket."""
    part_bytes: int = PART_BYTES
    workers: int = WORKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """The bytes of a file from `start` up to `end`."""

    file: SourceFile
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """True if it is the whole file, which then needs no temporary object."""
        return (self.start, self.end) == (0, self.file.size_bytes)


def parts_of(file: SourceFile, part_bytes: int) -> Sequence[FilePart]:
    """Return the parts of a file in order; an empty file has one."""
    starts = range(0, max(file.size_bytes, 1), part_bytes)
    return [FilePart(file=file, start=start, end=min(start + part_bytes, file.size_bytes)) for start in starts]


def stage(plan: CopyPlan, on_file: OnFile, on_bytes: OnBytes) -> StagingOutcome:
    """Copy missing or different files, then write the manifest. Other objects below the prefix are not touched.

    Raises ScriptError if the source or the bucket fails, or if a file differs from the source's hash.
    """
    copy = _Copy(plan=plan, on_bytes=on_bytes)
    files = plan.source.files()
    done = {staged.file.name: staged for staged in copy.complete(files)}
    kept = len(done)
    missing = [file for file in files if file.name not in done]
    for staged in done.values():
        on_file(staged.file, False)
    if missing:
        withdraw_manifest(plan.target, plan.prefix)
    for staged in copy.missing(missing):
        done[staged.file.name] = staged
        on_file(staged.file, True)
    digest = write_manifest(plan.target, plan.prefix, plan.source.revision, [done[file.name] for file in files])
    sweep(plan.target, plan.prefix, files, plan.workers)
    return StagingOutcome(copied=len(missing), kept=kept, manifest=digest)


def sweep(target: WeightsBucket, prefix: str, files: Sequence[SourceFile], workers: int) -> None:
    """Delete the temporary objects of a checkpoint, including those of earlier runs.

    Subfolders that are not part of this checkpoint may belong to another one that is being copied.
    """
    names = {file.name for file in files}
    parts = (
        (name.rpartition("/")[0], item)
        for name, item in listed(target.objects(f"{PARTS}/{prefix}/"), f"{PARTS}/{prefix}").items()
    )
    left = [item for name, item in parts if name in names or "/" not in name]
    each([partial(target.delete, item) for item in left], workers=workers)


@dataclass(slots=True, kw_only=True)
class Reading:
    """Hashes of a file whose bytes arrive in order, and the objects with its parts."""

    file: SourceFile
    crc: int = 0
    sha256: RunningHash = field(default_factory=hashlib.sha256)
    git_sha1: RunningHash = field(init=False)
    parts: list[BucketObject] = field(default_factory=list[BucketObject])

    def __post_init__(self) -> None:
        self.git_sha1 = git_blob(self.file.size_bytes)

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self.crc = extend_crc32c(self.crc, data)
        self.sha256.update(data)
        if self.file.git_sha1 is not None:
            self.git_sha1.update(data)

    def verify(self, source: CheckpointSource) -> str:
        """Return the SHA-256. Raises ScriptError if it differs from the source's."""
        found = self.sha256.hexdigest()
        source.verify(self.file, found, self.git_sha1.hexdigest() if self.file.git_sha1 is not None else "")
        return found


def read_whole(
    source: CheckpointSource, file: SourceFile, part_bytes: int, on_part: Callable[[FilePart], None]
) -> Reading:
    """Read a file part by part, and return its hashes. `on_part` is called after each. Raises ScriptError as the source does."""
    reading = Reading(file=file)
    for part in parts_of(file, part_bytes):
        reading.add(source.read(file, part.start, part.end))
        on_part(part)
    return reading


class _Copy:
    """A run."""

    def __init__(self, *, plan: CopyPlan, on_bytes: OnBytes) -> None:
        self._plan, self._on_bytes = plan, on_bytes
        self.present = plan.target.objects(f"{plan.prefix}/")
        self._parts = plan.target.objects(f"{PARTS}/{plan.prefix}/")
        self._lock, self._done_bytes, self._total_bytes = threading.Lock(), 0, 0

    def complete(self, files: Sequence[SourceFile]) -> Iterator[StagedFile]:
        """Yield the files with a complete copy in the bucket. Files without a stated hash are read for it."""
        tasks = [partial(self._kept, file) for file in files]
        self._begin(sum(file.size_bytes for file in files if file.sha256 is None and self._alike(file)))
        yield from (staged for staged in each(tasks, workers=self._plan.workers) if staged is not None)

    def missing(self, files: Sequence[SourceFile]) -> Iterator[StagedFile]:
        """Copy files and yield each when it is complete."""
        parts = [part for file in files for part in parts_of(file, self._plan.part_bytes)]
        self._begin(sum(file.size_bytes for file in files))
        tasks = [partial(self._carried, part) for part in parts]
        reading = Reading(file=files[0]) if files else None
        # Half as many parts again are in memory as in transit, so that a slow part does not block the others.
        ahead = self._plan.workers * 3 // 2 + 1
        for data, part, stored in in_order(tasks, workers=self._plan.workers, ahead=ahead):
            if reading is None or part.file is not reading.file:
                reading = Reading(file=part.file)
            reading.add(data)
            reading.parts.append(stored)
            if part.end == part.file.size_bytes:
                yield self._stored_whole(reading, stored) if part.is_whole else self._joined(reading)

    def _alike(self, file: SourceFile) -> BucketObject | None:
        """Return the object with a file's name and size that has its hash; None if there is none."""
        found = self.present.get(f"{self._plan.prefix}/{file.name}")
        return found if found is not None and found.sha256 and found.size_bytes == file.size_bytes else None

    def _kept(self, file: SourceFile) -> StagedFile | None:
        found = self._alike(file)
        if found is None:
            return None
        stated = file.sha256
        if stated is None:
            reading = read_whole(self._plan.source, file, self._plan.part_bytes, partial(self._count, "comparing"))
            stated = reading.verify(self._plan.source)
            if crc32c_text(reading.crc) != found.crc32c:
                return None
        return StagedFile(file=file, sha256=stated, crc32c=found.crc32c) if found.sha256 == stated else None

    def _carried(self, part: FilePart) -> tuple[bytes, FilePart, BucketObject]:
        """Read a part, and write it unless the bucket already has these bytes."""
        data = self._plan.source.read(part.file, part.start, part.end)
        if part.is_whole:
            reading = Reading(file=part.file)
            reading.add(data)
            sha256 = reading.verify(self._plan.source)
            name, known = f"{self._plan.prefix}/{part.file.name}", self.present
        else:
            sha256, name, known = None, self._part_name(part.file, part.start, part.end), self._parts
        stored = known.get(name)
        if part.is_whole or stored is None or (stored.size_bytes, stored.crc32c) != (len(data), crc32c(data)):
            stored = self._plan.target.upload(name, data, replaced=stored, sha256=sha256)
        self._count("copying", part)
        return data, part, stored

    def _stored_whole(self, reading: Reading, stored: BucketObject) -> StagedFile:
        return StagedFile(file=reading.file, sha256=reading.sha256.hexdigest(), crc32c=stored.crc32c)

    def _joined(self, reading: Reading) -> StagedFile:
        """Join the parts of a file that matches the source, then delete them."""
        sha256, name = reading.verify(self._plan.source), f"{self._plan.prefix}/{reading.file.name}"
        temporary = {item.name: item for item in reading.parts}
        level = [(item, item.size_bytes) for item in reading.parts]
        while len(level) > MOST_SOURCES:
            level = [self._group(reading.file, level, first) for first in range(0, len(level), MOST_SOURCES)]
            temporary |= {item.name: item for item, _ in level}
        crc = crc32c_text(reading.crc)
        whole = self._plan.target.compose(
            name, [item for item, _ in level], replaced=self.present.get(name), crc32c=crc, sha256=sha256
        )
        if (whole.size_bytes, whole.crc32c) != (reading.file.size_bytes, crc):
            self._plan.target.delete(whole)
            raise ScriptError(f"{name} did not match the source after it was joined, and was deleted. Run this again.")
        each([partial(self._plan.target.delete, item) for item in temporary.values()], workers=self._plan.workers)
        return StagedFile(file=reading.file, sha256=sha256, crc32c=whole.crc32c)

    def _group(
        self, file: SourceFile, level: Sequence[tuple[BucketObject, int]], first: int
    ) -> tuple[BucketObject, int]:
        """Join up to MOST_SOURCES objects to one temporary object."""
        members = level[first : first + MOST_SOURCES]
        if len(members) == 1:
            return members[0]
        start, size = sum(length for _, length in level[:first]), sum(length for _, length in members)
        name = self._part_name(file, start, start + size)
        joined = self._plan.target.compose(name, [item for item, _ in members], replaced=self._parts.get(name))
        return joined, size

    def _part_name(self, file: SourceFile, start: int, end: int) -> str:
        return f"{PARTS}/{self._plan.prefix}/{file.name}/{start}-{end}"

    def _begin(self, total_bytes: int) -> None:
        self._done_bytes, self._total_bytes = 0, total_bytes

    def _count(self, work: str, part: FilePart) -> None:
        with self._lock:
            self._done_bytes += part.end - part.start
            self._on_bytes(work, self._done_bytes, self._total_bytes)


def listed(objects: Mapping[str, BucketObject], prefix: str) -> Mapping[str, BucketObject]:
    """Return objects by their names below a prefix."""
    return {name.removeprefix(f"{prefix}/"): item for name, item in objects.items()}
