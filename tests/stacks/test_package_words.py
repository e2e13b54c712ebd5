"""Law of the package's words: what a component says of any plan names its own inputs, and no command or setting of a stack."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.model.catalog import model_ids
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.settings.paths import question_fields, with_changes
from gemma_serving.stacks.package.input_wording import InputWording, without_commands
from gemma_serving.stacks.package.inputs import NOT_OFFERED, CloudRunServerInputs, TpuServerInputs, plain, read_inputs
from gemma_serving.stacks.package.schema import COMPONENTS, inputs_of
from gemma_serving.stacks.package.servers import _context
from gemma_serving.stacks.planned import finding_text, to_question
from gemma_serving.stacks.settings_wording import settings_key
from tests.laws import examples
from tests.planning.test_drawn_deployments import CHOSEN, usual
from tests.stacks.test_package import inputs_of as valid_inputs

OF_A_STACK = [*(key for key in NOT_OFFERED if not key.islower()), "target:", "gemma ", "STACK", "--from-hub", "Pulumi."]
SERVERS = {"cloudRun": (CloudRunServerInputs, "cloud-run"), "tpu": (TpuServerInputs, "tpu")}
BLOCKS = {one.block: name for name, one in COMPONENTS.items() if one.block}


def plain_deployment(block):
    """Return the deployment of valid inputs."""
    kind, target = SERVERS[block]
    inputs = plain(valid_inputs(BLOCKS[block]))
    own = {key: inputs.pop(key) for key in [*inputs] if key not in {"model", block}}
    return to_question(_context("x", read_inputs(kind, own, "x"), target, inputs).settings, today="2026-11-22")


PLAIN = {block: plain_deployment(block) for block in SERVERS}


def offered(block):
    """Return the paths of the planner's fields that are inputs of a component."""
    left_out = {*NOT_OFFERED, *SERVERS} - {block}
    keys = {path: settings_key(path).split(".") for path in question_fields().keys() - CHOSEN - {"tpu.provisioning"}}
    return sorted(
        path
        for path, parts in keys.items()
        if not any(".".join(parts[:length]) in left_out for length in range(1, len(parts) + 1))
    )


@st.composite
def questions(draw):
    block = draw(st.sampled_from([*SERVERS]))
    plain = PLAIN[block]
    accelerators = [one.name for one in ACCELERATORS.values() if plain.facts.platform in one.platforms]
    paths = draw(st.lists(st.sampled_from(offered(block)), max_size=10, unique=True))
    changes = {path: draw(usual(path)) for path in paths}
    changes |= {"model": draw(st.sampled_from(model_ids())), "accelerator": draw(st.sampled_from(accelerators))}
    return block, with_changes(plain, changes)


@pytest.mark.law
@settings(
    max_examples=examples(test=60, part=1_000, night=20_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(questions())
def test_what_a_component_says_of_a_plan_names_no_part_of_a_stack(drawn):
    block, question = drawn
    try:
        plan = plan_of(examine(question))
    except PlanningError as error:
        check_words(without_commands(str(error)))
        return
    wording = InputWording(question)
    for finding in plan.findings:
        text = without_commands(finding_text(finding, wording))
        check_words(text)
        assert re.match(r"[A-Z]+\d+: .{20}", text), f"{finding.id} lost its message: {finding.message}"
        for remedy in finding.remedies:
            inputs = wording.inputs(remedy.changes) or {}
            if "target" not in inputs:
                assert {key.partition(".")[0] for key in inputs} <= KNOWN[block]


KNOWN = {block: {one.key for one in inputs_of(COMPONENTS[name], {})} for block, name in BLOCKS.items()}


def check_words(text):
    assert text
    for word in OF_A_STACK:
        assert not re.search(rf"(?<![\w.]){re.escape(word)}", text), f"{word!r} in {text!r}"
