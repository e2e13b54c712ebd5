"""Copy weights from a bucket. Each file is checked, then renamed into place."""

import base64
import hashlib
import json
import os
import re
import shutil
import threading
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gemma_serving.contracts.compile_cache import ARCHIVE_PREFIX
from gemma_serving.contracts.serving_document import BucketWeights
from gemma_serving.vm_agent.base import GIB, ServingError, SupersededError, log
from gemma_serving.vm_agent.cloud import MetadataClient, bucket_objects, google

CHUNK_BYTES = 32 * 1024 * 1024
COPY_THREADS = 16
GENERATION_SUFFIX = ".generation"
"""Suffix of the hidden file next to each complete copy, which contains the object's generation."""

PART_SUFFIX = ".part"

SAFE_NAME = re.compile(
    r"(?!\.{1,2}(?:/|$))[^/\0\\\ud800-\udfff]{1,255}(?:/(?!\.{1,2}(?:/|$))[^/\0\\\ud800-\udfff]{1,255}){0,20}"
)
"""Names of files that stay in their folder."""


@dataclass(frozen=True)
class StoredObject:
    """An object. `relative` is its path below the prefix, `size` is in bytes."""

    name: str
    relative: str
    size: int
    generation: str
    md5: str
    sha256: str
    """From the object's metadata, written by `scripts.stage_model`; empty otherwise."""
    git_id: str = ""
    """Git's id of a small file on the hub, which is the SHA-1 of its size and content; empty otherwise."""

    @property
    def hashed(self) -> "tuple[str, bytes]":
        """Return the hash function of the digest, and what it reads before the content."""
        if self.git_id:
            return "sha1", b"blob %d\0" % self.size
        return "md5" if self.md5 else "sha256", b""


@dataclass
class WeightsCopy:
    """Copy of a bucket's prefix to a folder. Complete files are not copied again."""

    metadata: MetadataClient
    weights: BucketWeights
    progress: Callable[[str], None]
    cancelled: Callable[[], bool]
    chunk_bytes: int = CHUNK_BYTES
    _done_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Copy every missing file.

        Raises ServingError if an object cannot be read or the disk is too small, and SupersededError if the copy was cancelled.
        """
        missing = self.missing()
        total = sum(item.size for item in missing)
        free = shutil.disk_usage(self.weights.path).free
        if total > free:
            raise ServingError(
                f"The weights need {total / GIB:.1f} GiB at {self.weights.path}, but only {free / GIB:.1f} GiB are free. "
                "On a TPU VM, set tpu.bootDiskSizeGb; this replaces the capacity.",
                retry=False,
            )
        self.copy(missing)

    def missing(self) -> "Sequence[StoredObject]":
        """Return the objects that are not in the folder. Delete copies of others, and partial ones. Raises ServingError."""
        objects = self._list()
        folder = Path(self.weights.path)
        folder.mkdir(parents=True, exist_ok=True)
        # vLLM also loads files that the bucket no longer has, and partial copies use disk space.
        remove_copied(folder, {folder / item.relative for item in objects})
        return [item for item in objects if not self._is_complete(folder / item.relative, item)]

    def copy(self, missing: "Sequence[StoredObject]") -> None:
        """Copy these objects. Raises as `run` does."""
        total = sum(item.size for item in missing)
        with ThreadPoolExecutor(COPY_THREADS) as pool:
            for item in missing:
                self._copy(pool, Path(self.weights.path) / item.relative, item, total)

    def _list(self) -> list[StoredObject]:
        base, prefix = bucket_objects(self.weights.uri)
        found: list[StoredObject] = []
        page = ""
        while True:
            query = {"prefix": prefix, "fields": "items(name,size,generation,md5Hash,metadata),nextPageToken"}
            if page:
                query["pageToken"] = page
            answer = json.loads(google(self.metadata, f"{base}?{urllib.parse.urlencode(query)}"))
            for raw in answer.get("items", []):
                relative = str(raw["name"])[len(prefix) :]
                if not relative or relative.endswith("/"):
                    continue  # placeholders of folders
                if not prefix and relative.startswith(f"{ARCHIVE_PREFIX}/"):
                    continue  # compiled programs next to weights in the root of the bucket
                if not SAFE_NAME.fullmatch(relative):
                    raise ServingError(
                        f"Object {raw['name']!r} has a path outside {self.weights.path}, or that no file can have. Rename it.",
                        retry=False,
                    )
                found.append(self._object(raw, relative))
            page = answer.get("nextPageToken", "")
            if not page:
                break
        if not found:
            raise ServingError(f"No object under {self.weights.uri}/. Stage the model first.", retry=False)
        return found

    def _object(self, raw: "Mapping[str, Any]", relative: str) -> StoredObject:
        """Return an object of the bucket's list. Raises ServingError."""
        try:
            sha256 = raw.get("metadata", {}).get("sha256", "")
            size, generation = size_of(raw["size"]), str(raw["generation"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ServingError(f"The list of {self.weights.uri} cannot be read: {error!r}.") from None
        return StoredObject(raw["name"], relative, size, generation, raw.get("md5Hash", ""), sha256)

    def _is_complete(self, target: Path, item: StoredObject) -> bool:
        """Return whether the file has the object's size and generation, written after the check."""
        with suppress(OSError):
            generation = target.with_name(f".{target.name}{GENERATION_SUFFIX}")
            return target.stat().st_size == item.size and generation.read_text() == item.generation
        return False

    def _copy(self, pool: ThreadPoolExecutor, target: Path, item: StoredObject, total: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}{PART_SUFFIX}")
        try:
            with part.open("w+b") as file:
                file.truncate(item.size)
                digest = self._filled(pool, file.fileno(), item, total)
            self._verify(item, digest)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)  # an image may be pulled to the same disk
        generation = target.with_name(f".{target.name}{GENERATION_SUFFIX}")
        generation.unlink(missing_ok=True)  # a link in its place is not followed
        generation.write_text(item.generation)

    def _filled(self, pool: ThreadPoolExecutor, descriptor: int, item: StoredObject, total: int) -> bytes:
        """Read all ranges into the file and return its digest."""
        starts = range(0, item.size, self.chunk_bytes)
        jobs = [pool.submit(self._read, descriptor, item, start, total) for start in starts]
        function, first = item.hashed
        digest = hashlib.new(function, first, usedforsecurity=False)
        try:
            for job, start in zip(jobs, starts, strict=True):
                job.result()
                digest.update(os.pread(descriptor, self.chunk_bytes, start))
        finally:
            for job in jobs:
                job.cancel()
            wait(jobs)  # no thread writes to the file after it is closed
        return digest.digest()

    @staticmethod
    def _verify(item: StoredObject, digest: bytes) -> None:
        """Compare the copy with the object's MD5, or the SHA-256 of an object that was staged in parts."""
        if item.md5:
            name, stated, found = "MD5", item.md5, base64.b64encode(digest).decode()
        elif item.sha256 or item.git_id:
            name = "SHA-256" if item.sha256 else "Git id"
            stated, found = item.sha256 or item.git_id, digest.hex()
        else:
            log(f"{item.name} has neither MD5 nor SHA-256. Only its size was checked.")
            return
        if found != stated:
            raise ServingError(f"The copy of {item.name} does not match the {name} of its source.")

    def _read(self, descriptor: int, item: StoredObject, start: int, total: int) -> None:
        if self.cancelled():
            raise SupersededError
        size = min(self.chunk_bytes, item.size - start)
        data = self._range(item, start, size)
        if len(data) != size:
            raise ServingError(f"{item.name}: received {len(data)} bytes for a range of {size} bytes.")
        os.pwrite(descriptor, data, start)
        with self._lock:
            self._done_bytes += size
            self.progress(f"{self._done_bytes / GIB:.1f} of {total / GIB:.1f} GiB")

    def _range(self, item: StoredObject, start: int, size: int) -> bytes:
        """Return bytes of an object. Raises ServingError."""
        base, _ = bucket_objects(self.weights.uri)
        url = f"{base}/{urllib.parse.quote(item.name, safe='')}?alt=media&generation={item.generation}"
        return google(self.metadata, url, headers={"Range": f"bytes={start}-{start + size - 1}"})


def size_of(stated: object) -> int:
    """Return the size that a list states. Raises ValueError, TypeError and OverflowError."""
    size = int(cast("str", stated))
    if size < 0:
        raise ValueError(f"{size} is not a size")
    return size


def remove_copied(folder: Path, kept: Collection[Path]) -> None:
    """Delete copies in a folder, except these complete files with their generations."""
    for generation in tuple(folder.rglob(f".*{GENERATION_SUFFIX}")):
        target = generation.with_name(generation.name[1 : -len(GENERATION_SUFFIX)])
        if target not in kept:
            target.unlink(missing_ok=True)
            generation.unlink(missing_ok=True)
    for part in tuple(folder.rglob(f".*{PART_SUFFIX}")):
        part.unlink(missing_ok=True)


def remove_copy(path: str, kept: Collection[str]) -> bool:
    """Delete a copy, unless its folder contains or is within one to keep. Return False if it stays."""
    folder = Path(path)
    others = [Path(one) for one in kept]
    if any(folder in one.parents or one in folder.parents for one in others):
        return False
    try:
        remove_copied(folder, ())
    except OSError as error:
        log(f"Cannot delete {folder}: {error}")
        return False
    return True
