"""What the check against the plan finds, and which plan it compares with."""

import json
from pathlib import Path

import pytest

from gemma_serving.contracts.fields import from_json, to_json
from gemma_serving.contracts.outputs import SmokeThresholds, StackOutputs
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.types import Band
from gemma_serving.planning.settings.vllm_args import given_options
from gemma_serving.planning.speed.residuals import SmokeFigures, decode_band, residual, usual_causes
from gemma_serving.scripts.smoke.checks import PLAN_CHECK, run_smoke
from gemma_serving.scripts.smoke.context import SmokeCheck, SmokeTarget
from gemma_serving.scripts.smoke.results import Outcome
from gemma_serving.scripts.stack.access import ServerAccess
from gemma_serving.scripts.stack.deployed_plan import deployed_plan
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from tests.records import replace
from tests.scripts.sample_outputs import sample_outputs

ROOT = Path(__file__).parents[3]
STACK = "l4-qat"


@pytest.fixture
def deployed(tmp_path, monkeypatch):
    """The outputs of the stack as the engine returns them, in a folder with its settings file."""
    for name in ("Pulumi.yaml", f"Pulumi.{STACK}.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    settings = from_file(tmp_path / f"Pulumi.{STACK}.yaml", project="my-project")
    plan = plan_of(examine(to_question(settings)))
    raw = sample_outputs(
        model=settings.model,
        project="my-project",
        image=f"us-docker.pkg.dev/mine/vllm@{settings.image.digest}",
        plan=to_json(plan.summary()),
        vllm=dict(given_options(replace(plan.vllm, served_model_name=settings.model))),
    )
    return from_json(StackOutputs, json.loads(json.dumps(raw), parse_int=float))


def test_the_plan_of_a_deployed_stack_is_that_of_its_settings(deployed):
    assert deployed_plan(STACK, deployed).subject is not None
    assert deployed_plan(STACK, deployed).smoke.burst_tok_per_s is not None


def measures(name, **values):
    """Return a check that has measured these values."""

    async def run(_):
        return Outcome("passed", measured="planted", values=values)

    return SmokeCheck(name=name, limit_s=lambda _: 60, run=run)


MEASURED = (
    measures("single stream", decode_tok_per_s=500.4, ttft_s=0.012),
    measures("burst", burst_tok_per_s=1_900.0, requests=4),
)
"""A server of 500 tok/s. The figures are planted: a real server is slower where the machine is busy."""


def checked(tok_per_s, first=MEASURED[0], tokens_per_step=1.0, **changes):
    """Return the outcome of the plan's check against the server of 500 tok/s."""
    target = SmokeTarget(
        model="timed",
        thresholds=SmokeThresholds(startup_budget_s=5, **changes),
        planned=SmokeFigures(
            decode_tok_per_s=decode_band(tok_per_s, is_tpu=False),
            ttft_s=Band(low=0, typical=0.02, high=2),
            burst_tok_per_s=Band(low=100, typical=1_500, high=4_000),
            tokens_per_step=tokens_per_step,
        ),
    )
    access = ServerAccess(base_url="http://127.0.0.1:9", auth="none")
    report = run_smoke(access, target, lambda _: None, checks=(first, MEASURED[1], PLAN_CHECK))
    return report, {check.name: check.outcome for check in report.checks}


def test_a_threshold_of_the_stack_that_is_met_makes_the_finding_a_warning():
    report, checks = checked(1_500, min_decode_tok_per_s=20)
    assert checks["plan"].state == "warned"
    assert report.passed


def test_the_measured_acceptance_of_proposals_moves_the_band():
    """2.8 tokens per step were planned. With 1.0, 500 of 2,400 tok/s are what the server can do, and with 2.8 they are too few."""
    for tokens_per_step, is_slow in ((1.0, False), (2.8, True)):
        first = measures("single stream", decode_tok_per_s=500.4, ttft_s=0.012, tokens_per_step=tokens_per_step)
        _, checks = checked(2_400, first, tokens_per_step=2.8)
        assert ("one stream: planned" in checks["plan"].detail) is is_slow, checks["plan"].detail


def test_a_missing_measurement_never_passes_silently():
    band = Band(low=1, typical=2, high=3)
    assert [residual(band, value) for value in (0.5, 2, 4, None)] == ["below", "within", "above", "not measured"]
    assert usual_causes("decode_tok_per_s", "not measured")
    assert not usual_causes("decode_tok_per_s", "within")
