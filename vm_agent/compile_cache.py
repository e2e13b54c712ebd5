"""Keep compiled XLA programs: on the machine's disk, and as an archive in the bucket if the stack has one.

Each set of programs (contracts.compile_cache.programs_key) has a folder on the disk. An archive is one tar.
Whatever goes wrong here costs compile time and one line of the log, never the server.
"""

import json
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
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
from vm_agent.archives import SIGNED_SUFFIX, ArchiveFolder, archive_key, without_harm
from vm_agent.base import GIB, ServingError, log
from vm_agent.cloud import MetadataClient

# On the boot disk: programs outlive the container, a crash of the server and a reboot of the machine.
COMPILE_CACHE = "/mnt/compile_cache"
ARCHIVED_NAMES = ".archived.json"
"""File of a folder of programs: the names of those that are archived."""
SPARE_BYTES = GIB
"""What a restore leaves free on the disk."""
GRANT = (
    "the machine's service account roles/storage.objectUser on the bucket's folder of archives "
    "(gemma-serving:tpu.compileCache: bucket does)."
)
LOWEST_PRIORITY = 19
DAY_S = 86_400


def program_folder(document: ServingDocument, root: Path) -> "Path | None":
    """Return the machine's folder with the programs of this document's server; None if the server keeps none."""
    return root / programs_key(document) if COMPILE_CACHE_VARIABLE in document.environment else None


def program_volumes(document: ServingDocument) -> list[str]:
    """Return docker's arguments that put the machine's folder where the server keeps its programs."""
    folder = program_folder(document, Path(COMPILE_CACHE))
    return [] if folder is None else [f"--volume={folder}:{document.environment[COMPILE_CACHE_VARIABLE]}"]


@dataclass
class ProgramArchive:
    """Restores and saves the programs of one folder."""

    metadata: MetadataClient
    settings: ArchiveSettings
    folder: Path
    key: str = field(repr=False)
    """The secret that signs the archives."""
    secrets: Collection[str] = field(default=(), repr=False)
    """No archive holds one of these values."""
    tell: Callable[[str], None] = log
    tell_unsigned: Callable[[str], None] = log
    spare_bytes: int = SPARE_BYTES

    @property
    def archives(self) -> ArchiveFolder:
        """The archives of this accelerator and this set of programs."""
        uri = f"{self.settings.uri}/{self.settings.accelerator}/{self.folder.name}"
        return ArchiveFolder(
            self.metadata,
            uri,
            ".tar",
            self.folder,
            self.key,
            self.spare_bytes,
            tell=self.tell,
            tell_unsigned=self.tell_unsigned,
        )

    def restore(self) -> str:
        """Bring the newest whole archive into the folder, unless it has programs already. Return what was done, in one sentence.

        Raises:
            ServingError: an archive cannot be read.
            OSError: the disk is full.
        """
        if program_files(self.folder):
            return f"Compiled programs are on this machine already ({self.folder.name})."
        restored = self.archives.restore(unpacked_flat)
        if restored is None:
            return f"No signed archive of compiled programs is in {self.archives.uri}: the server compiles them."
        archive, names = restored
        self._remember(names)
        return f"Compiled programs were restored from {self.archives.described(archive)}."

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
        archive = self.archives.save(partial(packed_flat, files))
        self._remember(names)
        with suppress(ServingError):  # what is not deleted now is deleted after the next save
            self._prune(archive.name)
        return f"{len(names)} files of compiled programs were archived as {self.archives.described(archive)}."

    def _prune(self, saved: str) -> None:
        """Delete the archives of this set that the saved one replaces, and those of other sets that are old."""
        listed = self.archives.listed(self.settings.uri.removeprefix("gs://").partition("/")[2] + "/")
        own, signed = self.archives.prefix, {one.name for one in self.archives.signed(listed)}
        created = next((one.created for one in listed if one.name == saved), "")
        oldest = datetime.now(timezone.utc) - timedelta(days=ARCHIVE_KEEP_DAYS)
        for one in listed:
            # Another stack's signed archive of the same set is not replaced; an earlier agent's unsigned one is.
            is_replaced = one.name in signed or (one.name.startswith(own) and not one.name.endswith(SIGNED_SUFFIX))
            limit = created if is_replaced else f"{oldest:%Y-%m-%dT%H:%M:%S}"
            if one.is_archive and one.created < limit:
                self.archives.delete(one)

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
    secrets: set[str] = field(repr=False)
    """Values that no archive and no line holds; the key of the archives becomes one of them."""
    tell: Callable[[str], None] = log
    root: Path = Path(COMPILE_CACHE)
    settle_s: float = 10.0
    """A folder is archived when its files have not changed for this long: the server may still write."""
    limit_s: float = 120.0
    """The longest that a start waits for a restore when all else is there; 64 programs took 11 s elsewhere (sgl-project/sglang-jax#1263)."""
    again_s: float = 600.0
    """Interval at which a folder is looked at again while its server runs."""
    publish_unsigned: Callable[[str], None] = lambda _text: None
    """Is told that the bucket has archives that are not signed; an empty text when a restore begins."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _restoring: threading.Lock = field(default_factory=threading.Lock)

    def restore_beside(self, document: ServingDocument) -> threading.Thread:
        """Restore the document's programs in a thread that the caller hands to `wait_for` before it starts the server."""
        self.stop()
        thread = threading.Thread(target=self._without_harm, args=(self._restore, document), daemon=True)
        thread.start()
        return thread

    def wait_for(self, restore: threading.Thread, cancelled: Callable[[], bool]) -> None:
        """Wait until a restore has ended, at most `limit_s`: a bucket that does not answer must not hold up the server."""
        deadline = time.monotonic() + self.limit_s
        while restore.is_alive() and not cancelled() and time.monotonic() < deadline:
            restore.join(0.2)
        if restore.is_alive() and not cancelled():
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

    def _without_harm(self, work: "Callable[..., None]", given: object) -> None:
        def done() -> bool:
            work(given)
            return True

        without_harm(done, self.tell, "Compiled programs", GRANT)

    def _restore(self, document: ServingDocument) -> None:
        folder = program_folder(document, self.root)
        if folder is None:
            return
        remove_old_programs(self.root, folder.name, time.time())
        self.publish_unsigned("")
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
            with suppress(OSError):  # so that no other start takes the folder for an unused one
                os.utime(folder)
            self._without_harm(self._save, folder)
            if stop.wait(self.again_s):
                return

    def _save(self, folder: Path) -> None:
        archive = self._archive(folder)
        said = archive.save() if archive is not None else ""
        if said:
            self.tell(said)

    def _archive(self, folder: Path) -> "ProgramArchive | None":
        text, _ = self.metadata.attribute(ARCHIVE_METADATA_KEY)
        if text is None:
            return None
        settings = parse_archive(text)
        # Read each time: the key that takes its place after a rotation can have the same name.
        key = archive_key(self.metadata, settings.key)
        self.secrets.add(key)
        return ProgramArchive(self.metadata, settings, folder, key, self.secrets, self.tell, self._tell_unsigned)

    def _tell_unsigned(self, text: str) -> None:
        self.tell(text)
        self.publish_unsigned(text)


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
    try:
        return max((path.stat().st_mtime for path in program_files(folder)), default=0.0)
    except FileNotFoundError:  # the server still writes: it has renamed or deleted one
        return time.time()


def _holds(path: Path, values: Collection[str]) -> bool:
    wanted = [value.encode() for value in tuple(values) if value]
    content = path.read_bytes() if wanted else b""
    return any(value in content for value in wanted)


def packed_flat(files: "list[Path]", tar: Path) -> None:
    """Write the files into a tar that depends on their names and contents only, so that two machines write the same."""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        for path in files:
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                out.addfile(entry, file)


def unpacked_flat(tar: Path, folder: Path) -> None:
    """Write the tar's files into a new folder. Raises tarfile.TarError if it holds anything but files of one folder."""
    folder.mkdir()
    with tarfile.open(tar, "r:") as source:
        for entry in source:
            data = source.extractfile(entry) if entry.isreg() else None
            if data is None or "/" in entry.name or entry.name.startswith("."):
                raise tarfile.TarError(f"{entry.name!r} is no plain file of the archive's folder")
            with (folder / entry.name).open("wb") as file:
                shutil.copyfileobj(data, file)
