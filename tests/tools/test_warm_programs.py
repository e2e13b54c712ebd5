"""A program in a fork sees what a program in an interpreter of its own sees."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dev.tools.engine.language_host import start_fork
from tests.polling import until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys
import beside
print(json.dumps({
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "variable": os.environ.get("GIVEN"),
    "others": sorted(set(os.environ) - {"GIVEN", "LC_CTYPE"}),
    "name": __name__,
    "beside": beside.VALUE,
    "own": sorted(name for name in sys.modules if name.split(".")[0] == "gemma_serving"),
    "pulumi": "pulumi.runtime" in sys.modules or "not imported",
}))
"""


@pytest.fixture(scope="module")
def socket(tmp_path_factory):
    path = tmp_path_factory.mktemp("warm") / "socket"
    command = [sys.executable, "-m", "tests.engine.warm_programs", str(path), "programs"]
    process = subprocess.Popen(command, cwd=ROOT)
    until(path.exists, "it listens", process=process)
    yield path
    process.terminate()
    assert process.wait(timeout=60) == 0


@pytest.fixture
def run(socket, tmp_path, capfd):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("VALUE = 7\n")

    def started(environment):
        fork = start_fork(str(socket), [str(program), "first", "second"], environment, str(tmp_path))
        assert fork.wait() == 0
        return json.loads(capfd.readouterr().out)

    return started


def test_arguments_folder_environment_and_neighbors_are_the_programs_own(run, tmp_path):
    assert run({"GIVEN": "a value"}) == {
        "arguments": ["first", "second"],
        "folder": str(tmp_path),
        "variable": "a value",
        "others": [],
        "name": "__main__",
        "beside": 7,
        "own": [],
        "pulumi": True,
    }
    assert run({})["variable"] is None
