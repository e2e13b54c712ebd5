"""Architecture arithmetic against what the model cards and checkpoints say."""

import pytest

from gemma_serving.planning.data.checkpoints import ABSENT, find_checkpoint
from gemma_serving.planning.model.catalog import MODELS, model_ids, spec_of
from gemma_serving.planning.model.spec import active_params, tensors, text_params

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "billions"), [("E2B", 4.65), ("E4B", 7.52), ("12B", 11.91), ("26B-A4B", 25.23), ("31B", 30.70)]
)
def test_dimensions_give_the_parameter_count_of_the_model_card(name: str, billions: float):
    assert text_params(MODELS[f"google/gemma-4-{name}-it"]) / 1e9 == pytest.approx(billions, abs=0.005)


def test_a_token_of_the_mixture_uses_the_active_parameters_of_the_card():
    assert active_params(MODELS["google/gemma-4-26B-A4B-it"]) / 1e9 == pytest.approx(3.82, abs=0.005)


@pytest.mark.parametrize(
    ("name", "layers", "full", "owning"),
    [("E2B", 35, 7, 15), ("E4B", 42, 7, 24), ("12B", 48, 8, 48), ("26B-A4B", 30, 5, 30), ("31B", 60, 10, 60)],
)
def test_layers_are_the_family_s(name: str, layers: int, full: int, owning: int):
    spec = MODELS[f"google/gemma-4-{name}-it"]
    assert spec.layers == layers
    assert sum(g.count for g in spec.groups if g.attention.window is None) == full
    assert sum(g.count for g in spec.groups if g.owns_kv) == owning


def test_the_e2b_checkpoint_is_language_model_vision_and_audio():
    spec = MODELS["google/gemma-4-E2B-it"]
    stored = sum(t.params for t in tensors(spec) if not t.copy) * 2 / GIB
    assert stored == pytest.approx(9.54, abs=0.01)
    assert spec.audio_params * 2 / GIB == pytest.approx(0.57, abs=0.01)


def test_four_bit_experts_are_padded_and_nothing_else_changes():
    plain, padded = spec_of("google/gemma-4-26B-A4B-it", "bf16"), spec_of(next(iter(ABSENT)))
    assert {g.experts.intermediate for g in plain.groups if g.experts} == {704}
    assert {g.experts.intermediate for g in padded.groups if g.experts} == {768}
    stored = spec_of("google/gemma-4-26B-A4B-it", "w4a16")
    assert {g.experts.intermediate for g in stored.groups if g.experts} == {704}, "the export that exists pads none"
    assert spec_of("google/gemma-4-31B-it", "w4a16").groups == MODELS["google/gemma-4-31B-it"].groups


@pytest.mark.parametrize("name", model_ids())
def test_names_are_found_without_regard_to_case(name: str):
    for spelling in (name.upper(), name.removeprefix("google/").lower()):
        found = find_checkpoint(spelling)
        assert found is not None
        assert found.id == name


def test_unknown_names_are_not_found():
    assert find_checkpoint("google/gemma-4-27B-it") is None
