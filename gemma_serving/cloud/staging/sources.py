"""Sources of a checkpoint: a local folder, the Hugging Face Hub at one commit, or a folder of another bucket."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, cast
from urllib.parse import urlsplit

from gemma_serving.cloud import google_api
from gemma_serving.cloud.hub import hub_errors, lost_connections, real_sizes
from gemma_serving.cloud.model_files import CONFIG, INDEX, NotSafetensorsError, read_tensors
from gemma_serving.cloud.staging.bucket import BucketObject, WeightsBucket
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence, json_object
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.staged_weights import MANIFEST, PARTS, REAL_SIZE, object_name

_WANTED: Final = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Files that vLLM reads. Weights in other formats double the copy."""
_WEIGHTS: Final = ".safetensors"
_BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*[a-z0-9]")
_READ_LIMIT_S: Final = 120.0
_RETRIES: Final = 10
_LONGEST_PAUSE_S: Final = 30.0
"""Maximum pause; pauses double from 1 s: three minutes without a connection do not abort a copy."""
_HEADERS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    sha256: str | None
    """Stated by the hub for large files. None if the file was not read yet, or stays within Google."""
    crc32c: str | None = None
    """Checksum of an object; None for a file that is in no bucket yet."""
    real_bytes: int = 0
    """Size of the real file if the local cloud's hub sends a shrunk one; 0 for every other source."""


def require_checkpoint(source: "FolderSource | HubSource | BucketSource", config: str) -> Sequence[str]:
    """Return the names of a source's tensors. Compare its files with its index, and their sizes with the headers of the weights.

    `config` is the file that every checkpoint of its kind has: config.json, or adapter_config.json of an adapter.
    Raises CommandRefusedError if the source is not a checkpoint or an incomplete one, and ScriptError if a header cannot be read.
    """
    place = source.place
    files = {file.name: file for file in source.files()}
    weights = [file for name, file in files.items() if name.endswith(_WEIGHTS)]
    if config not in files:
        what = "a checkpoint" if config == CONFIG else "a LoRA adapter in PEFT's format"
        raise CommandRefusedError(f"{place} has no {config}, so it is not {what}. Check its name.")
    if not weights:
        raise CommandRefusedError(f"{place} has no {_WEIGHTS} files, so vLLM cannot load weights from it.")
    if INDEX in files:
        index = source.read(files[INDEX], 0, files[INDEX].size_bytes)
        try:
            named = set(cast("Mapping[str, str]", json.loads(index)["weight_map"]).values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CommandRefusedError(f"{INDEX} of {place} is not an index of weights. Download it again.") from None
        absent = sorted(named.difference(files))
        if absent:
            raise CommandRefusedError(f"{place} has no {absent[0]}, which {INDEX} lists. Complete it there first.")
    found = each([partial(_require_whole_weights, source, file) for file in weights], workers=_HEADERS_AT_ONCE)
    return [name for names in found for name in names]


def _require_whole_weights(source: "FolderSource | HubSource | BucketSource", file: SourceFile) -> Sequence[str]:
    try:
        return read_tensors(file.size_bytes, lambda start, end: source.read(file, start, end))[1]
    except NotSafetensorsError as error:
        raise CommandRefusedError(
            f"{file.name} of {source.place} {error}: its download is incomplete, or it is damaged. "
            "Download the file again, then stage it."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSource:
    """A checkpoint in a local folder, or one file of it."""

    folder: Path
    only: str = ""
    """Name of the only file; empty for all."""

    @property
    def place(self) -> str:
        """The folder, as the user named it."""
        return str(self.folder)

    @property
    def revision(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    def files(self) -> Sequence[SourceFile]:
        """List the folder's files. Raises CommandRefusedError for a link that leads out of the folder and of the hub's cache."""
        listed = self.folder.glob(self.only or "**/*")
        paths = (path for path in listed if _is_wanted(path.relative_to(self.folder).as_posix()))
        return [
            SourceFile(name=path.relative_to(self.folder).as_posix(), size_bytes=path.stat().st_size, sha256=None)
            for path in sorted(paths)
            if self._is_own_file(path)
        ]

    def _is_own_file(self, path: Path) -> bool:
        """Return whether a path is a file, and refuse a link to a file of somewhere else, such as credentials."""
        folder, real = self.folder.resolve(), path.resolve()
        # The hub's cache has links in REPOSITORY/snapshots/COMMIT to REPOSITORY/blobs.
        repository = folder.parents[1] if folder.parent.name == "snapshots" else folder
        if path.is_file() and not real.is_relative_to(folder) and not real.is_relative_to(repository / "blobs"):
            raise CommandRefusedError(
                f"{path} is a link to {real}, which is outside the folder. Replace it by a copy of the file, or remove it."
            )
        return path.is_file()

    def read(self, file: SourceFile, start: int, end: int) -> bytes:
        """Return a part of a file. Raises ScriptError if it cannot be read or has become shorter."""
        try:
            with (self.folder / file.name).open("rb") as stream:
                stream.seek(start)
                data = stream.read(end - start)
        except OSError as error:
            raise ScriptError(f"{self.folder / file.name} cannot be read: {error.strerror}.") from None
        if len(data) != end - start:
            raise ScriptError(f"{self.folder / file.name} was changed during the copy. Run this again.")
        return data


def file_of(path: Path) -> FolderSource:
    """Return one file of a folder as a source. Raises CommandRefusedError without it."""
    if path.suffix not in _WANTED or not path.is_file():
        raise CommandRefusedError(f"{path} is not a chat template: expected a file that ends in .jinja.")
    return FolderSource(folder=path.parent, only=path.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A checkpoint of the hub at one commit. The token comes from HF_TOKEN or the hub client's login."""

    model: str
    revision: str
    """Commit of the hub."""
    repository: Sequence[SourceFile]

    @property
    def place(self) -> str:
        """The model and the commit."""
        return f"{self.model} at {self.revision}"

    def files(self) -> Sequence[SourceFile]:
        """List the files that vLLM reads."""
        return [file for file in self.repository if _is_wanted(file.name)]

    def read(self, file: SourceFile, start: int, end: int) -> bytes:
        """Download a part of a file. The hub redirects to its storage, including Xet, which supports ranges.

        Raises ScriptError as `hub_errors` does, and if the response does not have that many bytes; the hash tells other bytes.
        """
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 - slow to load
        from huggingface_hub.utils import (  # noqa: PLC0415
            build_hf_headers,  # pyright: ignore[reportUnknownVariableType] - partly untyped
            hf_raise_for_status,
            http_backoff,  # pyright: ignore[reportUnknownVariableType] - partly untyped
        )

        if end == start:
            return b""
        with hub_errors(self.model, "run this again to resume"):
            answer = http_backoff(
                "GET",
                hf_hub_url(self.model, file.name, revision=self.revision, endpoint=os.environ.get("HF_ENDPOINT")),
                headers={**build_hf_headers(), "Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"},
                timeout=_READ_LIMIT_S,
                max_retries=_RETRIES,
                max_wait_time=_LONGEST_PAUSE_S,
                retry_on_exceptions=lost_connections(),
            )
            hf_raise_for_status(answer)
        if len(answer.content) != end - start:
            raise ScriptError(
                f"{urlsplit(str(answer.url)).hostname} returned {len(answer.content)} bytes for bytes "
                f"{start}-{end - 1} of {file.name}. Run this again."
            )
        return answer.content


def hub(model: str, revision: str | None) -> HubSource:
    """Resolve a revision of the hub (None: the main branch) to a commit, and list its files.

    Raises ScriptError if the hub cannot be reached, does not have the model or the revision, or denies this user its files.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load

    with hub_errors(model, "pass --from FOLDER with a downloaded checkpoint"):
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        info = api.model_info(model, revision=revision, files_metadata=True, timeout=google_api.CALL_LIMIT_S)
        # The file list of a gated repository is public, but its files are not.
        api.auth_check(model)
    real = real_sizes(info)
    files = [
        SourceFile(
            name=file.rfilename,
            size_bytes=file.size or 0,
            sha256=file.lfs.sha256 if file.lfs else None,
            real_bytes=real.get(file.rfilename, 0),
        )
        for file in info.siblings or []
    ]
    return HubSource(model=model, revision=info.sha or "", repository=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSource:
    """A checkpoint in a folder of another bucket, as it was listed."""

    bucket: WeightsBucket
    prefix: str
    """Without leading and trailing slashes; empty for the whole bucket."""
    revision: str
    """Source in the bucket's manifest; without one, its location."""
    objects: Mapping[str, BucketObject]
    """The objects of the files that vLLM reads, by name below the folder."""
    manifest: Mapping[str, object]
    """The source's own manifest; empty if it has none or it cannot be read."""

    @property
    def place(self) -> str:
        """Its URI."""
        return f"gs://{self.bucket.name}/{self.prefix}".rstrip("/")

    def files(self) -> Sequence[SourceFile]:
        """Return the files, with the hash of the object or of the source's manifest for these bytes."""
        entries = {one.get("name"): one for one in map(as_mapping, as_sequence(self.manifest.get("files")))}
        return [_stored(name, item, entries.get(name, {})) for name, item in self.objects.items()]

    def read(self, file: SourceFile, start: int, end: int) -> bytes:
        """Return a part of a file. Raises ScriptError."""
        return self.bucket.part(object_name(self.prefix, file.name), start, end) if end > start else b""


def in_bucket(bucket: WeightsBucket, prefix: str) -> BucketSource:
    """List a folder's files that vLLM reads. Raises ScriptError."""
    start = object_name(prefix, "")
    found = {name.removeprefix(start): item for name, item in sorted(bucket.objects(start).items())}
    manifest = json_object((bucket.text(start + MANIFEST) if MANIFEST in found else None) or "")
    revision = str(manifest.get("revision") or f"gs://{bucket.name}/{prefix}".rstrip("/"))
    wanted = {name: item for name, item in found.items() if _is_wanted(name)}
    return BucketSource(bucket=bucket, prefix=prefix, revision=revision, objects=wanted, manifest=manifest)


def bucket_of(text: str) -> tuple[str, str]:
    """Return bucket and folder of `gs://BUCKET/FOLDER`. Raises CommandRefusedError without a bucket."""
    name, _, folder = text.removeprefix("gs://").partition("/")
    if not _BUCKET_NAME.fullmatch(name):
        raise CommandRefusedError(f"--from is {text!r}: expected gs://BUCKET/FOLDER.")
    return name, folder.strip("/")


def _is_wanted(name: str) -> bool:
    """Return whether vLLM reads a file, by its name below the folder. Manifests of a copy do not count."""
    path = PurePosixPath(name)
    return path.suffix in _WANTED and path.name != MANIFEST and PARTS not in path.parts


def _stored(name: str, item: BucketObject, entry: Mapping[str, object]) -> SourceFile:
    """Return an object as a file. `entry` is its entry in the source's manifest."""
    same = entry.get("size_bytes") == item.size_bytes and entry.get("crc32c") in {None, item.crc32c}
    sha256 = item.sha256 or (cast("str | None", entry.get("sha256")) if same else None)
    real = entry.get(REAL_SIZE)
    return SourceFile(
        name=name,
        size_bytes=item.size_bytes,
        sha256=sha256,
        crc32c=item.crc32c,
        real_bytes=real if isinstance(real, int) else 0,
    )
