"""Sources of a checkpoint: a folder, or the Hugging Face Hub at one commit. Both are read in parts, in any order."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from cloud import google_api
from cloud.hub import hub_errors, real_sizes
from cloud.model_files import CONFIG, INDEX
from cloud.safetensors_file import NotSafetensorsError, read_table
from contracts.errors import CommandRefusedError, ScriptError
from contracts.parallel import each
from contracts.staged_weights import MANIFEST, PARTS

_WANTED: Final = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Files that vLLM reads. Weights in other formats double the copy."""
_WEIGHTS: Final = ".safetensors"
_POINTER: Final = b"version https://git-lfs."
"""Start of the text that Git LFS stores in place of a file that it has not fetched (git-lfs, docs/spec.md)."""
_READ_LIMIT_S: Final = 120.0
"""Read timeout for the hub within one part."""
_RETRIES: Final = 10
_LONGEST_PAUSE_S: Final = 30.0
"""Maximum pause; pauses are 1, 2, 4 s and so on up to it: three minutes without a connection do not abort a copy."""
_PARTIAL: Final = 206
_HEADERS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    sha256: str | None
    """SHA-256 from the source, which the hub states for large files. None if the file was not read yet."""
    git_sha1: str | None = None
    """Git's id of the file, which the hub states for small files."""
    changed_ns: int = 0
    """Last change of a local file, in nanoseconds since 1970."""
    real_bytes: int = 0
    """Size of the real file if the local cloud's hub sends a shrunk one; 0 for every other source."""


class CheckpointSource(Protocol):
    """A checkpoint that can be read."""

    @property
    def revision(self) -> str:
        """Name of exactly this checkpoint: a commit, or a folder."""
        ...

    def files(self) -> Sequence[SourceFile]:
        """List the files that vLLM reads."""
        ...

    def read(self, file: SourceFile, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`. Raises ScriptError if the source cannot be read or the file has changed."""
        ...

    def verify(self, file: SourceFile, sha256: str, git_sha1: str) -> None:
        """Compare the hashes of all bytes that were read with the source's. Raises ScriptError if they differ."""
        ...


class RunningHash(Protocol):
    """A hash of bytes that arrive in order."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""
        ...

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far."""
        ...


def is_wanted(name: str) -> bool:
    """Return whether vLLM reads a file, named below the checkpoint's folder. Manifests of an earlier copy do not count."""
    path = PurePosixPath(name)
    return path.suffix in _WANTED and path.name != MANIFEST and PARTS not in path.parts


def require_checkpoint(
    place: str, names: Collection[str], read_index: Callable[[], bytes | str], *, config: str = CONFIG
) -> None:
    """Compare the names of a source's files with its index of the weights. `read_index` is called if there is one.

    `config` is the file that every checkpoint of its kind has: config.json, or adapter_config.json of an adapter.

    Raises CommandRefusedError if `place` is not a checkpoint, or an incomplete one.
    """
    if config not in names:
        what = (
            "a checkpoint. Pass the source with the weights."
            if config == CONFIG
            else "a LoRA adapter in PEFT's format."
        )
        raise CommandRefusedError(f"{place} has no {config}, so it is not {what}")
    if not any(name.endswith(_WEIGHTS) for name in names):
        raise CommandRefusedError(f"{place} has no {_WEIGHTS} files, so vLLM cannot load weights from it.")
    if INDEX not in names:
        return
    try:
        named = set(cast("Mapping[str, str]", json.loads(read_index())["weight_map"]).values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CommandRefusedError(f"{INDEX} of {place} is not an index of weights. Download it again.") from None
    absent = sorted(named.difference(names))
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise CommandRefusedError(f"{place} has no {absent[0]}{more}, which {INDEX} lists. Complete it there first.")


def require_whole_weights(
    place: str, files: Sequence[SourceFile], read: Callable[[SourceFile, int, int], bytes]
) -> None:
    """Read the header of each file of weights, which states the file's length. `read` returns the bytes of a file between two positions.

    Raises CommandRefusedError for a file that is empty, short or invalid, and the errors of `read`.
    """
    each(
        [partial(_require_whole, place, file, read) for file in files if file.name.endswith(_WEIGHTS)],
        workers=_HEADERS_AT_ONCE,
    )


def _require_whole(place: str, file: SourceFile, read: Callable[[SourceFile, int, int], bytes]) -> None:
    try:
        read_table(file.size_bytes, lambda start, end: read(file, start, end))
    except NotSafetensorsError as error:
        raise CommandRefusedError(
            f"{file.name} of {place} {error}: its download is incomplete, or it is damaged. Download the file again, then stage it."
        ) from None


def git_blob(size_bytes: int) -> RunningHash:
    """Return a hash that becomes Git's id of a file after all its bytes are added."""
    return hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSource:
    """A checkpoint in a local folder."""

    folder: Path

    @property
    def revision(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    def files(self) -> Sequence[SourceFile]:
        """List the folder's files. Raises CommandRefusedError as `require_checkpoint` does, ScriptError if the index cannot be read."""
        paths = (path for path in self.folder.rglob("*") if is_wanted(path.relative_to(self.folder).as_posix()))
        files = {file.name: file for file in (self._listed(path) for path in sorted(paths) if path.is_file())}
        require_checkpoint(str(self.folder), files.keys(), lambda: self.read(files[INDEX], 0, files[INDEX].size_bytes))
        for file in files.values():
            if file.name.endswith(_WEIGHTS) and self.read(file, 0, min(file.size_bytes, len(_POINTER))) == _POINTER:
                raise CommandRefusedError(
                    f"{self.folder / file.name} is a Git LFS pointer. Run `git lfs pull` in {self.folder}."
                )
        return list(files.values())

    def read(self, file: SourceFile, start: int, end: int) -> bytes:
        """Return a part of a file. Raises ScriptError if it cannot be read or has become shorter."""
        try:
            with (self.folder / file.name).open("rb") as stream:
                stream.seek(start)
                data = stream.read(end - start)
        except OSError as error:
            raise ScriptError(f"{self.folder / file.name} cannot be read: {error.strerror}.") from None
        if len(data) != end - start:
            raise self._changed(file)
        return data

    def verify(self, file: SourceFile, sha256: str, git_sha1: str) -> None:  # noqa: ARG002 - a folder states no hashes
        """Raise ScriptError if the file changed since it was listed."""
        try:
            now = self._listed(self.folder / file.name)
        except OSError:
            raise self._changed(file) from None
        if now != file:
            raise self._changed(file)

    def _listed(self, path: Path) -> SourceFile:
        found = path.stat()
        name = path.relative_to(self.folder).as_posix()
        return SourceFile(name=name, size_bytes=found.st_size, sha256=None, changed_ns=found.st_mtime_ns)

    def _changed(self, file: SourceFile) -> ScriptError:
        return ScriptError(f"{self.folder / file.name} was changed during the copy. Run this again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A checkpoint of the Hugging Face Hub at one commit. The token comes from HF_TOKEN or the hub client's login."""

    model: str
    revision: str
    """Commit of the hub."""
    repository: Sequence[SourceFile]
    """All files of the repository at the commit."""

    def files(self) -> Sequence[SourceFile]:
        """List the files that vLLM reads."""
        return [file for file in self.repository if is_wanted(file.name)]

    def read(self, file: SourceFile, start: int, end: int) -> bytes:
        """Download a part of a file. The hub redirects to its storage, including Xet, which supports ranges.

        Raises:
            ScriptError: as `hub_errors` does, and if the response is not that part of a file of this size.
        """
        import httpx2  # noqa: PLC0415 - the hub client's HTTP library, whose errors it passes on
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 - slow to load
        from huggingface_hub.utils import (  # noqa: PLC0415
            build_hf_headers,  # pyright: ignore[reportUnknownVariableType] - partly untyped
            hf_raise_for_status,
            http_backoff,  # pyright: ignore[reportUnknownVariableType] - partly untyped
        )

        headers = {**build_hf_headers(), "Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        url = hf_hub_url(self.model, file.name, revision=self.revision)
        if end == start:
            return b""
        otherwise = "run this again to resume"
        with hub_errors(self.model, otherwise):
            try:
                answer = http_backoff(
                    "GET",
                    url,
                    headers=headers,
                    timeout=_READ_LIMIT_S,
                    max_retries=_RETRIES,
                    max_wait_time=_LONGEST_PAUSE_S,
                    # The threads share a client, which each of them closes when it gets no connection. Requests that
                    # other threads start on it then raise RuntimeError.
                    # AttributeError: `get_session` returns None if another thread closes the client at that moment (huggingface_hub 2.4).
                    retry_on_exceptions=(httpx2.TransportError, RuntimeError, AttributeError),
                )
            except (RuntimeError, AttributeError) as error:
                raise ScriptError(
                    f"The Hugging Face Hub cannot be reached ({type(error).__name__}); {otherwise}."
                ) from None
            hf_raise_for_status(answer)
        whole = answer.status_code != _PARTIAL and (start, end) == (0, file.size_bytes)
        if not whole and answer.headers.get("Content-Range") != f"bytes {start}-{end - 1}/{file.size_bytes}":
            said = answer.headers.get("Content-Range") or f"HTTP {answer.status_code} without a range"
            raise ScriptError(
                f"{urlsplit(str(answer.url)).hostname} returned {said} for bytes {start}-{end - 1} of {file.name} "
                f"({file.size_bytes} bytes). Run this again."
            )
        if len(answer.content) != end - start:
            raise ScriptError(f"{file.name}: the hub sent {len(answer.content)} bytes instead of {end - start}.")
        return answer.content

    def verify(self, file: SourceFile, sha256: str, git_sha1: str) -> None:
        """Raise ScriptError if the file's hash differs from the hub's."""
        for what, found, stated in (("SHA-256", sha256, file.sha256), ("Git id", git_sha1, file.git_sha1)):
            if stated not in {None, found}:
                raise ScriptError(
                    f"{file.name} has {what} {found} after the download, but the hub states {stated}. Run this again."
                )


def hub(model: str, revision: str | None, *, config: str = CONFIG) -> HubSource:
    """Resolve a revision of the hub to a commit. `config` is the file that the repository must have.

    Raises:
        CommandRefusedError: as `require_checkpoint` does.
        ScriptError: if the hub cannot be reached or does not have the model.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load

    with hub_errors(model, "pass --from FOLDER with a downloaded checkpoint"):
        info = HfApi().model_info(model, revision=revision, files_metadata=True, timeout=google_api.CALL_LIMIT_S)
        # The file list of a gated repository is public; without this check, the download would fail after the bucket is created.
        HfApi().auth_check(model)
    real = real_sizes(info)
    files = [
        SourceFile(
            name=s.rfilename,
            size_bytes=s.size or 0,
            sha256=s.lfs.sha256 if s.lfs else None,
            git_sha1=None if s.lfs else s.blob_id,
            real_bytes=real.get(s.rfilename, 0),
        )
        for s in info.siblings or []
    ]
    source = HubSource(model=model, revision=info.sha or "", repository=files)
    wanted = {file.name: file for file in source.files()}
    require_checkpoint(
        f"{model} at {source.revision}",
        wanted.keys(),
        lambda: source.read(wanted[INDEX], 0, wanted[INDEX].size_bytes),
        config=config,
    )
    return source
