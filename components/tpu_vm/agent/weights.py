"""Weights from a bucket: parallel ranged reads, each file checked and then renamed into place."""

import base64
import hashlib
import json
import os
import shutil
import threading
import urllib.parse
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from components.tpu_vm.agent.base import GIB, ServingError, SupersededError, log
from components.tpu_vm.agent.cloud import Metadata, endpoint, google_get
from components.tpu_vm.agent.document import Weights

CHUNK_BYTES = 32 * 1024 * 1024
COPY_THREADS = 16
MARK = ".generation"


@dataclass(frozen=True)
class StoredObject:
    """One object of the weights' prefix; `relative` is its path below the prefix."""

    name: str
    relative: str
    size: int
    generation: str
    md5: str


@dataclass
class WeightsCopy:
    """Copies a bucket's prefix to a folder, once: what is there and complete is left alone."""

    metadata: Metadata
    weights: Weights
    progress: Callable[[str], None]
    cancelled: Callable[[], bool]
    chunk_bytes: int = CHUNK_BYTES
    _done_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Copy what is not there yet. Raises ServingError, or SupersededError when cancelled."""
        objects = self._list()
        folder = Path(self.weights.path)
        folder.mkdir(parents=True, exist_ok=True)
        self._drop_strangers(folder, objects)
        missing = [item for item in objects if not self._is_here(folder / item.relative, item)]
        total = sum(item.size for item in missing)
        free = shutil.disk_usage(folder).free
        if total > free:
            raise ServingError(
                f"The weights need {total / GIB:.1f} GiB at {folder}, where {free / GIB:.1f} GiB are free; "
                "use a path on a larger disk or under /dev/shm.",
                retry=False,
            )
        with ThreadPoolExecutor(COPY_THREADS) as pool:
            for item in missing:
                self._copy(pool, folder / item.relative, item, total)

    def _bucket(self) -> tuple[str, str]:
        bucket, _, prefix = self.weights.uri.removeprefix("gs://").partition("/")
        return f"{endpoint('storage')}storage/v1/b/{bucket}/o", f"{prefix}/" if prefix else ""

    def _list(self) -> list[StoredObject]:
        base, prefix = self._bucket()
        found: list[StoredObject] = []
        page = ""
        while True:
            query = {"prefix": prefix, "fields": "items(name,size,generation,md5Hash),nextPageToken"}
            if page:
                query["pageToken"] = page
            answer = json.loads(google_get(self.metadata, f"{base}?{urllib.parse.urlencode(query)}"))
            for raw in answer.get("items", []):
                relative = str(raw["name"])[len(prefix) :]
                if not relative or relative.endswith("/"):
                    continue  # placeholders of folders
                if ".." in relative.split("/") or relative.startswith("/"):
                    raise ServingError(
                        f"Object {raw['name']} would be written outside {self.weights.path}; rename it.", retry=False
                    )
                size, generation = int(raw["size"]), str(raw["generation"])
                found.append(StoredObject(raw["name"], relative, size, generation, raw.get("md5Hash", "")))
            page = answer.get("nextPageToken", "")
            if not page:
                break
        if not found:
            raise ServingError(f"There is no object under {self.weights.uri}/; stage the model first.", retry=False)
        return found

    def _drop_strangers(self, folder: Path, objects: list[StoredObject]) -> None:
        """Remove files that an earlier copy left and that the bucket no longer has: vLLM would load them too."""
        listed = {folder / item.relative for item in objects}
        for mark in folder.rglob(f".*{MARK}"):
            target = mark.with_name(mark.name[1 : -len(MARK)])
            if target not in listed:
                target.unlink(missing_ok=True)
                mark.unlink(missing_ok=True)

    def _is_here(self, target: Path, item: StoredObject) -> bool:
        """Complete is: the object's size, and the mark of its generation, written after its checksum was right."""
        with suppress(OSError):
            mark = target.with_name(f".{target.name}{MARK}")
            return target.stat().st_size == item.size and mark.read_text() == item.generation
        return False

    def _copy(self, pool: ThreadPoolExecutor, target: Path, item: StoredObject, total: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        with part.open("wb") as file:
            file.truncate(item.size)
            starts = range(0, item.size, self.chunk_bytes)
            jobs = [pool.submit(self._read, file.fileno(), item, start, total) for start in starts]
            for job in wait(jobs, return_when=FIRST_EXCEPTION).not_done:
                job.cancel()
            wait(jobs)  # no thread writes to the file after it is closed
            for job in jobs:
                if not job.cancelled():
                    job.result()
        if not item.md5:
            log(f"{item.name} was uploaded in parts and has no MD5: only its size was checked.")
        elif _md5(part) != item.md5:
            part.unlink()
            raise ServingError(f"{item.name} arrived with another MD5 than the bucket has.")
        part.replace(target)
        target.with_name(f".{target.name}{MARK}").write_text(item.generation)

    def _read(self, descriptor: int, item: StoredObject, start: int, total: int) -> None:
        if self.cancelled():
            raise SupersededError
        size = min(self.chunk_bytes, item.size - start)
        base, _ = self._bucket()
        url = f"{base}/{urllib.parse.quote(item.name, safe='')}?alt=media&generation={item.generation}"
        data = google_get(self.metadata, url, headers={"Range": f"bytes={start}-{start + size - 1}"})
        if len(data) != size:
            raise ServingError(f"{item.name}: {len(data)} bytes came for a range of {size}.")
        os.pwrite(descriptor, data, start)
        with self._lock:
            self._done_bytes += size
            self.progress(f"{self._done_bytes / GIB:.1f} of {total / GIB:.1f} GiB")


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return base64.b64encode(digest.digest()).decode()
