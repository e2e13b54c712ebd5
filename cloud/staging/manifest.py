"""The manifest of a staged checkpoint: deleted before the first change, written after the last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloud.staging.bucket import WeightsBucket, as_json, changed, crc32c
from cloud.staging.sources import SourceFile
from contracts.staged_weights import MANIFEST, REAL_SIZE, manifest_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A file in the bucket."""

    file: SourceFile
    sha256: str | None
    """None if neither the source nor this copy has read the bytes: a bucket without a manifest was copied within Google."""
    crc32c: str

    def entry(self) -> Mapping[str, object]:
        """Return the file's line of the manifest."""
        real = {REAL_SIZE: self.file.real_bytes} if self.file.real_bytes else {}
        return {
            "name": self.file.name,
            "size_bytes": self.file.size_bytes,
            "sha256": self.sha256,
            "crc32c": self.crc32c,
            **real,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingOutcome:
    """Result of one run."""

    copied: int
    """Files that this run completed."""
    kept: int
    """Files that were already complete."""
    manifest: str
    """`manifest_hash` of the current content of the bucket."""


def withdraw_manifest(target: WeightsBucket, prefix: str) -> None:
    """Delete the manifest of a folder whose files are about to change, because it would describe a mixture."""
    name = f"{prefix}/{MANIFEST}"
    while (before := target.objects(name).get(name)) is not None:
        target.delete(before)


def write_manifest(target: WeightsBucket, prefix: str, revision: str, files: Sequence[StagedFile]) -> str:
    """Write the manifest unless it already exists, and return its hash.

    Raises ScriptError if the folder does not contain these files because another writer changed them since they were compared or copied.
    """
    present = target.objects(f"{prefix}/")
    for staged in files:
        found = present.get(f"{prefix}/{staged.file.name}")
        if found is None or (found.size_bytes, found.crc32c) != (staged.file.size_bytes, staged.crc32c):
            raise changed(f"gs://{target.name}/{prefix}/{staged.file.name}")
    document: dict[str, object] = {
        "schema": 1,
        "revision": revision,
        "files": [file.entry() for file in files],
    }
    if any(staged.file.real_bytes for staged in files):
        document["simulated"] = f"the local cloud's hub sent shrunk files; {REAL_SIZE} is the size of the real ones"
    name, data = f"{prefix}/{MANIFEST}", as_json(document)
    before = present.get(name)
    if before is None or before.crc32c != crc32c(data):
        target.upload(name, data, replaced=before)
    return manifest_hash(document)
