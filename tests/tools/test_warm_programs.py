"""A program in a fork sees what a program in an interpreter of its own sees."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.warm_programs import GOOGLE
from tools.engine.language_host import start_fork

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
sys.stdout.flush()
end = sys.argv[1]
if end == "raise":
    raise ValueError("planted")
sys.exit(int(end) if end.isdigit() else end)
"""


@pytest.fixture(scope="module")
def socket(tmp_path_factory):
    path = tmp_path_factory.mktemp("warm") / "socket"
    command = [sys.executable, "-m", "tests.engine.warm_programs", str(path), "programs"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield path
    process.terminate()
    assert process.wait(timeout=60) == 0
    process.stdout.close()


@pytest.fixture
def run(socket, tmp_path, capfd):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("VALUE = 7\n")

    def started(end, environment):
        fork = start_fork(str(socket), [str(program), end, "second"], environment, str(tmp_path))
        code = fork.wait()
        out, err = capfd.readouterr()
        return code, json.loads(out), err

    return started


def test_arguments_folder_environment_and_neighbors_are_the_programs_own(run, tmp_path):
    code, seen, _ = run("0", {"GIVEN": "a value"})
    assert code == 0
    assert seen == {
        "arguments": ["0", "second"],
        "folder": str(tmp_path),
        "variable": "a value",
        "others": [],
        "name": "__main__",
        "beside": 7,
        "own": [],
        "pulumi": True,
    }
    assert run("0", {})[1]["variable"] is None


def test_it_ends_as_an_interpreter_does(run):
    assert run("32", {})[0] == 32
    code, _, err = run("a sentence", {})
    assert (code, err) == (1, "a sentence\n")
    code, _, err = run("raise", {})
    assert code == 1
    assert err.endswith("ValueError: planted\n")


def test_each_module_of_google_that_a_program_uses_is_loaded_before_the_fork():
    sources = [path.read_text() for room in ("components", "stacks") for path in (ROOT / room).rglob("*.py")]
    assert {module for text in sources for module in re.findall(r"\bgcp\.([a-z]\w*)\.", text)} == set(GOOGLE)
