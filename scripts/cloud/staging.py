"""Copy a checkpoint into a bucket file by file. A second run copies only what is missing or changed."""

import hashlib
import io
import json
import mimetypes
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Protocol, TypeAlias, cast

from google.api_core.exceptions import GoogleAPIError
from google.auth.exceptions import GoogleAuthError
from google.cloud import storage

from contracts.staged_weights import MANIFEST
from scripts.cloud import google_api
from scripts.cloud.hub import hub_errors
from scripts.errors import CommandRefusedError, ScriptError

_WANTED = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Files that vLLM reads. Weights in other formats would double the copy."""
_CHUNK_BYTES = 8 * 1024 * 1024
_UPLOAD_LIMIT_S = 3_600
_CALL_LIMIT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a checkpoint. `sha256` is None unless the hub states it, which it does for large files."""

    name: str
    size_bytes: int
    sha256: str | None


OnBytes: TypeAlias = Callable[[str, int, int], None]
"""Called while a file is read, with the work and the file in words, the bytes that are done, and those of the file."""


class Blob(Protocol):
    """The part of an object that staging uses; google-cloud-storage has no types."""

    name: str
    size: int
    metadata: dict[str, str] | None

    def upload_from_file(
        self, file_obj: IO[bytes], *, size: int, content_type: str, timeout: int, checksum: str
    ) -> None:
        """Upload an open file."""
        ...

    def upload_from_string(self, data: str, *, content_type: str, timeout: int) -> None:
        """Upload a text."""
        ...


class StagingBucket(Protocol):
    """The part of a bucket that staging uses."""

    def blob(self, blob_name: str, *, chunk_size: int | None = None) -> Blob:
        """Return an object by name; it does not have to exist."""
        ...

    def list_blobs(self, *, prefix: str, timeout: int) -> Iterable[Blob]:
        """List the objects below a prefix."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSource:
    """A checkpoint in a local folder."""

    folder: Path

    @property
    def revision(self) -> str:
        """Name of the folder."""
        return self.folder.name

    def files(self) -> Sequence[SourceFile]:
        """List the folder's files. Raises CommandRefusedError if it has no config.json."""
        if not (self.folder / "config.json").is_file():
            raise CommandRefusedError(
                f"{self.folder} has no config.json, so it is not a checkpoint; name the folder that `hf download` wrote."
            )
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file() and path.suffix in _WANTED)
        return [
            SourceFile(name=path.relative_to(self.folder).as_posix(), size_bytes=path.stat().st_size, sha256=None)
            for path in paths
        ]

    @contextmanager
    def local(self, name: str) -> Generator[Path]:
        """Return the file itself."""
        yield self.folder / name


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A checkpoint of the Hugging Face hub at one commit. The token comes from HF_TOKEN or the hub client's login."""

    model: str
    revision: str
    """Commit of the hub."""
    repository: Sequence[SourceFile]
    """All files of the repository at the commit."""

    def files(self) -> Sequence[SourceFile]:
        """List the files that vLLM reads."""
        return [file for file in self.repository if Path(file.name).suffix in _WANTED]

    @contextmanager
    def local(self, name: str) -> Generator[Path]:
        """Download one file to a temporary folder and delete it afterwards, so that disk space for one file is enough."""
        from huggingface_hub import hf_hub_download  # noqa: PLC0415  # pyright: ignore[reportUnknownVariableType] - slow to load, partly untyped

        with TemporaryDirectory(prefix="gemma-serving-") as folder:
            yield Path(hf_hub_download(self.model, name, revision=self.revision, local_dir=folder))


def hub(model: str, revision: str | None) -> HubSource:
    """Resolve a revision of the hub to a commit. Raises ScriptError if the hub cannot be reached or does not know the model."""
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load

    with hub_errors(model, "pass --from FOLDER with a downloaded checkpoint"):
        info = HfApi().model_info(model, revision=revision, files_metadata=True, timeout=google_api.CALL_LIMIT_S)
    files = [
        SourceFile(name=s.rfilename, size_bytes=s.size or 0, sha256=s.lfs.sha256 if s.lfs else None)
        for s in info.siblings or []
    ]
    return HubSource(model=model, revision=info.sha or "", repository=files)


CheckpointSource: TypeAlias = FolderSource | HubSource
"""A checkpoint to copy."""


def bucket(name: str, project: str) -> StagingBucket:
    """Return a bucket with the user's credentials and the endpoint of the environment."""
    options = {"api_endpoint": google_api.endpoint("storage").rstrip("/")}
    client = storage.Client(project=project, credentials=google_api.credentials(), client_options=options)
    return cast("StagingBucket", client.bucket(name))  # pyright: ignore[reportUnknownMemberType] - the library is untyped


class _Watched(io.BufferedReader):
    """A file that says how far it has been read; a retried upload reads a part again."""

    def __init__(self, path: Path, work: str, on_bytes: OnBytes) -> None:
        super().__init__(io.FileIO(path))
        self._work, self._on_bytes, self._size = work, on_bytes, path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, and say where the file is."""
        data = super().read(size)
        self._on_bytes(self._work, self.tell(), self._size)
        return data


def _unwatched(_work: str, _done: int, _total: int) -> None:
    """Nobody looks."""


def stage(
    source: CheckpointSource,
    target: StagingBucket,
    prefix: str,
    on_file: Callable[[SourceFile, bool], None],
    on_bytes: OnBytes = _unwatched,
) -> tuple[int, int]:
    """Copy what is missing or different, then write the manifest. Return the number of files copied and kept.

    `on_file(file, copied)` is called after each file, `on_bytes` while one is read. Other objects below `prefix` are left alone. Raises
    ScriptError if Cloud Storage refuses a request.
    """
    try:
        return _stage(source, target, prefix, on_file, on_bytes)
    except (GoogleAPIError, GoogleAuthError) as error:
        raise ScriptError(f"Cloud Storage refused: {str(error).splitlines()[0]}") from None


def _stage(
    source: CheckpointSource,
    target: StagingBucket,
    prefix: str,
    on_file: Callable[[SourceFile, bool], None],
    on_bytes: OnBytes,
) -> tuple[int, int]:
    present = {blob.name: blob for blob in target.list_blobs(prefix=f"{prefix}/", timeout=_CALL_LIMIT_S)}
    copied, entries = 0, list[dict[str, object]]()
    for file in source.files():
        name = f"{prefix}/{file.name}"
        sha256 = _known(present.get(name), file)
        copying = sha256 is None
        if sha256 is None:
            with source.local(file.name) as path:
                sha256 = _upload(target, name, path, file, on_bytes)
        copied += copying
        on_file(file, copying)
        entries.append({**asdict(file), "sha256": sha256})
    config = _config(source) if any(entry["name"] == "config.json" for entry in entries) else None
    document = {"schema": 1, "revision": source.revision, "config": config, "files": entries}
    manifest = json.dumps(document, indent=1)
    target.blob(f"{prefix}/{MANIFEST}").upload_from_string(
        manifest, content_type="application/json", timeout=_CALL_LIMIT_S
    )
    return copied, len(entries) - copied


def _config(source: CheckpointSource) -> object:
    """Return the checkpoint's config.json for the manifest, so that the planner needs no other file; None if it is no JSON."""
    with source.local("config.json") as path:
        try:
            return cast("object", json.loads(path.read_text(encoding="utf-8")))
        except ValueError:
            return None


def _known(blob: Blob | None, file: SourceFile) -> str | None:
    """Return the hash of an object that is a complete copy of the file, else None."""
    if blob is None or blob.size != file.size_bytes:
        return None
    sha256 = (blob.metadata or {}).get("sha256")
    return sha256 if sha256 is not None and file.sha256 in {None, sha256} else None


def _upload(target: StagingBucket, name: str, path: Path, file: SourceFile, on_bytes: OnBytes) -> str:
    sha256 = _sha256(path, f"checking {file.name}", on_bytes)
    if file.sha256 not in {None, sha256}:
        raise ScriptError(
            f"{file.name} has SHA-256 {sha256} after the download, the hub says {file.sha256}; run this again."
        )
    blob = target.blob(name, chunk_size=_CHUNK_BYTES)
    blob.metadata = {"sha256": sha256}
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    with _Watched(path, f"uploading {file.name}", on_bytes) as stream:
        blob.upload_from_file(
            stream, size=path.stat().st_size, content_type=kind, timeout=_UPLOAD_LIMIT_S, checksum="auto"
        )
    return sha256


def _sha256(path: Path, work: str, on_bytes: OnBytes) -> str:
    digest = hashlib.sha256()
    with _Watched(path, work, on_bytes) as stream:
        while part := stream.read(_CHUNK_BYTES):
            digest.update(part)
    return digest.hexdigest()
