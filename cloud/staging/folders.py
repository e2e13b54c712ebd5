"""List and remove the staged checkpoints of a bucket, each in its folder."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cloud.model_files import CONFIG
from cloud.staging.bucket import BucketObject, WeightsBucket
from contracts.compile_cache import ARCHIVE_PREFIX
from contracts.parallel import each
from contracts.staged_weights import MANIFEST, PARTS

_WORKERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFolder:
    """A bucket folder with a complete or partial checkpoint."""

    name: str
    files: int
    size_bytes: int
    has_manifest: bool
    """True if staging is complete."""


def staged_folders(target: WeightsBucket, *, below: str | None) -> Sequence[StagedFolder]:
    """Return the folders with checkpoints by name. `below` is the only folder, with or without a hash, that counts in a shared bucket.

    Raises ScriptError if the bucket cannot be listed.
    """
    found = target.objects(below or "")
    names = [name for name in found if not name.startswith((f"{PARTS}/", f"{ARCHIVE_PREFIX}/"))]
    if below:
        ours = re.compile(rf"{re.escape(below)}(-[0-9a-f]{{16}})?/")
        names = [name for name in names if ours.match(name)]
    roots = _roots(names)
    held: dict[str, list[str]] = {root: [] for root in sorted(roots)}
    for name in names:
        root = _root_of(name, roots)
        if root is not None:
            held[root].append(name)
    return [
        StagedFolder(
            name=root,
            files=len(inside),
            size_bytes=sum(found[name].size_bytes for name in inside),
            has_manifest=f"{root}/{MANIFEST}" in found,
        )
        for root, inside in held.items()
        if inside
    ]


def remove_folder(target: WeightsBucket, folder: str) -> int:
    """Delete a folder and the parts of an unfinished copy into it, manifest first. Return the number of objects. Raises ScriptError."""
    inside = dict(target.objects(f"{folder}/"))
    manifest = inside.pop(f"{folder}/{MANIFEST}", None)
    others: Mapping[str, BucketObject] = {**inside, **target.objects(f"{PARTS}/{folder}/")}
    if manifest is not None:
        target.delete(manifest)
    each([partial(target.delete, item) for item in others.values()], workers=_WORKERS)
    return len(others) + (manifest is not None)


def _roots(names: Sequence[str]) -> frozenset[str]:
    """Return the folders with a manifest, or with a configuration or weights that no parent folder's manifest lists."""
    whole = {name.rpartition("/")[0] for name in names if name.endswith(f"/{MANIFEST}")}
    parts = {name.rpartition("/")[0] for name in names if name.endswith((f"/{CONFIG}", ".safetensors"))}
    loose = {part for part in parts if part and not any(part.startswith(f"{root}/") for root in whole | parts - {""})}
    return frozenset(root for root in whole | loose if root)


def _root_of(name: str, roots: frozenset[str]) -> str | None:
    folder = name.rpartition("/")[0]
    while folder and folder not in roots:
        folder = folder.rpartition("/")[0]
    return folder or None
