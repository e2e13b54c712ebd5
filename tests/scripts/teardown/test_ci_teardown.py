"""The program of the workflow that tears a stack down by hand."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "teardown" / "ci_teardown.sh"


def test_a_teardown_by_hand_runs_for_a_stack_name_given_twice_and_for_nothing_else(tmp_path):
    script, gemma = tmp_path / "scripts" / "teardown" / "ci_teardown.sh", tmp_path / ".venv" / "bin" / "gemma"
    for path, text in (
        (script, SCRIPT.read_text()),
        (gemma, '#!/bin/sh\necho "$@"\n'),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(**environment):
        words, environment = ["sh", str(script), "out/x"], {"PATH": os.environ["PATH"], **environment}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout, "nothing was deleted" in done.stderr

    assert run(STACK="l4-qat", CONFIRM="l4-qat") == (0, "teardown --stack=l4-qat --yes --receipt=out/x\n", False)
    hostile = ("--all", "-x", "--over-limit", "../x", "a;id", "", "\n", "a\n--all", "a b", "$(id)", "A", "1")
    given = [(name, name) for name in hostile] + [("a", "b"), ("a", ""), ("", "a")]
    assert {(2, "", True)} == {run(STACK=stack, CONFIRM=confirm) for stack, confirm in given} | {run()}
