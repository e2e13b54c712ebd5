"""Archives of compiled programs and graphs: one signed tar of a set of files in a bucket, restored completely or not at all.

A server runs what is restored, and others can write to a bucket. So this stack must have signed the name of an object
(vm_agent.signing), and its bytes must match the name. An error costs compile time and one log line.
"""

import hashlib
import hmac
import json
import mmap
import tarfile
import tempfile
import urllib.parse
import zlib
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from vm_agent.base import GIB, ServingError
from vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, endpoint, google
from vm_agent.signing import ArchiveSigner

RANGE_BYTES = 32 * 1024 * 1024
MOST_BYTES = GIB
"""Maximum size of an archive. A larger one takes as long to read as to compile."""
MOST_LISTED = 1000
"""Objects of a folder that are read, so that a full one cannot delay a start."""


@dataclass(frozen=True)
class Archive:
    """Archive of the files in `folder`, below `uri` (gs://BUCKET/FOLDER)."""

    metadata: MetadataClient
    uri: str
    suffix: str
    """End of the object's name, which states the format."""
    folder: Path
    key: str = field(repr=False)
    """Secret that signs the name."""

    @property
    def _signer(self) -> ArchiveSigner:
        return ArchiveSigner(self.key, self.uri, self.suffix)

    @property
    def _place(self) -> "tuple[str, str]":
        bucket, _, folder = self.uri.removeprefix("gs://").partition("/")
        return f"storage/v1/b/{bucket}/o", f"{folder}/"

    def _url(self, name: str) -> str:
        path, prefix = self._place
        return f"{endpoint('storage')}{path}/{urllib.parse.quote(prefix + name, safe='')}"

    def listed(self) -> "tuple[list[str], str]":
        """Return the names that this stack signed, newest first, and a sentence about others. Raises ServingError."""
        path, prefix = self._place
        query = {"prefix": prefix, "fields": "items(name,timeCreated)", "maxResults": MOST_LISTED}
        answer = google(self.metadata, f"{endpoint('storage')}{path}?{urllib.parse.urlencode(query)}")
        items = json.loads(answer).get("items", [])
        newest_first = sorted(items, key=lambda item: str(item["timeCreated"]), reverse=True)
        names = [str(item["name"])[len(prefix) :] for item in newest_first]
        signed = [name for name in names if self._signer.signed(name)]
        others = [name for name in names if name not in signed]
        if not others:
            return signed, ""
        named = f"for example {others[0][:200]!r}"
        return (
            signed,
            f"{len(others)} of the objects in {self.uri} are not signed with this stack's key and are not used, {named}.",
        )

    def restore(self, name: str, unpack: "Callable[[Path, Path], None]") -> None:
        """Restore the object with this signed name. `unpack` writes a tar's files into a new folder.

        Raises:
            ServingError: its bytes do not match its name, or it cannot be read.
            OSError: the disk is full.
            tarfile.TarError: it is not a tar of such files.
        """
        digest, size = self._signer.signed(name) or ("", 0)
        if size > MOST_BYTES:
            raise ServingError(f"{self.uri}/{name} exceeds {MOST_BYTES} bytes")
        with self._beside() as beside:
            tar, fresh, sha256 = beside / "tar", beside / "files", hashlib.sha256()
            with tar.open("wb") as file:
                for start in range(0, size, RANGE_BYTES):
                    span = f"bytes={start}-{min(start + RANGE_BYTES, size) - 1}"
                    data = google(self.metadata, f"{self._url(name)}?alt=media", headers={"Range": span})
                    sha256.update(data)
                    file.write(data)
            if not hmac.compare_digest(sha256.hexdigest(), digest):
                self._delete(name)
                raise ServingError(f"the bytes of {self.uri}/{name} do not match its name, so it is not used")
            unpack(tar, fresh)
            for path in [path for path in fresh.rglob("*") if not path.is_dir()]:
                target = self.folder / path.relative_to(fresh)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)  # one by one: a running container keeps its folder

    def save(self, pack: "Callable[[Path], None]", secrets: Collection[str] = ()) -> str:
        """Archive the tar that `pack` writes and delete earlier ones. Return words about it, or none if it exists.

        Raises:
            ServingError: the tar contains a secret or is too large, or the bucket rejects it.
            OSError: the disk is full.
        """
        (earlier, _), (path, prefix) = self.listed(), self._place
        with self._beside() as beside:
            tar = beside / "tar"
            pack(tar)
            # Search the tar, not the files, which the server can change between two reads.
            with tar.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if any(content.find(value.encode()) >= 0 for value in tuple(secrets) if value):
                    raise ServingError("a file contains a secret, so they were not archived")
                name, size = self._signer.name(hashlib.sha256(content).hexdigest(), len(content)), len(content)
            if size > MOST_BYTES:
                raise ServingError(f"the files have {size} bytes, so they were not archived")
            if name in earlier:
                return ""
            query = urllib.parse.urlencode({"uploadType": "media", "name": prefix + name})
            google(self.metadata, f"{endpoint('storage')}upload/{path}?{query}", verb="POST", body=tar)
        for one in earlier:
            self._delete(one)
        return f"archived as {self.uri}/{name} ({size} bytes)"

    def _delete(self, name: str) -> None:
        with suppress(ServingError):  # it is gone, or the next save tries again
            google(self.metadata, self._url(name), verb="DELETE")

    @contextmanager
    def _beside(self) -> "Generator[Path]":
        """Yield a new folder on the same disk, outside the folders that servers read."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".archive-", dir=self.folder.parent) as name:
            yield Path(name)


@contextmanager
def harmless(tell: Callable[[str], None], what: str, grant: str) -> Generator[None]:
    """Report an error in one line, with the grant to add if Google denied access, and go on."""
    try:
        yield
    except (ServingError, *CONNECTION_ERRORS, KeyError, TypeError, EOFError, tarfile.TarError, zlib.error) as error:
        is_refused = isinstance(error, ServingError) and error.denied and "/storage/" in str(error)
        tell(f"{what}: {str(error).rstrip('.')}. The server is not affected.{f' Grant {grant}' if is_refused else ''}")
