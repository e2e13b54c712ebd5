"""The provider's archive starts without the repository."""

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from dev.authors.release import plugins
from gcp_tpu_provider import VERSION


def test_the_archive_is_the_same_each_time_and_starts_without_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = plugins.provider_archive(tmp_path / "first")
    assert archive.name == f"pulumi-resource-gcp-tpu-v{VERSION}.tar.gz"
    assert archive.read_bytes() == plugins.provider_archive(tmp_path / "second").read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    assert archive.read_bytes() != plugins.provider_archive(tmp_path / "third").read_bytes(), "its date is the commit's"
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
        opened.extractall(tmp_path / "plugin", filter="data")
    names = [member.name for member in members]
    modules = {f"gcp_tpu_provider/{path.name}" for path in (plugins.FOLDER / "gcp_tpu_provider").glob("*.py")}
    assert names == sorted(names)
    assert {*names} == {*modules, *plugins.FILES, "LICENSE", "PulumiPlugin.yaml"}
    assert {(member.uid, member.gid, member.mode) for member in members} == {(0, 0, 0o644)}
    process = subprocess.Popen(
        [sys.executable, "-P", str(tmp_path / "plugin")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline().strip().isdigit()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    loaded = "import pkgutil, importlib, gcp_tpu_provider as p; [importlib.import_module(f'{p.__name__}.{m.name}') for m in pkgutil.iter_modules(p.__path__)]"
    done = subprocess.run(
        [sys.executable, "-c", loaded],
        cwd=tmp_path / "plugin",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), "each module finds what it imports"
