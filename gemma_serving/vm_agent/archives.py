"""Archives of compiled programs and graphs: signed tars in a bucket, restored completely or not at all.

A server runs restored programs, and others can write to a bucket, so this stack must have signed it.
"""

import hashlib
import hmac
import io
import json
import os
import re
import tarfile
import tempfile
import urllib.parse
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gemma_serving.vm_agent.base import GIB, ServingError
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, bucket_objects, google
from gemma_serving.vm_agent.mounted import open_mounted

MOST_BYTES = GIB
"""Maximum size of an archive. A larger one takes as long to read as to compile."""
MOST_LISTED = 1000
"""Objects of a folder that are read, so a full one cannot delay a start."""
SUFFIX = ".tar.signed"
SIGNED_PURPOSE = "gemma-serving compile archive 1"
"""First line of the signed text, which prevents use of the signature for other purposes."""
SIGNED_NAME = re.compile(
    r"(?P<digest>[0-9a-f]{64})-(?P<size>0|[1-9][0-9]{0,14})-[0-9a-f]{64}" + re.escape(SUFFIX), re.ASCII
)
FLAT = re.compile(r"[^./][^/]*")
"""Names of files in an archive of one folder. None is hidden, absolute or a parent."""
TREE = re.compile(r"[^./][^/]*(?:/[^./][^/]*)*")
"""The same for an archive of a tree."""


@dataclass(frozen=True)
class Archive:
    """Archive of the files in `folder`, at `uri` (gs://BUCKET/FOLDER). Raises ValueError for an empty key."""

    metadata: MetadataClient
    uri: str
    folder: Path
    key: str = field(repr=False)
    names: "re.Pattern[str]" = FLAT

    def __post_init__(self) -> None:
        if not self.key.strip():
            raise ValueError("the key that signs archives is empty, so none is used")

    def name(self, digest: str, size: int) -> str:
        """Return the name of an archive with this SHA-256 and number of bytes."""
        text = "\n".join((SIGNED_PURPOSE, self.uri, SUFFIX, digest, str(size)))
        return f"{digest}-{size}-{hmac.new(self.key.encode(), text.encode(), hashlib.sha256).hexdigest()}{SUFFIX}"

    def signed(self, name: str) -> "tuple[str, int] | None":
        """Return the SHA-256 and the size in a name that this stack signed, or None for other names."""
        found = SIGNED_NAME.fullmatch(name)
        if found is None:
            return None
        digest, size = found["digest"], int(found["size"])
        return (digest, size) if hmac.compare_digest(self.name(digest, size), name) else None

    def _url(self, name: str) -> str:
        objects, prefix = bucket_objects(self.uri)
        return f"{objects}/{urllib.parse.quote(prefix + name, safe='')}"

    def listed(self) -> "tuple[list[str], str]":
        """Return the signed names, newest first, and a sentence about others. Raises ServingError."""
        objects, prefix = bucket_objects(self.uri)
        query = {"prefix": prefix, "fields": "items(name,timeCreated)", "maxResults": MOST_LISTED}
        answer = google(self.metadata, f"{objects}?{urllib.parse.urlencode(query)}")
        items = json.loads(answer).get("items", [])
        newest_first = sorted(items, key=lambda item: str(item["timeCreated"]), reverse=True)
        names = [str(item["name"])[len(prefix) :] for item in newest_first]
        signed = [name for name in names if self.signed(name)]
        others = [name for name in names if name not in signed]
        count = f"{len(others)} of the objects in {self.uri} are not signed with this stack's key and are not used"
        return signed, f"{count}, for example {others[0][:200]!r}." if others else ""

    def restore_newest(self, what: str, tell: "Callable[[str], None]", signed: Sequence[str], others: str) -> bool:
        """Restore the first archive that `listed` returned. Raises ServingError, OSError and tarfile.TarError."""
        if others:
            tell(others)
        if not signed:
            tell(f"No signed archive of {what.lower()} is in {self.uri}. The server will compile them.")
            return False
        digest, size = self.signed(signed[0]) or ("", 0)
        if size > MOST_BYTES:
            raise ServingError(f"{self.uri}/{signed[0]} exceeds {MOST_BYTES} bytes")
        span = {"Range": f"bytes=0-{max(size, 1) - 1}"}  # no more of an object that is larger than its name states
        tar = google(self.metadata, f"{self._url(signed[0])}?alt=media", headers=span)
        if not hmac.compare_digest(hashlib.sha256(tar).hexdigest(), digest):
            self._delete(signed[0])
            raise ServingError(f"the bytes of {self.uri}/{signed[0]} do not match its name, so it is not used")
        self._unpack(tar)
        tell(f"{what} were restored from {self.uri}/{signed[0]}.")
        return True

    def save(self, files: Sequence[Path], secrets: Collection[str] = ()) -> str:
        """Archive files and delete earlier archives. Return words about it, or none if it exists.

        Raises ServingError, and OSError if a file is not a regular one any more.
        """
        earlier, _ = self.listed()
        # Search the tar, not the files, which the server can change between two reads.
        tar = self.packed(files)
        if any(value.encode() in tar for value in tuple(secrets) if value):
            raise ServingError("a file contains a secret, so they were not archived")
        name = self.name(hashlib.sha256(tar).hexdigest(), len(tar))
        if name in earlier:
            return ""
        objects, prefix = bucket_objects(self.uri)
        query = urllib.parse.urlencode({"uploadType": "media", "name": prefix + name})
        url = f"{objects.replace('/storage/v1/', '/upload/storage/v1/')}?{query}"
        google(self.metadata, url, verb="POST", headers={"Content-Type": "application/octet-stream"}, body=tar)
        for one in earlier:
            self._delete(one)
        return f"archived as {self.uri}/{name} ({len(tar)} bytes)"

    def packed(self, files: Sequence[Path]) -> bytes:
        """Return a tar that depends only on the files' names and contents. Raises as `save` does."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in files:
                entry = tarfile.TarInfo(path.relative_to(self.folder).as_posix())
                with open_mounted(path) as file:
                    entry.size = os.fstat(file.fileno()).st_size
                    if out.tell() + entry.size > MOST_BYTES:
                        raise ServingError(f"the files have more than {MOST_BYTES} bytes, so they were not archived")
                    tar.addfile(entry, file)
        return out.getvalue()

    def _unpack(self, content: bytes) -> None:
        """Write the files of a tar, all or none. Raises tarfile.TarError if it contains anything else."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        # On the same disk, outside the folders that servers read.
        beside = tempfile.TemporaryDirectory(prefix=".archive-", dir=self.folder.parent)
        with beside as fresh, tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            written: dict[str, Path] = {}
            for entry in tar:
                file = tar.extractfile(entry) if entry.isreg() else None
                if file is None or not self.names.fullmatch(entry.name):
                    raise tarfile.TarError(f"{entry.name!r} is not a regular file of the archive's folder")
                path = written[entry.name] = Path(fresh, str(len(written)))
                path.write_bytes(file.read())
            for name, path in written.items():
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)  # one by one: a running container keeps its folder

    def _delete(self, name: str) -> None:
        """Delete an archive if this stack signed its name. The bucket may have other writers' objects."""
        if self.signed(name) is None:
            return
        with suppress(ServingError):  # it is gone, or the next save tries again
            google(self.metadata, self._url(name), verb="DELETE")


@contextmanager
def harmless(tell: Callable[[str], None], what: str, grant: str) -> Generator[None]:
    """Report an error in one line, with the grant to add if Google denied access, and continue."""
    try:
        yield
    except (ServingError, *CONNECTION_ERRORS, KeyError, TypeError, EOFError, tarfile.TarError) as error:
        is_refused = isinstance(error, ServingError) and error.denied and "/storage/" in str(error)
        tell(f"{what}: {str(error).rstrip('.')}. The server is not affected.{f' Grant {grant}' if is_refused else ''}")
