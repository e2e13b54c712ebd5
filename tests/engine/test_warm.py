"""A fork of the process that has imported a project runs the code of its folder, as a new interpreter does."""

import os

import pytest

from tests.engine.warm import project_programs, run_python
from tests.engine.warm_programs import OWN

ASK = ["-c", "import os, sys, gemma_serving.scripts.up.deploying as one; print(one.VALUE, os.getcwd()); sys.exit(3)"]


def project(folder, value):
    """Make a project whose modules are empty but one."""
    for name in OWN["commands"]:
        path = folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "gemma_serving" / "scripts" / "up" / "deploying.py").write_text(f"VALUE = {value}\n")
    return folder


@pytest.mark.engine
def test_a_fork_runs_what_its_folder_has_now(tmp_path):
    here, other = project(tmp_path / "here", 0), tmp_path / "other"
    with project_programs("commands", here, dict(os.environ)) as socket:
        for folder, value in ((other, 2), (here, 30)):
            project(folder, value)
            done = run_python(ASK, dict(os.environ), folder, socket)
            assert (done.returncode, done.stdout, done.stderr) == (3, f"{value} {folder}\n", "")
