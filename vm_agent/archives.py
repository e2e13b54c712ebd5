"""Archives of compiled programs and graphs: signed tars in a bucket, restored completely or not at all.

A restored program is run by the server, and others can write to a bucket. An object is therefore used only if this stack
signed its name (vm_agent.signing), and is unpacked only if its bytes match the name.
"""

import hashlib
import hmac
import json
import re
import shutil
import tarfile
import tempfile
import urllib.parse
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from vm_agent.base import GIB, ServingError, log
from vm_agent.cloud import (
    CONNECTION_ERRORS,
    MetadataClient,
    endpoint,
    google_delete,
    google_get,
    google_upload,
    read_secret,
)
from vm_agent.signing import SIGNED_NAME, ArchiveSigner
from vm_agent.weights import md5_of

RANGE_BYTES = 32 * 1024 * 1024
MOST_PAGES = 10
"""Pages of a listing that are read, of 1,000 objects each. Limits the delay that a full folder can cause."""
MOST_READ = 3
"""Signed archives that a restore reads until it finds an intact one."""
SIGNED_SUFFIX = ".signed"
"""Suffix of an archive's name."""
ARCHIVE_NAME = re.compile(rf"{SIGNED_NAME.pattern}\.tar(?:\.gz)?{re.escape(SIGNED_SUFFIX)}")
"""Names assigned by an agent. Objects with other names are never deleted."""
LONGEST_NAME = 200


@dataclass(frozen=True)
class StoredArchive:
    """An object in the folder. `created` is its time in RFC 3339, UTC."""

    name: str
    size: int
    created: str

    @property
    def file_name(self) -> str:
        """Name within the folder."""
        return self.name.rpartition("/")[2]

    @property
    def is_archive(self) -> bool:
        """True if an agent may have assigned the object's name, signed or not."""
        return ARCHIVE_NAME.fullmatch(self.file_name) is not None


@dataclass
class ArchiveFolder:
    """Archives of one set of files below `uri` (gs://BUCKET/FOLDER), and the folder of this machine with the files."""

    metadata: MetadataClient
    uri: str
    kind: str
    """Suffix that states the format: .tar or .tar.gz."""
    folder: Path
    key: str = field(repr=False)
    """Secret that signs the archives."""
    spare_bytes: int = 0
    """Free disk space that a restore preserves."""
    most_bytes: float = float("inf")
    """Maximum size of an archive that is restored."""
    tell: Callable[[str], None] = log
    tell_unsigned: Callable[[str], None] = log
    """Called once per restore if the folder has objects that this stack did not sign."""

    @property
    def prefix(self) -> str:
        """Name prefix of the archives."""
        return self.uri.removeprefix("gs://").partition("/")[2] + "/"

    @property
    def _signer(self) -> ArchiveSigner:
        return ArchiveSigner(self.key, self.uri, f"{self.kind}{SIGNED_SUFFIX}")

    @property
    def _bucket(self) -> str:
        return self.uri.removeprefix("gs://").partition("/")[0]

    @property
    def _objects(self) -> str:
        return f"{endpoint('storage')}storage/v1/b/{self._bucket}/o"

    def described(self, archive: StoredArchive) -> str:
        """Return the location and size of an archive."""
        return f"gs://{self._bucket}/{archive.name} ({archive.size} bytes)"

    def listed(self, prefix: str) -> "list[StoredArchive]":
        """Return the bucket's objects with this name prefix, from the first MOST_PAGES pages. Raises ServingError."""
        found: list[StoredArchive] = []
        query = {"prefix": prefix, "fields": "items(name,size,timeCreated),nextPageToken"}
        for _ in range(MOST_PAGES):
            answer = json.loads(google_get(self.metadata, f"{self._objects}?{urllib.parse.urlencode(query)}"))
            items = answer.get("items", [])
            found += [StoredArchive(str(one["name"]), int(one["size"]), str(one["timeCreated"])) for one in items]
            if not answer.get("nextPageToken"):
                return found
            query["pageToken"] = answer["nextPageToken"]
        self.tell(f"gs://{self._bucket}/{prefix} has more than {len(found)} objects. The others are ignored.")
        return found

    def signed(self, found: "Sequence[StoredArchive]") -> "list[StoredArchive]":
        """Return the objects that this stack signed as archives of this folder, newest first."""
        own = [one for one in found if self._signed_as(one) is not None]
        return sorted(own, key=lambda one: (one.created, one.name), reverse=True)

    def _signed_as(self, archive: StoredArchive) -> "tuple[str, int] | None":
        return self._signer.signed(archive.file_name) if archive.name == self.prefix + archive.file_name else None

    def restore(self, unpack: "Callable[[Path, Path], None]") -> "tuple[StoredArchive, list[str]] | None":
        """Restore the newest intact archive into the folder. Return it with the names of its files, or None if none exists.

        `unpack` writes a tar's files into a new folder.

        Raises:
            ServingError: an archive cannot be read.
            OSError: the disk is full.
        """
        found = self.listed(self.prefix)
        signed = self.signed(found)
        self._report_unsigned([one for one in found if one not in signed])
        for archive in signed[:MOST_READ]:
            names = self._restored(archive, unpack)
            if names:
                return archive, names
        return None

    def _report_unsigned(self, found: "Sequence[StoredArchive]") -> None:
        if found:
            newest = max(found, key=lambda one: (one.created, one.name))
            self.tell_unsigned(
                f"{len(found)} of the objects in {self.uri} are not signed with this stack's key and are not used, for example "
                f"{newest.file_name[:LONGEST_NAME]!r} of {newest.created}."
            )

    def _restored(self, archive: StoredArchive, unpack: "Callable[[Path, Path], None]") -> "list[str]":
        """Restore one signed archive and return the names of its files. If it is unusable, report why and return none."""
        digest, size = self._signed_as(archive) or ("", -1)
        self.folder.mkdir(parents=True, exist_ok=True)
        if archive.size != size:
            self.delete(archive)
            return self._ignored(archive, f"it has {archive.size} bytes, but was signed with {size}")
        if archive.size > self.most_bytes:
            return self._ignored(archive, f"it exceeds {self.most_bytes / GIB:.1f} GiB")
        needed, free = 2 * archive.size, shutil.disk_usage(self.folder).free
        if needed + self.spare_bytes > free:
            spare = f"{self.spare_bytes / GIB:.1f} GiB of spare space, but {free / GIB:.1f} GiB are free"
            return self._ignored(archive, f"it needs {needed / GIB:.1f} GiB and {spare}")
        with self._beside() as name:
            tar, fresh = Path(name, "tar"), Path(name, "files")
            if not hmac.compare_digest(self._download(archive, tar), digest):
                self.delete(archive)
                return self._ignored(archive, "its bytes do not match the signature")
            try:
                unpack(tar, fresh)
            except (tarfile.TarError, EOFError, zlib.error) as error:
                return self._ignored(archive, f"it is incomplete or damaged ({error})")
            names = [str(path.relative_to(fresh)) for path in fresh.rglob("*") if not path.is_dir()]
            for path in names:
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                (fresh / path).replace(self.folder / path)
        return names

    def _ignored(self, archive: StoredArchive, problem: str) -> "list[str]":
        self.tell(f"Archive gs://{self._bucket}/{archive.name} is ignored because {problem}.")
        return []

    def _beside(self) -> "tempfile.TemporaryDirectory[str]":
        """Return a new folder on the same disk, outside the folders that servers read."""
        return tempfile.TemporaryDirectory(prefix=".archive-", dir=self.folder.parent)

    def _download(self, archive: StoredArchive, tar: Path) -> str:
        digest = hashlib.sha256()
        url = f"{self._objects}/{urllib.parse.quote(archive.name, safe='')}?alt=media"
        with tar.open("wb") as file:
            for start in range(0, archive.size, RANGE_BYTES):
                last = min(start + RANGE_BYTES, archive.size) - 1
                data = google_get(self.metadata, url, headers={"Range": f"bytes={start}-{last}"})
                digest.update(data)
                file.write(data)
        return digest.hexdigest()

    def save(self, pack: "Callable[[Path], None]") -> StoredArchive:
        """Archive the tar that `pack` writes. An archive with the same bytes from another machine is equivalent.

        Raises:
            ServingError: the bucket rejected the archive.
            OSError: the disk is full.
        """
        with self._beside() as name:
            tar, digest = Path(name, "tar"), hashlib.sha256()
            pack(tar)
            with tar.open("rb") as file:
                while block := file.read(1 << 22):
                    digest.update(block)
            size = tar.stat().st_size
            archive = StoredArchive(self.prefix + self._signer.name(digest.hexdigest(), size), size, "")
            self._upload(tar, archive)
        return archive

    def _upload(self, tar: Path, archive: StoredArchive) -> None:
        """Create the object, without replacing an existing one."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": archive.name, "ifGenerationMatch": 0})
        url = f"{endpoint('storage')}upload/storage/v1/b/{self._bucket}/o?{query}"
        try:
            answer = json.loads(google_upload(self.metadata, url, tar))
        except ServingError as error:
            if error.status == HTTPStatus.PRECONDITION_FAILED:
                return
            raise
        if answer.get("md5Hash") != md5_of(tar):
            self.delete(archive)
            raise ServingError(f"gs://{self._bucket}/{archive.name} was damaged in the upload and was deleted")

    def delete(self, archive: StoredArchive) -> None:
        """Delete an archive, unless it is already gone or the permission is missing. The next machine tries again."""
        try:
            google_delete(self.metadata, f"{self._objects}/{urllib.parse.quote(archive.name, safe='')}")
        except ServingError as error:
            log(f"gs://{self._bucket}/{archive.name} was not deleted: {error}")


def archive_key(metadata: MetadataClient, version: str) -> str:
    """Return the key that signs the stack's archives. Raises ServingError, whose message names the grant to add."""
    try:
        return read_secret(metadata, version)
    except ServingError as error:
        raise ServingError(str(error).rstrip("."), status=error.status) from None


def without_harm(work: "Callable[[], bool]", tell: Callable[[str], None], what: str, grant: str) -> bool:
    """Do the work and return its result. Serving continues if it fails: one line reports the error, and the grant to add if Google denied it."""
    try:
        return work()
    except ServingError as error:
        refused = f" Grant {grant}" if error.denied else ""
        tell(f"{what}: {error}. The server is not affected.{refused}")
    except (*CONNECTION_ERRORS, KeyError, TypeError) as error:
        tell(f"{what}: {error}. The server is not affected.")
    return False
