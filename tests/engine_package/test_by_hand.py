"""`pulumi` in a local cloud works in the trial's folder, with the next engine on PATH."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def by_hand(tmp_path):
    """Return a function that runs the command in a project's folder with an environment; returns exit code and output."""
    project, engine = tmp_path / "mine", tmp_path / "engine"
    for folder in (project / ".venv", engine, tmp_path / "cloud" / "bin"):
        folder.mkdir(parents=True)
    (project / "Pulumi.yaml").write_text("name: gemma-serving\n")
    for path, said in ((engine / "pulumi", "in $PWD: $*"), (tmp_path / "cloud" / "bin" / "pulumi", "itself")):
        path.write_text(f'#!/bin/sh\necho "{said}"\n')
        path.chmod(0o755)

    def ran(*words, path=f"{tmp_path}/cloud/bin:{engine}"):
        variables = {"PATH": path, "LOCALCLOUD_STATE": str(tmp_path / "cloud"), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-P", "-m", "gemma_serving.engine.by_hand", *words]
        done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return ran


def test_the_engine_runs_in_a_copy_and_not_in_the_users_folder(by_hand, tmp_path):
    code, said = by_hand("preview", "--stack", "chat")
    assert code == 0
    assert said.startswith(f"in {tmp_path}/cloud/projects/mine-")
    assert said.endswith(": preview --stack chat\n")


def test_without_an_engine_it_says_how_to_install_one(by_hand, tmp_path):
    code, said = by_hand("preview", path=f"{tmp_path}/cloud/bin")
    assert (code, said) == (1, "The Pulumi CLI is not installed. Run `make setup`.\n")
