"""Copy a checkpoint into a folder of a bucket, named by its content, so staging never changes a folder in use.

The hub and local folders are read in parts. A file of several is written as temporary objects
`PARTS/PREFIX/NAME/START-END`, which Cloud Storage joins. They are the only state. A later run reads
the source again, uploads missing or different parts, and hashes every byte (dev/docs/decisions/smaller.md#decision-27).
Another bucket is copied within Google. A manifest is deleted before the first change of its folder and written after the last.
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Final, TypeAlias

from gemma_serving.cloud.staging.bucket import (
    MOST_SOURCES,
    BucketObject,
    WeightsBucket,
    changed,
    crc32c,
    crc32c_text,
    extend_crc32c,
)
from gemma_serving.cloud.staging.sources import BucketSource, FolderSource, HubSource, SourceFile
from gemma_serving.cloud.staging.template_age import recorded_age, template_record
from gemma_serving.contracts.chat_template import TEMPLATE, TemplateAge
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.parallel import each, in_order
from gemma_serving.contracts.proof import Proof
from gemma_serving.contracts.staged_weights import MANIFEST, PARTS, REAL_SIZE, manifest_hash, own_folder, strangers

PART_BYTES: Final = 32 * 1024 * 1024
WORKERS: Final = 8

OnBytes: TypeAlias = Callable[[str, int, int], None]
"""Called with a description, the bytes done, and the total bytes. Calls are serialized, from several threads."""
OnFile: TypeAlias = Callable[[SourceFile, bool], None]
"""Called after each file with whether it was copied; False if it was already complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """Source, target and part size of a copy."""

    source: FolderSource | HubSource | BucketSource
    target: WeightsBucket
    prefix: str
    files: Sequence[SourceFile] = ()
    """The source's files with their hashes. If empty, the copy lists and hashes them."""
    part_bytes: int = PART_BYTES
    workers: int = WORKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingOutcome:
    """Result of one run."""

    folder: str
    revision: str
    is_simulated: bool
    copied: int
    kept: int
    manifest: str
    """`manifest_hash` of the current content of the bucket."""
    template: TemplateAge
    """Age of its chat template."""


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


def in_own_folder(plan: CopyPlan, on_bytes: OnBytes) -> CopyPlan:
    """Return the copy with hashed files, to a folder next to `prefix` that their hash names."""
    files = _hashed(plan, on_bytes)
    return replace(plan, files=files, prefix=prepared_folder(plan.target, plan.prefix, files))


def stage(plan: CopyPlan, on_file: OnFile, on_bytes: OnBytes) -> StagingOutcome:
    """Copy missing or different files, then write the manifest. Other files of the folder are not touched.

    Raises ScriptError if the source or the bucket fails, or if a file differs from the source's hash.
    """
    files = plan.files or _hashed(plan, on_bytes)
    target = plan.target
    copy = _Copy(plan)
    done = {kept.name: kept for kept in map(copy.kept, files) if kept is not None}
    for kept in done.values():
        on_file(kept, False)
    missing = [file for file in files if file.name not in done]
    if missing:
        withdraw_manifest(target, plan.prefix)
    for copied in copy.copied(missing, _CopyProgress("copying", missing, on_bytes)):
        done[copied.name] = copied
        on_file(copied, True)
    template = template_record(plan.source)
    digest = write_manifest(plan, [done[file.name] for file in files], template)
    left = target.objects(f"{PARTS}/{plan.prefix}/").values()
    if left:
        proof = target.proof(f"{plan.prefix} is complete, so its parts are not needed", f"manifest {digest}")
        each([partial(target.delete, item, proof) for item in left], workers=plan.workers)
    return StagingOutcome(
        folder=plan.prefix,
        revision=plan.source.revision,
        is_simulated=any(file.real_bytes for file in files),
        copied=len(missing),
        kept=len(files) - len(missing),
        manifest=digest,
        template=recorded_age({TEMPLATE: template}),
    )


class _CopyProgress:
    """Bytes that are done so far. Several threads add to them."""

    def __init__(self, work: str, files: Sequence[SourceFile], on_bytes: OnBytes) -> None:
        self._work = work
        self._on_bytes = on_bytes
        self._lock = Lock()
        self._done_bytes = 0
        self._total_bytes = sum(file.size_bytes for file in files)

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            self._on_bytes(self._work, self._done_bytes, self._total_bytes)


class _Reading:
    """Hashes of a file whose bytes arrive in order, and the objects with its parts."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.crc = 0
        self.parts = list[BucketObject]()
        self._sha256 = hashlib.sha256()

    def add(self, data: bytes) -> None:
        self.crc = extend_crc32c(self.crc, data)
        self._sha256.update(data)

    def verified(self, source: FolderSource | HubSource) -> str:
        """Return the SHA-256. Raises ScriptError if the source stated another one, or its first reading had it."""
        found, stated = self._sha256.hexdigest(), self.file.sha256
        if stated not in {None, found}:
            raise ScriptError(
                f"{self.file.name} of {source.place} has SHA-256 {found}, but {stated} was stated or read before. "
                "Run this again."
            )
        return found


def _hashed(plan: CopyPlan, on_bytes: OnBytes) -> Sequence[SourceFile]:
    """Return the files with hashes. Reads those whose hash is not stated, unless they stay within Google."""
    source, files = plan.source, plan.source.files()
    if isinstance(source, BucketSource):
        return files
    unknown = [file for file in files if file.sha256 is None]
    progress = _CopyProgress("hashing", unknown, on_bytes)

    def read(file: SourceFile) -> SourceFile:
        reading = _Reading(file)
        for part in parts_of(file, plan.part_bytes):
            reading.add(source.read(file, part.start, part.end))
            progress.add(part.end - part.start)
        return replace(file, sha256=reading.verified(source))

    known = {file.name: file for file in each([partial(read, file) for file in unknown], workers=plan.workers)}
    return [known.get(file.name, file) for file in files]


class _Copy:
    """One run of `stage`: the objects that were in the bucket before it, and the parts of earlier runs."""

    def __init__(self, plan: CopyPlan) -> None:
        self._plan = plan
        self._present = plan.target.objects(f"{plan.prefix}/")
        self._parts = plan.target.objects(f"{PARTS}/{plan.prefix}/")

    def kept(self, file: SourceFile) -> SourceFile | None:
        """Return a file whose complete copy is in the bucket; None for another one."""
        found = self._present.get(self._name(file))
        if found is None or found.size_bytes != file.size_bytes:
            return None
        same = file.sha256 in {None, found.sha256} and file.crc32c in {None, found.crc32c}
        return replace(file, crc32c=found.crc32c) if same else None

    def copied(self, files: Sequence[SourceFile], progress: _CopyProgress) -> Iterator[SourceFile]:
        """Copy files and yield each when it is complete."""
        source, workers = self._plan.source, self._plan.workers
        if isinstance(source, BucketSource):
            copies = [partial(self._rewritten, source, file, progress) for file in files]
            yield from in_order(copies, workers=workers, ahead=len(copies))
            return
        parts = [part for file in files for part in parts_of(file, self._plan.part_bytes)]
        tasks = [partial(self._carried, source, part, progress) for part in parts]
        reading = None
        # Half as many parts again are in memory as in transit, so a slow part does not block the others.
        for data, part, stored in in_order(tasks, workers=workers, ahead=workers * 3 // 2 + 1):
            if reading is None or part.start == 0:
                reading = _Reading(part.file)
            reading.add(data)
            reading.parts.append(stored)
            if part.end == part.file.size_bytes:
                whole = stored if part.is_whole else self._joined(source, reading)
                yield replace(part.file, crc32c=whole.crc32c)

    def _carried(
        self, source: FolderSource | HubSource, part: FilePart, progress: _CopyProgress
    ) -> tuple[bytes, FilePart, BucketObject]:
        """Read a part, and write it unless the bucket already has these bytes."""
        data = source.read(part.file, part.start, part.end)
        if part.is_whole:
            reading = _Reading(part.file)
            reading.add(data)
            sha256 = reading.verified(source)
            name = self._name(part.file)
            known = self._present
        else:
            sha256 = None
            name = self._part_name(part.file, part.start, part.end)
            known = self._parts
        stored = known.get(name)
        if part.is_whole or stored is None or (stored.size_bytes, stored.crc32c) != (len(data), crc32c(data)):
            stored = self._plan.target.upload(name, data, replaced=stored, sha256=sha256)
        progress.add(len(data))
        return data, part, stored

    def _joined(self, source: FolderSource | HubSource, reading: _Reading) -> BucketObject:
        """Join the parts of a file that matches the source, then delete them."""
        sha256 = reading.verified(source)
        name = self._name(reading.file)
        target = self._plan.target
        level = reading.parts
        temporary = {item.name: item for item in reading.parts}
        while len(level) > MOST_SOURCES:
            firsts = range(0, len(level), MOST_SOURCES)
            level = [self._group(reading.file, level[first : first + MOST_SOURCES]) for first in firsts]
            temporary |= {item.name: item for item in level}
        crc = crc32c_text(reading.crc)
        whole = target.compose(name, level, replaced=self._present.get(name), crc32c=crc, sha256=sha256)
        if (whole.size_bytes, whole.crc32c) != (reading.file.size_bytes, crc):
            target.delete(whole, _differs(target, whole))
            raise ScriptError(f"{name} did not match the source after it was joined, and was deleted. Run this again.")
        proof = target.proof(f"{name} is joined, so its parts are not needed", f"CRC32C {crc} of {name}")
        each([partial(target.delete, item, proof) for item in temporary.values()], workers=self._plan.workers)
        return whole

    def _group(self, file: SourceFile, members: Sequence[BucketObject]) -> BucketObject:
        """Join up to MOST_SOURCES parts to one temporary object, unless only one exists."""
        if len(members) == 1:
            return members[0]
        start, end = members[0].name.rpartition("/")[2].partition("-")[0], members[-1].name.rpartition("-")[2]
        name = self._part_name(file, start, end)
        return self._plan.target.compose(name, members, replaced=self._parts.get(name))

    def _rewritten(self, source: BucketSource, file: SourceFile, progress: _CopyProgress) -> SourceFile:
        """Copy a file of another bucket within Google. Raises ScriptError."""
        name = self._name(file)
        origin, replaced = source.objects[file.name], self._present.get(name)
        copy = self._plan.target.rewrite(name, source.bucket.name, origin, replaced=replaced, sha256=file.sha256)
        if (copy.size_bytes, copy.crc32c) != (file.size_bytes, file.crc32c):
            self._plan.target.delete(copy, _differs(self._plan.target, copy))
            raise ScriptError(f"The copy of {file.name} differs from {source.place}, and was deleted. Run this again.")
        progress.add(file.size_bytes)
        return file

    def _name(self, file: SourceFile) -> str:
        return f"{self._plan.prefix}/{file.name}"

    def _part_name(self, file: SourceFile, start: object, end: object) -> str:
        return f"{PARTS}/{self._plan.prefix}/{file.name}/{start}-{end}"


def prepared_folder(target: WeightsBucket, name: str, files: Sequence[SourceFile]) -> str:
    """Return the folder for these files.

    Raises CommandRefusedError if it has another file, which a server loads too, or other bytes with the same stated
    hash. A copy within Google reads no bytes, so the wrong hash is unknown.
    """
    folder = own_folder(name, manifest_hash(_manifest("", files)))
    present = target.objects(f"{folder}/")
    uri = f"gs://{target.name}/{folder}"
    extra = strangers(present, folder, [file.name for file in files])
    if extra:
        raise CommandRefusedError(
            f"{uri} has {extra[0]}, which this checkpoint does not have but a server loads. "
            f"Nothing was changed. Delete it with `gcloud storage rm {shlex.quote(f'{uri}/{extra[0]}')}`, then run this again."
        )
    for file in files:
        found = present.get(f"{folder}/{file.name}")
        if found and file.crc32c and (found.size_bytes, found.crc32c) != (file.size_bytes, file.crc32c):
            raise CommandRefusedError(
                f"{uri}/{file.name} differs from the source, although both state the same SHA-256. Nothing was "
                "changed. Stage from the hub or a folder, which are read and hashed."
            )
    return folder


def withdraw_manifest(target: WeightsBucket, prefix: str) -> None:
    """Delete the manifest of a folder whose files are about to change, because it then describes a mixture."""
    name = f"{prefix}/{MANIFEST}"
    while (before := target.objects(name).get(name)) is not None:
        proof = target.proof(f"{name} lists files that are about to change", f"generation {before.generation}")
        target.delete(before, proof)


def _differs(target: WeightsBucket, copy: BucketObject) -> Proof:
    """Return the proof that an object that this run wrote differs from its source."""
    return target.proof(f"{copy.name} differs from its source", f"its size and CRC32C {copy.crc32c}")


def write_manifest(plan: CopyPlan, files: Sequence[SourceFile], template: Mapping[str, str]) -> str:
    """Write the manifest unless it exists, and return its hash. `template`: what it records of the chat template.

    Raises ScriptError if the folder does not contain these files because another writer changed them since they were compared or copied.
    """
    target, prefix = plan.target, plan.prefix
    present = target.objects(f"{prefix}/")
    for file in files:
        found = present.get(f"{prefix}/{file.name}")
        if found is None or (found.size_bytes, found.crc32c) != (file.size_bytes, file.crc32c):
            raise changed(f"gs://{target.name}/{prefix}/{file.name}")
    document = {**_manifest(plan.source.revision, files), TEMPLATE: template}
    name, data = f"{prefix}/{MANIFEST}", json.dumps(document, indent=1).encode()
    before = present.get(name)
    if before is None or before.crc32c != crc32c(data):
        target.upload(name, data, replaced=before)
    return manifest_hash(document)


def _manifest(revision: str, files: Sequence[SourceFile]) -> dict[str, object]:
    """Return the content of the manifest."""
    entries = [
        {
            "name": file.name,
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "crc32c": file.crc32c,
            **({REAL_SIZE: file.real_bytes} if file.real_bytes else {}),
        }
        for file in files
    ]
    document: dict[str, object] = {"schema": 1, "revision": revision, "files": entries}
    if any(file.real_bytes for file in files):
        document["simulated"] = f"the local cloud's hub sent shrunk files; {REAL_SIZE} is the size of the real ones"
    return document
