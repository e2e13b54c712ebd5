"""Compiled graphs of a GPU server (vLLM's VLLM_CACHE_ROOT): restored before its start, archived when it is ready."""

import tarfile
from pathlib import Path

from contracts.container_start import GraphCache
from vm_agent.archives import MOST_BYTES, Archive, harmless
from vm_agent.base import GIB, log
from vm_agent.cloud import MetadataClient, read_secret

FASTEST_COMPRESSION = 1


def restore_graphs(metadata: MetadataClient, cache: GraphCache) -> bool:
    """Restore the newest archive. Return whether one was restored."""
    with harmless(log, "Compiled graphs", _grant(cache)):
        archive = _archive(metadata, cache)
        signed, unsigned = archive.listed()
        if unsigned:
            log(unsigned)
        if signed:
            archive.restore(signed[0], _unpacked)
            log(f"Compiled graphs were restored from {cache.uri}/{signed[0]}.")
            return True
        log(f"No signed archive of compiled graphs is in {cache.uri}. The server will compile them.")
    return False


def save_graphs(metadata: MetadataClient, cache: GraphCache) -> None:
    """Archive the graphs, unless another instance has done it."""
    folder = Path(cache.path)
    with harmless(log, "Compiled graphs", _grant(cache)):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        size = sum(path.stat().st_size for path in files)
        if not files or size > MOST_BYTES:
            log(f"Compiled graphs were not archived: {len(files)} files of {size / GIB:.2f} GiB.")
            return

        def pack(tar: Path) -> None:
            with tarfile.open(tar, "w:gz", compresslevel=FASTEST_COMPRESSION) as out:
                for path in files:
                    out.add(path, arcname=str(path.relative_to(folder)), recursive=False)

        archive = _archive(metadata, cache)
        if not archive.listed()[0]:
            log(f"Compiled graphs were {archive.save(pack)}.")


def _archive(metadata: MetadataClient, cache: GraphCache) -> Archive:
    return Archive(metadata, cache.uri, ".tar.gz.signed", Path(cache.path), read_secret(metadata, cache.key))


def _grant(cache: GraphCache) -> str:
    return f"the service's account roles/storage.objectUser on the folder {cache.uri} (gemma-serving:cloudRun.compileCache: bucket grants it)."


def _unpacked(tar: Path, folder: Path) -> None:
    with tarfile.open(tar, "r:gz") as source:
        source.extractall(folder, filter="data")
