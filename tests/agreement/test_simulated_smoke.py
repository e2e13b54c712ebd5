"""The smoke checks of a shipped stack of each kind against its simulated server: nothing warns.

The server is a process on a fast clock. The two checks of speed get the rates of its engine instead, so that a busy machine cannot make it
look slow.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.features import served_features
from gemma_serving.planning.settings.vllm_args import given_options, vllm_arguments
from gemma_serving.planning.speed.residuals import BURST_REQUESTS, smoke_figures
from gemma_serving.scripts.smoke.checks import CHECKS, run_smoke
from gemma_serving.scripts.smoke.context import CheckContext, SmokeTarget, stack_target
from gemma_serving.scripts.smoke.results import Outcome, SmokeReport, failed_or_passed
from gemma_serving.scripts.stack.access import ServerAccess
from gemma_serving.stacks.outputs import smoke_thresholds
from localcloud.tests.running.running_server import server
from tests.agreement.simulated_stacks import BUILT_IMAGE, Served, hardware_of, served, settings_of
from tests.records import replace
from tests.scripts.sample_outputs import sample_outputs

BAD = ("warned", "failed", "unknown")


def target_of(one: Served, stack: str) -> SmokeTarget:
    plan, settings = plan_of(one.subject), settings_of(stack)
    outputs = replace(
        from_json(StackOutputs, sample_outputs()),
        served_model=settings.model,
        plan=plan.summary(),
        vllm=given_options(plan.vllm),
        features=served_features(one.subject.resolved),
        smoke=smoke_thresholds(settings.smoke, one.subject, plan),
    )
    subject = one.subject
    figures = smoke_figures(subject.resolved, subject.memory, subject.throughput, BURST_REQUESTS)
    return stack_target(stack, outputs, figures)


def measured(values: Mapping[str, float]) -> Callable[[CheckContext], Awaitable[Outcome]]:
    async def run(_context: CheckContext) -> Outcome:
        return failed_or_passed("on an idle machine", "", dict(values))

    return run


def smoke(one: Served, stack: str, folder: Path) -> SmokeReport:
    plan, rates = plan_of(one.subject), one.rates(one.start(folder))
    checks = tuple(
        replace(check, run=measured(rates[check.name])) if check.name in rates else check for check in CHECKS
    )
    words = vllm_arguments(one.subject.resolved.vllm, model_or_path=one.subject.resolved.model_id)
    # The checks that remain here compare no time with the plan, so tokens are close together.
    around = {
        **dict(plan.environment),
        "VLLM_SIM_ACCELERATOR": hardware_of(settings_of(stack)),
        "VLLM_SIM_IMAGE": BUILT_IMAGE,
        "VLLM_SIM_TTFT_S": "0.002",
        "VLLM_SIM_TPOT_S": "0.002",
        "VLLM_SIM_PATHS": json.dumps({"/": str(folder)}),
    }
    with server(["vllm", "serve", *words], **around) as url:
        return run_smoke(
            ServerAccess(base_url=url, auth="none"), target_of(one, stack), lambda _said: None, checks=checks
        )


def bad(report: SmokeReport) -> dict[str, str]:
    return {
        check.name: f"{check.outcome.measured}: {check.outcome.detail}"
        for check in report.checks
        if check.outcome.state in BAD
    }


@pytest.mark.parametrize(
    "stack", ["l4-12b-qat-mtp", "l4-e2b-lora", "l4-qat", "rtx6000-31b", "tpu-v6e1-31b-w4a16", "tpu-v6e4-turbo"]
)
def test_the_smoke_of_a_fresh_stack_has_no_warning(stack: str, tmp_path: Path):
    report = smoke(served(stack), stack, tmp_path)
    assert bad(report) == {}
    assert "plan" in {check.name for check in report.checks if check.outcome.state == "passed"}


def test_the_changed_flag_of_the_tasks_page_has_no_warning(tmp_path: Path):
    assert bad(smoke(served("tpu-v6e1", 8192), "tpu-v6e1", tmp_path)) == {}


def test_four_replicas_serve_as_planned(tmp_path: Path):
    one = served("tpu-v6e4-e4b", tensor_parallel_size=None, data_parallel_size=4)
    report = smoke(one, "tpu-v6e4-e4b", tmp_path)
    assert bad(report) == {}
    found = {check.name: check.outcome for check in report.checks}
    assert found["options in effect"].values["engines"] == 4
    assert found["options in effect"].measured.startswith("4 engines, each ")
