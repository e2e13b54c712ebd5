"""Staging copies what is missing, in parts, once, and says so in a manifest."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from google.api_core.exceptions import RetryError, ServiceUnavailable
from google.auth import exceptions

from gemma_serving.cloud.model_files import CONFIG
from gemma_serving.cloud.staging import bucket as buckets
from gemma_serving.cloud.staging import copying
from gemma_serving.cloud.staging.sources import FolderSource, require_checkpoint
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.staged_weights import MANIFEST, PARTS, manifest_hash
from localcloud.rest.errors import CloudError
from localcloud.services import storage_objects
from tests.cloud.conftest import PART
from tests.library_time import set_google_retry_time

LARGE = random.Random(5).randbytes(40 * PART + 17)  # noqa: S311 - planted bytes, no secret
"""41 parts: more than one compose joins."""


@pytest.fixture
def checkpoint(tmp_path):
    for name, content in {"config.json": b'{"a": 1}', "model-2.safetensors": b"bb", "original.pth": b"no"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model-1.safetensors").write_bytes(LARGE)
    return tmp_path


def test_a_changed_file_of_the_same_size_is_copied_again(staging_world, checkpoint):
    before = staging_world.stage(checkpoint)
    (checkpoint / "model-2.safetensors").write_bytes(b"bc")
    after = staging_world.stage(checkpoint)
    assert (after.copied, after.kept) == (1, 2)
    assert staging_world.content("m/model-2.safetensors") == b"bc"
    assert after.manifest != before.manifest


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_no_manifest_lists_what_is_not_there(staging_world, checkpoint, monkeypatch, change):
    write = copying.write_manifest

    def late(plan, *arguments):
        if change == "changed":
            staging_world.put("m/config.json", b"theirs")
        else:
            plan.target.delete(plan.target.objects("m/")["m/config.json"], plan.target.proof("a test's", "none"))
        return write(plan, *arguments)

    monkeypatch.setattr(copying, "write_manifest", late)
    with pytest.raises(
        ScriptError, match=r"gs://.*/m/config.json was changed by another process during the copy. Stop"
    ):
        staging_world.stage(checkpoint)
    assert f"m/{MANIFEST}" not in staging_world.target.objects("m/")


@pytest.mark.parametrize("broken_after", [0, 7, 41, 42])
def test_a_broken_copy_goes_on_where_it_stopped(staging_world, checkpoint, monkeypatch, broken_after):
    left = iter(range(broken_after))
    upload = buckets.WeightsBucket.upload

    def failing(self, name, *arguments, **options):
        if name != f"m/{MANIFEST}" and next(left, None) is None:
            raise ScriptError("no more")
        return upload(self, name, *arguments, **options)

    monkeypatch.setattr(buckets.WeightsBucket, "upload", failing)
    with pytest.raises(ScriptError, match="no more"):
        staging_world.stage(checkpoint)
    monkeypatch.setattr(buckets.WeightsBucket, "upload", upload)
    outcome = staging_world.stage(checkpoint)
    assert outcome.copied + outcome.kept == 3
    assert staging_world.content("m/model-1.safetensors") == LARGE
    assert {count for name, count in staging_world.writes().items() if "-" in name and PARTS in name} <= {1}
    assert [name for name in staging_world.target.objects("") if name.startswith(PARTS)] == []


def test_a_damaged_part_of_an_earlier_run_is_not_accepted(staging_world, checkpoint):
    damaged, wrong_size = f"{PARTS}/m/model-1.safetensors/0-1000", f"{PARTS}/m/model-1.safetensors/1000-2000"
    staging_world.put(damaged, b"x" * PART)
    staging_world.put(wrong_size, LARGE[1000:1999])
    staging_world.put(f"{PARTS}/m/model-1.safetensors/2000-3000", LARGE[2000:3000])
    staging_world.forget()
    staging_world.stage(checkpoint)
    assert staging_world.content("m/model-1.safetensors") == LARGE
    writes = staging_world.writes()
    assert (writes[damaged], writes[wrong_size]) == (1, 1)
    assert f"{PARTS}/m/model-1.safetensors/2000-3000" not in writes


def test_parts_of_another_size_and_of_other_files_are_deleted(staging_world, checkpoint):
    for name in ("gone.safetensors/0-5", "model-1.safetensors/0-500"):
        staging_world.put(f"{PARTS}/m/{name}", b"x")
    (checkpoint / "tokenizer").mkdir()
    (checkpoint / "tokenizer" / "vocab.json").write_bytes(b"{}")
    staging_world.put(f"{PARTS}/m/tokenizer/vocab.json/0-1", b"x")
    staging_world.put(f"{PARTS}/other/model/0-5", b"theirs")
    staging_world.put("m/theirs.bin", b"theirs")
    staging_world.stage(checkpoint)
    found = set(staging_world.target.objects(""))
    assert {name for name in found if name.startswith(PARTS)} == {f"{PARTS}/other/model/0-5"}
    assert "m/theirs.bin" in found


def test_a_folder_that_changes_meanwhile_is_refused(staging_world, checkpoint):
    class Changing(FolderSource):
        def read(self, file, start, end):
            data = FolderSource.read(self, file, start, end)
            if start == 5000:
                (self.folder / file.name).write_bytes(b"?" + LARGE[1:])
            return data

    with pytest.raises(ScriptError, match=r"model-1.safetensors (was changed|of .* has SHA-256 ).*Run this again."):
        staging_world.stage(Changing(folder=checkpoint))
    found = staging_world.target.objects("m/")
    assert "m/model-1.safetensors" not in found
    assert f"m/{MANIFEST}" not in found
    (checkpoint / "model-1.safetensors").write_bytes(LARGE)
    staging_world.stage(checkpoint)
    assert staging_world.content("m/model-1.safetensors") == LARGE


def test_an_answer_that_was_lost_is_no_second_writer(staging_world, checkpoint, monkeypatch):
    folder = f"{PARTS}/m/model-1.safetensors"
    lost = (f"{folder}/0-1000", f"{folder}/0-32000", "m/model-1.safetensors", "m/model-2.safetensors", f"m/{MANIFEST}")
    left = staging_world.lose_answers(monkeypatch, *lost)
    staging_world.stage(checkpoint)
    assert left == []
    assert staging_world.content("m/model-1.safetensors") == LARGE
    assert set(staging_world.writes().values()) == {1}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            exceptions.TransportError("no network"),
            "No connection to googleapis.com (TransportError). Check the network of this machine, then run the same command again.",
        ),
        (
            exceptions.RefreshError("invalid_grant: expired", {}),
            "Google rejected your login (invalid_grant: expired). Run `gcloud auth application-default login`, then the same command again.",
        ),
        (
            RetryError("120 s exceeded", ServiceUnavailable("busy", response=SimpleNamespace(status_code=503))),
            "Cloud Storage returned HTTP 503. Run the same command again.",
        ),
    ],
)
def test_what_the_client_raises_is_one_sentence_with_its_remedy(error, said):
    with pytest.raises(ScriptError) as raised, buckets.storage_errors("b"):
        raise error
    assert str(raised.value) == said


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CommandRefusedError, match=r"has no config.json"):
        require_checkpoint(FolderSource(folder=tmp_path), CONFIG)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CommandRefusedError, match=r"has no \.safetensors files"):
        require_checkpoint(FolderSource(folder=tmp_path), CONFIG)


@pytest.mark.usefixtures("without_collection")
def test_a_folder_without_a_file_that_its_index_names_is_refused(checkpoint):
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    with pytest.raises(
        CommandRefusedError, match=r"has no model-3.safetensors, which model.safetensors.index.json lists"
    ):
        require_checkpoint(FolderSource(folder=checkpoint), CONFIG)
    for text in ("no JSON", "[" * 200_000):
        index.write_text(text)
        with pytest.raises(CommandRefusedError, match=r"model.safetensors.index.json .* is not an index of weights"):
            require_checkpoint(FolderSource(folder=checkpoint), CONFIG)


@pytest.mark.parametrize("same", [True, False])
def test_two_runs_at_once_never_leave_a_manifest_of_a_mixture(staging_world, checkpoint, tmp_path_factory, same):
    other = tmp_path_factory.mktemp("other")
    for path in checkpoint.iterdir():
        content = path.read_bytes()
        keeps = same or path.name == "config.json"
        (other / path.name).write_bytes(content if keeps else content[::-1])

    def run(folder):
        try:
            return staging_world.stage(folder).manifest
        except ScriptError as error:
            assert "by another process" in str(error) or "did not match the source" in str(error)
            return None

    with ThreadPoolExecutor(2) as threads:
        ended = list(threads.map(run, (checkpoint, other)))
    found = staging_world.target.objects("m/")
    if f"m/{MANIFEST}" in found:
        manifest = json.loads(staging_world.content(f"m/{MANIFEST}"))
        assert manifest_hash(manifest) in ended
        for file in manifest["files"]:
            assert found[f"m/{file['name']}"].crc32c == file["crc32c"]
    last = staging_world.stage(other)
    assert last.copied + last.kept == 3
    assert staging_world.content("m/model-1.safetensors") == (other / "model-1.safetensors").read_bytes()
    assert staging_world.target.objects(PARTS) == {}


def test_a_part_that_takes_minutes_is_sent_again(staging_world, monkeypatch):
    """The client's library gives up 120 s after it began, so that the first failure of a slow part was the last."""
    now_s, store = [0.0], storage_objects.Objects.put

    def failing(objects, bucket, name, *arguments, **options):
        if now_s[0] == 0:
            now_s[0] = 200.0
            raise CloudError(503, "UNAVAILABLE", "try again", reason="backendError")
        return store(objects, bucket, name, *arguments, **options)

    monkeypatch.setattr(storage_objects.Objects, "put", failing)
    set_google_retry_time(monkeypatch, lambda: now_s[0])
    assert staging_world.target.upload("m/a", b"abc", replaced=None).size_bytes == 3
