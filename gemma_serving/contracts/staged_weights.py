"""Manifest of a staged checkpoint."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from gemma_serving.contracts.compile_cache import ARCHIVE_PREFIX
from gemma_serving.contracts.fields import as_mapping, as_sequence

MANIFEST: Final = "gemma-serving-manifest.json"
"""Written last, so a folder with a manifest contains the complete checkpoint."""
PARTS: Final = ".gemma-serving-parts"
"""Folder of a bucket for parts of incomplete files. It is outside the checkpoints, so no server reads it."""
REAL_SIZE: Final = "real_size_bytes"
"""Key of a file in a manifest: size of the real file, if the local cloud's hub sent a shrunk one."""
HASH_VARIABLE: Final = "GEMMA_SERVING_WEIGHTS"
"""Variable of the server with the hash of its pinned weights: other weights mean a new revision, or a restart."""
STAGING_VARIABLE: Final = "GEMMA_SERVING_STAGING"
"""Variable of the program while `gemma stage_model` creates the bucket, which has no weights yet."""
OWN_FOLDER: Final = "sha256:"
"""Prefix of the hash in `bucket.manifest` and `bucket.parts`."""
MODELS_FOLDER: Final = "/mnt/models"
"""Folder of a machine or container with the weights of a bucket."""


@dataclass(frozen=True)
class StoredFile:
    """An object as listed by Cloud Storage, which computes the checksum from the stored bytes."""

    size_bytes: int
    crc32c: str


def stored_files(items: Iterable[Mapping[str, object]]) -> Mapping[str, StoredFile]:
    """Return listed objects by name."""
    return {
        str(item.get("name")): StoredFile(int(str(item.get("size") or 0)), str(item.get("crc32c") or ""))
        for item in items
    }


def listing_path(bucket: str, folder: str) -> str:
    """Return the listing path of a folder's objects, without a page token."""
    prefix, fields = quote(object_name(folder, ""), safe=""), quote("nextPageToken,items/name,items/size,items/crc32c")
    return f"storage/v1/b/{bucket}/o?prefix={prefix}&fields={fields}"


def difference(manifest: object, stored: Mapping[str, StoredFile], folder: str) -> str | None:
    """Return how a folder differs from its manifest, as a clause, or None if it contains exactly the listed files.

    A manifest without files proves nothing. An unlisted file, such as a chat template, is loaded with the others.
    """
    files = _files(as_mapping(manifest))
    if not files:
        return f"{MANIFEST} cannot be read or lists no file"
    wrong = [str(file.get("name")) for file in files if not _is_stored(file, stored, folder)]
    if wrong:
        return f"{len(wrong)} of {len(files)} files are missing or differ in size or checksum (first: {wrong[0]})"
    extra = strangers(stored, folder, [str(file.get("name")) for file in files])
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        return f"it does not list {extra[0]}{more}, which the server will also load"
    return None


def strangers(stored: Iterable[str], folder: str, names: Iterable[str]) -> Sequence[str]:
    """Return the files of a folder that are not among these names, sorted. `stored` are the bucket's objects.

    Ignored are placeholders, nested checkpoints with their own manifest, and this project's other data next to weights in no folder.
    """
    start, known = object_name(folder, ""), {*names, MANIFEST}
    found = sorted(name.removeprefix(start) for name in stored if name.startswith(start) and not name.endswith("/"))
    others = [name.removesuffix(MANIFEST) for name in found if name.endswith(f"/{MANIFEST}")]
    if not folder:
        others += [f"{PARTS}/", f"{ARCHIVE_PREFIX}/"]
    return [name for name in found if name not in known and not name.startswith(tuple(others))]


def own_folder(folder: str, digest: str) -> str:
    """Return the folder of the weights with this manifest's hash, next to `folder`, so listing that does not return it."""
    return f"{folder}-{digest[:16]}" if folder else digest[:16]


def _is_stored(file: Mapping[str, object], stored: Mapping[str, StoredFile], folder: str) -> bool:
    found = stored.get(object_name(folder, str(file.get("name"))))
    # Every manifest written by this project has the checksum.
    checksum = None if found is None else file.get("crc32c", found.crc32c)
    return found is not None and (file.get("size_bytes"), checksum) == (found.size_bytes, found.crc32c)


def folder_uri(bucket: str, folder: str) -> str:
    """Return the URI of a bucket's folder, or of the bucket if the weights are in no folder."""
    return f"gs://{bucket}/{folder}".rstrip("/")


def object_name(folder: str, file: str) -> str:
    """Return the object name of a weights file. `folder` may be empty."""
    return f"{folder}/{file}" if folder else file


def manifest_hash(manifest: Mapping[str, object]) -> str:
    """Return the hash of a manifest's names, sizes and checksums, independent of order, revision and time."""
    import hashlib  # noqa: PLC0415 - 2 ms, and a plan hashes nothing

    keys = ("name", "size_bytes", "sha256")
    listed = sorted(json.dumps([one.get(key) or one.get("crc32c") for key in keys]) for one in _files(manifest))
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()


def _files(manifest: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Return the files of a manifest. An entry that is not an object has no name."""
    return [as_mapping(file) for file in as_sequence(manifest.get("files"))]
