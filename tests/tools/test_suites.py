"""Which tests a pull request runs follows from what it changes, and no test that imports a changed room is left out."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.tools.imports import imports
from tools import suites as tool
from tools.suites import (
    BELOW,
    EVERY_PACKAGE,
    TESTED,
    BranchChanges,
    SuiteError,
    chosen,
    difference,
    packages,
    suites,
    suites_of_packages,
)

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"gcp_tpu_provider": "gcp-tpu"}
"""Names of modules whose package has another name."""
KNOWN = suites_of_packages()


def imported(file):
    """The first two parts of the name of each module that a file imports anywhere in it."""
    return (name.split(".")[:2] for _, name in imports(file.read_text()))


def rooms_of(folder):
    """The rooms that files of a folder import."""
    parts = [part for file in sorted(folder.rglob("*.py")) for part in imported(file)]
    return {MODULES.get(part[0], part[0]) for part in parts} & set(BELOW)


def test_a_changed_test_runs_itself():
    listed = subprocess.run(
        ["git", "ls-files", "tests/*/test_*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    one_per_folder = {Path(name).parent: name for name in listed.stdout.split()}
    for name in one_per_folder.values():
        found = suites([name])
        assert found == ["tests"] or any(name == each or name.startswith(f"{each}/") for each in found), name


def test_every_room_and_every_folder_of_tests_has_a_row():
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("*.py"))}
    assert set(TESTED) == folders
    assert {room for row in [*BELOW.values(), *TESTED.values()] for room in row} <= set(BELOW)
    assert set(KNOWN) <= set(BELOW)
    assert all((ROOT / room).is_dir() for room in set(BELOW) - set(KNOWN))


def test_what_a_folder_of_tests_imports_is_in_its_row():
    missing = []
    for folder, used in TESTED.items():
        known = {room for each in used for room in (each, *BELOW[each])}
        missing += [f"tests/{folder} imports {room}" for room in rooms_of(ROOT / "tests" / folder) - known]
    assert missing == []


def test_what_a_room_imports_is_below_it():
    missing = []
    for room, below in BELOW.items():
        rooms = rooms_of(ROOT / "packages" / room if room in KNOWN else ROOT / room)
        missing += [f"{room} imports {other}" for other in rooms - {room, *below}]
    assert missing == []


@pytest.mark.parametrize(
    ("changed", "runs", "leaves_out"),
    [
        (["vm_agent/serving.py"], "tests/vm_agent tests/agreement tests/engine", "tests/tools/test_x tests/contracts"),
        (
            ["packages/gcp-tpu/gcp_tpu_provider/diff.py"],
            "tests/agreement tests/engine",
            "tests/vm_agent tests/contracts",
        ),
        (["packages/localcloud/world/queue.py"], "tests/agreement tests/engine tests/stacks", "tests/contracts"),
        (["packages/localcloud/tests/idle_cloud.py"], "tests/stacks tests/cloud", "tests/contracts"),
        (["planning/data/prices.py"], "tests/planning tests/stacks tests/engine", "tests/contracts"),
        (["scripts/cli/options.py"], "tests/scripts tests/engine", "tests/contracts tests/components tests/vm_agent"),
        (
            ["docs/tpu.md"],
            "tests/authors/test_docs.py tests/engine/test_readme.py tests/test_*.py",
            "tests/engine tests/engine/test_tpu_stack.py tests/vm_agent tests/planning tests/scripts",
        ),
        (
            ["scripts/smoke/catalog.py", "tests/scripts/smoke/test_smoke_cli.py", "CHANGELOG.md"],
            "tests/scripts/smoke/test_smoke_cli.py tests/scripts/rollout/test_rollout.py tests/engine/test_tpu_stack.py",
            "tests/scripts tests/engine tests/engine/test_recover.py tests/planning/test_solve.py",
        ),
        (
            ["scripts/doctor/SKILL.md", "scripts/doctor/__main__.py", "planning/units.py"],
            "tests/scripts tests/planning tests/engine",
            "tests/contracts",
        ),
        (
            ["tests/vm_agent/machine.py"],
            "tests/vm_agent",
            "tests/planning tests/agreement tests/engine tests/contracts",
        ),
        (["tests/engine/conftest.py"], "tests/engine tests/agreement/test_provider_engine.py", "tests/planning"),
        (["contracts/labels.py"], "tests/contracts tests/vm_agent tests/planning tests/engine", ""),
    ],
)
def test_a_change_runs_what_it_can_break(changed, runs, leaves_out):
    found = set(suites(changed))
    assert set(runs.split()) <= found
    assert not set(leaves_out.split()) & found


def test_a_change_of_one_command_runs_its_tests_and_those_that_import_or_start_it():
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").glob("*/**/test_*.py")}
    for name in ("logs", "save_token", "smoke", "status", "teardown"):
        found = set(tool.command_tests([name]))
        uses = re.compile(rf'(?:from|import) scripts\.{name}\b|"scripts\.{name}"|script\("{name}"')
        own = f"tests/scripts/{name}/"
        assert {file for file, text in texts.items() if uses.search(text) or file.startswith(own)} - found == set()
        assert "tests/contracts/test_masking.py" not in found


@pytest.mark.parametrize(
    "changed",
    [[], ["pyproject.toml"], ["docs/tpu.md", "Makefile"], ["tests/conftest.py"], ["Pulumi.l4-qat.yaml"], ["new/x.py"]],
)
def test_everything_runs_where_a_change_has_no_row(changed):
    assert suites(changed) == ["tests"]


@pytest.mark.parametrize(
    ("changed", "runs"),
    [
        ("packages/localcloud/world/queue.py", ["localcloud"]),
        ("packages/localcloud/ledger/limits.toml", ["localcloud"]),
        ("packages/gcp-tpu/gcp_tpu_provider/tests/cloud.py", ["gcp-tpu"]),
        ("planning/data/prices.py", []),
        ("tests/engine/conftest.py", []),
        ("docs/local-cloud.md", []),
        ("packages/README.md", []),
        *((file, sorted(KNOWN)) for file in sorted(EVERY_PACKAGE)),
    ],
)
def test_a_package_is_tested_when_it_changes(changed, runs):
    assert packages([changed], KNOWN) == runs
    assert packages(["planning/units.py", changed], KNOWN) == runs


def test_what_was_not_chosen_is_said_in_one_line_with_the_reason():
    since = BranchChanges(base="origin/main (1a2b3c4)", files=("planning/units.py", "packages/localcloud/cli.py"))
    others = " and ".join(f"packages/{name}" for name in sorted(KNOWN) if name != "localcloud")
    base = "origin/main (1a2b3c4). To run all, run `make test-packages`."
    said = f"Skipping the suites of {others}, unchanged since {base}"
    assert chosen("", KNOWN, since) == (["localcloud"], said)
    assert chosen("all", KNOWN, since) == (sorted(KNOWN), "")
    assert chosen("gcp-tpu", KNOWN, since) == (["gcp-tpu"], "")
    run, said = chosen("", KNOWN, None)
    assert (run, said.startswith("Running all packages' suites, ")) == (sorted(KNOWN), True)
    with pytest.raises(SuiteError, match=r"^nothing: no such package. Packages: gcp-tpu, "):
        chosen("localcloud nothing", KNOWN, since)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with a file of a package, and git in it."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def git(folder, *words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, timeout=60)

    origin, folder = tmp_path / "origin", tmp_path / "clone"
    (origin / "packages" / "localcloud").mkdir(parents=True)
    (origin / "packages" / "localcloud" / "cli.py").write_text("")
    git(origin, "init")
    git(origin, "add", ".")
    git(origin, "commit", "-m", "first")
    git(tmp_path, "clone", str(origin), str(folder))
    return folder, lambda *words: git(folder, *words)


def test_the_main_branch_is_compared_with_what_is_here_committed_or_not(clone):
    folder, git = clone
    assert difference(folder).files == ()
    (folder / "new.py").write_text("")
    (folder / "packages" / "localcloud" / "cli.py").write_text("changed")
    assert set(difference(folder).files) == {"new.py", "packages/localcloud/cli.py"}
    git("checkout", "-b", "work")
    git("commit", "-am", "second")
    assert set(difference(folder).files) == {"new.py", "packages/localcloud/cli.py"}
    assert difference(folder).base.startswith("origin/main (")


def test_what_cannot_be_compared_is_unknown(clone, tmp_path):
    folder, git = clone
    git("remote", "remove", "origin")
    assert difference(folder) is None
    assert difference(tmp_path) is None


def test_a_pull_request_gets_a_job_for_each_package_that_it_changes(monkeypatch, capsys):
    def jobs(*changed):
        monkeypatch.setattr("sys.stdin", [f"{name}\n" for name in changed])
        assert tool.main(["packages"]) == 0
        return json.loads(capsys.readouterr().out)

    assert jobs("packages/localcloud/cli.py", "planning/units.py") == ["localcloud"]
    assert jobs("planning/units.py") == []
    assert jobs() == sorted(KNOWN)
