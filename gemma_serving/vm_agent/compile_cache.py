"""Cache of compiled XLA programs: a folder of the disk for each set, and its archive in a bucket."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gemma_serving.contracts.compile_cache import (
    ARCHIVE_METADATA_KEY,
    COMPILE_CACHE_VARIABLE,
    parse_archive,
    programs_key,
)
from gemma_serving.contracts.guest_attributes import ARCHIVES_KEY
from gemma_serving.contracts.serving_document import ServingDocument
from gemma_serving.vm_agent.archives import Archive, harmless
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import MetadataClient, read_secret
from gemma_serving.vm_agent.mounted import opened_folder
from gemma_serving.vm_agent.publishing import PhasePublisher

# On the boot disk, so programs survive the container, a crash of the server and a reboot of the machine.
COMPILE_CACHE = "/mnt/compile_cache"
GRANT = (
    "the TPU VM's service account roles/storage.objectUser on the bucket's archive folder "
    "(gemma-serving:tpu.compileCache: bucket grants it)."
)


def program_folder(document: ServingDocument, root: Path) -> "Path | None":
    """Return the folder with the programs of this document's server, or None if it keeps none."""
    return root / programs_key(document) if COMPILE_CACHE_VARIABLE in document.environment else None


def program_volumes(document: ServingDocument) -> list[str]:
    """Return the docker arguments that mount the machine's folder as the server's program cache."""
    folder = program_folder(document, Path(COMPILE_CACHE))
    return [] if folder is None else [f"--volume={folder}:{document.environment[COMPILE_CACHE_VARIABLE]}"]


@dataclass
class CompiledPrograms:
    """Programs of served documents: restored before the start, archived while the server runs."""

    metadata: MetadataClient
    publisher: PhasePublisher
    root: Path = Path(COMPILE_CACHE)
    settle_s: float = 10.0
    """Time without changes before an archive, because the server may still be writing."""
    limit_s: float = 120.0
    """Maximum wait of a start for a restore. 64 programs took 11 s elsewhere (sgl-project/sglang-jax#1263)."""
    again_s: float = 600.0
    clock: AgentClock = CLOCK
    _archived: "set[Path]" = field(default_factory=set[Path])
    _stopped: threading.Condition = field(default_factory=threading.Condition)
    _saver: int = 0
    """Number of the thread that may archive; `stop` starts a new number."""

    def restore_beside(self, document: ServingDocument) -> threading.Thread:
        """Restore the document's programs in a thread, for `wait_for`."""
        self.stop()
        return self.clock.start(self.restore, document)

    def wait_for(self, restore: threading.Thread, cancelled: Callable[[], bool]) -> None:
        """Wait at most `limit_s` for a restore to finish, because an unresponsive bucket must not delay the server."""
        deadline = self.clock.now() + self.limit_s
        while restore.is_alive() and not cancelled() and self.clock.now() < deadline:
            restore.join(0.2)
        if restore.is_alive() and not cancelled():
            self.publisher.report(
                f"Compiled programs: no archive was restored within {self.limit_s:g} s. The server starts without one."
            )

    def server_is_ready(self, document: ServingDocument) -> threading.Thread:
        """Archive the document's programs in a thread, now and whenever new ones appear, until `stop`."""
        return self.clock.start(self._keep, document, self.stop())

    def stop(self) -> int:
        """Stop archiving after the current save. Return the number of the thread that may archive from now on."""
        with self._stopped:
            self._saver += 1
            self._stopped.notify_all()
            return self._saver

    def restore(self, document: ServingDocument) -> None:
        """Restore the newest archive of the document's programs, unless the machine has some."""
        with harmless(self.publisher.report, "Compiled programs", GRANT):
            self.publisher.set_fact(ARCHIVES_KEY, "")
            archive = self._archive(document)
            if archive is None:
                return
            if program_files(archive.folder):
                name = archive.folder.name
                self.publisher.report(f"Using the compiled programs that are already on this TPU VM ({name}).")
                return
            signed, others = archive.listed()
            self.publisher.set_fact(ARCHIVES_KEY, self.publisher.mask(others))
            if archive.restore_newest("Compiled programs", self.publisher.report, signed, others):
                self._archived.update(program_files(archive.folder))

    def save(self, document: ServingDocument) -> None:
        """Archive the document's programs if some are not archived."""
        with harmless(self.publisher.report, "Compiled programs", GRANT):
            archive = self._archive(document)
            files = [] if archive is None else program_files(archive.folder)
            if archive is None or not set(files) - self._archived:
                return
            done = archive.save(files, self.publisher.secrets)
            self._archived.update(files)
            if done:
                self.publisher.report(f"{len(files)} files of compiled programs were {done}.")

    def _keep(self, document: ServingDocument, saver: int) -> None:
        folder = program_folder(document, self.root)
        while folder is not None:
            before = _changes(folder)
            if self._is_stopped(saver, self.settle_s):
                return
            if before is not None and before == _changes(folder):
                self.save(document)
                if self._is_stopped(saver, self.again_s):
                    return

    def _is_stopped(self, saver: int, within_s: float) -> bool:
        """Wait this long for `stop`. Return whether this thread must end."""
        return self.clock.wait_for(self._stopped, lambda: self._saver != saver, within_s)

    def _archive(self, document: ServingDocument) -> "Archive | None":
        folder, (text, _) = program_folder(document, self.root), self.metadata.attribute(ARCHIVE_METADATA_KEY)
        if folder is None or text is None:
            return None
        settings = parse_archive(text)
        # Each time: after a rotation, the new key can have the same name.
        key = read_secret(self.metadata, settings.key)
        self.publisher.secrets.add(key)
        return Archive(self.metadata, f"{settings.uri}/{settings.accelerator}/{folder.name}", folder, key)


def program_files(folder: Path) -> list[Path]:
    """Return the programs of a folder, in order."""
    try:
        with opened_folder(folder) as opened, os.scandir(opened) as found:
            files = [one.name for one in found if one.is_file(follow_symlinks=False) and one.name[0] != "."]
    except OSError:
        return []
    return [folder / name for name in sorted(files)]


def _changes(folder: Path) -> "list[tuple[str, int]] | None":
    """Return the programs of a folder with the times of their last changes, or None if one is renamed or deleted while they are read."""
    try:
        return [(path.name, path.lstat().st_mtime_ns) for path in program_files(folder)]
    except FileNotFoundError:
        return None
