"""What blocks a deployment is one list: `doctor`, `plan --live`, `capacity` and the refusal of `up` print it in the same order and words."""

import pytest

from gemma_serving.contracts.proof import Asker
from gemma_serving.contracts.search_results import Inventory
from gemma_serving.engine import runner
from gemma_serving.scripts.capacity.__main__ import COMMAND as CAPACITY
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.doctor.__main__ import COMMAND as DOCTOR
from gemma_serving.scripts.plan.__main__ import COMMAND as PLAN
from gemma_serving.scripts.stack import facts
from gemma_serving.scripts.up import starting
from gemma_serving.scripts.up.__main__ import COMMAND as UP
from localcloud.world.scenario import Tpu, TpuZone
from tests.scripts.doctor import rows
from tests.scripts.doctor.conftest import PROJECT, RUN, TPU, WRONG

WITHOUT_TYPE = rows.scenario(tpu=Tpu(zones=dict.fromkeys(Tpu().zones, TpuZone(accelerator_types=("v5litepod-1",)))))
NOT_HERE = rows.policy("gcp.resourceLocations", listPolicy={"allowedValues": ["in:eu-locations"]})


SALTED = rows.settings(("config:\n", "encryptionsalt: v1:x\nconfig:\n"), stack=TPU)


def wrong_passphrase(world):
    world.engine.refusal = WRONG


REFUSING = {
    "a wrong passphrase": (TPU, [SALTED, wrong_passphrase], "is not the passphrase that wrote encryptionsalt"),
    "an API that is off": (TPU, [rows.off("tpu")], "not enabled"),
    "missing roles": (TPU, [rows.without_roles("iap.tunnelResourceAccessor", "tpu.admin")], "missing permissions: tpu.nodes.create"),
    "a policy of the organization": (TPU, [rows.enforced("iam.disableServiceAccountCreation")], "service accounts cannot be created"),
    "no quota in any form and zone": (TPU, [rows.forms("flex-start, spot, standard"), rows.chips(0)], "0 chips, 4 needed"),
    "no offer of the accelerator": (TPU, [WITHOUT_TYPE], "the zone does not offer v6e-4"),
    "no GPU": (RUN, [rows.staged(), rows.SMALL], "0 GPUs, 1 needed"),
    "no image": (TPU, [rows.NO_IMAGES], "does not exist on Docker Hub"),
    "no weights": (RUN, [], "No weights are staged in"),
    "half of the weights": (RUN, [rows.staged(without="model.safetensors")], "do not match their manifest"),
    "no secret": (TPU, [rows.BY_REFERENCE], "secrets/their-token/versions/1 does not exist"),
    "a disabled secret": (TPU, [rows.BY_REFERENCE, rows.secret(rows.TOKEN, verb="disable")], "is DISABLED"),
    "a secret with a newline": (TPU, [rows.BY_REFERENCE, rows.secret(rows.TOKEN, f"{rows.CANARY}\n")], "ends in a newline"),
    "another region": (RUN, [rows.staged(), NOT_HERE], "us-east4 is not allowed"),
    "an account that Google does not know": (TPU, [rows.forgotten], "Google rejected your login"),
}  # fmt: skip
OF_CAPACITY = {"an API that is off", "no quota in any form and zone", "no offer of the accelerator", "no GPU"}
"""What the table of `capacity` is about."""


def entries(text):
    """Return the blocks of findings and remedies in what a command printed."""
    return [part.strip("\n") for part in text.split("\n\n") if part.startswith(("missing", "unknown", "Fix, in"))]


def lines_of(parts):
    return [line for part in parts for line in part.splitlines()]


@pytest.fixture
def printed(world, monkeypatch):
    """Return a function that runs one of the commands about a stack, and returns its exit code and the entries of what it prints."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    monkeypatch.setattr(starting, "stack_locks", lambda _stack: [])
    nothing = Inventory(asker=Asker(stack="x"), found=(), calls=(), unknown=(), elapsed_s=0)
    monkeypatch.setattr(facts, "search_stacks", lambda _api, _stacks: nothing)

    def run(command, *words):
        world.capsys.readouterr()
        code = run_command(command, [*words])
        shown = world.capsys.readouterr()
        return code, entries(f"{shown.out}\n\n{shown.err.replace(chr(10) + 'missing', chr(10) * 2 + 'missing', 1)}")

    return run


@pytest.mark.parametrize("name", REFUSING)
def test_each_command_prints_the_same_findings_and_remedies_in_the_same_order(world, printed, name):
    stack, steps, words = REFUSING[name]
    for step in steps:
        step(world)
    code, listed = printed(DOCTOR, "--stack", stack)
    assert code == 1
    assert words in " ".join(" ".join(listed).split())
    assert printed(PLAN, "--stack", stack, "--live") == (2, listed)
    refused, said = printed(UP, "--stack", stack, "--yes")
    assert refused == 2
    assert said == ([] if name == "an account that Google does not know" else listed), "a login is one sentence"
    _, shown = printed(CAPACITY, "--stack", stack)
    assert [line for line in lines_of(listed) if line in lines_of(shown)] == lines_of(shown)
    assert bool(shown) == (name in OF_CAPACITY)
