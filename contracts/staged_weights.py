"""The mark of a staged checkpoint: `scripts.stage_model` writes it, the program, the doctor and the planner's command look for it."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote

from contracts.compile_cache import ARCHIVE_PREFIX

MANIFEST: Final = "gemma-serving-manifest.json"
"""Written last: a folder of a bucket with a manifest holds the whole checkpoint."""

PARTS: Final = ".gemma-serving-parts"
"""Folder of a bucket with the parts of files that are not complete yet. It lies beside the checkpoints, so that no server reads it."""

REAL_SIZE: Final = "real_size_bytes"
"""Key of a file of a manifest: the size of the real file in bytes, where the local cloud's hub sent a shrunk one. Absent otherwise."""

HASH_VARIABLE: Final = "GEMMA_SERVING_WEIGHTS"
"""Environment variable of the server with the hash of the weights that it is bound to: other weights are a new revision, or a restart."""

OWN_FOLDER: Final = "sha256:"
"""Beginning of a `bucket.manifest` whose weights have a folder of their own. A hash alone is of an earlier version: its folder has no hash."""

MODELS_FOLDER: Final = "/mnt/models"
"""Folder of a machine or a container that holds the weights of a bucket."""

_FOLDER_DIGITS: Final = 16
_WEIGHTS_SUFFIX: Final = ".safetensors"


LISTED_FIELDS: Final = "nextPageToken,items/name,items/size,items/crc32c"
"""What a listing of a folder has to answer for `difference`."""


@dataclass(frozen=True)
class StoredFile:
    """An object of a folder as Cloud Storage lists it. Cloud Storage computes the checksum from the bytes that it stores."""

    size_bytes: int
    crc32c: str


def stored_files(items: Iterable[Mapping[str, object]]) -> Mapping[str, StoredFile]:
    """Return listed objects by name."""
    return {
        str(item.get("name")): StoredFile(int(str(item.get("size") or 0)), str(item.get("crc32c") or ""))
        for item in items
    }


def listing_path(bucket: str, folder: str) -> str:
    """Return the path of the list of a folder's objects, without a page token."""
    prefix = quote(object_name(folder, ""), safe="")
    return f"storage/v1/b/{bucket}/o?prefix={prefix}&fields={quote(LISTED_FIELDS)}"


def difference(manifest: object, stored: Mapping[str, StoredFile], folder: str) -> str | None:
    """Return a clause that says how a folder differs from its manifest; None if each file is there, byte by byte, and no other.

    A manifest that lists no file proves nothing, so it differs from every folder. A file that it lacks, such as a chat template, would be
    loaded with the others.
    """
    if not isinstance(manifest, dict) or not _files(cast("Mapping[str, object]", manifest)):
        return f"{MANIFEST} cannot be read or lists no file"
    files = _files(cast("Mapping[str, object]", manifest))
    wrong = [str(file.get("name")) for file in files if not _is_stored(file, stored, folder)]
    if wrong:
        return f"{len(wrong)} of {len(files)} files are missing or differ in size or checksum (first: {wrong[0]})"
    extra = strangers(stored, folder, [str(file.get("name")) for file in files])
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        return f"it does not list {extra[0]}{more}, which the server would load too"
    return None


def strangers(stored: Iterable[str], folder: str, names: Iterable[str]) -> Sequence[str]:
    """Return the files of a folder that are not among these names, sorted. `stored` are the names of its objects in the bucket.

    Not counted are the manifest, placeholders of folders, checkpoints below that have a manifest of their own, and what this project keeps
    in a bucket beside weights that are in no folder.
    """
    start, known = object_name(folder, ""), {*names, MANIFEST}
    found = sorted(name.removeprefix(start) for name in stored if name.startswith(start) and not name.endswith("/"))
    others = [name.removesuffix(MANIFEST) for name in found if name.endswith(f"/{MANIFEST}")]
    if not folder:
        others += [f"{PARTS}/", f"{ARCHIVE_PREFIX}/"]
    return [name for name in found if name not in known and not name.startswith(tuple(others))]


def own_folder(folder: str, digest: str) -> str:
    """Return the folder of the weights with this manifest's hash. It is beside `folder`: who lists that one does not see it."""
    return f"{folder}-{digest[:_FOLDER_DIGITS]}" if folder else digest[:_FOLDER_DIGITS]


def _is_stored(file: Mapping[str, object], stored: Mapping[str, StoredFile], folder: str) -> bool:
    found = stored.get(object_name(folder, str(file.get("name"))))
    if found is None or found.size_bytes != file.get("size_bytes"):
        return False
    # Each manifest that this project writes has the checksum.
    return file.get("crc32c") in {None, found.crc32c}


def folder_uri(bucket: str, folder: str) -> str:
    """Return the URI of a folder of a bucket; the bucket's, if the weights lie in no folder."""
    return f"gs://{bucket}/{folder}".rstrip("/")


def object_name(folder: str, file: str) -> str:
    """Return the name of the object with a file of the weights, for a folder without slashes at its ends or none."""
    return f"{folder}/{file}" if folder else file


def config_of(manifest: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the config.json that a manifest repeats; None if it was written before manifests did."""
    config = manifest.get("config")
    return cast("Mapping[str, object]", config) if isinstance(config, dict) else None


def file_names(manifest: Mapping[str, object]) -> Sequence[str]:
    """Return the names of the files that a manifest lists."""
    return [str(one.get("name")) for one in _files(manifest)]


def weights_bytes(manifest: Mapping[str, object]) -> int:
    """Return the size of the weights that a manifest lists; 0 if it lists none.

    Weights of the local cloud's hub are shrunk; what counts is the size of the real ones, which their manifest states beside it.
    """
    listed = (one for one in _files(manifest) if str(one.get("name")).endswith(_WEIGHTS_SUFFIX))
    sizes = (one.get(REAL_SIZE) or one.get("size_bytes") for one in listed)
    return sum(size for size in sizes if isinstance(size, int))


def manifest_hash(manifest: Mapping[str, object]) -> str:
    """Return the hash of what a manifest lists: names, sizes and checksums, whatever the order, the revision and the time."""
    keys = ("name", "size_bytes", "sha256")
    listed = sorted(json.dumps([one.get(key) or one.get("crc32c") for key in keys]) for one in _files(manifest))
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()


def _files(manifest: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Return what a manifest lists; nothing if it is not a list of objects."""
    files = manifest.get("files")
    found = cast("Sequence[object]", files if isinstance(files, list) else ())
    return cast("Sequence[Mapping[str, object]]", found) if all(isinstance(one, dict) for one in found) else []
