"""Artefacts: what no release ships is refused, two builds give the same bytes, and a user's use of them is rehearsed."""

import ast
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from authors.release import archives, build, checksums, rehearsal, version
from authors.release.__main__ import COMMAND
from contracts.errors import ScriptError
from scripts.cli.command import run_command

ROOT = Path(__file__).parents[3]
DATE = 1_700_000_000
METADATA = """Metadata-Version: 2.4
Name: a-b
Version: 1.2.3
Summary: A thing.
License-Expression: Apache-2.0
Requires-Python: >=3.11
Project-URL: Repository, https://example.com
Description-Content-Type: text/markdown

It does a thing.
"""


def archive(folder, name, files=None, **entry):
    """Write an archive of one file, whose entry has these attributes."""
    path = folder / name
    with tarfile.open(path, "w:gz") as packed:
        for member, content in (files or {"a-b-1.2.3/PKG-INFO": METADATA}).items():
            info = tarfile.TarInfo(member)
            for key, value in {"mtime": DATE, **entry}.items():
                setattr(info, key, value)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content.encode()))
    return path


def wheel(folder, metadata=METADATA, name="a_b-1.2.3-py3-none-any.whl"):
    with zipfile.ZipFile(folder / name, "w") as packed:
        packed.writestr("a_b-1.2.3.dist-info/METADATA", metadata)
    return folder / name


def test_an_artefact_that_no_release_ships_is_refused(tmp_path, subtests):
    good = {
        "wheel": (wheel(tmp_path), "wheel"),
        "sdist": (archive(tmp_path, "a_b-1.2.3.tar.gz"), "sdist"),
        "plugin": (archive(tmp_path, "plugin-v1.2.3-linux-amd64.tar.gz", {"a.py": "x"}), "plugin"),
    }
    for name, (path, kind) in good.items():
        with subtests.test(name):
            assert build._described(path, kind, "1.2.3", DATE).bytes == path.stat().st_size
    tar = "x-v1.2.3.tar.gz"
    bad = {
        "its tests": (archive(tmp_path, tar, {"tests/a.py": "x"}), "plugin", "has tests/a.py, which no release ships"),
        "a path outside": (lambda: archive(tmp_path, tar, {"../a": "x"}), "plugin", "is not a file inside the archive"),
        "an owner": (lambda: archive(tmp_path, tar, uid=1000), "plugin", "its bytes depend on the machine"),
        "a date": (lambda: archive(tmp_path, tar, mtime=DATE + 1), "plugin", "not the commit's"),
        "a link": (lambda: archive(tmp_path, tar, type=tarfile.SYMTYPE), "plugin", "is not a file inside the archive"),
        "another version": (lambda: wheel(tmp_path), "wheel", "has the metadata of a-b 1.2.3; 9.9.9 is expected"),
        "no page": (lambda: wheel(tmp_path, METADATA.partition("\n\n")[0] + "\n\n"), "wheel", "lacks the description"),
        "no summary": (lambda: wheel(tmp_path, METADATA.replace("Summary: A thing.\n", "")), "wheel", "lacks Summary"),
        "a field of a later form": (lambda: wheel(tmp_path, METADATA.replace("2.4", "2.1")), "wheel", "invalid metadata"),
    }  # fmt: skip
    for name, (make, kind, message) in bad.items():
        with subtests.test(name), pytest.raises(ScriptError, match=re.escape(message)):
            build._described(
                make() if callable(make) else archive(tmp_path, tar, {"tests/a.py": "x"}),
                kind,
                "9.9.9" if name == "another version" else "1.2.3",
                DATE,
            )


def test_a_changed_missing_or_strange_file_is_found_by_the_checksums(tmp_path, subtests):
    def folder(name):
        made = tmp_path / name
        made.mkdir()
        (made / "a-1.0.0.txt").write_text("a")
        checksums.write(made, [checksums.describe(made / "a-1.0.0.txt", "schema", "1.0.0")], repository="o/n")
        return made

    assert [artefact.name for artefact in checksums.verify(folder("good"))] == ["a-1.0.0.txt"]
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "good", capture_output=True, check=False
    )
    assert done.returncode == 0
    faults = {
        "changed": (lambda at: (at / "a-1.0.0.txt").write_text("b"), "has the SHA-256"),
        "missing": (lambda at: (at / "a-1.0.0.txt").unlink(), "is missing, but listed in"),
        "strange": (lambda at: (at / "b.txt").write_text("b"), "b.txt is not listed in"),
        "unlisted": (lambda at: (at / "SHA256SUMS").unlink(), "has no SHA256SUMS"),
    }
    for name, (plant, message) in faults.items():
        with subtests.test(name):
            plant(folder(name))
            with pytest.raises(ScriptError, match=re.escape(message)):
                checksums.verify(tmp_path / name)


def test_a_folder_with_files_is_refused_and_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert run_command(COMMAND, ["build", "--out", str(tmp_path)]) == 2
    assert "is not empty. Pass a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_every_archive_has_the_date_of_the_commit_and_a_variable_overrides_it(monkeypatch):
    monkeypatch.delenv(archives.SOURCE_DATE, raising=False)
    with archives.commit_date(ROOT) as date:
        assert os.environ[archives.SOURCE_DATE] == str(date)
        assert archives.packed({"a": b"x", "b": b"y"}, date) == archives.packed({"b": b"y", "a": b"x"}, date)
    assert archives.SOURCE_DATE not in os.environ
    monkeypatch.setenv(archives.SOURCE_DATE, str(DATE))
    with archives.commit_date(ROOT) as date:
        assert date == DATE
    assert os.environ[archives.SOURCE_DATE] == str(DATE)


def test_the_rehearsal_imports_the_standard_library_alone():
    tree = ast.parse(Path(rehearsal.__file__).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.fixture
def artefacts(tmp_path):
    """A folder with a manifest, and a `pulumi` that is never called."""
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "a-1.0.0.txt").write_text("a")
    checksums.write(folder, [checksums.describe(folder / "a-1.0.0.txt", "schema", "1.0.0")], repository="o/n")
    return folder


def test_a_rehearsal_reports_each_step_and_fails_with_one(artefacts, monkeypatch, capsys, tmp_path, subtests):
    def fails(at):
        at.run("sh", "-c", "echo the cause; exit 3")

    steps = {
        "ok": rehearsal.RehearsalStep("ok", "Fine", lambda at: at.run("echo", "done").strip()),
        "skips": rehearsal.RehearsalStep("skips", "Absent", lambda at: str(at.artefacts.one(r"b-.*"))),
        "fails": rehearsal.RehearsalStep("fails", "Broken", fails),
    }
    monkeypatch.setattr(rehearsal, "STEPS", tuple(steps.values()))
    monkeypatch.setattr(rehearsal.shutil, "which", lambda _: "/usr/bin/pulumi")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    rows = [(["ok"], 0), (["ok", "skips"], 0), (["ok", "skips", "--complete"], 1), (["ok", "fails"], 1), ([], 1)]
    for words, code in rows:
        with subtests.test(" ".join(words)):
            assert rehearsal.main([str(artefacts), *(["--only", *words] if words else [])]) == code
    shown = capsys.readouterr().out
    assert "skipped     0.0 s  Absent: the release has no b-.*" in shown
    assert "`sh -c echo the cause; exit 3` ended with 3, not 0:\nthe cause" in shown
    assert "| Broken | FAILED |" in (tmp_path / "summary.md").read_text()
    assert rehearsal.main([str(artefacts), "--only", "nothing"]) == 2
    assert rehearsal.main([str(tmp_path)]) == 2
    monkeypatch.setattr(rehearsal.shutil, "which", lambda _: None)
    assert rehearsal.main([str(artefacts)]) == 2
    errors = capsys.readouterr().err
    assert "step 'nothing' not found. Steps: ok, skips, fails." in errors
    assert "has no manifest.json" in errors
    assert "`pulumi` is not on PATH. Install it" in errors


def test_a_rehearsal_inherits_no_credentials_and_no_project(artefacts, monkeypatch, tmp_path):
    hidden = (
        "PULUMI_ACCESS_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "CLOUDSDK_CONFIG",
        "HF_TOKEN",
        "PYTHONPATH",
        "VIRTUAL_ENV",
    )
    for name in hidden:
        monkeypatch.setenv(name, "planted")
    at = rehearsal.Workplace(rehearsal.read_artefacts(artefacts), tmp_path)
    assert not {*hidden} & {*at.variables}
    assert "planted" not in at.run("env")


SKIPPED_HERE = {"wheel-provider", "wheel-localcloud", "wheel-loadtest", "provider-yaml"}
"""Steps with tests of their own (tests/agreement), and one that needs the official Pulumi distribution."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the artefacts twice."""
    folder = tmp_path_factory.mktemp("release")
    for name in ("first", "second"):
        command = [sys.executable, "-m", "authors.release", "build", "--out", str(folder / name)]
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
        kinds = [artefact.kind for artefact in checksums.verify(first)]
        assert {kind: kinds.count(kind) for kind in kinds} == {
            "plugin": 4, "wheel": 3, "sdist": 3, "schema": 1, "script": 1,
        }  # fmt: skip
        assert {artefact.version for artefact in checksums.verify(first)} == {version.the_version(ROOT)}

    def test_no_artefact_names_a_folder_of_this_machine(self, built):
        secret = [str(ROOT).encode(), str(built).encode()]
        for path in (built / "first").iterdir():
            for name, content in members(path):
                assert not any(each in content for each in secret), (path.name, name)

    def test_a_user_installs_and_uses_the_artefacts(self, built, tmp_path):
        link = Path(sys.executable).with_name("pulumi").read_text()
        cli = tmp_path / "pulumi"  # the language host of this checkout, also where several share one environment
        cli.write_text(re.sub(r'GEMMA_SERVING_ROOT="[^"]*"', f'GEMMA_SERVING_ROOT="{ROOT}"', link))
        cli.chmod(0o755)
        steps = [step.name for step in rehearsal.STEPS if step.name not in SKIPPED_HERE]
        command = [
            sys.executable,
            str(built / "first" / build.REHEARSAL),
            str(built / "first"),
            "--complete",
            "--only",
            *steps,
        ]
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("| ok |") == len(steps)

    def test_a_rehearsal_of_a_changed_artefact_fails(self, built, tmp_path):
        copy = rehearsal.shutil.copytree(built / "second", tmp_path / "copy")
        wheel_file = next(copy.glob("loadtest_openai-*.whl"))
        wheel_file.write_bytes(wheel_file.read_bytes()[:-1])
        (tmp_path / "pulumi").write_text("#!/bin/sh\n")
        (tmp_path / "pulumi").chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        command = [sys.executable, str(copy / build.REHEARSAL), "--only", "checksums"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, "is not the file that SHA256SUMS lists" in done.stdout) == (1, True)


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
