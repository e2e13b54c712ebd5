"""The command that stages: what it refuses, and what it writes into the stack's file."""

import errno
import json
import re
import sys
from pathlib import Path

import pytest

from contracts.exit_codes import ExitCode
from contracts.staged_weights import MANIFEST, manifest_hash
from scripts import stage_model
from scripts.cli.command import run_command
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
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(b"weights")
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
    (file.parent / "checkpoint" / "model.safetensors").write_bytes(b"others")
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
