"""Each bound of the planner's tables has a proof, and a proof holds only if the release before it is seen without the text."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from dev.judges import releases
from dev.judges.releases import Proof, judge, mismatches, releases_in
from gemma_serving.planning.model import support
from tests.records import replace

PROOF = Proof(
    bounds=("a",), package="some-package", path="model.py", text="shared", last="0.2.0", first="0.3.0", changes=(7,)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with tags 0.2.0 and 0.3.0, whose change is merged into main before it is tagged, and wheels of 0.4.0 and 0.5.0."""
    git = tmp_path / "some-package.git"
    git.mkdir()
    run(git, "init", "--quiet", "--initial-branch=main")
    commit(git, "[Model] Add the model (#1)", "plain")
    run(git, "branch", "release-0.2")
    commit(git, "[Model] Share layers (#7)", "shared")
    run(git, "tag", "v0.3.0")
    run(git, "checkout", "--quiet", "release-0.2")
    commit(git, "Release, two weeks after #7 was merged", "plain, later")
    run(git, "tag", "v0.2.0")
    for release in ("0.4.0", "0.5.0"):
        with zipfile.ZipFile(tmp_path / f"some_package-{release}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("model.py", "shared")
    return tmp_path


def run(git: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", "-C", str(git), *who, *words], check=True)


def commit(git: Path, subject: str, text: str) -> None:
    (git / "model.py").write_text(text, encoding="utf-8")
    run(git, "add", "model.py")
    run(git, "commit", "--quiet", "--message", subject)


def test_every_bound_of_both_tables_has_an_entry_that_fits():
    assert list(mismatches()) == []


def test_a_bound_that_is_dated_by_a_merge_does_not_fit(monkeypatch: pytest.MonkeyPatch):
    rows = [replace(row, first="0.24.0") if row.first == "0.25.0" else row for row in support.support_rows()]
    monkeypatch.setattr(releases, "support_rows", lambda: rows)
    assert set(mismatches()) == {
        "fp8 v5e from 0.24.0 has no entry in releases.toml.",
        "fp8 v5e from 0.25.0 is a bound of no row.",
        "fp8 v5e from 0.25.0 is not 0.25.0.",
    }


@pytest.mark.parametrize(
    ("changed", "verdict", "says"),
    [
        ({}, "proved", "in 0.3.0, not in 0.2.0"),
        ({"last": "0.1.0"}, "unknown", "some-package 0.1.0 is not here"),
        ({"first": "0.4.1"}, "unknown", "some-package 0.4.1 is not here"),
        ({"text": "plain"}, "refuted", "0.2.0 has it already"),
        ({"first": "0.4.0"}, "refuted", "0.3.0 is between 0.2.0 and 0.4.0"),
        ({"text": "absent"}, "refuted", "0.3.0 does not have it"),
        ({"path": "absent.py"}, "refuted", "0.3.0 does not have it"),
        ({"changes": (1,)}, "refuted", "#1 is first in 0.2.0"),
        ({"changes": (70,)}, "refuted", "#70 is first in None"),
        ({"last": "0.4.0", "first": "", "text": "absent"}, "proved", "not in 0.4.0, 0.5.0"),
        ({"first": "", "changes": ()}, "refuted", "0.3.0 has it"),
    ],
)
def test_a_release_that_is_not_here_proves_nothing(folder: Path, changed: dict[str, object], verdict: str, says: str):
    here = releases_in([folder / "some-package.git"], folder)["some-package"]
    assert judge(replace(PROOF, **changed), here) == (verdict, says)


def test_without_folders_everything_is_unknown(capsys: pytest.CaptureFixture[str]):
    assert releases.COMMAND.run(releases.ReleasesOptions()) == 0
    shown = capsys.readouterr().out
    assert "\n0 proved, 0 refuted, " in shown
    assert "proved " not in shown.replace("unproved ", "")
