"""Compiled graphs of a GPU server: restored from the bucket before its start, archived when it is ready.

An archive is a compressed tar of vLLM's VLLM_CACHE_ROOT folder.
A failure here costs compile time and logs one line. It never affects the server.
"""

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from contracts.container_start import GraphCache
from vm_agent.archives import ArchiveFolder, archive_key, without_harm
from vm_agent.base import GIB, log
from vm_agent.cloud import MetadataClient

FASTEST_COMPRESSION = 1
MOST_GRAPHS_BYTES = GIB
"""Maximum size of a folder that is archived, and of an archive that is restored. A larger one takes as long to read as to compile."""


@dataclass(frozen=True)
class GraphArchive:
    """Restore and save of the compiled graphs of one server."""

    metadata: MetadataClient
    cache: GraphCache

    def restore(self) -> bool:
        """Restore the newest intact archive into the folder. Return whether one was found."""
        return self._without_harm(self._restore)

    def save(self) -> bool:
        """Archive the folder, unless the bucket already has a signed archive. Return whether it was archived."""
        return self._without_harm(self._save)

    @cached_property
    def _archives(self) -> ArchiveFolder:
        key = archive_key(self.metadata, self.cache.key)
        return ArchiveFolder(
            self.metadata, self.cache.uri, ".tar.gz", Path(self.cache.path), key, most_bytes=MOST_GRAPHS_BYTES
        )

    def _restore(self) -> bool:
        restored = self._archives.restore(_unpacked)
        if restored is None:
            log(f"No signed archive of compiled graphs is in {self.cache.uri}. The server will compile them.")
            return False
        log(f"Compiled graphs were restored from {self._archives.described(restored[0])}.")
        return True

    def _save(self) -> bool:
        folder, archives = Path(self.cache.path), self._archives
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        size = sum(path.stat().st_size for path in files)
        if not files or size > MOST_GRAPHS_BYTES:
            log(f"Compiled graphs were not archived: {len(files)} files of {size / GIB:.2f} GiB.")
            return False
        if archives.signed(archives.listed(archives.prefix)):  # another instance was faster
            return False

        def packed(tar: Path) -> None:
            with tarfile.open(tar, "w:gz", compresslevel=FASTEST_COMPRESSION) as out:
                for path in files:
                    out.add(path, arcname=str(path.relative_to(folder)), recursive=False)

        log(f"Compiled graphs were archived as {archives.described(archives.save(packed))}.")
        return True

    def _without_harm(self, work: "Callable[[], bool]") -> bool:
        grant = (
            f"the service's account roles/storage.objectUser on the folder {self.cache.uri} "
            "(gemma-serving:cloudRun.compileCache: bucket grants it)."
        )
        return without_harm(work, log, "Compiled graphs", grant)


def _unpacked(tar: Path, folder: Path) -> None:
    with tarfile.open(tar, "r:gz") as source:
        source.extractall(folder, filter="data")
