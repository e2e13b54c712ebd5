"""Folders of staged checkpoints, each named by its content, so staging never changes a folder in use.

A manifest is deleted before the first change of its folder and written after the last.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cloud.model_files import CONFIG
from cloud.staging.bucket import WeightsBucket, changed, crc32c
from cloud.staging.sources import SourceFile
from contracts.compile_cache import ARCHIVE_PREFIX
from contracts.errors import CommandRefusedError
from contracts.fields import json_object
from contracts.parallel import each
from contracts.staged_weights import MANIFEST, PARTS, REAL_SIZE, manifest_hash, own_folder, strangers

_WORKERS = 16


def prepared_folder(target: WeightsBucket, name: str, files: Sequence[SourceFile], stack: str) -> str:
    """Return the folder for these files.

    Raises CommandRefusedError if it has anything else: another file, the manifest of other weights, or other
    bytes with the same stated hash. A copy within Google reads none, so it cannot tell which hash is wrong.
    """
    digest = manifest_hash(_manifest("", files))
    folder = own_folder(name, digest)
    present = target.objects(f"{folder}/")
    uri = f"gs://{target.name}/{folder}"
    extra = strangers(present, folder, [file.name for file in files])
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CommandRefusedError(
            f"{uri} has {extra[0]}{more}, which this checkpoint does not have but a server would load. "
            f"Nothing was changed. Delete it with `gcloud storage rm {uri}/{extra[0]}`, then run this again."
        )
    manifest = f"{folder}/{MANIFEST}"
    if manifest in present and manifest_hash(json_object(target.text(manifest) or "")) != digest:
        raise CommandRefusedError(
            f"{uri} has a manifest that does not match its name. Nothing was changed. Run `gemma stage_model "
            f"{stack} --remove {folder}`, then run this again."
        )
    for file in files:
        found = present.get(f"{folder}/{file.name}")
        if found and file.crc32c and (found.size_bytes, found.crc32c) != (file.size_bytes, file.crc32c):
            raise CommandRefusedError(
                f"{uri}/{file.name} differs from the source, although both state the same SHA-256. Nothing was "
                "changed. Stage from the hub or a folder, which are read and hashed."
            )
    return folder


def withdraw_manifest(target: WeightsBucket, prefix: str) -> None:
    """Delete the manifest of a folder whose files are about to change, because it would describe a mixture."""
    name = f"{prefix}/{MANIFEST}"
    while (before := target.objects(name).get(name)) is not None:
        target.delete(before)


def write_manifest(target: WeightsBucket, prefix: str, revision: str, files: Sequence[SourceFile]) -> str:
    """Write the manifest unless it already exists, and return its hash.

    Raises ScriptError if another writer has changed these files.
    """
    present = target.objects(f"{prefix}/")
    for file in files:
        found = present.get(f"{prefix}/{file.name}")
        if found is None or (found.size_bytes, found.crc32c) != (file.size_bytes, file.crc32c):
            raise changed(f"gs://{target.name}/{prefix}/{file.name}")
    document = _manifest(revision, files)
    name, data = f"{prefix}/{MANIFEST}", json.dumps(document, indent=1).encode()
    before = present.get(name)
    if before is None or before.crc32c != crc32c(data):
        target.upload(name, data, replaced=before)
    return manifest_hash(document)


def _manifest(revision: str, files: Sequence[SourceFile]) -> dict[str, object]:
    entries = [
        {
            "name": file.name,
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "crc32c": file.crc32c,
            **({REAL_SIZE: file.real_bytes} if file.real_bytes else {}),
        }
        for file in files
    ]
    document: dict[str, object] = {"schema": 1, "revision": revision, "files": entries}
    if any(file.real_bytes for file in files):
        document["simulated"] = f"the local cloud's hub sent shrunk files; {REAL_SIZE} is the size of the real ones"
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFolder:
    """A bucket folder with a complete or partial checkpoint."""

    name: str
    files: int
    size_bytes: int
    has_manifest: bool


def staged_folders(target: WeightsBucket, *, below: str | None) -> Sequence[StagedFolder]:
    """Return the folders with a manifest, and the topmost with a configuration or weights, by name.

    `below` is the only folder, with or without a hash, that counts in a shared bucket. Raises ScriptError.
    """
    found = target.objects(below or "")
    ours = re.compile(rf"{re.escape(below)}(-[0-9a-f]{{16}})?/" if below else "")
    names = [name for name in found if ours.match(name) and not name.startswith((f"{PARTS}/", f"{ARCHIVE_PREFIX}/"))]
    whole = {name.rpartition("/")[0] for name in names if name.endswith(f"/{MANIFEST}")}
    marked = whole | {name.rpartition("/")[0] for name in names if name.endswith((f"/{CONFIG}", ".safetensors"))}
    inside: dict[str, list[str]] = {}
    for folder in sorted(marked - {""}):
        if folder in whole or not any(folder.startswith(f"{other}/") for other in marked):
            inside[folder] = []
    for name in names:
        root = max((root for root in inside if name.startswith(f"{root}/")), key=len, default=None)
        if root is not None:
            inside[root].append(name)
    return [
        StagedFolder(
            name=root,
            files=len(inside[root]),
            size_bytes=sum(found[name].size_bytes for name in inside[root]),
            has_manifest=root in whole,
        )
        for root in inside
    ]


def remove_folder(target: WeightsBucket, folder: str) -> int:
    """Delete a folder and its parts, manifest first. Return the number of objects. Raises ScriptError."""
    found = {**target.objects(f"{folder}/"), **target.objects(f"{PARTS}/{folder}/")}
    manifest = found.get(f"{folder}/{MANIFEST}")
    if manifest is not None:
        target.delete(manifest)
    each([partial(target.delete, item) for item in found.values() if item is not manifest], workers=_WORKERS)
    return len(found)
