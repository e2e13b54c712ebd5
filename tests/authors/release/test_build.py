"""Artefacts: two builds give the same bytes, and no one has what no release ships."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dev.authors.release import build, plugins
from dev.authors.release.__main__ import COMMAND
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.stacks.package.schema import package_schema

ROOT = Path(__file__).parents[3]
FORBIDDEN = {"__pycache__", ".git", ".venv", ".env", "tests"}
"""Names of files and folders that no release ships."""


def test_a_folder_that_exists_is_refused_and_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert run_command(COMMAND, ["build", "--out", str(tmp_path)]) == 2
    assert "exists. Pass a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_interpreter_without_uv_is_refused_before_a_folder_exists(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert run_command(COMMAND, ["build", "--out", str(tmp_path / "dist")]) == 2
    assert "uv is missing. Run `make setup`" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


def test_every_archive_has_the_date_of_the_commit_and_a_variable_overrides_it(monkeypatch, tmp_path):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    committed = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for date in (int(committed.stdout), 1_700_000_000):
        with tarfile.open(plugins.provider_archive(tmp_path)) as packed:
            assert {member.mtime for member in packed.getmembers()} == {date}
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def test_a_schema_names_a_download_if_and_only_if_the_release_has_its_archives(tmp_path):
    build._copy_plugin(tmp_path)
    archives = {path.name for path in tmp_path.iterdir()}
    schemas = [package_schema(), json.loads((ROOT / build.SCHEMA).read_text())]
    names = [f"{one['name']}-v{one['version']}" for one in schemas if "pluginDownloadURL" in one]
    assert archives == {f"pulumi-resource-{name}-{platform}.tar.gz" for name in names for platform in build.PLATFORMS}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the artefacts twice."""
    folder = tmp_path_factory.mktemp("release")
    for name in ("first", "second"):
        command = [sys.executable, "-m", "dev.authors.release", "build", "--out", str(folder / name)]
        path = os.pathsep.join(str(ROOT / part) for part in (".", "packages", "packages/gcp-tpu"))
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
@pytest.mark.timeout(3600)
class TestRelease:
    """The artefacts of this commit."""

    def test_two_builds_have_the_same_bytes(self, built):
        first, second = built / "first", built / "second"
        names = sorted(path.name for path in first.iterdir())
        assert [name for name in names if (first / name).read_bytes() != (second / name).read_bytes()] == []
        assert names == sorted(path.name for path in second.iterdir())
        (listed,) = [(first / name).read_text().splitlines() for name in names if name == build.SUMS]
        assert len(listed) == len(names) - 1 == len(build.PLATFORMS) + 2 * len(build.DISTRIBUTIONS) + 1

    def test_no_artefact_has_a_test_or_names_a_folder_of_this_machine(self, built):
        secret = [str(ROOT).encode(), str(built).encode()]
        for path in (built / "first").iterdir():
            for name, content in members(path):
                assert not FORBIDDEN.intersection(Path(name).parts), (path.name, name)
                assert not any(each in content for each in secret), (path.name, name)


def members(path):
    """Yield the name and the content of each file of an archive, or of the file itself."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as packed:
            yield from ((name, packed.read(name)) for name in packed.namelist())
    elif path.suffix == ".gz":
        with tarfile.open(path) as packed:
            yield from ((item.name, packed.extractfile(item).read()) for item in packed.getmembers() if item.isfile())
    else:
        yield path.name, path.read_bytes()
