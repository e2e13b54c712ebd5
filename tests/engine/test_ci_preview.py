"""The pull request workflow's own script, without credentials: the changed stack is previewed on the local cloud, and the checkout stays as it was."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from dev.tools.engine.language_host import WARM_PROGRAMS
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.scripts.preview.comment import MARKER
from gemma_serving.scripts.preview.previews import StackPreview
from tests.engine.warm import warm_programs

pytestmark = [pytest.mark.engine, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
CHANGED = "tpu-v6e4"
FILES = [path for path in shipped_files(ROOT) if path.parent == ROOT]
STACKS = {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in FILES}


def stack_files():
    return {path.name: path.read_text() for path in FILES}


def git(environment, *arguments, stdin=""):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    words = ["git", *identity, *arguments]
    done = subprocess.run(words, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_of_base(environment, folder):
    """Commit this checkout with one zone less in one stack; objects and index are outside the repository, which stays as it was."""
    objects = git(environment, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    (folder / "objects").mkdir()
    environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = objects
    environment["GIT_OBJECT_DIRECTORY"] = str(folder / "objects")
    with_index = {**environment, "GIT_INDEX_FILE": str(folder / "index")}
    name = f"Pulumi.{CHANGED}.yaml"
    settings = re.sub(r"(zones: \[.*), [^,]*\]", r"\1]", (ROOT / name).read_text())
    assert settings != (ROOT / name).read_text()
    git(with_index, "add", "--all")
    blob = git(with_index, "hash-object", "-w", "--stdin", stdin=settings)
    git(with_index, "update-index", "--cacheinfo", f"100644,{blob},{name}")
    return git(with_index, "commit-tree", git(with_index, "write-tree"), "-m", "base")


def test_a_fork_gets_its_previews_from_the_local_cloud(tmp_path):
    before = stack_files()
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_", "GIT_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    environment["BASE_COMMIT"] = commit_of_base(environment, tmp_path)
    environment[WARM_PROGRAMS] = str(warm_programs()[1])
    environment["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary.md")
    done = subprocess.run(
        [str(ROOT / "scripts" / "preview" / "ci_preview.sh"), str(tmp_path / "previews")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(MARKER)
    assert "simulated" in done.stdout
    assert (tmp_path / "previews" / "comment.md").read_text() == done.stdout
    assert (tmp_path / "summary.md").read_text() == done.stdout
    (stored,) = (tmp_path / "previews").glob("*.json")
    changed = StackPreview.model_validate_json(stored.read_text())
    assert (changed.stack, changed.error, changed.new_stack) == (CHANGED, None, True)
    assert {change.op for change in changed.changes} == {"create"}
    assert (
        f"`pulumi preview` ran for 1 of {len(STACKS)} stacks, because it leaves out stacks that are neither deployed nor changed."
        in done.stdout
    )
    assert "takes effect at the next creation; running capacity stays" in done.stdout
    assert stack_files() == before
