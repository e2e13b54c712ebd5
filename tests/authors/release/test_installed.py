"""The wheels in a user's folder, which has `components/`, `scripts/` and `stacks/` of its own: every command, an assistant's tools and its limit."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from authors.release import rehearsal
from authors.release.build import DISTRIBUTIONS, build_distribution
from gemma_serving.scripts.gemma.catalog import ENTRIES

UV = Path(sys.executable).with_name("uv")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose `.venv` has the wheels, and the packages of others from this environment: the registry is not this test's subject."""
    made = tmp_path / "project"
    made.mkdir()
    for one in DISTRIBUTIONS:
        build_distribution(one, tmp_path / "dist")
    wheels = sorted((tmp_path / "dist").glob("*.whl"))
    python = made / ".venv" / "bin" / "python"
    for words in (
        ("venv", "--python", sys.executable, made / ".venv"),
        ("pip", "install", "--no-deps", "--compile-bytecode", "--python", python, *wheels),
    ):
        subprocess.run([UV, *words, "--quiet"], check=True)
    (packages,) = (made / ".venv" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # no file of that folder is run, so no checkout
    engine = Path(sys.executable).with_name("pulumi").read_text().splitlines()
    script = "\n".join(line for line in engine if "trial.py" not in line)  # an official Pulumi knows no trial
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pulumi").write_text(re.sub(r' PATH="[^"]*"', "", script) + "\n")
    (tmp_path / "bin" / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), "/usr/bin", "/bin"]))
    return made


@pytest.mark.engine
def test_an_installation_starts_its_own_programs_and_enforces_a_limit_in_hours(folder):
    at = rehearsal.Workplace(folder.parent / "dist", folder.parent)
    at.run(folder / ".venv" / "bin" / "gemma", "init", "first", "--like", "tpu-v6e1", cwd=folder)
    assert "Trials: 14, " in rehearsal.use(at, folder, rehearsal.INSTALLED)


def test_the_rehearsal_uses_every_command():
    used = set(re.findall(r"(?:^|\| )gemma (\w+)", rehearsal.INSTALLED + rehearsal.LIFE, re.MULTILINE))
    assert used == set(ENTRIES) - {"agent"}  # the assistant starts it
