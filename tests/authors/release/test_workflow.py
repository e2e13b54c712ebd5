"""release.yml publishes what was used and approved, with the rights of each step and no secret."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dev.authors.release import build

ROOT = Path(__file__).resolve().parents[3]
FLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
JOBS = FLOW["jobs"]
PUBLISHING = ("github", "pypi")


def needed(job):
    """Return all jobs that end before this one begins."""
    before = JOBS[job].get("needs", [])
    direct = {before} if isinstance(before, str) else set(before)
    return direct | {other for each in direct for other in needed(each)}


def uses(job, action):
    return [step for step in JOBS[job]["steps"] if str(step.get("uses", "")).startswith(f"{action}@")]


def test_nothing_is_published_before_the_wheels_were_used_and_a_persons_approval():
    for job in PUBLISHING:
        assert {"build", "long", "attest", "check"} <= needed(job)
    assert all("github" in needed(job) for job in PUBLISHING[1:]), "programs download the plugin from the release"
    assert JOBS["attest"]["if"] == "github.event_name == 'push'", "a manual run ends after the build and the long tests"
    for job in ("build", "long"):
        assert JOBS[job]["if"] == "vars.UPSTREAM == 'true'", "a copy of the repository builds nothing"
    assert [job for job in JOBS if "environment" in JOBS[job]] == list(PUBLISHING)
    assert JOBS["github"]["environment"] == "release"
    assert JOBS["pypi"]["environment"] == "${{ matrix.project }}"


def test_each_job_has_the_rights_of_its_work_and_those_that_have_any_install_nothing():
    rights = {
        job: {right for right, level in (JOBS[job].get("permissions") or {}).items() if level == "write"}
        for job in JOBS
    }
    assert {job: found for job, found in rights.items() if found} == {
        "attest": {"attestations", "id-token"},
        "github": {"contents"},
        "pypi": {"id-token"},
    }
    assert "secrets." not in str(FLOW)
    for job in (job for job, found in rights.items() if found):
        assert uses(job, "actions/checkout") == []
        assert not re.search(r"make |pip install", str(JOBS[job]["steps"])), job


def test_the_wheels_are_used_after_the_artefacts_are_kept_so_nothing_that_is_installed_changes_them():
    steps = JOBS["build"]["steps"]
    (used,) = [number for number, step in enumerate(steps) if "dev/authors/release/walk.sh dist" in step.get("run", "")]
    assert used > max(steps.index(step) for step in uses("build", "actions/upload-artifact"))


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed; the runners have it")
def test_artefacts_of_another_repository_or_of_none_are_refused(tmp_path, subtests):
    (step,) = [step for step in JOBS["check"]["steps"] if "run" in step]
    (tmp_path / "dist").mkdir()

    def code(repository, *, changed=False):
        dist = tmp_path / "dist"
        (dist / build.SUMS).unlink(missing_ok=True)
        (dist / "a-1.0.0.txt").write_text("a")
        schema = {"repository": f"https://github.com/{repository}"}
        (dist / "gcp-tpu-v1.0.0-schema.json").write_text(json.dumps(schema))
        build.write_sums(dist)
        if changed:
            (dist / "a-1.0.0.txt").write_text("b")
        environment = {"PATH": os.environ["PATH"], "REPOSITORY": "acme/serving"}
        command = ["bash", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode

    for name, repository, expected in (
        ("its own", "acme/serving", 0),
        ("another", "acme/other", 1),
        ("none", "owner--unset/serving", 1),
    ):
        with subtests.test(name):
            assert code(repository) == expected
    assert code("acme/serving", changed=True) == 1
