"""Archives of what servers compile: tars in a bucket, each named by the SHA-256 of its bytes, restored whole or not at all."""

import hashlib
import json
import shutil
import tarfile
import tempfile
import urllib.parse
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from vm_agent.base import GIB, ServingError, log
from vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, endpoint, google_delete, google_get, google_upload
from vm_agent.weights import md5_of

RANGE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class StoredArchive:
    """One archive in the bucket; `created` is its time in RFC 3339, UTC."""

    name: str
    size: int
    created: str

    @property
    def digest(self) -> str:
        """The SHA-256 that the archive's bytes must have."""
        return self.name.rpartition("/")[2].partition(".")[0]


@dataclass
class ArchiveFolder:
    """The archives of one set of files, below `uri` (gs://BUCKET/FOLDER), and the folder of this machine that holds the files."""

    metadata: MetadataClient
    uri: str
    suffix: str
    folder: Path
    spare_bytes: int = 0
    """What a restore leaves free on the disk."""
    most_bytes: float = float("inf")
    """Larger archives are not restored."""
    tell: Callable[[str], None] = log

    @property
    def prefix(self) -> str:
        """Prefix of the archives' names."""
        return self.uri.removeprefix("gs://").partition("/")[2] + "/"

    @property
    def _bucket(self) -> str:
        return self.uri.removeprefix("gs://").partition("/")[0]

    @property
    def _objects(self) -> str:
        return f"{endpoint('storage')}storage/v1/b/{self._bucket}/o"

    def described(self, archive: StoredArchive) -> str:
        """Return where an archive is and how large it is."""
        return f"gs://{self._bucket}/{archive.name} ({archive.size} bytes)"

    def listed(self, prefix: str) -> "list[StoredArchive]":
        """Return the archives of the bucket whose names begin so. Raises ServingError."""
        found: list[StoredArchive] = []
        query = {"prefix": prefix, "fields": "items(name,size,timeCreated),nextPageToken"}
        while True:
            answer = json.loads(google_get(self.metadata, f"{self._objects}?{urllib.parse.urlencode(query)}"))
            items = [item for item in answer.get("items", []) if str(item["name"]).endswith(self.suffix)]
            found += [StoredArchive(str(one["name"]), int(one["size"]), str(one["timeCreated"])) for one in items]
            if not answer.get("nextPageToken"):
                return found
            query["pageToken"] = answer["nextPageToken"]

    def restore(
        self, unpack: "Callable[[Path, Path], None]", listings: int = 3
    ) -> "tuple[StoredArchive, list[str]] | None":
        """Bring the newest whole archive into the folder. Return it with the names of its files; None if there is none.

        `unpack` writes a tar's files into a new folder. An archive that is gone when it is read was replaced by a newer one: then the
        bucket is listed again, `listings` times in all.

        Raises:
            ServingError: an archive cannot be read.
            OSError: the disk is full.
        """
        try:
            for archive in sorted(self.listed(self.prefix), key=lambda one: (one.created, one.name), reverse=True):
                names = self._restored(archive, unpack)
                if names:
                    return archive, names
        except ServingError as error:
            if error.status == HTTPStatus.NOT_FOUND and listings > 1:
                return self.restore(unpack, listings - 1)
            raise
        return None

    def _restored(self, archive: StoredArchive, unpack: "Callable[[Path, Path], None]") -> "list[str]":
        """Restore one archive and return the names of its files. Tell why it cannot be used, and return none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if archive.size > self.most_bytes:
            return self._ignored(archive, f"it is larger than {self.most_bytes / GIB:.1f} GiB")
        needed, free = 2 * archive.size, shutil.disk_usage(self.folder).free
        if needed + self.spare_bytes > free:
            spare = f"{self.spare_bytes / GIB:.1f} GiB to spare, and {free / GIB:.1f} GiB are free"
            return self._ignored(archive, f"it needs {needed / GIB:.1f} GiB beside {spare}")
        with self._beside() as name:
            tar, fresh = Path(name, "tar"), Path(name, "files")
            if self._download(archive, tar) != archive.digest:
                self.delete(archive)
                return self._ignored(archive, "its bytes do not have the SHA-256 of its name")
            try:
                unpack(tar, fresh)
            except (tarfile.TarError, EOFError, zlib.error) as error:
                return self._ignored(archive, f"it is no whole archive ({error})")
            names = [str(path.relative_to(fresh)) for path in fresh.rglob("*") if not path.is_dir()]
            for path in names:
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                (fresh / path).replace(self.folder / path)
        return names

    def _ignored(self, archive: StoredArchive, problem: str) -> "list[str]":
        self.tell(f"The archive gs://{self._bucket}/{archive.name} is ignored: {problem}.")
        return []

    def _beside(self) -> "tempfile.TemporaryDirectory[str]":
        """Return a new folder on the same disk, in which no server looks for its files."""
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
        """Archive the tar that `pack` writes. An archive of the same bytes that another machine has made is as good.

        Raises:
            ServingError: the bucket refused the archive.
            OSError: the disk is full.
        """
        with self._beside() as name:
            tar, digest = Path(name, "tar"), hashlib.sha256()
            pack(tar)
            with tar.open("rb") as file:
                while block := file.read(1 << 22):
                    digest.update(block)
            archive = StoredArchive(f"{self.prefix}{digest.hexdigest()}{self.suffix}", tar.stat().st_size, "")
            self._upload(tar, archive)
        return archive

    def _upload(self, tar: Path, archive: StoredArchive) -> None:
        """Create the object, and never replace one."""
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
            raise ServingError(f"gs://{self._bucket}/{archive.name} arrived with other bytes and was deleted")

    def delete(self, archive: StoredArchive) -> None:
        """Delete an archive, unless it is gone already or the right is missing: the next machine meets it again."""
        try:
            google_delete(self.metadata, f"{self._objects}/{urllib.parse.quote(archive.name, safe='')}")
        except ServingError as error:
            log(f"gs://{self._bucket}/{archive.name} is not deleted: {error}")


def without_harm(work: "Callable[[], bool]", tell: Callable[[str], None], what: str, grant: str) -> bool:
    """Do the work and return its result. Serving goes on whatever happens: one line says what, and what to grant if Google refused it."""
    try:
        return work()
    except ServingError as error:
        refused = f" Grant {grant}" if error.denied else ""
        tell(f"{what}: {error}. The server is not affected.{refused}")
    except (*CONNECTION_ERRORS, KeyError, TypeError) as error:
        tell(f"{what}: {error}. The server is not affected.")
    return False
