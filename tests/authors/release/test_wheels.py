"""The wheels of packages/: every file of each package, metadata, and the same bytes twice."""

import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dev.authors.release import version
from dev.authors.release.build import build_distribution
from gemma_serving.scripts.agent.resource_pages import PAGES
from gemma_serving.scripts.init import __main__ as init
from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = [ROOT / "packages" / name for name in ("gcp-tpu", "loadtest", "localcloud")]
SCRIPTS = {
    "gcp-tpu": "pulumi-resource-gcp-tpu",
    "loadtest": "loadtest",
    "localcloud": "localcloud",
}
TOP_LEVEL = {"gcp-tpu": "gcp_tpu_provider", "loadtest": "loadtest", "localcloud": "localcloud"}
A_DATE = "1767225600"


@pytest.fixture
def a_date(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", A_DATE)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel of each package folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", A_DATE)
        out = tmp_path_factory.mktemp("dist")
        return {folder.name: wheel_of(folder, out) for folder in FOLDERS}


def wheel_of(folder, out):
    """Build a package folder, and return the path of its wheel."""
    build_distribution(folder, out / folder.name)
    (wheel,) = (out / folder.name).glob("*.whl")
    return wheel


def metadata_of(wheel):
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(packed.read(name).decode())


def test_the_product_s_wheel_has_each_stack_page_and_workflow_that_the_product_reads():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert table == {name: f"gemma_serving/{name}" for name in table}
    assert all((ROOT / name).exists() for name in table)
    listed = subprocess.run(
        ["git", "ls-files", "Pulumi.*.yaml", "examples/stacks"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pages = [name for name in PAGES.values() if name.startswith("docs/")]
    read = [*listed, *pages, *init._LOCKS.values(), *(f".github/{name}" for name in init._OF_REPOSITORY)]
    assert [name for name in read if not {name, str(Path(name).parent)} & {*table}] == []


@pytest.mark.long
def test_a_wheel_has_every_file_of_its_package_and_no_tests(built, subtests):
    for folder in FOLDERS:
        with subtests.test(folder.name):
            with zipfile.ZipFile(built[folder.name]) as packed:
                names = {name for name in packed.namelist() if ".dist-info/" not in name}
            top = TOP_LEVEL[folder.name]
            home = folder if folder.name == top else folder / top
            tracked = {f"{top}/{path}" for path in tracked_files(home)}
            assert names == tracked - {f"{top}/{name}" for name in beside(home)}
            assert not any("/tests/" in name for name in names)
            assert f"{top}/py.typed" in names or folder.name == "gcp-tpu"
            (source,) = built[folder.name].parent.glob("*.tar.gz")
            with tarfile.open(source) as archive:
                members = archive.getmembers()
            assert {(member.uid, member.uname, member.mtime) for member in members} == {(0, "", int(A_DATE))}
            assert [member.name for member in members] == sorted(member.name for member in members)
            assert not any("/tests/" in member.name for member in members)


def tracked_files(home):
    """Every file of a package folder but its tests, by another rule than the build's."""
    return {path.relative_to(home).as_posix() for path in tracked(home, suffix="") if "tests" not in path.parts}


def beside(home):
    return (
        {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "requirements.in", "requirements.txt"}
        if home.name != "gcp_tpu_provider"
        else set()
    )


@pytest.mark.long
def test_the_metadata_is_complete(built, subtests):
    for folder in FOLDERS:
        with subtests.test(folder.name):
            found = metadata_of(built[folder.name])
            with zipfile.ZipFile(built[folder.name]) as packed:
                (entry,) = (name for name in packed.namelist() if name.endswith("entry_points.txt"))
                assert f"{SCRIPTS[folder.name]} = " in packed.read(entry).decode()
            assert found["License-Expression"] == "Apache-2.0"
            assert found["License-File"] == "LICENSE"
            assert found["Requires-Python"] == "<3.14,>=3.11"
            assert found["Description-Content-Type"] == "text/markdown"
            assert len(found.get_payload()) > 500
            assert found["Summary"]
            assert f"Repository, https://github.com/{version.repository(ROOT)}" in found.get_all("Project-URL")
            assert "](../" not in found.get_payload()


@pytest.mark.long
def test_two_builds_have_the_same_bytes(built, tmp_path, a_date, subtests):
    for folder in FOLDERS:
        with subtests.test(folder.name):
            copied = shutil.copytree(folder, tmp_path / "elsewhere" / folder.name)
            for path in copied.rglob("*"):
                path.chmod(0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600)
            again = wheel_of(copied, tmp_path / "again")
            assert sorted(path.name for path in again.parent.iterdir()) == sorted(
                path.name for path in built[folder.name].parent.iterdir()
            )
            for path in again.parent.iterdir():
                assert path.read_bytes() == (built[folder.name].parent / path.name).read_bytes()


def test_the_bounds_of_each_requirement_admit_the_locked_version(subtests):
    """A wheel requires at least the release line that the lock, and so every test, has."""
    packages = [
        (f"packages/{name}/requirements.in", f"packages/{name}/requirements.txt") for name in ("loadtest", "localcloud")
    ]
    product = [(f"requirements/{name}.in", "requirements.txt") for name in ("plan", "base")]
    extras = [(f"requirements/{name}.in", f"requirements/{name}.txt") for name in ("agent", "gke", "images")]
    for named, lock in (*packages, *product, *extras):
        locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / lock).read_text(), re.MULTILINE))
        for line in (ROOT / named).read_text().splitlines():
            if line and not line.startswith("#"):
                with subtests.test(f"{named}: {line}"):
                    wanted = Requirement(line)
                    assert wanted.specifier.contains(locked[wanted.name.replace("_", "-")])
                    assert any(each.operator in {">=", "=="} for each in wanted.specifier)
