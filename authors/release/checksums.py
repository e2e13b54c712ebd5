"""SHA256SUMS and manifest.json of a folder of artefacts."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, cast

from contracts.errors import ScriptError

SUMS: Final = "SHA256SUMS"
"""In the format of `sha256sum --check`."""
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """One file of a release. `bytes` is its size."""

    name: str
    kind: str
    version: str
    sha256: str
    bytes: int


def describe(file: Path, kind: str, version: str) -> Artefact:
    """Return the description of a file."""
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return Artefact(name=file.name, kind=kind, version=version, sha256=digest, bytes=len(content))


def write(folder: Path, artefacts: Sequence[Artefact], *, repository: str) -> None:
    """Write both files, with the artefacts in the order of their names."""
    ordered = sorted(artefacts, key=lambda artefact: artefact.name)
    manifest = {"schema_version": 1, "repository": repository, "artefacts": [asdict(artefact) for artefact in ordered]}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    listed = {artefact.name: artefact.sha256 for artefact in ordered} | {
        MANIFEST: hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    }
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(listed.items()))
    (folder / SUMS).write_text(text, encoding="utf-8")


def verify(folder: Path) -> Sequence[Artefact]:
    """Return the artefacts of a folder. Raises ScriptError if a file is missing, changed or not in both lists."""
    sums = folder / SUMS
    if not sums.is_file():
        raise ScriptError(
            f"{folder} has no {SUMS}. Build the artefacts: python -m authors.release build --out {folder}."
        )
    expected = {name: digest for digest, _, name in (line.partition("  ") for line in sums.read_text().splitlines())}
    found = {path.name for path in folder.iterdir()} - {SUMS}
    for name in sorted(found ^ expected.keys()):
        raise ScriptError(
            f"{name} is {'not listed in' if name in found else 'missing, but listed in'} {sums}. Build again."
        )
    for name, digest in expected.items():
        actual = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if actual != digest:
            raise ScriptError(
                f"{folder / name} has the SHA-256 {actual}; {SUMS} has {digest}. Build or download it again."
            )
    manifest = cast(
        "Mapping[str, list[dict[str, object]]]", json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    )
    artefacts = [Artefact(**item) for item in manifest["artefacts"]]  # pyright: ignore[reportArgumentType] - written above
    if {artefact.name: artefact.sha256 for artefact in artefacts} != {
        n: d for n, d in expected.items() if n != MANIFEST
    }:
        raise ScriptError(f"{folder / MANIFEST} and {SUMS} list different artefacts. Build again.")
    return artefacts
