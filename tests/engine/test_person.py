"""A person who has logged in with `gcloud auth application-default login`, and set no quota project: every call names the project of the stack.

Google refuses most calls of such a login without one, and the local cloud does too.
"""

import pytest

from authors.commands_page import all_commands
from tests.engine.conftest import open_workspace

PERSON, PROJECT = "owner@example.com", "local-project"
CLOUD_RUN, TPU = "l4-12b-qat", "tpu-v6e1-e4b"
DRIVEN = {
    "capacity": ("--stack", TPU),
    "doctor": ("--stack", CLOUD_RUN),
    "status": (),
    "logs": ("--stack", CLOUD_RUN),
    "alerts": ("--stack", CLOUD_RUN),
    "recover": ("--stack", CLOUD_RUN, "--dry-run"),
    "smoke": ("--stack", CLOUD_RUN),
    "save_token": ("apiKey", "--stack", CLOUD_RUN, "--generate", "--secret", "own-key"),
    "restart": (),
    "stage_model": (),
    "rollout": (),
    "teardown": (),
}
"""Commands that this module runs; those without arguments are run by the test itself."""
WITHOUT_CALLS = {
    "agent": "its tools run the other commands",
    "bench": "asks the server only",
    "connect": "asks the server only, and its key as smoke does",
    "new": "writes settings",
    "plan": "asks Cloud Storage, which counts for the project of the bucket; tests/scripts/test_refreshed_prices.py has its subcommand prices",
    "preview": "runs pulumi and the planner",
    "up": "runs pulumi and the planner",
}
pytestmark = pytest.mark.engine


def test_every_command_is_driven_here_or_calls_no_google():
    assert {command.name for command in all_commands()} == {*DRIVEN, *WITHOUT_CALLS}


@pytest.fixture(scope="module")
def person(tmp_path_factory):
    folder = tmp_path_factory.mktemp("person")
    scenario = folder / "person.yaml"
    scenario.write_text("base: prepared\niam: {login_is_person: true}\n")
    with open_workspace(folder, "--scenario", str(scenario)) as workspace:
        for stack in (CLOUD_RUN, TPU):
            workspace.pulumi("stack", "init", stack)
        yield workspace


def uncounted(workspace):
    """Return the person's calls that named no project, or another one, and how many there were."""
    calls = [call for call in workspace.admin("requests")["requests"] if call.get("caller") == PERSON]
    wrong = {(call["id"], call["quota_project"]) for call in calls if call["quota_project"] not in {PROJECT, "gcloud"}}
    return wrong, len(calls)


def test_every_call_of_up_of_each_command_and_of_the_teardown_counts_for_the_project(person):
    roll_outs = person.folder / "project" / f"Pulumi.{CLOUD_RUN}.yaml"
    roll_outs.write_text(roll_outs.read_text().replace("cloudRun:\n", "cloudRun:\n    rollout: {}\n", 1))
    email = ("gemma-serving:alerts.email", "owner@example.com")
    person.pulumi("config", "set", "--path", *email, "--stack", CLOUD_RUN)
    person.stage(CLOUD_RUN)
    person.pulumi("up", "--yes", "--skip-preview", "--stack", CLOUD_RUN)
    ended = {}
    for name, arguments in DRIVEN.items():
        if arguments or name == "status":
            ended[name] = person.script(name, *arguments, expect=None)
    person.script("rollout", "--stack", CLOUD_RUN, expect=None)
    person.script("teardown", "--stack", CLOUD_RUN, "--yes")
    wrong, calls = uncounted(person)
    assert wrong == set()
    assert calls > 150
    refused = {name: answer.text for name, answer in ended.items() if "quota project" in answer.text}
    assert refused == {}
    # The local cloud does not evaluate alerts, so whether one fires is unknown.
    assert {name: answer.text[-500:] for name, answer in ended.items() if answer.code != 0 and name != "alerts"} == {}


@pytest.mark.long
def test_every_call_of_a_tpu_stack_counts_for_the_project(person):
    """packages/gcp-tpu/gcp_tpu_provider/tests/test_transport.py asserts the header of the provider's own calls."""
    _, before = uncounted(person)
    person.pulumi("up", "--yes", "--skip-preview", "--stack", TPU)
    person.script("status", "--stack", TPU)
    person.script("restart", "--stack", TPU, "--dry-run")
    person.script("teardown", "--stack", TPU, "--yes")
    wrong, calls = uncounted(person)
    assert wrong == set()
    assert calls > before + 100
