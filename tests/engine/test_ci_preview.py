"""The pull request workflow's own script, without credentials: every stack is previewed on the local cloud, and the checkout stays as it was."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from scripts.preview.comment import MARKER
from tests.engine.warm import warm_programs
from tests.suite import STARTS, count
from tools.engine.language_host import WARM_PROGRAMS

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
STACKS = {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.*.yaml")}


def stack_files():
    return {path.name: path.read_text() for path in ROOT.glob("Pulumi.*.yaml")}


@pytest.mark.long
def test_a_fork_gets_its_previews_from_the_local_cloud(tmp_path):
    before = stack_files()
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    environment["BASE_COMMIT"] = "HEAD"
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
    assert "The base has no plans" not in done.stdout
    assert (tmp_path / "previews" / "plans" / "base.json").is_file()
    assert (tmp_path / "summary.md").read_text() == done.stdout
    count(STARTS, len(STACKS))
    previews = [json.loads(path.read_text()) for path in (tmp_path / "previews").glob("*.json")]
    assert {preview["stack"] for preview in previews} == STACKS
    assert all(preview["error"] is None and preview["changes"] for preview in previews)
    assert all(preview["usd_per_hour"] > 0 for preview in previews)
    assert stack_files() == before


def test_the_workflow_runs_scripts_that_exist_and_gives_a_fork_no_more_than_it_needs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "preview.yml").read_text())
    assert workflow["permissions"]["contents"] == "read"
    steps = workflow["jobs"]["preview"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert "scripts/preview/ci_preview.sh previews" in commands
    assert steps[0]["with"]["fetch-depth"] >= 2
    preview = next(step for step in steps if step.get("name") == "Preview")
    assert preview["env"]["BASE_COMMIT"] == "HEAD^1"
    comment = next(step for step in steps if step.get("name") == "Comment")
    assert "head.repo.full_name == github.repository" in comment["if"]
    assert os.access(ROOT / "scripts" / "preview" / "ci_preview.sh", os.X_OK)
