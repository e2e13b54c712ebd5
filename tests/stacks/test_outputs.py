"""What a stack exports is what `contracts.outputs` promises: one type, read back by the scripts."""

import json
from dataclasses import fields, replace

import pulumi
import pytest
import yaml

from contracts.fields import camel_case, from_json
from contracts.outputs import StackOutputs
from planning import plan
from stacks.cloud_run import startup_probe
from stacks.loading import from_file
from stacks.outputs import settings_keys, smoke_thresholds
from stacks.planned import to_deployment
from stacks.program import run
from tests.stacks.test_program import ROOT, STACKS, configured

__all__ = ["configured"]


@pytest.fixture
def exported(configured, declare, monkeypatch):
    """Declare a stack; return its outputs as JSON, as the engine keeps them: every number a float."""

    def export(stack, **changes):
        found = {}
        monkeypatch.setattr(pulumi, "export", found.__setitem__)
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
    assert set(raw) == {camel_case(field.name) for field in fields(StackOutputs)}
    assert outputs.plan.fits
    assert outputs.labels["gemma-serving-stack"] == "x"
    assert "@sha256:" in outputs.image


def test_a_tpu_stack_says_what_the_queue_knows(exported):
    outputs = from_json(StackOutputs, exported("tpu-v6e4"))
    assert (outputs.location, outputs.zone) == ("us-east5-b", "us-east5-b")
    assert (outputs.state, outputs.phase, outputs.deadline) == ("ACTIVE", "ready", "2026-11-20T18:00:00Z")
    assert outputs.tunnel.argv[:6] == ("gcloud", "alpha", "compute", "tpus", "tpu-vm", "ssh")
    assert outputs.tunnel.argv[6:9] == ("gemma-x-node", "--project=my-project", "--zone=us-east5-b")
    assert outputs.tunnel.argv[9:13] == ("--tunnel-through-iap", "--quiet", "--", "-N")
    assert outputs.tunnel.argv[-1] == "8000:127.0.0.1:8000"


def test_a_cloud_run_stack_has_no_tunnel_and_no_queue(exported):
    outputs = from_json(StackOutputs, exported("l4-qat"))
    assert (outputs.auth, outputs.location, outputs.endpoint) == ("id-token", "us-east4", "https://gemma-x.a.run.app")
    assert (outputs.tunnel, outputs.zone, outputs.state, outputs.phase, outputs.deadline) == (None,) * 5


def test_the_options_in_effect_have_their_settings_keys(exported):
    given = yaml.safe_load((ROOT / "Pulumi.tpu-v6e4.yaml").read_text())["config"]["gemma-serving:vllm"]
    vllm = exported("tpu-v6e4")["vllm"]
    assert {key: vllm[key] for key in given} == given
    assert vllm["servedModelName"] == "google/gemma-4-E2B-it"
    assert None not in vllm.values()


def test_a_threshold_of_the_settings_wins_over_the_planners_figure():
    settings = from_file(ROOT / "Pulumi.l4-qat.yaml", project="my-project")
    planned = plan(to_deployment(settings))
    derived = smoke_thresholds(settings, planned)
    assert derived.min_decode_tok_per_s == round(planned.throughput.decode_tok_per_s / 2, 1)
    given = settings.model_copy(update={"smoke": settings.smoke.model_copy(update={"max_ttft_s": 0.7})})
    assert smoke_thresholds(given, planned) == replace(derived, max_ttft_s=0.7)
    assert settings_keys(planned.vllm)["maxModelLen"] == derived.max_model_len


@pytest.mark.parametrize(("estimate_s", "threshold_s"), [(3.0, 12.0), (0.01, 2.0)])
def test_a_first_token_may_take_a_multiple_of_the_estimate_and_at_least_the_floor(estimate_s, threshold_s):
    settings = from_file(ROOT / "Pulumi.l4-qat.yaml", project="my-project")
    planned = plan(to_deployment(settings))
    planned = replace(planned, throughput=replace(planned.throughput, ttft_s=estimate_s))
    assert smoke_thresholds(settings, planned).max_ttft_s == threshold_s


@pytest.mark.parametrize("stack", ["l4-12b-qat", "rtx6000-31b"])
def test_a_stack_without_a_probe_takes_the_longest_and_its_smoke_check_waits_for_the_first_probe(stack):
    """A probe that follows from the estimate ended rtx6000-31b after 360 s, and it loads for 310 s."""
    settings = from_file(ROOT / f"Pulumi.{stack}.yaml", project="my-project")
    probe = startup_probe(settings.cloud_run)
    assert (probe.initial_delay_s, probe.budget_s) == (240, 2040)
    thresholds = smoke_thresholds(settings, plan(to_deployment(settings)))
    assert thresholds.startup_budget_s > probe.initial_delay_s + probe.period_s
