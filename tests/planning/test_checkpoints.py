"""Checkpoints by id: sizes that were seen, spellings, precisions that contradict them, and drafters."""

import pytest

from gemma_serving.planning.data.checkpoints import (
    ABSENT,
    CHECKPOINTS,
    family,
    find_checkpoint,
    nearest_ids,
    similar_ids,
    stored_as,
)
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.memory.speculation import unknown_drafter_bytes
from gemma_serving.planning.model.catalog import MODELS, model_ids, spec_of
from gemma_serving.planning.model.spec import tensors
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.drafters import drafter_mismatch, drafters_for
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.solve.candidates import checkpoints_of
from tests.records import replace

H100 = Question().changed(model="google/gemma-4-31B-it", accelerator="H100")


def speculating(
    model: str | None,
    method: str | None = None,
) -> VllmOptions:
    config: dict[str, str | int] = {"num_speculative_tokens": 3}
    if model is not None:
        config["model"] = model
    if method is not None:
        config["method"] = method
    return VllmOptions(speculative_config=config)


@pytest.mark.parametrize(
    ("model", "seen_bytes"),
    [("google/gemma-4-31B-it-assistant", 939_042_560), ("google/gemma-4-E4B-it-assistant", 159.1e6)],
)
def test_drafters_have_the_size_that_was_seen(model: str, seen_bytes: float):
    assert sum(t.params for t in tensors(spec_of(model))) * 2 == pytest.approx(seen_bytes, rel=0.001)


@pytest.mark.parametrize("spelled", ["31B", "31b-it", "Gemma 4 31B", "gemma4-31b-it", " gemma_4_31b "])
def test_the_name_of_a_family_means_its_original(spelled: str):
    assert plan(H100.changed(model=spelled)).model == "google/gemma-4-31B-it"
    assert family(spelled)[0].id == "google/gemma-4-31B-it"


def test_an_id_is_not_a_family_and_another_family_is_unknown():
    assert family("gemma-4-31B") == ()
    assert plan(H100.changed(model="gemma-4-31B")).model == "google/gemma-4-31B"
    for name in ("gemma", "gemma-3-12b", "org/31B", "70B", ""):
        assert find_checkpoint(name) is None


def test_no_model_to_serve_is_a_drafter():
    assert not any(CHECKPOINTS[name].is_drafter for name in model_ids())


def test_an_unknown_drafter_is_found_with_the_one_that_was_meant():
    def found(name: str) -> tuple[Plan, Finding]:
        planned = plan(H100.changed(vllm=speculating(name)))
        return planned, next(finding for finding in planned.findings if finding.id == "WRK06")

    planned, finding = found("google/gemma-4-31B-assistant")
    alone = plan(H100.changed(vllm=speculating(None, "ngram"))).memory
    reserve_gib = unknown_drafter_bytes(resolve(H100.changed(vllm=speculating("google/gemma-4-31B-assistant")))) / 2**30
    assert planned.memory.weights_gib - alone.weights_gib == pytest.approx(reserve_gib)
    assert f"assumes {reserve_gib:.2f} GiB" in finding.message
    assert finding.remedies[0].changes == {
        "vllm.speculative_config": {"model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 3}
    }
    _, finding = found("org/unknown-head")
    assert [remedy.changes for remedy in finding.remedies] == [{"vllm.speculative_config": None}]
    assert "draftConfig in a stack" in finding.advice


def test_a_config_stands_in_for_an_unknown_drafter_and_belongs_to_one():
    given = spec_of("google/gemma-4-31B-it-assistant")
    question = H100.changed(vllm=speculating("org/unknown-head"), draft_spec=given)
    assert resolve(question).drafter is given
    with pytest.raises(PlanningError, match="names no model"):
        resolve(H100.changed(draft_spec=given))


def test_vocabularies_and_hidden_states_must_match():
    target = MODELS["google/gemma-4-31B-it"]
    assert drafter_mismatch(spec_of("google/gemma-4-31B-it-assistant"), target) is None
    assert drafter_mismatch(MODELS["google/gemma-4-E2B-it"], target) is None
    assert "reads hidden states 1,536 wide" in (
        drafter_mismatch(spec_of("google/gemma-4-E2B-it-assistant"), target) or ""
    )
    other = replace(MODELS["google/gemma-4-E2B-it"], vocab=128_256)
    assert "its vocabulary has 128,256 tokens" in (drafter_mismatch(other, target) or "")
    assert drafters_for(target) == (
        "google/gemma-4-31B-it-assistant",
        "google/gemma-4-31B-it-qat-q4_0-unquantized-assistant",
    )


ABSENT_ID = "google/gemma-4-26B-A4B-it-qat-w4a16-ct"
REPACK = "xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct"


def test_nothing_offers_an_absent_id():
    offers: dict[str, set[str]] = {
        "ids that can be served": set(model_ids()),
        "candidates of the solver": {one.id for family in (None, "26B-A4B", "31B") for one in checkpoints_of(family)},
        "near spellings": {each for name in (ABSENT_ID, f"{ABSENT_ID}s", "26b-qat") for each in similar_ids(name)},
        "models in four bits": {each for model in MODELS for each in stored_as(model, "w4a16")},
        "drafters": {each for model in MODELS.values() for each in drafters_for(model)},
        "nearest ids": {each for one in ABSENT.values() for each in nearest_ids(one)},
    }
    tight = Question().changed(model="google/gemma-4-26B-A4B-it", accelerator="L4")  # bf16: every move is tried
    for question in (tight, tight.changed(model=ABSENT_ID), tight.changed(accelerator="v6e-1")):
        moves = (remedy.changes for finding in plan(question).findings for remedy in finding.remedies)
        offers[f"remedies of {question.settings.model}"] = {
            str(change["model"]) for change in moves if "model" in change
        }
    assert {name: found & ABSENT.keys() for name, found in offers.items() if found & ABSENT.keys()} == {}
    assert REPACK in offers[f"remedies of {tight.settings.model}"] | offers[f"remedies of {ABSENT_ID}"]


def test_an_absent_drafter_is_found_and_can_be_replaced():
    planned = plan(H100.changed(vllm=speculating(ABSENT_ID, "draft_model")))
    finding = next(one for one in planned.findings if one.id == "MOD04")
    assert finding.remedies
    for remedy in finding.remedies:
        assert ABSENT_ID not in str(remedy.changes)
