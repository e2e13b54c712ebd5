"""The command that stages: what it refuses, and what it writes into the stack's file."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.exit_codes import ExitCode
from contracts.staged_weights import MANIFEST, manifest_hash
from scripts import stage_model
from scripts.cli.command import run_command
from scripts.pulumi import engine
from tests.safetensors_files import safetensors
from tests.scripts.cloud.conftest import PROJECT

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def file(tmp_path, staging_world, monkeypatch):
    """The settings of a stack whose bucket exists, so that no engine is needed."""
    settings = (ROOT / "Pulumi.l4-qat.yaml").read_text()
    bucket = f"  gemma-serving:bucket: {{existing: {staging_world.bucket}, prefix: m}}\n"
    path = tmp_path / "Pulumi.mine.yaml"
    path.write_text(re.sub(r"(?m)^config:\n", f"config:\n  gcp:project: {PROJECT}\n{bucket}", settings))
    (tmp_path / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(safetensors(b"weights"))
    monkeypatch.chdir(tmp_path)
    return path


def stage(*options):
    return run_command(stage_model.COMMAND, ["--stack", "mine", *options])


def staged_hash(world):
    return manifest_hash(json.loads(world.content(f"m/{MANIFEST}")))


@pytest.mark.parametrize("origin", ["checkpoint", "gs://bucket/folder"])
def test_a_revision_is_of_the_hub_alone(file, capsys, origin):
    assert stage("--from", origin, "--revision", "main") == ExitCode.REFUSED
    assert (
        "--revision names a commit of the hub; leave it out with --from, or leave --from out."
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("prefix", ['""', "/"], ids=["empty", "root"])
def test_staging_needs_a_folder(file, capsys, prefix):
    """Parts lie beside the folder; in a bucket without one, the server would read them."""
    file.write_text(file.read_text().replace("prefix: m", f"prefix: {prefix}"))
    assert stage("--from", "checkpoint") == ExitCode.REFUSED
    assert (
        "bucket.prefix names no folder; weights are staged into one, such as prefix: models/" in capsys.readouterr().err
    )


def test_a_full_disk_at_the_end_leaves_the_file_as_it_was(file, staging_world, monkeypatch, capsys):
    before, write = file.read_text(), Path.write_text

    def full(path, text, **options):
        write(path, "", **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert stage("--from", "checkpoint") == ExitCode.FAILED
    assert file.read_text() == before
    assert [path.name for path in sorted(file.parent.iterdir())] == ["Pulumi.mine.yaml", "Pulumi.yaml", "checkpoint"]
    assert (
        f"The weights are staged, but Pulumi.mine.yaml cannot be changed (No space left on device); "
        f"set bucket.manifest in it to {staged_hash(staging_world)}." in capsys.readouterr().err
    )


@pytest.mark.parametrize("broken", ["config: [", "", "secretsprovider: x"], ids=["unclosed", "empty", "other"])
def test_a_file_that_was_broken_meanwhile_is_one_sentence(file, staging_world, monkeypatch, capsys, broken):
    read = Path.read_text
    settings = file.read_text()

    def broken_after_staging(path, **options):
        staged = f"m/{MANIFEST}" in staging_world.target.objects("m/")
        return broken if staged and path.name == file.name else read(path, **options)

    monkeypatch.setattr(Path, "read_text", broken_after_staging)
    assert stage("--from", "checkpoint") == ExitCode.FAILED
    monkeypatch.setattr(Path, "read_text", read)
    assert file.read_text() == settings
    assert "The weights are staged, but Pulumi.mine.yaml cannot be changed (" in capsys.readouterr().err


def test_a_file_keeps_its_permissions_and_a_link_stays_a_link(file, staging_world):
    target = file.with_name("settings.txt")
    file.rename(target)
    target.chmod(0o640)
    file.symlink_to(target.name)
    assert stage("--from", "checkpoint") == ExitCode.DONE
    assert file.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert f"manifest: {staged_hash(staging_world)}" in target.read_text()


def test_weights_that_are_not_bound_to_the_file_are_named(file, staging_world, capsys):
    assert stage("--from", "checkpoint") == ExitCode.DONE
    bound, before = staged_hash(staging_world), file.read_text()
    capsys.readouterr()
    assert stage("--from", "checkpoint", "--no-bind") == ExitCode.DONE
    assert "bucket.manifest" not in capsys.readouterr().err
    (file.parent / "checkpoint" / "model.safetensors").write_bytes(safetensors(b"others"))
    assert stage("--from", "checkpoint", "--no-bind") == ExitCode.DONE
    assert file.read_text() == before
    said = f"bucket.manifest is still {bound}: `pulumi up` refuses the staged weights until it is {staged_hash(staging_world)}."
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, stage_model.CommandRefusedError("no more")])
def test_a_terminal_has_no_rest_of_a_line_when_staging_ends_early(file, monkeypatch, capsys, error):
    def stopped(_plan, _on_file, on_bytes):
        on_bytes("copying", 0, 10)
        on_bytes("copying", 1, 10)
        raise error

    monkeypatch.setattr("scripts.cloud.staging.copying.stage", stopped)
    monkeypatch.setattr("scripts.cli.transfer.TERMINAL_PERIOD_S", 1e-9)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    stage("--from", "checkpoint")
    shown = capsys.readouterr().err
    assert shown.rpartition("stage_model: ")[0].endswith("\r\x1b[K")


WHOLE = safetensors(b"weights")


DAMAGED = {
    b"": "has 0 bytes, which is no safetensors file",
    b"weights": "has 7 bytes, which is no safetensors file",
    b"\0" * 64: "has 64 bytes, and no safetensors header fits into them",
    b"\xff" * 64: "has 64 bytes, and no safetensors header fits into them",
    b"\x02" + b"\0" * 7 + b"[]": "has a header that is not one of safetensors",
    WHOLE[:20]: "has 20 bytes, and no safetensors header fits into them",
    WHOLE[:-3]: f"has {len(WHOLE) - 3} bytes, and its header says {len(WHOLE)}",
    WHOLE + b"\0": f"has {len(WHOLE) + 1} bytes, and its header says {len(WHOLE)}",
}


@pytest.mark.parametrize("origin", ["folder", "bucket"])
def test_damaged_weights_are_refused_before_anything_is_copied(file, staging_world, capsys, origin):
    passed = []
    place = "checkpoint" if origin == "folder" else f"gs://{staging_world.bucket}/theirs"
    staging_world.put("theirs/config.json", b"{}")
    for content, said in DAMAGED.items():
        (file.parent / "checkpoint" / "model.safetensors").write_bytes(content)
        staging_world.put("theirs/model.safetensors", content)
        refused = stage("--from", place) == ExitCode.REFUSED
        shown = capsys.readouterr().err
        if not refused or f"model.safetensors of {place} {said}: its download did not end" not in shown:
            passed.append((content, shown))
    assert passed == []
    assert staging_world.target.objects("m/") == {}


def test_weights_of_another_bucket_are_staged(file, staging_world):
    staging_world.put("theirs/config.json", b"{}")
    staging_world.put("theirs/model.safetensors", WHOLE)
    assert stage("--from", f"gs://{staging_world.bucket}/theirs") == ExitCode.DONE
    assert staging_world.content("m/model.safetensors") == WHOLE


LOCKED = "error: the stack is currently locked by 1 lock(s).\n  {place}: created by me@{host} (pid {pid}) at {since}"


def locked_by(tmp_path, pid):
    """Return the words of an engine that meets a lock of this process, and the lock's file."""
    path = tmp_path / "lock.json"
    path.write_text("{}")
    since = datetime.now(UTC).isoformat()
    return LOCKED.format(place=f"file://{path}", host=socket.gethostname(), pid=pid, since=since), path


@pytest.fixture
def busy_engine(monkeypatch, file):
    """An engine whose first `up` meets a lock. The stack has a bucket of its own."""
    file.write_text(re.sub(r"(?m)^  gemma-serving:bucket:.*\n", "", file.read_text()))
    tried = []

    def make(output):
        def change(stack, *arguments, after_failure):
            tried.append(arguments[0])
            if len(tried) == 1:
                raise engine.PulumiFailedError(f"`pulumi up` failed. {after_failure}", output)
            raise engine.PulumiFailedError("the second time", "")

        monkeypatch.setattr(engine, "change", change)
        monkeypatch.setattr(stage_model, "read_deployment", lambda _stack: SimpleNamespace(resources=()))
        return tried

    return make


def test_the_lock_of_a_killed_run_is_ended(file, tmp_path, busy_engine, capsys):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    output, lock = locked_by(tmp_path, int(gone.stdout))
    tried = busy_engine(output)
    assert stage("--from", "checkpoint") == ExitCode.FAILED
    said = capsys.readouterr().err
    assert tried == ["up", "up"]
    assert not lock.exists()
    assert "stage_model: ended the lock of me@" in said
    assert "the second time" in said


def test_the_second_stager_says_who_holds_the_lock(file, tmp_path, busy_engine, capsys):
    output, lock = locked_by(tmp_path, os.getpid())
    tried = busy_engine(output)
    assert stage("--from", "checkpoint") == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert (tried, lock.exists()) == (["up"], True)
    assert f"Stack mine is locked by me@{socket.gethostname()} (process {os.getpid()}, since " in said
    assert "scripts.doctor" not in said
