"""`up` deploys the copy that was planned; `restart` runs what a dry run showed."""

import shutil
from pathlib import Path

import anyio
import pytest
import yaml

from gemma_serving.engine import runner
from gemma_serving.scripts.agent import update_tools
from gemma_serving.scripts.agent.server import build
from gemma_serving.scripts.stack.frozen import freeze
from tests.scripts.agent.conftest import STACK, call

ROOT = Path(__file__).parents[3]
SALT = "encryptionsalt: v1:abc=:v1:def"
SHOWN = "plan-00000000000000aa"
LOOK = {"plan": SHOWN, "target": "tpu", "sentences": ["Requests fail."]}


# The copy.


@pytest.fixture
def project(monkeypatch, tmp_path, commands):
    """A separate project with the real copy and a stand-in for the engine."""
    folder = tmp_path / "checkout"
    for room in ("stacks", "components"):
        (folder / room).mkdir(parents=True)
    for path in ("Pulumi.yaml", f"Pulumi.{STACK}.yaml", "__main__.py", "stacks/cloud_run.py"):
        shutil.copy(ROOT / path, folder / path)
    monkeypatch.setattr(runner, "project_folder", lambda: folder)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    monkeypatch.setattr(update_tools, "freeze", freeze)
    path = folder / f"Pulumi.{STACK}.yaml"
    path.write_text(f"{path.read_text()}  gemma-serving:maxUsd: 50\n")
    return folder


def while_up_runs(monkeypatch, act):
    """Do something in the engine's folder as the engine starts."""
    inner = update_tools.run_program

    async def run(argv, *, folder=None, **options):
        if argv[1] == "up":
            act(folder)
        return await inner(argv, folder=folder, **options)

    monkeypatch.setattr(update_tools, "run_program", run)


def planned(server):
    return anyio.run(lambda: call(server, "preview", {"stack": STACK})).structured_content["plan_id"]


def upped(server, plan_id):
    return anyio.run(lambda: call(server, "up", {"plan_id": plan_id}))


def test_the_copy_is_private_and_gone_at_the_end_also_of_a_cancelled_call(
    bench_of, audit, commands, project, monkeypatch
):
    folders = []

    def note(folder):
        folders.append((folder, folder.parent.stat().st_mode & 0o777))
        raise KeyboardInterrupt

    while_up_runs(monkeypatch, note)
    server = build(bench_of("up"), audit)
    plan_id = planned(server)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - how the SDK reports an interrupt is its own
        upped(server, plan_id)
    ((folder, mode),) = folders
    assert mode == 0o700
    assert not folder.exists()


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_salt_that_the_engine_writes_into_the_copy_reaches_the_project(  # noqa: PLR0917 - fixtures
    bench_of, audit, commands, project, monkeypatch, interrupted
):
    path = project / f"Pulumi.{STACK}.yaml"
    text = path.read_text()

    def salted(folder):
        document = {**yaml.safe_load((folder / path.name).read_text()), **yaml.safe_load(SALT)}
        (folder / path.name).write_text(yaml.safe_dump(document))
        if interrupted:
            raise KeyboardInterrupt

    while_up_runs(monkeypatch, salted)
    server = build(bench_of("up"), audit)
    plan_id = planned(server)
    if interrupted:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - as above
            upped(server, plan_id)
    else:
        done = upped(server, plan_id).structured_content
        assert done["settings_lines"] == [
            f"The engine added encryptionsalt to {path.name}. Keep the line, because the stack's secrets need it."
        ]
    assert path.read_text() == f"{text}{SALT}\n"


# Plans of a restart.


def look(server, tool, **arguments):
    return anyio.run(lambda: call(server, tool, {"stack": STACK, **arguments}))


def test_a_plan_holds_for_its_tool_and_its_arguments_only(bench_of, audit, commands):
    commands.documents["up"] = LOOK
    server = build(bench_of("restart,up"), audit)
    plan_id = look(server, "restart").structured_content["plan_id"]
    refused = look(server, "restart", stack="other", plan_id=plan_id)
    assert "is not a plan for this call of restart, or was" in refused.content[0].text
    refused = upped(server, plan_id)
    assert "is not a plan for this call of up, or was already run. Call preview" in refused.content[0].text
    assert len(commands.run) == 1
