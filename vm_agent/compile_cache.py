"""Cache of compiled XLA programs: on the machine's disk, and as an archive in the bucket if the stack has one.

Each set of programs (contracts.compile_cache.programs_key) has a folder on the disk. An archive is one tar.
A failure here costs compile time and logs one line. It never affects the server.
"""

import json
import mmap
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
from vm_agent.archives import ArchiveFolder, archive_key, without_harm
from vm_agent.base import GIB, ServingError, log
from vm_agent.cloud import MetadataClient
from vm_agent.mounted import open_mounted, opened_folder, remove_tree

# On the boot disk, so programs survive the container, a crash of the server and a reboot of the machine.
COMPILE_CACHE = "/mnt/compile_cache"
ARCHIVED_SUFFIX = ".archived.json"
"""Suffix of the file beside a folder of programs with the names of the archived ones. The container cannot write there."""
SPARE_BYTES = GIB
"""Free disk space that a restore preserves."""
GRANT = (
    "the machine's service account roles/storage.objectUser on the bucket's archive folder "
    "(gemma-serving:tpu.compileCache: bucket grants it)."
)
LOWEST_PRIORITY = 19
DAY_S = 86_400


def program_folder(document: ServingDocument, root: Path) -> "Path | None":
    """Return the machine's folder with the programs of this document's server, or None if the server keeps none."""
    return root / programs_key(document) if COMPILE_CACHE_VARIABLE in document.environment else None


def program_volumes(document: ServingDocument) -> list[str]:
    """Return the docker arguments that mount the machine's folder as the server's program cache."""
    folder = program_folder(document, Path(COMPILE_CACHE))
    return [] if folder is None else [f"--volume={folder}:{document.environment[COMPILE_CACHE_VARIABLE]}"]


@dataclass
class ProgramArchive:
    """Restore and save of the programs of one folder."""

    metadata: MetadataClient
    settings: ArchiveSettings
    folder: Path
    key: str = field(repr=False)
    """Secret that signs the archives."""
    secrets: Collection[str] = field(default=(), repr=False)
    """Values that no archive may contain."""
    tell: Callable[[str], None] = log
    tell_unsigned: Callable[[str], None] = log
    spare_bytes: int = SPARE_BYTES

    @property
    def archives(self) -> ArchiveFolder:
        """Archives of this accelerator and this set of programs."""
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
        """Restore the newest intact archive into the folder, unless it already has programs. Return one sentence about the result.

        Raises:
            ServingError: an archive cannot be read.
            OSError: the disk is full.
        """
        if program_files(self.folder):
            return f"Using the compiled programs that are already on this machine ({self.folder.name})."
        restored = self.archives.restore(unpacked_flat)
        if restored is None:
            return f"No signed archive of compiled programs is in {self.archives.uri}. The server will compile them."
        archive, names = restored
        self._remember(names)
        return f"Compiled programs were restored from {self.archives.described(archive)}."

    def save(self) -> str:
        """Archive the folder's programs if some are not archived. Return one sentence about the result, or an empty string.

        Raises:
            ServingError: the bucket rejected the archive.
            OSError: the disk is full.
        """
        files = program_files(self.folder)
        names = [path.name for path in files]
        if not set(names) - self._archived():
            return ""
        archive = self.archives.save(partial(self._packed, files))
        self._remember(names)
        with suppress(ServingError):  # a failed deletion is repeated after the next save
            self._prune(archive.name)
        return f"{len(names)} files of compiled programs were archived as {self.archives.described(archive)}."

    def _prune(self, saved: str) -> None:
        """Delete the archives of this set that the saved one replaces, and old archives of other sets."""
        listed = self.archives.listed(self.settings.uri.removeprefix("gs://").partition("/")[2] + "/")
        signed = {one.name for one in self.archives.signed(listed)}
        created = next((one.created for one in listed if one.name == saved), "")
        oldest = datetime.now(timezone.utc) - timedelta(days=ARCHIVE_KEEP_DAYS)
        for one in listed:
            limit = created if one.name in signed else f"{oldest:%Y-%m-%dT%H:%M:%S}"  # others can be another stack's
            if one.is_archive and one.created < limit:
                self.archives.delete(one)

    def _packed(self, files: "list[Path]", tar: Path) -> None:
        """Write the tar, and search its bytes for secrets: the server can change its files between two reads."""
        packed_flat(files, tar)
        if _holds(tar, self.secrets):
            raise ServingError("a file contains a secret, so they were not archived")

    def _archived(self) -> set[str]:
        with suppress(OSError, ValueError):
            return set(json.loads(archived_names(self.folder).read_text()))
        return set()

    def _remember(self, names: Collection[str]) -> None:
        archived_names(self.folder).write_text(json.dumps(sorted(names)))


@dataclass
class CompiledPrograms:
    """Manager of the programs of served documents: restores them before the start and saves them while the server runs."""

    metadata: MetadataClient
    secrets: set[str] = field(repr=False)
    """Values that no archive and no log line may contain. The archive key becomes one of them."""
    tell: Callable[[str], None] = log
    root: Path = Path(COMPILE_CACHE)
    settle_s: float = 10.0
    """Time without changes after which a folder is archived, because the server may still be writing."""
    limit_s: float = 120.0
    """Maximum time that a start waits for a restore when all else is ready. 64 programs took 11 s elsewhere (sgl-project/sglang-jax#1263)."""
    again_s: float = 600.0
    """Interval between checks of a folder while its server runs."""
    publish_unsigned: Callable[[str], None] = lambda _text: None
    """Called with a message if the bucket has unsigned archives, and with an empty string when a restore starts."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _restoring: threading.Lock = field(default_factory=threading.Lock)

    def restore_beside(self, document: ServingDocument) -> threading.Thread:
        """Restore the document's programs in a thread. The caller passes it to `wait_for` before it starts the server."""
        self.stop()
        thread = threading.Thread(target=self._without_harm, args=(self._restore, document), daemon=True)
        thread.start()
        return thread

    def wait_for(self, restore: threading.Thread, cancelled: Callable[[], bool]) -> None:
        """Wait at most `limit_s` for a restore to finish, because an unresponsive bucket must not delay the server."""
        deadline = time.monotonic() + self.limit_s
        while restore.is_alive() and not cancelled() and time.monotonic() < deadline:
            restore.join(0.2)
        if restore.is_alive() and not cancelled():
            self.tell(
                f"Compiled programs: no archive was restored within {self.limit_s:g} s. The server starts without one."
            )

    def server_is_ready(self, document: ServingDocument) -> threading.Thread:
        """Archive the document's programs in the background, now and whenever new ones appear, until `stop` or the next document."""
        self.stop()
        self._stop = threading.Event()
        thread = threading.Thread(target=self._keep, args=(document, self._stop), daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Stop archiving after the current save."""
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
            with self._restoring:  # a failed attempt may have left a restore running
                self.tell(archive.restore())

    def _keep(self, document: ServingDocument, stop: threading.Event) -> None:
        folder = program_folder(document, self.root)
        if folder is None:
            return
        with suppress(OSError, AttributeError):  # lower the priority of this thread only, on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        while not stop.wait(self.settle_s):
            if program_files(folder) and time.time() - _last_change(folder) < self.settle_s:
                continue
            with suppress(OSError):  # so no other start treats the folder as unused
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
        # Read each time: after a rotation, the new key can have the same name.
        key = archive_key(self.metadata, settings.key)
        self.secrets.add(key)
        return ProgramArchive(self.metadata, settings, folder, key, self.secrets, self.tell, self._tell_unsigned)

    def _tell_unsigned(self, text: str) -> None:
        self.tell(text)
        self.publish_unsigned(text)


def program_files(folder: Path) -> list[Path]:
    """Return the programs of a folder, in order."""
    try:
        with opened_folder(folder) as opened, os.scandir(opened) as found:
            files = [one.name for one in found if one.is_file(follow_symlinks=False) and one.name[0] != "."]
    except OSError:
        return []
    return [folder / name for name in sorted(files)]


def archived_names(folder: Path) -> Path:
    """Return the file with the names of a folder's archived programs."""
    return folder.with_name(folder.name + ARCHIVED_SUFFIX)


def remove_old_programs(root: Path, used: str, now_s: float) -> None:
    """Mark the folder of programs in use, and delete folders that no server has used for ARCHIVE_KEEP_DAYS."""
    for folder in root.iterdir() if root.is_dir() else ():
        with suppress(OSError):
            if folder.name == used:
                os.utime(folder, (now_s, now_s))
            elif folder.is_dir() and now_s - folder.stat().st_mtime > ARCHIVE_KEEP_DAYS * DAY_S:
                with opened_folder(root) as opened:
                    remove_tree(opened, folder.name)
                archived_names(folder).unlink(missing_ok=True)


def _last_change(folder: Path) -> float:
    try:
        return max((path.lstat().st_mtime for path in program_files(folder)), default=0.0)
    except FileNotFoundError:  # the server is still writing and renamed or deleted one
        return time.time()


def _holds(tar: Path, values: Collection[str]) -> bool:
    with tar.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(value.encode()) >= 0 for value in tuple(values) if value)


def packed_flat(files: "list[Path]", tar: Path) -> None:
    """Write the files into a tar that depends only on their names and contents, so two machines write the same bytes.

    Raises:
        OSError: a file is not a regular one any more, or the disk is full.
    """
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        for path in files:
            entry = tarfile.TarInfo(path.name)
            with open_mounted(path) as file:
                entry.size = os.fstat(file.fileno()).st_size
                out.addfile(entry, file)


def unpacked_flat(tar: Path, folder: Path) -> None:
    """Write the tar's files into a new folder. Raises tarfile.TarError if it contains anything but files of one folder."""
    folder.mkdir()
    with tarfile.open(tar, "r:") as source:
        for entry in source:
            data = source.extractfile(entry) if entry.isreg() else None
            if data is None or "/" in entry.name or entry.name[:1] in {"", "."}:
                raise tarfile.TarError(f"{entry.name!r} is not a regular file of the archive's folder")
            with (folder / entry.name).open("wb") as file:
                shutil.copyfileobj(data, file)
