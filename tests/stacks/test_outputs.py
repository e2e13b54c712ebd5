"""What a stack exports is what `contracts.outputs` promises: one type, read back by the scripts."""

import json
from dataclasses import fields

import pulumi
import pytest

from gemma_serving.components.stack_details import StackDetails
from gemma_serving.contracts.fields import camel_case, from_json
from gemma_serving.contracts.outputs import DETAILS, StackOutputs
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.settings.vllm_args import given_options
from gemma_serving.planning.speed import startup
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.outputs import smoke_thresholds
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.program import run
from tests.records import replace
from tests.stacks.conftest import ROOT
from tests.stacks.test_program import STACKS


def printed(found):
    """Return what stands in for `pulumi.export`: the engine prints each of these at the end of `up`."""

    def export(name, value):
        assert name not in DETAILS
        found[name] = value

    return export


@pytest.fixture
def exported(configured, declare, monkeypatch):
    """Declare a stack; return its outputs as JSON, as the engine keeps them: every number a float."""

    def export(stack, **changes):
        found = {}
        monkeypatch.setattr(pulumi, "export", printed(found))
        monkeypatch.setattr(StackDetails, "register_outputs", lambda _, details: found.update(details))
        configured(stack, **changes)

        def program():
            run()
            return pulumi.Output.all(**found).apply(json.dumps)

        _, text = declare(program)
        return json.loads(text, parse_int=float)

    return export


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_exports_the_contract_and_nothing_else(exported, stack):
    raw = exported(stack)
    outputs = from_json(StackOutputs, raw)
    given = {field.name for field in fields(StackOutputs) if getattr(outputs, field.name) is not None}
    assert set(raw) == {camel_case(name) for name in given}
    assert {"connect", "check", "endpoint"} <= set(raw) - DETAILS
    assert len(set(raw) - DETAILS) <= 12
    assert outputs.plan.fits
    assert outputs.labels["gemma-serving-stack"] == "x"
    assert "@sha256:" in outputs.image


@pytest.mark.parametrize(
    ("stack", "changes"), [("l4-qat", {}), ("l4-qat", {"cloudRun__directVpc": False}), ("tpu-v6e1", {})]
)
def test_only_a_service_with_a_network_that_google_holds_exports_how_a_destroy_ends(exported, stack, changes):
    lines = exported(stack, **changes).get("destroy", [])
    for part in ("pulumi destroy ", "Google holds that for two hours", "at no cost", "`gemma teardown x`"):
        assert (part in " ".join(lines)) == (stack == "l4-qat" and not changes)
    assert all(len(line) <= 150 - len("x" * 29) for line in lines if "teardown" in line)
    assert all(len(line) <= 150 for line in lines)  # the engine cuts longer ones


def test_a_threshold_of_the_settings_wins_over_the_planners_figure():
    settings = from_file(ROOT / "Pulumi.l4-qat.yaml", project="my-project")
    subject = examine(to_question(settings))
    planned = plan_of(subject)
    derived = smoke_thresholds(settings.smoke, subject, planned)
    assert derived.min_decode_tok_per_s == round(planned.throughput.decode_tok_per_s / 2, 1)
    given = replace(settings.smoke, min_decode_tok_per_s=0.7)
    assert smoke_thresholds(given, subject, planned) == replace(derived, min_decode_tok_per_s=0.7)
    assert given_options(planned.vllm)["maxModelLen"] == derived.max_model_len


@pytest.mark.parametrize(("estimate_s", "threshold_s"), [(3.0, 12.0), (0.01, 2.0)])
def test_a_first_token_may_take_a_multiple_of_the_estimate_and_at_least_the_floor(estimate_s, threshold_s):
    settings = from_file(ROOT / "Pulumi.l4-qat.yaml", project="my-project")
    subject = examine(to_question(settings))
    subject = replace(subject, known_throughput=replace(subject.throughput, ttft_s=estimate_s))
    assert smoke_thresholds(settings.smoke, subject, plan_of(subject)).max_ttft_s == threshold_s


@pytest.mark.parametrize(("start_s", "delay_s"), [(1440, 0), (1441, 240)])
def test_a_start_that_with_its_margin_exceeds_the_prompt_probe_gets_the_longest(start_s, delay_s):
    subject = examine(to_question(from_file(ROOT / "Pulumi.l4-12b-qat.yaml", project="my-project")))
    probe = startup._probe(subject.resolved, start_s)
    assert (probe.initial_delay_s, probe.budget_s) == (delay_s, 1800 + delay_s)
