"""Cloud Storage calls for staging. Each write names the generation that it replaces, so a retry repeats nothing."""

import base64
import mimetypes
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from gcp_tpu_provider import refusals
from gemma_serving.cloud import google_api
from gemma_serving.cloud.google_session import NoConnectionError, RejectedLoginError, open_session
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import Ownership, owner_of
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.proof import Asker, Proof

MOST_SOURCES: Final = 32
"""Maximum objects per compose (Cloud Storage, Composite objects)."""
_SHA256: Final = "sha256"
"""Key of an object's metadata with the SHA-256 of its content in hexadecimal."""
_LIMIT_S: Final = 300
_RETRY_S: Final = 600
"""Time within which a failed upload is restarted. A part can take longer than the library's 120 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObject:
    """An object in a Cloud Storage list."""

    name: str
    size_bytes: int
    generation: int
    """A number that changes whenever the content does."""
    crc32c: str
    """Base64, as in Cloud Storage."""
    sha256: str | None
    """From the object's metadata; None if the writer did not set it."""


class NoBucketError(ScriptError):
    """A bucket that does not exist."""


class WeightsBucket:
    """A bucket, with the user's credentials. Thread-safe. Each method raises ScriptError."""

    def __init__(self, name: str, project: str, asker: Asker | None = None, *, is_shared: bool = False) -> None:
        """Store the bucket's name; no call is made yet. Raises CommandRefusedError without credentials.

        `asker`: the stack that stages; without one, nothing is deleted. `is_shared`: the stack's settings name the bucket of another owner.
        """
        from google.cloud import storage  # noqa: PLC0415 - slow to load

        credentials = google_api.credentials()
        session = open_session(project, given=credentials)
        options = {"api_endpoint": google_api.endpoint("storage").rstrip("/")}
        self._client: Any = storage.Client(
            project=project, credentials=credentials, client_options=options, _http=session
        )
        self.name = name
        self._asker = asker or Asker(stack="")
        self._is_shared = is_shared
        self._bucket: Any = self._client.bucket(name)

    @cached_property
    def owner(self) -> Ownership | None:
        """The stack that the bucket's labels name, or that stages into another owner's bucket, which its settings name; None without one."""
        if self._is_shared:
            return Ownership(project=self._asker.project, stack=self._asker.stack or "")
        with storage_errors(self.name):
            labels: object = self._client.get_bucket(self.name, timeout=_LIMIT_S).labels
        return owner_of(labels=as_mapping(labels))

    def proof(self, claim: str, source: str) -> Proof:
        """Return the proof for deletions from the bucket. Raises NotOwnedError if its owner is not who asks."""
        owners = {f"gs://{self.name}": self.owner} if self.owner is not None else {}
        proof = Proof(claim=claim, source=source, owners=owners)
        proof.require(self._asker)
        return proof

    def objects(self, prefix: str) -> Mapping[str, BucketObject]:
        """Return the objects whose names start with `prefix`, by name. Raises NoBucketError."""
        from google.api_core.exceptions import NotFound  # noqa: PLC0415 - slow to load

        with storage_errors(self.name):
            try:
                return {blob.name: _object(blob) for blob in self._bucket.list_blobs(prefix=prefix, timeout=_LIMIT_S)}
            except NotFound:
                raise NoBucketError(f"gs://{self.name} does not exist. Check its name, or create it.") from None

    def text(self, name: str) -> str | None:
        """Return the content of a small object; None if it does not exist."""
        from google.api_core.exceptions import NotFound  # noqa: PLC0415 - slow to load

        with storage_errors(self.name):
            try:
                return cast("str", self._bucket.blob(name).download_as_text(timeout=_LIMIT_S))
            except NotFound:
                return None

    def part(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from `start` up to `end`, which is larger."""
        with storage_errors(self.name):
            # A part has no checksum.
            blob = self._bucket.blob(name)
            return cast("bytes", blob.download_as_bytes(start=start, end=end - 1, timeout=_LIMIT_S, checksum=None))

    def upload(
        self, name: str, data: bytes, *, replaced: BucketObject | None, sha256: str | None = None
    ) -> BucketObject:
        """Write an object with its CRC32C, which Cloud Storage verifies before it stores anything."""
        from google.cloud.storage.retry import DEFAULT_RETRY  # noqa: PLC0415 - slow to load

        def write(blob: Any) -> None:  # noqa: ANN401 - the library is untyped
            blob.upload_from_string(
                data,
                content_type=blob.content_type,
                timeout=_LIMIT_S,
                retry=DEFAULT_RETRY.with_timeout(_RETRY_S),
                checksum="crc32c",
                if_generation_match=_generation(replaced),
            )

        return self._written(name, write, len(data), crc32c(data), sha256)

    def compose(
        self,
        name: str,
        sources: Sequence[BucketObject],
        *,
        replaced: BucketObject | None,
        crc32c: str | None = None,
        sha256: str | None = None,
    ) -> BucketObject:
        """Join at most MOST_SOURCES objects of the bucket in exactly these generations. `replaced` is the object of that name now, if any.

        `crc32c` is the checksum of the result, if known. It is compared only to distinguish a lost response from a second writer.
        Raises ScriptError if Cloud Storage rejects it, or if a source or the replaced object has changed.
        """
        from google.api_core.exceptions import NotFound  # noqa: PLC0415 - slow to load

        def write(blob: Any) -> None:  # noqa: ANN401 - the library is untyped
            try:
                blob.compose(
                    [self._bucket.blob(source.name, generation=source.generation) for source in sources],
                    if_generation_match=_generation(replaced),
                    if_source_generation_match=[source.generation for source in sources],
                    timeout=_LIMIT_S,
                )
            except NotFound:
                raise changed(f"An object of gs://{self.name}") from None

        return self._written(name, write, sum(source.size_bytes for source in sources), crc32c, sha256)

    def rewrite(
        self,
        name: str,
        source_bucket: str,
        source: BucketObject,
        *,
        replaced: BucketObject | None,
        sha256: str | None,
    ) -> BucketObject:
        """Copy an object of another bucket within Google. `replaced` is the object of that name now, if any.

        Raises ScriptError if Cloud Storage rejects the copy, or if the source's generation or the replaced object has changed.
        """
        origin: Any = self._client.bucket(source_bucket).blob(source.name, generation=source.generation)

        def write(blob: Any) -> None:  # noqa: ANN401 - the library is untyped
            token: str | None = ""
            while token is not None:
                token, _copied, _size = blob.rewrite(
                    origin,
                    token=token or None,
                    if_generation_match=_generation(replaced),
                    if_source_generation_match=source.generation,
                    timeout=_LIMIT_S,
                )

        with storage_errors(f"{source_bucket} or gs://{self.name}"):
            return self._written(name, write, source.size_bytes, source.crc32c, sha256)

    def delete(self, item: BucketObject, proof: Proof) -> None:
        """Delete an object unless it no longer exists or has another generation than the one that was read. Raises NotOwnedError too."""
        proof.require(self._asker)
        from google.api_core.exceptions import NotFound, PreconditionFailed  # noqa: PLC0415 - slow to load

        with storage_errors(self.name):
            try:
                self._bucket.blob(item.name).delete(if_generation_match=item.generation, timeout=_LIMIT_S)
            except (NotFound, PreconditionFailed):
                return

    def _written(
        self, name: str, write: Callable[[Any], None], size_bytes: int, crc: str | None, sha256: str | None
    ) -> BucketObject:
        """Write an object, and return it as Cloud Storage has it.

        An existing object with this content means that a response was lost, or another run was faster.
        """
        from google.api_core.exceptions import PreconditionFailed  # noqa: PLC0415 - slow to load

        blob = self._bucket.blob(name)
        blob.content_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        if sha256 is not None:
            blob.metadata = {_SHA256: sha256}
        with storage_errors(self.name):
            try:
                write(blob)
            except PreconditionFailed:
                blob = self._bucket.get_blob(name, timeout=_LIMIT_S)
                found = None if blob is None else _object(blob)
                if found is None or (found.size_bytes, found.sha256) != (size_bytes, sha256):
                    raise
                if crc not in {None, found.crc32c}:
                    raise
        return _object(blob)


def crc32c(data: bytes) -> str:
    """Return the CRC32C of bytes in Cloud Storage's format."""
    return crc32c_text(extend_crc32c(0, data))


def extend_crc32c(crc: int, data: bytes) -> int:
    """Return the CRC32C of the content with checksum `crc` followed by `data`."""
    import google_crc32c  # noqa: PLC0415 - a C library

    return cast("int", google_crc32c.extend(crc, data))  # pyright: ignore[reportUnknownMemberType] - the library is untyped


def crc32c_text(crc: int) -> str:
    """Return a CRC32C in Cloud Storage's format: base64 of four bytes, big-endian."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


@contextmanager
def storage_errors(bucket: str) -> Generator[None]:
    """Convert errors of Google's client into one sentence. Raises ScriptError."""
    import requests  # noqa: PLC0415 - slow to load
    from google.api_core.exceptions import GoogleAPIError, PreconditionFailed, RetryError  # noqa: PLC0415 - slow to load
    from google.auth.exceptions import GoogleAuthError, TransportError  # noqa: PLC0415 - slow to load

    try:
        yield
    except PreconditionFailed:
        raise changed(f"An object of gs://{bucket}") from None
    except (RetryError, requests.RequestException, TransportError) as error:
        cause = (cast("Exception | None", error.cause) or error) if isinstance(error, RetryError) else error
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is None:
            raise NoConnectionError(google_api.endpoint("storage"), cause) from None
        raise ScriptError(f"Cloud Storage returned HTTP {status}. Run the same command again.") from None
    except GoogleAuthError as error:
        raise RejectedLoginError(error) from None
    except GoogleAPIError as error:
        words = masked(str(error))
        said = (words.splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ScriptError(f"Cloud Storage rejected the call: {said}. {refusals.advice(words)}".rstrip()) from None


def changed(what: str) -> ScriptError:
    """Return the error of a copy that conflicts with another one."""
    return ScriptError(
        f"{what} was changed by another process during the copy. Stop the other copy, then run this again."
    )


def _object(blob: Any) -> BucketObject:  # noqa: ANN401 - the library is untyped
    return BucketObject(
        name=str(blob.name),
        size_bytes=int(blob.size),
        generation=int(blob.generation),
        crc32c=str(blob.crc32c),
        sha256=cast("Mapping[str, str]", blob.metadata or {}).get(_SHA256),
    )


def _generation(replaced: BucketObject | None) -> int:
    return 0 if replaced is None else replaced.generation
