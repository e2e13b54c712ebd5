"""Compiled graphs of a GPU server: restored from the bucket before it starts, archived when it is ready.

An archive is one compressed tar of the folder that vLLM calls VLLM_CACHE_ROOT; its name is the SHA-256 of its bytes.
Whatever goes wrong here costs compile time and one line of the log, never the server.
"""

import hashlib
import json
import shutil
import tarfile
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from contracts.container_start import GraphCache
from vm_agent.base import GIB, ServingError, log
from vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, endpoint, google_get, google_upload

GRAPHS_SUFFIX = ".tar.gz"
GRAPHS_RANGE_BYTES = 32 * 1024 * 1024
MOST_GRAPHS_BYTES = GIB
"""Larger folders are not archived, nor larger archives restored: reading them would take as long as compiling."""
FASTEST_COMPRESSION = 1


@dataclass(frozen=True)
class StoredGraphs:
    """One archive in the bucket; `created` is its time in RFC 3339."""

    name: str
    size: int
    created: str


@dataclass(frozen=True)
class GraphArchive:
    """Restores and saves the compiled graphs of one server."""

    metadata: MetadataClient
    cache: GraphCache

    def restore(self) -> bool:
        """Bring the newest whole archive into the folder, and return whether there was one."""
        return self._guarded(self._restore)

    def save(self) -> bool:
        """Archive the folder, unless the bucket has an archive already, and return whether that was done."""
        return self._guarded(self._save)

    def _restore(self) -> bool:
        for stored in sorted(self._listed(), key=lambda one: one.created, reverse=True):
            problem = self._restored(stored)
            if not problem:
                log(f"Compiled graphs were restored from gs://{self._bucket}/{stored.name} ({stored.size} bytes).")
                return True
            log(f"The archive gs://{self._bucket}/{stored.name} is ignored: {problem}.")
        log(f"No archive of compiled graphs is in {self.cache.uri}: the server compiles them.")
        return False

    def _restored(self, stored: StoredGraphs) -> str:
        """Restore one archive. Return why it cannot be used, or an empty text."""
        folder = Path(self.cache.path)
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if stored.size > min(MOST_GRAPHS_BYTES, free):
            return f"it has {stored.size / GIB:.2f} GiB, and {min(MOST_GRAPHS_BYTES, free) / GIB:.2f} GiB are allowed"
        part = self._part
        try:
            if self._download(stored, part) != stored.name.rpartition("/")[2].removesuffix(GRAPHS_SUFFIX):
                return "its bytes do not have the SHA-256 of its name"
            with tarfile.open(part, "r:gz") as tar:
                tar.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError) as error:
            return f"it is no whole archive ({error})"
        finally:
            part.unlink(missing_ok=True)
        return ""

    def _download(self, stored: StoredGraphs, part: Path) -> str:
        digest = hashlib.sha256()
        url = f"{self._objects}/{urllib.parse.quote(stored.name, safe='')}?alt=media"
        with part.open("wb") as file:
            for start in range(0, stored.size, GRAPHS_RANGE_BYTES):
                last = min(start + GRAPHS_RANGE_BYTES, stored.size) - 1
                data = google_get(self.metadata, url, headers={"Range": f"bytes={start}-{last}"})
                digest.update(data)
                file.write(data)
        return digest.hexdigest()

    def _save(self) -> bool:
        folder = Path(self.cache.path)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        size = sum(path.stat().st_size for path in files)
        if not files or size > MOST_GRAPHS_BYTES:
            log(f"Compiled graphs are not archived: {len(files)} files of {size / GIB:.2f} GiB.")
            return False
        if self._listed():  # another instance was first
            return False
        part = self._part
        try:
            with tarfile.open(part, "w:gz", compresslevel=FASTEST_COMPRESSION) as tar:
                for path in files:
                    tar.add(path, arcname=str(path.relative_to(folder)), recursive=False)
            name = f"{self._prefix}{_sha256(part)}{GRAPHS_SUFFIX}"
            self._upload(part, name)
            log(f"Compiled graphs were archived as gs://{self._bucket}/{name} ({part.stat().st_size} bytes).")
        finally:
            part.unlink(missing_ok=True)
        return True

    def _upload(self, path: Path, name: str) -> None:
        """Create the object, and never replace one."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": name, "ifGenerationMatch": 0})
        try:
            google_upload(self.metadata, f"{endpoint('storage')}upload/storage/v1/b/{self._bucket}/o?{query}", path)
        except ServingError as error:
            if error.status != HTTPStatus.PRECONDITION_FAILED:
                raise

    def _listed(self) -> list[StoredGraphs]:
        query = urllib.parse.urlencode({"prefix": self._prefix, "fields": "items(name,size,timeCreated)"})
        items = json.loads(google_get(self.metadata, f"{self._objects}?{query}")).get("items", [])
        return [StoredGraphs(str(one["name"]), int(one["size"]), str(one["timeCreated"])) for one in items]

    @property
    def _bucket(self) -> str:
        return self.cache.uri.removeprefix("gs://").partition("/")[0]

    @property
    def _prefix(self) -> str:
        return self.cache.uri.removeprefix("gs://").partition("/")[2] + "/"

    @property
    def _objects(self) -> str:
        return f"{endpoint('storage')}storage/v1/b/{self._bucket}/o"

    @property
    def _part(self) -> Path:
        """A file beside the folder, so that no archive holds another one."""
        return Path(self.cache.path).with_name("archive.part")

    def _guarded(self, work: "Callable[[], bool]") -> bool:
        """Do the work. The server starts whatever happens: one line says what, and what to grant if Google refused it."""
        try:
            return work()
        except ServingError as error:
            grant = (
                f" Grant the service's account roles/storage.objectUser on the bucket's folder {self._prefix} "
                "(gemma-serving:cloudRun.compileCache: bucket does)."
                if error.denied
                else ""
            )
            log(f"Compiled graphs: {error}. The server is not affected.{grant}")
        except (*CONNECTION_ERRORS, KeyError, TypeError) as error:
            log(f"Compiled graphs: {error}. The server is not affected.")
        return False


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
