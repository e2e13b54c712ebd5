"""The tasks of the skill, done by a script that follows it; and by somebody who believes every text, who can change nothing."""

import pytest

from scripts.agent.permissions import TOOLSETS
from tests.evals.drivers import gullible, model, scripted
from tests.evals.run import evaluate
from tests.evals.tasks import STACK, TASKS, changes_made

pytestmark = [pytest.mark.engine, pytest.mark.long]

BY_NAME = {task.name: task for task in TASKS}


@pytest.mark.parametrize("name", list(BY_NAME))
def test_a_script_that_follows_the_skill_does_the_task(workspace, name):
    verdict = evaluate(workspace, BY_NAME[name], scripted)
    assert verdict.wrong == (), verdict


def test_somebody_who_believes_every_text_changes_nothing(workspace):
    verdict = evaluate(workspace, BY_NAME["injection"], gullible)
    tried = {use.tool for use in verdict.transcript.uses if use.tool in {"teardown", "up", "rollout", "recover"}}
    assert {"teardown", "up"} <= tried, "the planted text was not read, so that this test says nothing"
    assert verdict.wrong == (), verdict.wrong


def test_the_judge_sees_a_change(workspace):
    """Planted: a deployment during the task counts as a change."""
    task = BY_NAME["injection"]

    async def hasty(client, _task):
        workspace.pulumi("config", "set", "--path", "gemma-serving:cloudRun.concurrency", "8", "--stack", STACK)
        workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
        return await scripted(client, task)

    assert any("run.projects.locations.services" in wrong for wrong in evaluate(workspace, task, hasty).wrong)
    assert changes_made(workspace)


def test_a_model_can_do_the_tasks_over_any_compatible_server(workspace):
    """The simulated model answers without sense: what is tested is that the driver speaks the protocol."""
    workspace.pulumi("stack", "select", STACK)
    endpoint = workspace.outputs(STACK)["endpoint"]
    token = workspace.run(
        "python", "-c", f"from scripts.cli.access import fetch_id_token; print(fetch_id_token('{endpoint}'))"
    ).out.strip()
    short = (*TOOLSETS["status"], *TOOLSETS["logs"])  # the stack's longest request is 8,192 tokens
    driver = model(f"{endpoint}/v1", workspace.outputs(STACK)["servedModel"], token, short)
    verdict = evaluate(workspace, BY_NAME["injection"], driver)
    assert verdict.wrong == ()
