"""Verdicts near an edge of the memory: what was seen to die is blocked, what was seen to run is not, and in between it may fail."""

import json
from collections.abc import Callable
from itertools import islice, product

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from gemma_serving.planning.cost.subject import Subject, is_out_of_memory, subject_of
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.memory.budget import memory_plan, program_memory
from gemma_serving.planning.memory.margins import edges_of_memory, margin_of
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.catalog import MODELS, model_ids
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import MemoryPlan, Plan
from gemma_serving.planning.rules.findings import detected_findings
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.stacks.planned import headline
from tests.laws import examples
from tests.records import replace

PLACES = [(a.name, platform) for a in ACCELERATORS.values() for platform in a.platforms]
STEP = examples(test=5, part=1, night=1)
"""Every so many pairs of model and place are planned."""


def planned(model: str, accelerator: str, **options: object) -> Plan:
    return plan(
        Question().changed(
            model=f"google/gemma-4-{model}",
            accelerator=accelerator,
            vllm=VllmOptions(**options),  # pyright: ignore[reportArgumentType] - a test's shorthand
        )
    )


def outcome(p: Plan) -> str:
    """Return what the plan says of its start."""
    return "may fail" if p.fits and p.margin else "runs" if p.fits else "dies"


@pytest.mark.law
def test_the_planners_own_defaults_are_far_from_every_edge(subtests: pytest.Subtests):
    for model, (accelerator, platform) in islice(product(model_ids(), PLACES), 0, None, STEP):
        with subtests.test(f"{model} on {accelerator}, {platform}"):
            p = plan(Question().changed(model=model, accelerator=accelerator, platform=platform))
            assert "FIT05" not in {f.id for f in p.findings}
            if p.fits:
                assert p.margin is None
                # Model warnings that no setting changes: an untested precision (FIT06), a base model without a chat template, and weights
                # of 58 GiB on the 100 GB that Google gives a boot disk (HST02).
                assert {f.id for f in p.findings if f.severity == "warn"} <= {"FIT06", "MOD02", "HST02"}


@pytest.mark.law
def test_a_utilization_of_1_dies_everywhere(subtests: pytest.Subtests):
    for model, (accelerator, platform) in islice(product(MODELS, PLACES), 0, None, STEP):
        with subtests.test(f"{model} on {accelerator}, {platform}"):
            options = VllmOptions(gpu_memory_utilization=1.0)
            p = plan(Question().changed(model=model, accelerator=accelerator, platform=platform, vllm=options))
            assert not p.fits
            assert {f.id: f.severity for f in p.findings}["FIT05"] == "block"


def test_a_gpu_starts_only_with_the_budget_free_beside_its_context():
    said = [
        outcome(planned("12B-it-qat-w4a16-ct", "L4", gpu_memory_utilization=u)) for u in (0.95, 0.96, 0.97, 0.98, 0.99)
    ]
    # Graphs are inside the budget from 0.29.0 on (planning.question.releases.RUNNER_V2_RESERVES_GRAPHS).
    assert said == ["runs", "runs", "may fail", "may fail", "dies"]


def test_a_load_within_three_per_cent_of_the_device_may_fail():
    base = Question().changed(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")
    resolved = resolve(base)
    peak = memory_plan(resolved).load_peak_device_gib
    for usable_gib, close in ((peak * 1.02, True), (peak * 1.04, False)):
        accelerator = replace(resolved.accelerator, usable_gib=usable_gib)
        loading = edges_of_memory(memory_plan(replace(resolved, accelerator=accelerator)))[0]
        assert (loading.may_fail, loading.is_short) == (close, False)


def test_what_certainly_fails_at_one_limit_does_not_only_perhaps_fail_at_another():
    memory = memory_plan(resolve(Question().changed(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")))
    close = replace(memory, usable_gib=memory.load_peak_device_gib * 1.02)
    assert margin_of(close) == edges_of_memory(close)[0]
    assert margin_of(replace(close, kv_gib=0.0)) is None


def test_a_load_close_to_the_edge_is_named():
    text_only = {"image": 0, "video": 0, "audio": 0}
    options = {"max_model_len": 512, "max_num_seqs": 1, "max_num_batched_tokens": 512, "enforce_eager": True}
    p = planned("31B-it-qat-w4a16-ct", "L4", gpu_memory_utilization=0.95, limit_mm_per_prompt=text_only, **options)
    finding = next(f for f in p.findings if f.id == "FIT09")
    assert (outcome(p), finding.severity) == ("may fail", "warn")
    assert "Loading needs 21.36 of 21.96 GiB of GPU memory" in finding.message
    assert finding.remedies


def test_a_plan_that_may_fail_says_so_in_the_document_the_table_and_the_headline(capsys: pytest.CaptureFixture[str]):
    arguments = [
        "--model",
        "google/gemma-4-E2B-it",
        "--accelerator",
        "v5e-1",
        "--set",
        "vllm.gpuMemoryUtilization=0.93",
    ]
    assert main([*arguments, "--json"]) == 0
    margin = json.loads(capsys.readouterr().out)["margin"]
    current = {"verdict": "may fail", "available_gib": 1.102, "minimum_gib": 0.938, "recommended_gib": 1.762}
    assert margin == {"finding": "FIT05", **current}
    assert main(arguments) == 0
    words = "but may fail (FIT05: 1.10 GiB, minimum 0.94, recommended 1.76)"
    assert words in capsys.readouterr().out
    assert words in headline(planned("E2B-it", "v5e-1", gpu_memory_utilization=0.93))


@pytest.mark.parametrize(("utilization", "share"), [("0.96", "22%"), ("0.97", "20%"), ("0.86", "100%")])
def test_the_plan_says_how_much_of_the_kv_cache_may_lack(
    utilization: str, share: str, capsys: pytest.CaptureFixture[str]
):
    """Of 31B in 4 bits on an L4, whose weights are 1.6 % heavier in logs: a sixth of its KV cache."""
    values = {
        "gpuMemoryUtilization": utilization,
        "maxModelLen": "512",
        "maxNumSeqs": "1",
        "maxNumBatchedTokens": "512",
        "enforceEager": "true",
        "limitMmPerPrompt": '{"image":0,"video":0,"audio":0}',
    }
    settings = [word for key, value in values.items() for word in ("--set", f"vllm.{key}={value}")]
    main(["--model", "google/gemma-4-31B-it-qat-w4a16-ct", "--accelerator", "L4", "--platform", "gce", *settings])
    assert f" tokens, up to {share} less" in " ".join(capsys.readouterr().out.split())


EXAMPLES = examples(test=20, part=150, night=2_000)
laws = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
OPTIONS = st.builds(
    VllmOptions,
    gpu_memory_utilization=st.none() | st.floats(0.5, 1).map(lambda value: round(value, 3)),
    max_model_len=st.none() | st.integers(64, 131_072),
    max_num_seqs=st.sampled_from([None, 1, 16, 256, 1_024]),
    max_num_batched_tokens=st.sampled_from([None, 512, 4_096, 16_384]),
    kv_cache_dtype=st.sampled_from([None, "fp8"]),
)


def beside(resolved: Resolved, holds: Callable[[MemoryPlan], bool]) -> tuple[Subject, Subject]:
    """Return the same server on a device with just enough memory to hold, and on one with just too little."""
    low, high = 0.0, 1e5
    while high - low > 1e-6:
        middle = (low + high) / 2
        if holds(memory_plan(with_usable(resolved, middle))):
            high = middle
        else:
            low = middle
    return subject_of(with_usable(resolved, high)), subject_of(with_usable(resolved, low))


def with_usable(resolved: Resolved, usable_gib: float) -> Resolved:
    return replace(resolved, accelerator=replace(resolved.accelerator, usable_gib=usable_gib))


def resolved_or_skip(model: str, place: tuple[str, str], options: VllmOptions) -> Resolved:
    accelerator, platform = place
    try:
        return resolve(Question().changed(model=model, accelerator=accelerator, platform=platform, vllm=options))
    except PlanningError:
        reject()


@pytest.mark.law
@laws
@given(st.sampled_from(model_ids()), st.sampled_from(PLACES), OPTIONS)
def test_a_server_that_fits_may_fail_before_it_fails(model: str, place: tuple[str, str], options: VllmOptions):
    resolved = resolved_or_skip(model, place, options)
    assume(resolved.utilization < 1)
    enough, less = beside(resolved, lambda memory: not any(e.may_fail or e.is_short for e in edges_of_memory(memory)))
    assert margin_of(enough.memory) is None
    assert margin_of(less.memory) is not None


@pytest.mark.law
@laws
@given(st.sampled_from(model_ids()), st.sampled_from(PLACES), OPTIONS)
def test_a_need_that_is_planned_may_fail_on_both_sides(model: str, place: tuple[str, str], options: VllmOptions):
    resolved = resolved_or_skip(model, place, options)
    for subject in beside(resolved, lambda memory: memory.kv_gib >= memory.kv_request_gib):
        if not is_out_of_memory(subject.memory):
            found = detected_findings(subject)
            assert "FIT04" not in found
            assert found["FIT09"] == "warn"
    if resolved.is_tpu and resolved.utilization < 1:
        needs_gib = program_memory(resolved).minimum_gib
        for subject in beside(resolved, lambda memory: memory.headroom_gib >= needs_gib):
            assert detected_findings(subject)["FIT05"] == "warn"


@pytest.mark.law
@laws
@given(st.sampled_from(model_ids()), st.sampled_from(PLACES), OPTIONS)
def test_every_remedy_of_an_edge_leads_away_from_it(model: str, place: tuple[str, str], options: VllmOptions):
    accelerator, platform = place
    question = Question().changed(model=model, accelerator=accelerator, platform=platform, vllm=options)
    try:
        findings = [f for f in plan(question).findings if f.id in {"FIT05", "FIT09"}]
    except PlanningError:
        return
    for finding in findings:
        assert finding.remedies or finding.severity == "warn"
        for remedy in finding.remedies:
            assert finding.id not in {f.id for f in plan(with_changes(question, remedy.changes)).findings}
