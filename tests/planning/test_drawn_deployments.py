"""No deployment that can be asked for crashes the planner: every field that can be set, with usual and odd values, up to the text of each fix."""

import json
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.data.prices import PriceBook
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import ACCELERATORS, known_places
from gemma_serving.planning.memory.budget import memory_plan
from gemma_serving.planning.model.catalog import model_ids
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.planning.settings.annotations import Matching, OneOf
from gemma_serving.planning.settings.bucket import BucketSettings
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.paths import question_fields, with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import IMAGE_TOKENS, VllmOptions
from gemma_serving.planning.solve.explain import explain
from gemma_serving.planning.solve.faster_start import faster_start
from gemma_serving.planning.solve.plan_json import plan_json
from gemma_serving.planning.solve.remedy_wording import remedy_of
from gemma_serving.planning.solve.text_only_start import text_only_start
from gemma_serving.scripts.plan.question import CommandWording
from tests.laws import examples
from tests.planning.test_digits import check_digits
from tests.records import replace

PLACES = [(one.name, platform) for one in ACCELERATORS.values() for platform in (None, *one.platforms)]
LOCATIONS = sorted({place for one in ACCELERATORS.values() for place in known_places(one)})
WORDING = CommandWording()
ODD_NUMBERS = (0, -1, 1, 3, 1_000_003, 2**63, 10**30)
ODD_RATES = (0.0, -0.5, 1e-9, 1.0, 1e18, math.nan, math.inf, -math.inf)
ODD_WORDS = ("", " ", "none", "a/b/c", "{", "ünïcode", "-1")
USUAL: Mapping[str, tuple[Any, ...]] = {
    "quantization": ("bf16", "fp8", "w4a16", "nvfp4"),
    "vllm.tensor_parallel_size": (1, 2, 4, 8),
    "vllm.data_parallel_size": (1, 2, 3, 4),
    "vllm.gpu_memory_utilization": (0.05, 0.5, 0.85, 0.9, 0.95, 0.97, 1.0),
    "vllm.max_model_len": (1, 512, 2_048, 4_096, 16_384, 32_768, 131_072, 262_144),
    "vllm.max_num_seqs": (1, 8, 16, 64, 256, 1_024),
    "vllm.max_num_batched_tokens": (16, 512, 2_048, 4_096, 8_192, 16_384),
    "vllm.block_size": (16, 32, 64, 128, 256),
    "vllm.cpu_offload_gib": (0.0, 1.0, 5.0, 50.0),
    "vllm.limit_mm_per_prompt": ({}, {"image": 0, "video": 0, "audio": 0}, {"image": 4}, {"image": 1, "audio": 2}),
    "vllm.tool_call_parser": ("gemma4", "hermes"),
    "vllm.reasoning_parser": ("gemma4",),
    "vllm.load_format": ("auto", "safetensors", "runai_streamer", "pt", "dummy"),
    "vllm.speculative_config": (
        {"method": "ngram", "num_speculative_tokens": 3},
        {"model": "google/gemma-4-E2B-it", "num_speculative_tokens": 4},
        {"model": "my/drafter", "num_speculative_tokens": 2},
        {"method": "ngram"},
        {},
    ),
    "vllm.extra_args": (("--seed=1",), ("--max-model-len", "4096"), ("--enable-lora", "--max-loras=2"), ("--nothing",)),
    "vllm.image_tokens": IMAGE_TOKENS,
    "vllm.max_image_tokens": IMAGE_TOKENS,
    "vllm.lora_adapters": ({}, {"sql": "org/sql"}, {"a": "/adapters/a", "b": "gs://adapters/b"}),
    "vllm.max_lora_rank": (8, 64, 512),
    "vllm.allowed_media_domains": ((), ("a.example",), ("a.example", "10.0.0.5")),
    "cloud_run.memory_mib": (4_096, 16_384, 32_768, 81_920, 409_600),
    "tpu.max_run_duration_s": (300, 14_400, 604_800, 700_000),
    "tpu.boot_disk_size_gb": (10, 100, 500),
    "tpu.zones": (*((zone,) for zone in LOCATIONS), tuple(LOCATIONS[:4]), ("nowhere-north1-a",)),
    "tpu.tunnel_members": (("user:me@example.com",),),
    "cloud_run.region": (*LOCATIONS, "nowhere-north1"),
    "cloud_run.concurrency": (1, 4, 80, 1_000),
    "image.repository": ("vllm/vllm-openai",),
    "image.digest": (f"sha256:{'a' * 64}",),
    "tpu.existing_network.network": ("my-network",),
    "tpu.existing_network.subnetwork": ("my-subnetwork",),
    "endpoint_url": ("https://models.example.com", "http://localhost:8000/v1"),
    "workload.users": (1, 32, 5_000),
    "workload.rate_per_s": (0.001, 1.0, 500.0),
    "workload.input_tokens": (1, 700, 4_000, 300_000),
    "workload.output_tokens": (1, 300, 20_000),
    "workload.prefix_share": (0.0, 0.5, 1.0),
    "workload.image_tokens": IMAGE_TOKENS,
    "workload.audio_s": (0.0, 30.0, 3_600.0),
    "workload.accepted_share": (0.0, 0.5, 1.0),
    "measured_tok_per_s": (0.001, 100.0),
    "max_usd": (1, 100),
    "accept_findings": (("SCL03", "PRB01"), ("TPU04",)),
    "image.supports": (("w4a16",), ("w4a16", "fp8")),
}
"""Values of fields that people set. Fields without a row have small numbers, their choices, or words."""
ODD_MAPPINGS: Mapping[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "vllm.limit_mm_per_prompt": (("image", "audio", "video", "odd"), ODD_NUMBERS),
    "vllm.speculative_config": (
        ("method", "model", "num_speculative_tokens", "odd"),
        (*ODD_NUMBERS, *ODD_WORDS, *ODD_RATES, True),
    ),
    "vllm.lora_adapters": (("sql", "", "odd=", "a b"), ODD_WORDS),
}
"""Keys and values of fields that are mappings."""
CHOSEN = frozenset({"model", "accelerator", "platform"})
"""Fields that every drawn deployment has."""


def words_of(mark: object) -> Iterator[object]:
    """Yield values that a mark allows."""
    if isinstance(mark, OneOf):
        yield from mark.values
    if isinstance(mark, Matching) and mark.example:
        yield mark.example


def usual(path: str) -> st.SearchStrategy[Any]:
    """Values that can stand in a settings file."""
    field = question_fields()[path]
    hint, is_optional = field.hint, field.is_optional
    if path in USUAL:
        values = st.sampled_from(USUAL[path])
    elif choices := typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ():
        values = st.sampled_from(choices)
    elif words := [word for annotation in field.annotations for word in words_of(annotation)]:
        values = st.sampled_from(words)
    elif hint is bool:
        values = st.booleans()
    elif hint in {int, float}:
        values = st.sampled_from((0, 1, 2, 5, 60, 240)).map(typing.cast("type[int]", hint))
    else:
        values = st.sampled_from(ODD_WORDS)
    return st.none() | values if is_optional else values


def odd(path: str) -> st.SearchStrategy[Any]:
    """Values that nobody should set, of the field's type."""
    hint = question_fields()[path].hint
    if typing.get_origin(hint) is tuple:
        return st.lists(st.sampled_from(ODD_WORDS), max_size=3).map(tuple)
    if path in ODD_MAPPINGS:
        keys, values = ODD_MAPPINGS[path]
        return st.dictionaries(st.sampled_from(keys), st.sampled_from(values))
    values = {bool: (False, True), int: ODD_NUMBERS, float: (*ODD_RATES, *ODD_NUMBERS)}
    return st.sampled_from(values.get(typing.cast("type", hint), ODD_WORDS))


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """A model on an accelerator, up to ten fields with usual values, and sometimes one with an odd value."""
    accelerator, platform = draw(st.sampled_from(PLACES))
    plain = Question().changed(model=draw(st.sampled_from(model_ids())), accelerator=accelerator, platform=platform)
    paths = sorted(question_fields().keys() - CHOSEN)
    changes = {path: draw(usual(path)) for path in draw(st.lists(st.sampled_from(paths), max_size=10, unique=True))}
    if draw(st.integers(0, 3)) == 0:
        path = draw(st.sampled_from(paths))
        changes[path] = draw(odd(path))
    own = {name: draw(values) for name, values in OF_THE_PROGRAM.items() if draw(st.integers(0, 4)) == 0}
    return with_changes(plain, changes).changed(**own)


OF_THE_PROGRAM: Mapping[str, st.SearchStrategy[Any]] = {
    "image": st.sampled_from(["0.11.1", "0.21.0", "0.28.0", "0.99.0", "nightly", ""]).map(image_of_version),
    "has_api_key": st.booleans(),
    "today": st.sampled_from(["2026-11-22", "2031-01-01"]),
    "bucket": st.builds(
        BucketSettings,
        existing=st.just("my-bucket"),
        region=st.none() | st.sampled_from([*LOCATIONS, "nowhere-north1", ""]),
    ),
    "price_book": st.sampled_from([PriceBook(), PriceBook(everywhere={"v6e_flex_start_usd_per_chip_hour": 1e-9})]),
}
"""Fields that a stack's program sets, not its settings."""


drawn = settings(
    max_examples=examples(test=40, part=1_000, night=20_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@pytest.mark.law
@drawn
@given(questions())
@example(Question().changed(model="google/gemma-4-31B-it", accelerator="v6e-4", vllm=VllmOptions(max_model_len=-1)))
@example(with_changes(Question().changed(model="google/gemma-4-E2B-it", accelerator="v6e-1"), {"tpu.provisioning": ()}))
def test_a_drawn_deployment_has_a_plan_or_one_sentence(question: Question):
    check(question)


def check(question: Question) -> None:
    """Assert that the planner answers with numbers and valid fixes, or with one sentence."""
    try:
        subject = examine(question)
        plan = plan_of(subject)
    except PlanningError as error:
        check_sentence(str(error))
        return
    check_digits(plan)
    document = plan_json(plan, WORDING)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    for finding in plan.findings:
        assert finding.id in RULES
        assert remedy_of(finding, WORDING) or finding.severity != "block"
        for remedy in finding.remedies:
            examine(with_changes(question, remedy.changes))  # a fix is never an invalid question
    assert all(isinstance(line, str) for _, lines in explain(subject) for line in lines)
    if (faster := faster_start(subject)) is not None:
        json.dumps(faster.to_json(WORDING), allow_nan=False)
        assert faster.text(WORDING)
        assert examine(with_changes(question, faster.changes)).startup.total_s < subject.startup.total_s
    check_sentence(text_only_start(subject, WORDING) or ".")
    check_lengths(subject)


def check_sentence(text: str) -> None:
    """Assert that an error is one line without a code path."""
    assert text.endswith(".")
    assert "\n" not in text
    assert "`vllm." not in text


def check_lengths(subject: Subject) -> None:
    """Assert that longer requests leave no more memory for the KV cache, and no more requests in it."""
    resolved = subject.resolved
    fixed = replace(resolved, vllm=replace(resolved.vllm, block_size=resolved.vllm.block_size or 128))
    longer = min(resolved.max_model_len * 2, resolved.spec.max_positions)
    if longer <= resolved.max_model_len:
        return
    before, after = memory_plan(fixed), memory_plan(replace(fixed, max_model_len=longer))
    assert after.kv_gib <= before.kv_gib + 1e-9
    assert after.max_concurrency <= before.max_concurrency + 1e-9


def test_every_field_that_can_be_set_is_drawn():
    for path in sorted(question_fields().keys() - CHOSEN):
        usual(path).validate()
        odd(path).validate()
    assert (USUAL.keys() | ODD_MAPPINGS.keys()) <= question_fields().keys()
