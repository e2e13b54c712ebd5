"""What each model takes on each path: the table of the planner (config.json, support.json), and all that speaks of it.

The table is compared with the default limits, the outputs for smoke, the findings, the memory of the profiling run, the page, and the
simulated server with the plan's own arguments.
"""

import re
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.memory.activations import item_tokens
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.catalog import MODELS
from gemma_serving.planning.model.support import support_of
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.features import served_features
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import Modality, VllmOptions, vllm_arguments
from gemma_serving.planning.settings.workload import Workload
from localcloud.vllm.arguments import parse
from localcloud.vllm.boot import plan as start_of
from localcloud.vllm.requests import RequestError, check_items
from localcloud.vllm.settings import read

GPU, TPU = "H100", "v6e-8"
ONE = {"image": Workload(images=1), "video": Workload(videos=1), "audio": Workload(audio_s=20)}


def is_served(model: str, modality: Modality, accelerator: str) -> bool:
    """Whether the table says yes. Each cell has a source."""
    row = support_of(modality, MODELS[model], ACCELERATORS[accelerator])
    assert row.source
    assert row.seen_on
    block = "audio_config" if modality == "audio" else "vision_config"
    return block in data_file("models.json")[model]["config"] and row.answer == "yes"


def server_takes(question: Question, modality: Modality) -> bool:
    resolved = resolve(question)
    arguments = parse(["vllm", "serve", *vllm_arguments(resolved.vllm, model_or_path=resolved.model_id)])
    start = start_of(arguments, read({"VLLM_SIM_ACCELERATOR": TPU if resolved.is_tpu else ""}))
    assert start.model is not None
    try:
        check_items([modality], arguments, start.model)
    except RequestError:
        return False
    return not start.is_jax or modality == "image"


@pytest.mark.law
@pytest.mark.parametrize("modality", get_args(Modality))
def test_each_part_says_of_a_modality_what_the_table_says(modality: Modality, subtests: pytest.Subtests):
    for model, accelerator in product(MODELS, (GPU, TPU)):
        with subtests.test(f"{model} on {accelerator}"):
            question = Question().changed(model=model, accelerator=accelerator)
            resolved = resolve(question)
            asked = question.changed(workload=ONE[modality])
            unset = asked.changed(vllm=VllmOptions(limit_mm_per_prompt={"image": 4}))
            said = {
                "outputs for smoke": getattr(served_features(resolved), f"{modality}s") > 0,
                "findings": "WRK04" not in {one.id for one in plan(asked).findings},
                "findings without limits": "WRK04" not in {one.id for one in plan(unset).findings},
                "simulated server": server_takes(question, modality),
            }
            if accelerator == GPU:
                said["activations"] = modality in item_tokens(resolved)
            assert said == dict.fromkeys(said, is_served(model, modality, accelerator))


def test_the_page_and_the_finding_name_the_models_of_the_table():
    page = (Path(__file__).resolve().parents[2] / "docs" / "features.md").read_text(encoding="utf-8")
    unheard = VllmOptions(limit_mm_per_prompt={"audio": 1})
    found = plan(Question().changed(model="google/gemma-4-31B-it", accelerator=GPU, vllm=unheard)).findings
    text = page + next(one.message for one in found if one.id == "WRK07")
    sizes = {model: model.rpartition("gemma-4-")[2].removesuffix("-it") for model in MODELS}
    for words, modality, accelerator in (
        ("- The model is (.*):", "audio", GPU),
        ("does not accept audio, as (.*) do", "audio", GPU),
        ("and only (.*) reads videos:", "video", TPU),
    ):
        (named,) = re.findall(words, text)
        served = {sizes[model] for model in MODELS if is_served(model, modality, accelerator)}
        assert {size for size in sizes.values() if re.search(rf"\b{size}\b", named)} == served
