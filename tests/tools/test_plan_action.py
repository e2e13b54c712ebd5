"""The action that plans a pull request's servers: its two scripts, run as a runner does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".github" / "actions" / "plan"
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.31.0
          args: ["--model=google/gemma-4-E2B-it", "--max-model-len=8192"]
"""
TOO_LARGE = "vllm serve google/gemma-4-31B-it --max-model-len 8192\n"


def git(folder, *words):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words], cwd=folder, check=True)


@pytest.fixture
def planned(tmp_path):
    """Return the exit code and the comment for files of a pull request."""
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "base")

    def run(files, **environment):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--message", "change")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = {
            "GITHUB_WORKSPACE": str(tmp_path),
            "PATH": path,
            "BASE": "HEAD^1",
            "OUT": "plans.md",
            "HOME": str(tmp_path),
        }
        done = subprocess.run([ACTION / "plan.sh"], env={**variables, **environment}, cwd=ROOT, check=False)
        return done.returncode, (tmp_path / "plans.md").read_text()

    return run


def test_each_changed_server_is_planned_and_the_worst_decides(planned):
    stack = (ROOT / "Pulumi.l4-12b-qat.yaml").read_text()
    project = {name: (ROOT / name).read_text() for name in ("Pulumi.yaml", "__main__.py")}
    files = {"Pulumi.chat.yaml": stack, "deploy/vllm.yaml": MANIFEST, "values.yaml": "a: b\n", **project}
    code, text = planned(files)
    assert code == 0, text
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "### `Pulumi.chat.yaml`",
        "### `deploy/vllm.yaml`",
    ]
    assert text.count(": fits, ") == 2
    code, text = planned({"serve.sh": TOO_LARGE}, ACCELERATOR="L4")
    assert (code, "does not fit" in text, text.count("### ")) == (2, True, 1)


def test_without_a_server_it_says_so(planned):
    assert planned({"values.yaml": "a: b\n"}) == (
        0,
        "<!-- gemma-serving: plans of a pull request -->\nNo changed file has a server of vLLM.\n",
    )


def test_what_it_installs_has_the_versions_of_the_lock():
    steps = yaml.safe_load((ACTION / "action.yml").read_text())["runs"]["steps"]
    (pattern,) = (line for line in steps[1]["run"].splitlines() if line.startswith("grep"))
    found = subprocess.run(
        ["sh", "-c", pattern.partition(" >")[0]], env={"own": str(ROOT)}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(found) == sum(
        "==" in line for line in (ROOT / "requirements.txt").read_text().splitlines() if line[0] != "#"
    )
