"""Staging copies what is missing, once, and says so in a manifest."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.staged_weights import MANIFEST
from scripts.cloud.staging import FolderSource, SourceFile, stage
from scripts.errors import ScriptError


@dataclass
class Blob:
    bucket: "StagingBucket"
    name: str
    content: bytes = b""
    metadata: dict | None = None

    @property
    def size(self):
        return len(self.content)

    def _put(self, content):
        if self.bucket.uploads_left == 0:
            raise ConnectionError
        self.bucket.uploads_left -= 1
        self.content = content
        self.bucket.blobs[self.name] = self

    def upload_from_file(self, file_obj, *, size, content_type, timeout, checksum):
        parts = []
        while part := file_obj.read(self.bucket.part_bytes):
            parts.append(part)
        assert sum(len(part) for part in parts) == size
        self._put(b"".join(parts))

    def upload_from_string(self, data, *, content_type, timeout):
        self._put(data.encode())


@dataclass
class StagingBucket:
    blobs: dict = field(default_factory=dict)
    uploads_left: int = 10**6
    part_bytes: int = 1024

    def blob(self, blob_name, *, chunk_size=None):
        return Blob(self, blob_name)

    def list_blobs(self, *, prefix, timeout):
        return [blob for name, blob in self.blobs.items() if name.startswith(prefix)]


@pytest.fixture
def checkpoint(tmp_path):
    for name, content in {
        "config.json": "{}",
        "model-1.safetensors": "aa",
        "model-2.safetensors": "bb",
        "original.pth": "no",
    }.items():
        (tmp_path / name).write_text(content)
    return FolderSource(folder=tmp_path)


def quiet(file, copied):
    """Nobody looks."""


def test_everything_the_server_needs_is_copied_and_listed(checkpoint):
    bucket = StagingBucket()
    assert stage(checkpoint, bucket, "m", quiet) == (3, 0)
    assert set(bucket.blobs) == {"m/config.json", "m/model-1.safetensors", "m/model-2.safetensors", f"m/{MANIFEST}"}
    manifest = json.loads(bucket.blobs[f"m/{MANIFEST}"].content)
    assert [file["name"] for file in manifest["files"]] == ["config.json", "model-1.safetensors", "model-2.safetensors"]
    assert all(len(file["sha256"]) == 64 for file in manifest["files"])
    assert manifest["config"] == {}


@pytest.mark.parametrize(
    ("content", "kept"),
    [('{"model_type": "llama", "vocab_size": 7}', {"model_type": "llama", "vocab_size": 7}), ("no JSON", None)],
)
def test_the_manifest_repeats_the_config_so_that_the_planner_can_read_it(checkpoint, content, kept):
    (checkpoint.folder / "config.json").write_text(content)
    bucket = StagingBucket()
    stage(checkpoint, bucket, "m", quiet)
    assert json.loads(bucket.blobs[f"m/{MANIFEST}"].content)["config"] == kept


def test_a_second_run_copies_nothing(checkpoint):
    bucket = StagingBucket()
    stage(checkpoint, bucket, "m", quiet)
    assert stage(checkpoint, bucket, "m", quiet) == (0, 3)


@given(broken_after=st.integers(min_value=0, max_value=3))
def test_a_broken_copy_goes_on_where_it_stopped(tmp_path_factory, broken_after):
    folder = tmp_path_factory.mktemp("checkpoint")
    for name in ("config.json", "model-1.safetensors", "model-2.safetensors"):
        (folder / name).write_text(name)
    bucket = StagingBucket(uploads_left=broken_after)
    with pytest.raises(ConnectionError):
        stage(FolderSource(folder=folder), bucket, "m", quiet)
    assert f"m/{MANIFEST}" not in bucket.blobs
    bucket.uploads_left = 10**6
    copied, kept = stage(FolderSource(folder=folder), bucket, "m", quiet)
    assert (copied, kept) == (3 - broken_after, broken_after)


def test_others_objects_are_left_alone(checkpoint):
    bucket = StagingBucket()
    theirs = Blob(bucket, "m/theirs.bin", b"x")
    bucket.blobs["m/theirs.bin"] = theirs
    stage(checkpoint, bucket, "m", quiet)
    assert bucket.blobs["m/theirs.bin"] is theirs


def test_a_file_that_changed_on_the_way_is_refused(checkpoint):
    class Lying(FolderSource):
        def files(self):
            return [SourceFile(name="config.json", size_bytes=2, sha256="0" * 64)]

    with pytest.raises(ScriptError, match=r"config.json has SHA-256 .* after the download, .* run this again"):
        stage(Lying(folder=checkpoint.folder), StagingBucket(), "m", quiet)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ScriptError, match=r"has no config.json"):
        FolderSource(folder=tmp_path).files()


def test_a_large_file_is_reported_part_by_part(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    seen = []
    stage(
        FolderSource(folder=tmp_path),
        StagingBucket(part_bytes=40),
        "m",
        quiet,
        lambda work, done, total: seen.append((work, done, total)),
    )
    assert [(done, total) for work, done, total in seen if work == "uploading model.safetensors"] == [
        (40, 100),
        (80, 100),
        (100, 100),
        (100, 100),
    ]
    assert ("checking model.safetensors", 100, 100) in seen
