"""Each published guide that this project grew from can be followed to its end: its model, machine and questions, in its order.

The guides are in `tests/engine/guides`. A step has the question in our words and either the command that answers it or the reason why it is not ours.
"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from localcloud.world.scenario import DEFAULT_WORLD
from tests.engine.conftest import open_workspace

GUIDES = {
    path.stem: tomllib.loads(path.read_text()) for path in sorted(Path(__file__).with_name("guides").glob("*.toml"))
}
FIRST_COMMANDS = re.compile(r"^\s+(gcloud .+)$", flags=re.MULTILINE)

pytestmark = [pytest.mark.engine, pytest.mark.long]


def words_of(command, workspace):
    first, *rest = shlex.split(command)
    return [workspace.engine, *rest, "--non-interactive"] if first == "pulumi" else [first, *rest]


def follow(workspace, text):
    """Run the commands that an answer recommends, and wait where Google says so: an API takes minutes until it is enabled everywhere."""
    commands = FIRST_COMMANDS.findall(text)
    assert commands, f"the answer recommends nothing:\n{text}"
    for command in commands:
        for _ in range(3):
            answer = workspace.run("sh", "-c", command, expect=None)
            if "wait a few minutes" not in answer.text:
                break
            workspace.advance(240)
        assert answer.code == 0, answer.text
    workspace.advance(240)


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_is_followed_to_its_end(tmp_path, name):
    # Guides compare the server with the plan, so it answers as fast as a real one.
    with open_workspace(tmp_path, "--scenario", DEFAULT_WORLD, serving_speed="1") as workspace:
        for step in GUIDES[name]["step"]:
            if "not_ours" in step:
                continue
            expect = step.get("code", 0)
            answer = workspace.run(*words_of(step["run"], workspace), expect=expect)
            told = " ".join(answer.text.split())  # wrapped at the terminal's width
            missing = [wanted for wanted in step["shows"] if not re.search(wanted, told)]
            assert not missing, f"{step['asks']} {missing} is missing:\n{answer.text[-6000:]}"
            if step.get("follow"):
                follow(workspace, answer.text)
