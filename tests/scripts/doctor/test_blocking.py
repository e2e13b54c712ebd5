"""What of the list does not stop `gemma up`, by the stack's state: what it can do without, and what could not be read."""

import os
import threading
from typing import NamedTuple

import pytest

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.doctor import capacity, checkup, project
from gemma_serving.scripts.doctor.blocking import live_checks, require_ready, require_secrets
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.hooks.run_recorder import RunRecorder
from localcloud.world.scenario import Images, Run
from tests.scripts.doctor import rows
from tests.scripts.doctor.conftest import PROJECT, RUN, TPU

ZONES = stack_settings(TPU, project=PROJECT).tpu.zones
DIGEST = stack_settings(TPU, project=PROJECT).image.digest
CHIPS = [f"quota of chips in {zone}" for zone in ZONES]
SALTED = rows.settings(("config:\n", "encryptionsalt: v1:x\nconfig:\n"), stack=TPU)
WITH_ADAPTER = rows.settings(
    ("    maxModelLen:", "    lora: { adapters: { sql: my-org/adapter } }\n    maxModelLen:"), stack=TPU
)
NO_IMAGES, NO_GPUS, ONE_GPU = (
    rows.scenario(images=Images(existing=())),
    *(rows.scenario(run=Run(gpu_quota=n)) for n in (0, 1)),
)


def read_only(world):
    """Let the caller not write the TPU stack's settings file."""
    path = world.folder / f"Pulumi.{TPU}.yaml"
    world.environment.setattr(os, "access", lambda asked, mode: (asked, mode) != (path, os.W_OK))


def used(answer):
    """Let the stack's limits be used up, or their use be unknown."""
    return lambda world: world.environment.setattr(RunRecorder, "past_limits", lambda _: answer)


EXCEEDED = used(Present("Stack tpu-v6e4 exceeds maxAge 10 min (age 40 min)"))


class Row(NamedTuple):
    """What stops a stack after the steps. `state`: `new` (no state), `known` (without a server), `ended`, or the image that its server has."""

    stack: str
    steps: list
    state: str
    failed: list
    unknown: list = []  # noqa: RUF012 - never changed


ROWS = {
    "a ready project": Row(TPU, [], "new", []),
    "no chips for a server that exists": Row(TPU, [rows.chips(0)], "other", []),
    "no chips for a server that has ended": Row(TPU, [rows.chips(0)], "ended", CHIPS),
    "chips in one zone": Row(TPU, [rows.chips(4, "us-east5-a")], "new", []),
    "one form of capacity in each zone": Row(TPU, [rows.forms("flex-start, spot, standard"), rows.without_standard_quota], "new", []),
    "chips for less than a machine": Row(TPU, [rows.chips(3)], "new", CHIPS),
    "no GPU and no weights for a server that exists": Row(RUN, [NO_GPUS], "other", []),
    "GPUs that others use and may free": Row(RUN, [rows.staged(), ONE_GPU, rows.theirs], "new", []),
    "no image for a server that has another": Row(TPU, [NO_IMAGES], "other", ["image"]),
    "no image for a server that has it": Row(TPU, [NO_IMAGES], f"vllm@{DIGEST}", []),
    "roles that only read": Row(TPU, [rows.without_roles("viewer", "logging.viewer", "iap.tunnelResourceAccessor")], "new", []),
    "roles for a server that exists": Row(TPU, [rows.without_roles("tpu.admin")], "other", []),
    "a policy for a server that exists": Row(TPU, [rows.enforced("iam.disableServiceAccountCreation")], "other", []),
    "a limit that is used up": Row(TPU, [EXCEEDED], "other", ["limits"]),
    "a limit that is used up before a server exists": Row(TPU, [EXCEEDED], "known", []),
    "an unknown use of a limit": Row(TPU, [used(Unknown("the use of maxAge is unknown"))], "other", [], ["limits"]),
    "a file without room for its salt": Row(TPU, [read_only], "new", ["settings file"]),
    "the same with a state": Row(TPU, [read_only], "known", []),
    "the same with a salt": Row(TPU, [read_only, SALTED], "new", []),
}  # fmt: skip


def blocked(stack, state):
    """Return the checks that stop `up`, and those that could not be made."""
    server = {"type": CAPACITY_TYPE, "inputs": {"image": "" if state == "other" else state}}
    resources = () if state in {"new", "known"} else (server,)
    status = "missing" if state == "new" else "read"
    lines = live_checks(
        stack_settings(stack, project=PROJECT),
        StackState(stack=stack, status=status, resources=resources),
        has_ended=state == "ended",
    )
    needed = [line for line in lines if line.blocks]
    return [line.check for line in needed if line.is_absent], [line.check for line in needed if line.is_unknown]


@pytest.mark.parametrize("name", ROWS)
def test_each_obstacle_stops_up_only_if_it_is_certain_and_in_the_way(world, name):
    row = ROWS[name]
    for step in row.steps:
        step(world)
    assert blocked(row.stack, row.state) == (row.failed, row.unknown)


@pytest.mark.parametrize("state", ["new", "ended", "other"])
def test_a_zone_with_too_little_quota_for_a_request_is_named_and_does_not_block(world, state):
    rows.chips(4, ZONES[0])(world)
    server = () if state == "new" else ({"type": CAPACITY_TYPE, "inputs": {}},)
    found = StackState(stack=TPU, status="missing" if state == "new" else "read", resources=server)
    lines = require_ready(stack_settings(TPU, project=PROJECT), found, has_ended=state == "ended")
    told = [line for line in lines if line.is_told]
    assert [line.check for line in told] == ([] if state == "other" else CHIPS[1:])
    assert all(line.detail == f"0 chips, 4 needed, but {ZONES[0]} has enough" for line in told)


def test_a_disabled_secret_version_stops_a_restart_and_nothing_else_does(world):
    for step in (rows.BY_REFERENCE, rows.secret(rows.TOKEN)):
        step(world)
    state = StackState(stack=TPU, status="read")
    assert {line.word for line in require_secrets(stack_settings(TPU, project=PROJECT), state)} == {"ok"}
    world.admin("POST", f"{rows.SECRETS}/their-token/versions/1:disable", {})
    with pytest.raises(CommandRefusedError, match=r"(?s)Nothing was changed\..*is DISABLED"):
        require_secrets(stack_settings(TPU, project=PROJECT), state)


def test_an_api_that_is_off_blocks_and_its_quota_is_unknown(world):
    world.disable("tpu")
    failed, unknown = blocked(TPU, "other")
    assert failed == ["API tpu"]
    assert all(" in " in check for check in unknown)


def test_an_adapter_that_the_hub_does_not_show_is_named_with_the_setting(world):
    WITH_ADAPTER(world)
    (line,) = world.lines("adapter my-org/adapter", TPU)
    assert line["detail"] == "my-org/adapter does not exist on the hub or is private"
    assert line["fix"].startswith(
        f"set AN_ID_OF_THE_HUB for the adapter my-org/adapter in Pulumi.{TPU}.yaml; or, if it"
    )


def test_what_google_does_not_answer_does_not_block(world, monkeypatch):
    def silent(*_words, **_options):
        raise ScriptError("no answer")

    monkeypatch.setattr(project, "read_enabled_apis", silent)
    monkeypatch.setattr(capacity, "read_all", silent)
    assert blocked(TPU, "new") == ([], ["APIs", "quota and zones"])
    answered = threading.Event()
    monkeypatch.setattr(capacity, "read_all", lambda *_words, **_options: answered.wait(60))
    monkeypatch.setattr(checkup.concurrently, "__defaults__", (0.2,))
    assert "quota and zones" in blocked(TPU, "new")[1]
    answered.set()
