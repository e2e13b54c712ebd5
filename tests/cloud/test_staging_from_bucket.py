"""Staging from another bucket copies inside Google, goes on within a file, and compares what came of it."""

import json
import random

import pytest
from google.api_core.exceptions import BadRequest
from google.cloud.storage import Blob

from cloud.staging import bucket as buckets
from cloud.staging.bucket import WeightsBucket
from cloud.staging.rewriting import BucketSource, Rewriting, bucket_of
from contracts.errors import CommandRefusedError, ScriptError
from contracts.staged_weights import MANIFEST, PARTS
from localcloud.rest.errors import CloudError
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


def rewriting(world, **changes):
    source = BucketSource(bucket=WeightsBucket(world.source, "local-project"), prefix="gemma")
    return Rewriting(
        **{
            "source": source,
            "checkpoint": source.checkpoint(),
            "target": world.target,
            "prefix": "m",
            "on_file": lambda file, copied: world.lines.append((file.name, copied)),
            "on_bytes": lambda work, done, total: world.progress.append((done, total)),
            **changes,
        }
    )


def test_a_checkpoint_is_copied_and_listed(world):
    outcome = rewriting(world).run()
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
    assert world.progress[-1] == (total, total)
    assert len(world.progress) >= 5  # three steps of the large file and two ends
    assert set(world.target.objects("")) == {"m/config.json", "m/model.safetensors", f"m/{MANIFEST}"}


def test_no_byte_passes_through_this_machine(world, monkeypatch):
    uploaded = []
    upload = WeightsBucket.upload
    monkeypatch.setattr(
        WeightsBucket, "upload", lambda self, name, *a, **o: (uploaded.append(name), upload(self, name, *a, **o))[1]
    )
    rewriting(world).run()
    assert set(uploaded) == {f"{PARTS}/m/model.safetensors/rewrite.json", f"m/{MANIFEST}"}
    assert world.writes()["m/model.safetensors"] == 1


def test_the_sha256_of_a_staged_source_is_carried_on(world):
    manifest = {
        "revision": "abc",
        "files": [
            {"name": "model.safetensors", "size_bytes": len(LARGE), "sha256": "5" * 64},
            {"name": "config.json", "size_bytes": 999, "sha256": "6" * 64},
        ],
    }
    world.put(f"gemma/{MANIFEST}", json.dumps(manifest).encode(), bucket=world.source)
    rewriting(world).run()
    staged = json.loads(world.content(f"m/{MANIFEST}"))
    assert staged["revision"] == "abc"
    assert [file["sha256"] for file in staged["files"]] == [None, "5" * 64]
    assert world.target.objects("m/")["m/model.safetensors"].sha256 == "5" * 64


def test_a_second_run_copies_nothing(world):
    first = rewriting(world).run()
    world.forget()
    again = rewriting(world).run()
    assert (again.copied, again.kept, again.manifest) == (0, 2, first.manifest)
    assert world.writes() == {}


def test_an_interrupted_file_goes_on_with_its_token(world):
    class StopError(Exception):
        pass

    def stop(_work, done, _total):
        if done >= 2 * MIB:
            raise StopError

    with pytest.raises(StopError):
        rewriting(world, on_bytes=stop).run(workers=1)
    token = f"{PARTS}/m/model.safetensors/rewrite.json"
    assert token in world.target.objects("")
    rewriting(world).run()
    # The steps before are not repeated: what this run reports first of the file is beyond them.
    assert min(done for done, _ in world.progress if done > 8) >= 3 * MIB
    assert world.content("m/model.safetensors") == LARGE
    assert token not in world.target.objects("")


def test_a_token_that_google_forgot_begins_anew(world):
    generation = rewriting(world).checkpoint.objects["model.safetensors"].generation
    token = json.dumps({"generation": generation, "token": "forgotten"}).encode()
    world.put(f"{PARTS}/m/model.safetensors/rewrite.json", token)
    rewriting(world).run()
    assert world.content("m/model.safetensors") == LARGE


@pytest.mark.parametrize("status", [400, 410])
def test_a_token_is_forgotten_with_either_status(world, monkeypatch, status):
    """Google's page of status codes names 410 for a token that is no longer available, and 400 for what it cannot read."""
    generation = rewriting(world).checkpoint.objects["model.safetensors"].generation
    world.put(
        f"{PARTS}/m/model.safetensors/rewrite.json", json.dumps({"generation": generation, "token": "old"}).encode()
    )
    original = CloudError.invalid

    def refused(message):
        return CloudError(410, "GONE", message, reason="gone") if status == 410 else original(message)

    monkeypatch.setattr(CloudError, "invalid", refused)
    rewriting(world).run()
    assert world.content("m/model.safetensors") == LARGE


def test_a_token_that_stays_the_same_and_is_forgotten_later_begins_anew(world, monkeypatch):
    generation = rewriting(world).checkpoint.objects["model.safetensors"].generation
    name = f"{PARTS}/m/model.safetensors/rewrite.json"
    world.put(name, json.dumps({"generation": generation, "token": "same"}).encode())
    original, seen = Blob.rewrite, []

    def repeating(blob, origin, token=None, **options):
        if token == "same":
            seen.append(token)
            if len(seen) > 2:
                raise BadRequest("The rewriteToken is invalid")
            return "same", MIB * len(seen), len(LARGE)
        return original(blob, origin, token=token, **options)

    monkeypatch.setattr(Blob, "rewrite", repeating)
    rewriting(world).run()
    assert len(seen) == 3
    assert world.content("m/model.safetensors") == LARGE


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"token": 1}', '{"generation": GENERATION}'])
def test_a_token_that_cannot_be_read_begins_anew(world, text):
    generation = rewriting(world).checkpoint.objects["model.safetensors"].generation
    world.put(f"{PARTS}/m/model.safetensors/rewrite.json", text.replace("GENERATION", str(generation)).encode())
    rewriting(world).run()
    assert world.content("m/model.safetensors") == LARGE


def test_an_answer_that_was_lost_is_no_second_writer(world, monkeypatch):
    left = world.lose_answers(monkeypatch, "m/config.json", "m/model.safetensors")
    rewriting(world).run()
    assert left == []
    assert world.content("m/model.safetensors") == LARGE


def test_a_source_that_changed_since_it_was_listed_is_noticed(world):
    late = rewriting(world)
    world.put("gemma/model.safetensors", b"other", bucket=world.source)
    with pytest.raises(
        ScriptError, match=r"Cloud Storage rejected the call: 404 .*model.safetensors|changed by another process"
    ):
        late.run()
    assert f"m/{MANIFEST}" not in world.target.objects("m/")


def test_a_copy_with_other_bytes_is_deleted_and_refused(world, monkeypatch):
    original = storage_copies.Copies._copied

    def damaged(self, call, source, body, *, moves):
        shown = original(self, call, source, body, moves=moves)
        return {**shown, "crc32c": "AAAAAA=="} if "model" in shown["name"] else shown

    monkeypatch.setattr(storage_copies.Copies, "_copied", damaged)
    with pytest.raises(ScriptError, match=r"The copy of model.safetensors differs from gs://.*/gemma, and was"):
        rewriting(world).run()
    assert "m/model.safetensors" not in world.target.objects("m/")


def test_a_folder_without_a_checkpoint_is_refused(world):
    source = BucketSource(bucket=world.target, prefix="nothing")
    with pytest.raises(CommandRefusedError, match=r"gs://.*/nothing has no config.json, so it is not a checkpoint"):
        source.checkpoint()


def test_a_folder_without_a_file_that_its_index_names_is_refused(world):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    world.put("gemma/model.safetensors.index.json", json.dumps(index).encode(), bucket=world.source)
    with pytest.raises(
        CommandRefusedError, match=r"gs://.*/gemma has no model-2.safetensors, which model.safetensors.index"
    ):
        rewriting(world)


@pytest.mark.parametrize(
    ("text", "parts"), [("gs://b-1/a/c/", ("b-1", "a/c")), ("gs://b.c", ("b.c", "")), ("gs://b_1/", ("b_1", ""))]
)
def test_a_source_is_a_bucket_and_a_folder(text, parts):
    assert bucket_of(text) == parts


@pytest.mark.parametrize("text", ["gs:///x", "gs://-b/x", "gs://my bucket/x", "gs://Models/x"])
def test_a_source_without_the_name_of_a_bucket_is_refused(text):
    with pytest.raises(CommandRefusedError, match=r"expected gs://BUCKET/FOLDER"):
        bucket_of(text)
