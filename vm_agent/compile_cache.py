"""Keep compiled XLA programs: on the machine's disk, and as an archive in the bucket if the stack has one.

Each set of programs (contracts.compile_cache.programs_key) has a folder on the disk. An archive is one tar; its name is the SHA-256 of its
bytes. Whatever goes wrong here costs compile time and one line of the log, never the server.
"""

import hashlib
import json
import os
import shutil
import tarfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path

from contracts.compile_cache import (
    ARCHIVE_KEEP_DAYS,
    ARCHIVE_METADATA_KEY,
    COMPILE_CACHE_VARIABLE,
    ArchiveSettings,
    parse_archive,
    programs_key,
)
from contracts.serving_document import ServingDocument
from vm_agent.base import GIB, ServingError, log
from vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, endpoint, google_delete, google_get, google_upload
from vm_agent.weights import md5_of

# On the boot disk: programs outlive the container, a crash of the server and a reboot of the machine.
COMPILE_CACHE = "/mnt/compile_cache"
ARCHIVE_SUFFIX = ".tar"
ARCHIVED_NAMES = ".archived.json"
"""File of a folder of programs: the names of those that are archived."""
RANGE_BYTES = 32 * 1024 * 1024
SPARE_BYTES = GIB
"""What a restore leaves free on the disk."""
LOWEST_PRIORITY = 19
DAY_S = 86_400


def program_folder(document: ServingDocument, root: Path) -> "Path | None":
    """Return the machine's folder with the programs of this document's server; None if the server keeps none."""
    return root / programs_key(document) if COMPILE_CACHE_VARIABLE in document.environment else None


def program_volumes(document: ServingDocument) -> list[str]:
    """Return docker's arguments that put the machine's folder where the server keeps its programs."""
    folder = program_folder(document, Path(COMPILE_CACHE))
    return [] if folder is None else [f"--volume={folder}:{document.environment[COMPILE_CACHE_VARIABLE]}"]


@dataclass(frozen=True)
class ArchivedPrograms:
    """One archive in the bucket; `created` is its time in RFC 3339, UTC."""

    name: str
    size: int
    created: str

    @property
    def digest(self) -> str:
        """The SHA-256 that the archive's bytes must have."""
        return self.name.rpartition("/")[2].removesuffix(ARCHIVE_SUFFIX)

    def age_days(self, now: datetime) -> float:
        """Return the archive's age."""
        created = datetime.strptime(self.created[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
        return (now - created).total_seconds() / DAY_S


@dataclass
class ProgramArchive:
    """Restores and saves the programs of one folder."""

    metadata: MetadataClient
    settings: ArchiveSettings
    folder: Path
    secrets: Collection[str] = ()
    """No archive holds one of these values."""
    tell: Callable[[str], None] = log
    spare_bytes: int = SPARE_BYTES

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.settings.uri.removeprefix("gs://").partition("/")[0]

    @property
    def root(self) -> str:
        """Prefix of all archives."""
        return self.settings.uri.removeprefix("gs://").partition("/")[2] + "/"

    @property
    def prefix(self) -> str:
        """Prefix of the archives of this accelerator and this set of programs."""
        return f"{self.root}{self.settings.accelerator}/{self.folder.name}/"

    def restore(self) -> str:
        """Bring the newest whole archive into the folder, unless it has programs already. Return what was done, in one sentence.

        Raises:
            ServingError: an archive cannot be read.
            OSError: the disk is full.
        """
        if program_files(self.folder):
            return f"Compiled programs are on this machine already ({self.folder.name})."
        found = sorted(self._listed(self.prefix), key=lambda one: (one.created, one.name), reverse=True)
        for archive in found:
            problem = self._restored(archive)
            if not problem:
                return f"Compiled programs were restored from gs://{self.bucket}/{archive.name} ({archive.size} bytes)."
            self.tell(f"The archive gs://{self.bucket}/{archive.name} is ignored: {problem}.")
        return f"No archive of compiled programs is in gs://{self.bucket}/{self.prefix}: the server compiles them."

    def _restored(self, archive: ArchivedPrograms) -> str:
        """Restore one archive. Return why it cannot be used, or an empty text."""
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if 2 * archive.size + self.spare_bytes > free:
            return f"it needs {2 * archive.size / GIB:.1f} GiB beside {self.spare_bytes / GIB:.1f} GiB to spare, and {free / GIB:.1f} GiB are free"
        part = self.folder / ".restore.part"
        try:
            if self._download(archive, part) != archive.digest:
                self._delete(archive)
                return "its bytes do not have the SHA-256 of its name"
            self._remember(_extracted(part, self.folder))
        except tarfile.TarError as error:
            return f"it is no whole tar ({error})"
        finally:
            part.unlink(missing_ok=True)
        return ""

    def _download(self, archive: ArchivedPrograms, part: Path) -> str:
        digest = hashlib.sha256()
        with part.open("wb") as file:
            for start in range(0, archive.size, RANGE_BYTES):
                last = min(start + RANGE_BYTES, archive.size) - 1
                url = f"{self._objects}/{urllib.parse.quote(archive.name, safe='')}?alt=media"
                data = google_get(self.metadata, url, headers={"Range": f"bytes={start}-{last}"})
                digest.update(data)
                file.write(data)
        return digest.hexdigest()

    def save(self) -> str:
        """Archive the folder's programs if some are not archived. Return what was done, or an empty text.

        Raises:
            ServingError: the bucket refused the archive.
            OSError: the disk is full.
        """
        files = program_files(self.folder)
        names = [path.name for path in files]
        if not set(names) - self._archived():
            return ""
        if any(_holds(path, self.secrets) for path in files):
            return "Compiled programs are not archived: a file among them holds a secret."
        tar = self.folder / ".save.part"
        try:
            archive = f"{self.prefix}{_packed(files, tar)}{ARCHIVE_SUFFIX}"
            self._upload(tar, archive)
            size = tar.stat().st_size
        finally:
            tar.unlink(missing_ok=True)
        self._remember(names)
        with suppress(ServingError):  # what is not deleted now is deleted after the next save
            self._prune(archive)
        return f"{len(names)} files of compiled programs were archived as gs://{self.bucket}/{archive} ({size} bytes)."

    def _upload(self, tar: Path, name: str) -> None:
        """Create the object. If another machine has created the same one, that is as good."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": name, "ifGenerationMatch": 0})
        url = f"{endpoint('storage')}upload/storage/v1/b/{self.bucket}/o?{query}"
        try:
            answer = json.loads(google_upload(self.metadata, url, tar))
        except ServingError as error:
            if error.status == HTTPStatus.PRECONDITION_FAILED:
                return
            raise
        if answer.get("md5Hash") != md5_of(tar):
            self._delete(ArchivedPrograms(name, 0, ""))
            raise ServingError(f"gs://{self.bucket}/{name} arrived with other bytes and was deleted")

    def _prune(self, saved: str) -> None:
        """Delete the archives of this set that the saved one replaces, and those of other sets that are old."""
        listed = self._listed(self.root)
        created = next((one.created for one in listed if one.name == saved), "")
        now = datetime.now(timezone.utc)
        for one in listed:
            replaced = one.name.startswith(self.prefix) and one.created < created
            old = not one.name.startswith(self.prefix) and one.age_days(now) > ARCHIVE_KEEP_DAYS
            if replaced or old:
                self._delete(one)

    def _delete(self, archive: ArchivedPrograms) -> None:
        with suppress(ServingError):  # gone already, or no right to delete: the next machine meets it again
            google_delete(self.metadata, f"{self._objects}/{urllib.parse.quote(archive.name, safe='')}")

    @property
    def _objects(self) -> str:
        return f"{endpoint('storage')}storage/v1/b/{self.bucket}/o"

    def _listed(self, prefix: str) -> list[ArchivedPrograms]:
        found: list[ArchivedPrograms] = []
        page = ""
        while True:
            query = {"prefix": prefix, "fields": "items(name,size,timeCreated),nextPageToken"}
            query |= {"pageToken": page} if page else {}
            answer = json.loads(google_get(self.metadata, f"{self._objects}?{urllib.parse.urlencode(query)}"))
            items = [item for item in answer.get("items", []) if str(item["name"]).endswith(ARCHIVE_SUFFIX)]
            found += [ArchivedPrograms(str(one["name"]), int(one["size"]), str(one["timeCreated"])) for one in items]
            page = answer.get("nextPageToken", "")
            if not page:
                return found

    def _archived(self) -> set[str]:
        with suppress(OSError, ValueError):
            return set(json.loads((self.folder / ARCHIVED_NAMES).read_text()))
        return set()

    def _remember(self, names: Collection[str]) -> None:
        (self.folder / ARCHIVED_NAMES).write_text(json.dumps(sorted(names)))


@dataclass
class CompiledPrograms:
    """Looks after the programs of the documents that a machine serves: restores before the start, saves while the server runs."""

    metadata: MetadataClient
    secrets: Collection[str]
    tell: Callable[[str], None] = log
    root: Path = Path(COMPILE_CACHE)
    settle_s: float = 10.0
    """A folder is archived when its files have not changed for this long: the server may still write."""
    limit_s: float = 120.0
    """The longest that a start waits for a restore when all else is there; 64 programs took 11 s elsewhere (sgl-project/sglang-jax#1263)."""
    again_s: float = 600.0
    """Interval at which a folder is looked at again while its server runs."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _restoring: threading.Lock = field(default_factory=threading.Lock)

    def restore_beside(self, document: ServingDocument) -> threading.Thread:
        """Restore the document's programs in a thread that the caller hands to `wait_for` before it starts the server."""
        self.stop()
        thread = threading.Thread(target=self._guarded, args=(self._restore, document), daemon=True)
        thread.start()
        return thread

    def wait_for(self, restore: threading.Thread) -> None:
        """Wait until a restore has ended, at most `limit_s`: a bucket that does not answer must not hold up the server."""
        restore.join(self.limit_s)
        if restore.is_alive():
            self.tell(
                f"Compiled programs: no archive has come within {self.limit_s:g} s. The server starts without it."
            )

    def server_is_ready(self, document: ServingDocument) -> threading.Thread:
        """Archive the document's programs in the background, now and whenever there are new ones, until `stop` or the next document."""
        self.stop()
        self._stop = threading.Event()
        thread = threading.Thread(target=self._keep, args=(document, self._stop), daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """End the archiving after the save that is under way."""
        self._stop.set()

    def _restore(self, document: ServingDocument) -> None:
        folder = program_folder(document, self.root)
        if folder is None:
            return
        remove_old_programs(self.root, folder.name, time.time())
        archive = self._archive(folder)
        if archive is not None:
            with self._restoring:  # an attempt that failed may have left a restore behind
                self.tell(archive.restore())

    def _keep(self, document: ServingDocument, stop: threading.Event) -> None:
        folder = program_folder(document, self.root)
        if folder is None:
            return
        with suppress(OSError, AttributeError):  # of this thread alone, on Linux: the server has the cores first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        while not stop.wait(self.settle_s):
            if program_files(folder) and time.time() - _last_change(folder) < self.settle_s:
                continue
            self._guarded(self._save, folder)
            if stop.wait(self.again_s):
                return

    def _save(self, folder: Path) -> None:
        archive = self._archive(folder)
        said = archive.save() if archive is not None else ""
        if said:
            self.tell(said)

    def _archive(self, folder: Path) -> "ProgramArchive | None":
        text, _ = self.metadata.attribute(ARCHIVE_METADATA_KEY)
        return (
            None
            if text is None
            else ProgramArchive(self.metadata, parse_archive(text), folder, self.secrets, self.tell)
        )

    def _guarded(self, work: "Callable[..., None]", given: object) -> None:
        """Do the work. Serving goes on whatever happens: one line says what, and what to grant if Google refused it."""
        try:
            work(given)
        except ServingError as error:
            grant = (
                " Grant the machine's service account roles/storage.objectUser on the bucket's folder of archives "
                "(gemma-serving:tpu.compileCache: bucket does)."
                if error.denied
                else ""
            )
            self.tell(f"Compiled programs: {error}. The server is not affected.{grant}")
        except (*CONNECTION_ERRORS, KeyError, TypeError) as error:
            self.tell(f"Compiled programs: {error}. The server is not affected.")


def program_files(folder: Path) -> list[Path]:
    """Return the programs of a folder, without the agent's own files."""
    try:
        return sorted(
            path for path in folder.iterdir() if path.is_file() and not path.is_symlink() and path.name[0] != "."
        )
    except OSError:
        return []


def remove_old_programs(root: Path, used: str, now_s: float) -> None:
    """Mark the folder of programs that is used now, and delete folders that no server has used for ARCHIVE_KEEP_DAYS."""
    for folder in root.iterdir() if root.is_dir() else ():
        with suppress(OSError):
            if folder.name == used:
                os.utime(folder, (now_s, now_s))
            elif now_s - folder.stat().st_mtime > ARCHIVE_KEEP_DAYS * DAY_S:
                shutil.rmtree(folder)


def _last_change(folder: Path) -> float:
    return max((path.stat().st_mtime for path in program_files(folder)), default=0.0)


def _holds(path: Path, values: Collection[str]) -> bool:
    wanted = [value.encode() for value in tuple(values) if value]
    content = path.read_bytes() if wanted else b""
    return any(value in content for value in wanted)


def _packed(files: "list[Path]", tar: Path) -> str:
    """Write the files into a tar that depends on their names and contents only. Return its SHA-256."""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        for path in files:
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                out.addfile(entry, file)
    return _sha256_of(tar)


def _extracted(tar: Path, folder: Path) -> list[str]:
    """Write the tar's files into the folder and return their names. Raises tarfile.TarError if it holds anything but files of one folder."""
    names: list[str] = []
    with tarfile.open(tar) as source:
        for entry in source:
            data = source.extractfile(entry) if entry.isreg() else None
            if data is None or "/" in entry.name or entry.name.startswith("."):
                raise tarfile.TarError(f"{entry.name!r} is no plain file of the archive's folder")
            part = folder / f".{entry.name}.part"
            try:
                with part.open("wb") as file:
                    shutil.copyfileobj(data, file)
                part.replace(folder / entry.name)
            finally:
                part.unlink(missing_ok=True)
            names.append(entry.name)
    return names


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
