"""Contracts survive the way through JSON, and a broken value is named by its whole path."""

import json
from dataclasses import replace

import pytest

from gemma_serving.contracts.features import ServedFeatures
from gemma_serving.contracts.fields import ContractError, documented, from_json, to_json
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.outputs import (
    CostSummary,
    MemorySummary,
    PlanSummary,
    SmokeThresholds,
    StackOutputs,
    StartupSummary,
    ThroughputSummary,
    Tunnel,
)
from gemma_serving.contracts.serving_document import BucketWeights, ServingDocument, document_hash, parse_document

PLAN = PlanSummary(
    fits=True,
    verdict="fits",
    model="google/gemma-4-E2B-it",
    accelerator="v6e-4",
    platform="tpu-vm",
    memory=MemorySummary(
        usable_gib=31.24,
        weights_gib=3.1,
        activations_gib=0.8,
        graphs_gib=0.0,
        kv_gib=8.0,
        kv_tokens=235_008,
        kv_blocks=7_344,
        max_concurrency=14.3,
    ),
    startup=StartupSummary(pull_s=60.0, load_s=90.5, compile_s=300.0, total_s=450.5, probe_budget_s=600),
    throughput=ThroughputSummary(decode_tok_per_s=120.0, saturated_tok_per_s=4_000.0),
    cost=CostSummary(usd_per_hour=5.4, most_usd=21.6, usd_per_million_tokens=12.5),
)
OUTPUTS = StackOutputs(
    target="tpu",
    model="google/gemma-4-E2B-it",
    served_model="gemma",
    endpoint="http://127.0.0.1:8000",
    auth="tunnel",
    image="repo/vllm@sha256:0",
    plan=PLAN,
    vllm={"maxModelLen": 16_384},
    smoke=SmokeThresholds(startup_budget_s=675.0, max_ttft_s=2.0),
    labels={"managed-by": "gemma-serving"},
    features=ServedFeatures(),
    project="p",
    location="us-east5-a",
    tunnel=Tunnel(argv=("gcloud", "ssh"), local_port=8000),
    zone="us-east5-a",
    state="ACTIVE",
    phase="ready",
    deadline="2026-11-20T18:00:00Z",
)


def test_outputs_survive_the_way_through_json():
    assert from_json(StackOutputs, json.loads(json.dumps(to_json(OUTPUTS)))) == OUTPUTS


def test_whole_numbers_that_the_engine_made_floats_are_whole_numbers_again():
    written = to_json(OUTPUTS)
    written["plan"]["memory"]["kvTokens"] = 235_008.0
    assert from_json(StackOutputs, written).plan.memory.kv_tokens == 235_008


def test_what_a_newer_writer_adds_is_ignored_and_what_may_be_absent_is_none():
    written = to_json(OUTPUTS) | {"fromTheFuture": 1}
    del written["deadline"]
    assert from_json(StackOutputs, written) == replace(OUTPUTS, deadline=None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": "gke"}, "target is 'gke'; it must be one of tpu, cloud-run."),
        ({"smoke": {}}, "smoke.startupBudgetS is missing."),
        ({"smoke": {"startupBudgetS": "1"}}, "smoke.startupBudgetS is '1'; it must be a number."),
        (
            {"smoke": {"startupBudgetS": 1, "burstRequests": True}},
            "smoke.burstRequests is True; it must be a whole number.",
        ),
        ({"tunnel": {"argv": "ssh", "localPort": 1}}, "tunnel.argv is 'ssh'; it must be a list."),
        ({"tunnel": {"argv": ["ssh", 2], "localPort": 1}}, "tunnel.argv[1] is 2; it must be a string."),
        ({"labels": {"a": 1}}, "labels.a is 1; it must be a string."),
        ({"plan": 3}, "plan is 3; it must be an object."),
    ],
)
def test_a_broken_value_is_named_by_its_whole_path(change: dict, sentence: str):
    with pytest.raises(ContractError) as caught:
        from_json(StackOutputs, to_json(OUTPUTS) | change)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("kind", [StackOutputs, PlanSummary, SmokeThresholds, Tunnel, MemorySummary])
def test_every_field_says_what_it_is(kind: type):
    assert all(text.endswith(".") for _, text in documented(kind))


def test_ownership_needs_every_word():
    mine, other = Ownership(project="p", stack="a"), Ownership(project="p", stack="a-2")
    assert mine.owns(labels={**mine.labels, "team": "ml"})
    assert mine.owns(description=f"made by {mine.description}")
    assert not mine.owns(labels=other.labels)
    assert not mine.owns(description=other.description)
    assert not mine.owns(labels={"managed-by": "gemma-serving"})
    assert not mine.owns()


def test_a_condition_keeps_to_the_limits_of_iam():
    longest = Ownership(project="gemma-serving", stack="s" * 63)
    condition = longest.condition("destination.port == 22")
    assert len(condition["title"]) <= 100
    assert len(condition["description"]) <= 256
    assert condition["expression"] == "destination.port == 22"


@pytest.mark.parametrize("weights", [None, BucketWeights("gs://bucket/prefix", "/mnt/models/m")])
def test_the_agent_reads_what_the_stack_writes(weights: BucketWeights | None):
    document = ServingDocument(
        image="repo/vllm@sha256:0",
        command=("vllm", "serve"),
        arguments=("m", "--port=8000"),
        environment={"A": "b"},
        secret_environment={"HF_TOKEN": "projects/p/secrets/s/versions/3"},
        port=8000,
        weights=weights,
    )
    text = document.text()
    assert parse_document(text) == document
    assert document_hash(text) == document_hash(parse_document(text).text())
