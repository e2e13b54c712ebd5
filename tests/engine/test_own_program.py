"""The life of examples/own_program with the real CLI, by the commands of its README: rejected, deployed, asked, destroyed, nothing left."""

import json
import re
import socket

import pytest

from tests.engine.conftest import HF_CANARY, PROJECT, ROOT, assert_nowhere_in_clear, open_workspace

FOLDER = "examples/own_program"
SETUP, ASK, DELETE = re.findall(r"```sh\n(.*?)```", (ROOT / FOLDER / "README.md").read_text(), flags=re.DOTALL)
*PREPARE, UP = SETUP.splitlines()
HERE = "\n".join(PREPARE[:2])
MOST_RUNS = 4
"""A new service account and its grants take minutes to take effect, so a first `up` may fail, as the README says."""

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A new project with a quota of TPU chips, in which no API is enabled."""
    folder = tmp_path_factory.mktemp("own")
    scenario = folder / "quota.yaml"
    scenario.write_text("base: new-project\ntpu: {preemptible_quota_chips: 1}\n")
    with open_workspace(folder, "--scenario", str(scenario), cold=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def bash(workspace):
    """Run lines of the README as a person does, who answers yes; port 8000 may be in use on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])

    def run(lines, **options):
        script = f"{HERE}\n{lines}".replace("=PROJECT", f"={PROJECT}").replace("8000:127", f"{port}:127")
        script = script.replace("127.0.0.1:8000/", f"127.0.0.1:{port}/")
        environment = {"PULUMI_SKIP_CONFIRMATIONS": "true"}
        return workspace.run("bash", "-euc", script, environment=environment, **options)

    return run


@pytest.fixture(scope="module")
def prepared(bash):
    bash("\n".join(PREPARE[2:]), stdin=HF_CANARY)


@pytest.fixture
def program(workspace, prepared):
    """The file of the program, which a test may change."""
    path = workspace.folder / "project" / FOLDER / "__main__.py"
    text = path.read_text()
    yield path
    path.write_text(text)


def test_an_invalid_argument_is_rejected_before_anything_exists(workspace, bash, program):
    """tests/stacks/refusals.golden.txt has the sentences."""
    text = program.read_text()
    assert text.count('"v6e-1"') == 1
    program.write_text(text.replace('"v6e-1"', '"v6e-16"'))
    for command in ("pulumi preview", UP):
        said = bash(command, expect=None)
        assert said.code != 0
        assert 'TpuQueuedResource "tpu": `tpu.accelerator_type` is "v6e-16"; v6e has no' in " ".join(said.text.split())
        assert "Traceback" not in said.text
    assert workspace.made("own") == []


def test_it_is_previewed_deployed_asked_and_destroyed_and_nothing_is_left(workspace, bash, prepared):
    existed = workspace.made("")
    assert "+ 20 to create" in bash("pulumi preview").out
    assert workspace.made("own") == []
    runs = [bash(UP, expect=None)]
    while runs[-1].code and len(runs) < MOST_RUNS:
        assert re.search("does not exist|Permission denied on secret|storage.objects", runs[-1].text), runs[-1].text
        runs.append(bash(UP, expect=None))
    assert runs[-1].code == 0, runs[-1].text
    answers = [json.loads(line) for line in bash(ASK).out.splitlines() if line.startswith("{")]
    assert [answer["choices"][0]["message"]["role"] for answer in answers] == ["assistant", "assistant"]
    bash("pulumi preview --expect-no-changes")
    state = workspace.folder / "cloud" / "pulumi" / ".pulumi" / "stacks" / "own-program" / "dev.json"
    stored = json.loads(state.read_text())["checkpoint"]["latest"]["resources"]
    labels = [resource["inputs"]["labels"] for resource in stored if "labels" in resource.get("inputs", {})]
    assert {found["gemma-serving-project"] for found in labels} == {"own-program"}
    assert_nowhere_in_clear(workspace, HF_CANARY)
    bash(DELETE)
    assert workspace.made("own") == []
    assert set(workspace.made("")) <= set(existed)
    assert not state.exists()
