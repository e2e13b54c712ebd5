"""The project's stacks are those of git: a user who adds a stack to a clone changes no test and no page."""

import re
import subprocess
from pathlib import Path

from gemma_serving.contracts.settings_files import shipped_files
from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[2]
LISTED = re.compile(r"\b[A-Z]\w+\.r?glob\([^)]*\bPulumi\.\*|stacks_in\([A-Z]")
"""A list of the stacks in a folder of the checkout."""


def test_a_users_stacks_are_not_the_projects(tmp_path):
    (tmp_path / "examples" / "stacks").mkdir(parents=True)
    ours = [tmp_path / "examples" / "stacks" / "Pulumi.a.yaml", tmp_path / "Pulumi.b.yaml", tmp_path / "Pulumi.c.yaml"]
    for path in ours:
        path.write_text("config: {}\n")
    assert shipped_files(tmp_path) == ours, "a copy without git has all"
    for words in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    for path in (tmp_path / "examples" / "stacks" / "Pulumi.mine.yaml", tmp_path / "Pulumi.mine.yaml"):
        path.write_text("config: {}\n")
    assert shipped_files(tmp_path) == ours
    ours[2].unlink()
    assert shipped_files(tmp_path) == ours[:2]


def test_no_test_and_no_page_lists_the_stacks_of_the_checkouts_folder():
    assert LISTED.search('STACKS = list(ROOT.glob("Pulumi.*.yaml"))')
    found = {
        str(path.relative_to(ROOT))
        for path in tracked("dev", "tests")
        if LISTED.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"tests/contracts/test_settings_files.py"}
