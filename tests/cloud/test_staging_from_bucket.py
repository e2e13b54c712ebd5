"""Staging from another bucket copies inside Google, goes on within a file, and compares what came of it."""

import json
import random

import pytest

from gemma_serving.cloud.staging import bucket as buckets
from gemma_serving.cloud.staging.bucket import WeightsBucket
from gemma_serving.cloud.staging.sources import bucket_of, in_bucket
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.staged_weights import MANIFEST
from localcloud.services import storage_copies

MIB = 1 << 20
LARGE = random.Random(3).randbytes(3 * MIB + 5)  # noqa: S311 - planted bytes, no secret
FILES = {"config.json": b'{"a": 1}', "model.safetensors": LARGE, "notes.md": b"not read"}


@pytest.fixture
def world(staging_world, monkeypatch):
    """A source bucket elsewhere, which a rewrite leaves MiB by MiB."""
    monkeypatch.setattr(storage_copies, "_BYTES_PER_CALL", MIB)
    staging_world.source = f"from-{staging_world.bucket[-40:]}"
    staging_world.make_bucket(staging_world.source, location="us-west1")
    for name, content in FILES.items():
        staging_world.put(f"gemma/{name}", content, bucket=staging_world.source)
    staging_world.forget()
    return staging_world


def source_of(world):
    return in_bucket(WeightsBucket(world.source, "local-project"), "gemma")


def test_a_checkpoint_is_copied_and_listed(world):
    outcome = world.stage(source_of(world))
    assert (outcome.copied, outcome.kept) == (2, 0)
    assert world.content("m/model.safetensors") == LARGE
    manifest = json.loads(world.content(f"m/{MANIFEST}"))
    assert manifest["revision"] == f"gs://{world.source}/gemma"
    assert [(file["name"], file["sha256"]) for file in manifest["files"]] == [
        ("config.json", None),
        ("model.safetensors", None),
    ]
    assert {file["crc32c"] for file in manifest["files"]} == {
        buckets.crc32c(FILES["config.json"]),
        buckets.crc32c(LARGE),
    }
    total = len(LARGE) + 8
    assert world.progress[-1] == ("copying", total, total)
    assert set(world.target.objects("")) == {"m/config.json", "m/model.safetensors", f"m/{MANIFEST}"}


def test_the_sha256_of_a_staged_source_is_carried_on(world):
    manifest = {
        "revision": "abc",
        "files": [
            {"name": "model.safetensors", "size_bytes": len(LARGE), "sha256": "5" * 64},
            {"name": "config.json", "size_bytes": 999, "sha256": "6" * 64},
        ],
    }
    world.put(f"gemma/{MANIFEST}", json.dumps(manifest).encode(), bucket=world.source)
    world.stage(source_of(world))
    staged = json.loads(world.content(f"m/{MANIFEST}"))
    assert staged["revision"] == "abc"
    assert [file["sha256"] for file in staged["files"]] == [None, "5" * 64]
    assert world.target.objects("m/")["m/model.safetensors"].sha256 == "5" * 64


def test_a_source_that_changed_since_it_was_listed_is_noticed(world):
    late = source_of(world)
    world.put("gemma/model.safetensors", b"other", bucket=world.source)
    with pytest.raises(
        ScriptError, match=r"Cloud Storage rejected the call: 404 .*model.safetensors|changed by another process"
    ):
        world.stage(late)
    assert f"m/{MANIFEST}" not in world.target.objects("m/")


def test_a_copy_with_other_bytes_is_deleted_and_refused(world, monkeypatch):
    original = storage_copies.Copies._copied

    def damaged(self, call, source, body, *, moves):
        shown = original(self, call, source, body, moves=moves)
        return {**shown, "crc32c": "AAAAAA=="} if "model" in shown["name"] else shown

    monkeypatch.setattr(storage_copies.Copies, "_copied", damaged)
    with pytest.raises(ScriptError, match=r"The copy of model.safetensors differs from gs://.*/gemma, and was"):
        world.stage(source_of(world))
    assert "m/model.safetensors" not in world.target.objects("m/")


@pytest.mark.parametrize(
    ("text", "parts"), [("gs://b-1/a/c/", ("b-1", "a/c")), ("gs://b.c", ("b.c", "")), ("gs://b_1/", ("b_1", ""))]
)
def test_a_source_is_a_bucket_and_a_folder(text, parts):
    assert bucket_of(text) == parts


@pytest.mark.parametrize("text", ["gs:///x", "gs://-b/x", "gs://my bucket/x", "gs://Models/x"])
def test_a_source_without_the_name_of_a_bucket_is_refused(text):
    with pytest.raises(CommandRefusedError, match=r"expected gs://BUCKET/FOLDER"):
        bucket_of(text)
