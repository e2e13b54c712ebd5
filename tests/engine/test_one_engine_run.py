"""`gemma up` without changes runs the engine once, and what an update alone can save is saved."""

import pytest

STACK = "tpu-v6e1-e4b"
COUNTED = """\
import os

import pulumi

with open({runs!r}, "a") as file:
    file.write("run ")
pulumi.export("region", os.environ.get("REGION_OF_TEST", ""))
"""

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_without_changes_the_program_runs_once_and_another_output_or_program_is_saved(workspace):
    runs, program = workspace.folder / "runs", workspace.folder / "project" / "__main__.py"
    program.write_text(COUNTED.format(runs=str(runs)) + program.read_text())
    workspace.pulumi("stack", "init", STACK)

    def runs_of_up(**variables):
        runs.write_text("")
        said = workspace.script("gemma", "up", STACK, "--yes", environment=variables)
        updates = len(workspace.pulumi("stack", "history", "--json", "--stack", STACK).json)
        return runs.read_text().count("run"), updates, "no changes" in said.out

    assert runs_of_up() == (2, 1, False)
    assert runs_of_up() == (1, 1, True)
    assert runs_of_up(REGION_OF_TEST="a") == (2, 2, True)
    assert workspace.pulumi("stack", "output", "region", "--stack", STACK).out == "a\n"
    assert runs_of_up(REGION_OF_TEST="a") == (1, 2, True)
    program.write_text(f"{program.read_text()}# edited\n")
    assert runs_of_up(REGION_OF_TEST="a") == (2, 3, True)
    workspace.settings(STACK).write_text(f"{workspace.settings(STACK).read_text()}# edited\n")
    assert runs_of_up(REGION_OF_TEST="a") == (2, 4, True)
    workspace.up(STACK, "--message", "another run", environment={"REGION_OF_TEST": "a"})
    assert runs_of_up(REGION_OF_TEST="a") == (2, 6, True)
    assert runs_of_up(REGION_OF_TEST="a") == (1, 6, True)
    workspace.teardown(STACK)
