"""Archives of compiled programs and graphs: one signed tar of a set of files in a bucket, restored completely or not at all.

A server runs what is restored, and others can write to a bucket. So this stack must have signed the name of an object,
and its bytes must match the name. An error costs compile time and one log line.
"""

import hashlib
import hmac
import json
import mmap
import os
import re
import shutil
import tarfile
import tempfile
import urllib.parse
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from vm_agent.base import GIB, ServingError
from vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, endpoint, google
from vm_agent.mounted import open_mounted

RANGE_BYTES = 32 * 1024 * 1024
MOST_BYTES = GIB
"""Maximum size of an archive. A larger one takes as long to read as to compile."""
MOST_LISTED = 1000
"""Objects of a folder that are read, so that a full one cannot delay a start."""
SUFFIX = ".tar.signed"
SIGNED_PURPOSE = "gemma-serving compile archive 1"
"""First line of the signed text, which prevents use of the signature for other purposes."""
SIGNED_NAME = re.compile(
    r"(?P<digest>[0-9a-f]{64})-(?P<size>0|[1-9][0-9]{0,14})-(?P<signature>[0-9a-f]{64})" + re.escape(SUFFIX)
)
FLAT = re.compile(r"[^./][^/]*")
"""Names of files in an archive of one folder. None is hidden, absolute or a parent."""
TREE = re.compile(r"[^./][^/]*(?:/[^./][^/]*)*")
"""The same for an archive of a tree."""


@dataclass(frozen=True)
class ArchiveSigner:
    """Names of the archives in `uri`: an HMAC of content and location. Raises ValueError if the key is empty."""

    key: str = field(repr=False)
    uri: str

    def __post_init__(self) -> None:
        if not self.key.strip():
            raise ValueError("the key that signs archives is empty, so none is used")

    def name(self, digest: str, size: int) -> str:
        """Return the name of an archive within the folder.

        `digest` is the SHA-256 of its bytes, `size` their number.
        """
        return f"{digest}-{size}-{self._signature(digest, size)}{SUFFIX}"

    def signed(self, name: str) -> "tuple[str, int] | None":
        """Return the SHA-256 and the size of an archive with a name that this stack signed, or None for other names."""
        found = SIGNED_NAME.fullmatch(name)
        if found is None:
            return None
        digest, size = found["digest"], int(found["size"])
        return (digest, size) if hmac.compare_digest(self._signature(digest, size), found["signature"]) else None

    def _signature(self, digest: str, size: int) -> str:
        text = "\n".join((SIGNED_PURPOSE, self.uri, SUFFIX, digest, str(size)))
        return hmac.new(self.key.encode(), text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Archive:
    """Archive of the files in `folder`, below `uri` (gs://BUCKET/FOLDER)."""

    metadata: MetadataClient
    uri: str
    folder: Path
    key: str = field(repr=False)
    """Secret that signs the name."""
    names: "re.Pattern[str]" = FLAT

    @property
    def _signer(self) -> ArchiveSigner:
        return ArchiveSigner(self.key, self.uri)

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
        count = f"{len(others)} of the objects in {self.uri} are not signed with this stack's key and are not used"
        return signed, f"{count}, for example {others[0][:200]!r}." if others else ""

    def restore_newest(self, what: str, tell: "Callable[[str], None]", signed: Sequence[str], others: str) -> bool:
        """Restore the first archive that `listed` returned, and tell about it.

        Raises:
            ServingError: its bytes do not match its name, or it cannot be read.
            OSError: the disk is full.
            tarfile.TarError: it is not a tar of such files.
        """
        if others:
            tell(others)
        if not signed:
            tell(f"No signed archive of {what.lower()} is in {self.uri}. The server will compile them.")
            return False
        self._restore(signed[0])
        tell(f"{what} were restored from {self.uri}/{signed[0]}.")
        return True

    def _restore(self, name: str) -> None:
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
            self._unpack(tar, fresh)
            for path in [path for path in fresh.rglob("*") if not path.is_dir()]:
                target = self.folder / path.relative_to(fresh)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)  # one by one: a running container keeps its folder

    def save(self, files: Sequence[Path], secrets: Collection[str] = ()) -> str:
        """Archive files of the folder and delete earlier archives. Return words about it, or none if it exists.

        Raises:
            ServingError: a file contains a secret, they are too large, or the bucket rejects the archive.
            OSError: the disk is full, or a file is not a regular one any more.
        """
        total = sum(path.lstat().st_size for path in files)
        if total > MOST_BYTES:
            raise ServingError(f"the files have {total} bytes, so they were not archived")
        earlier, _ = self.listed()
        path, prefix = self._place
        with self._beside() as beside:
            tar = beside / "tar"
            self.pack(files, tar)
            # Search the tar, not the files, which the server can change between two reads.
            with tar.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if any(content.find(value.encode()) >= 0 for value in tuple(secrets) if value):
                    raise ServingError("a file contains a secret, so they were not archived")
                size = len(content)
                name = self._signer.name(hashlib.sha256(content).hexdigest(), size)
            if name in earlier:
                return ""
            query = urllib.parse.urlencode({"uploadType": "media", "name": prefix + name})
            google(self.metadata, f"{endpoint('storage')}upload/{path}?{query}", verb="POST", body=tar)
        for one in earlier:
            self._delete(one)
        return f"archived as {self.uri}/{name} ({size} bytes)"

    def pack(self, files: Sequence[Path], tar: Path) -> None:
        """Write files into a tar that depends only on their names and contents. Raises OSError as `save` does."""
        with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
            for path in files:
                entry = tarfile.TarInfo(path.relative_to(self.folder).as_posix())
                with open_mounted(path) as file:
                    entry.size = os.fstat(file.fileno()).st_size
                    out.addfile(entry, file)

    def _unpack(self, tar: Path, folder: Path) -> None:
        """Write the tar's files into a new folder. Raises tarfile.TarError if it contains anything else."""
        folder.mkdir()
        with tarfile.open(tar, "r:") as source:
            for entry in source:
                data = source.extractfile(entry) if entry.isreg() else None
                if data is None or not self.names.fullmatch(entry.name):
                    raise tarfile.TarError(f"{entry.name!r} is not a regular file of the archive's folder")
                target = folder / entry.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(data, file)

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
    except (ServingError, *CONNECTION_ERRORS, KeyError, TypeError, EOFError, tarfile.TarError) as error:
        is_refused = isinstance(error, ServingError) and error.denied and "/storage/" in str(error)
        tell(f"{what}: {str(error).rstrip('.')}. The server is not affected.{f' Grant {grant}' if is_refused else ''}")
