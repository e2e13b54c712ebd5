"""What each model takes on each path: the table of the planner, and all that speaks of it, for each model, modality and path.

The table is config.json (`vision_config`, `audio_config`) and the rows of support.json. It is compared with the default limits, the outputs for
smoke, the findings, the memory of the profiling run, the page, and the simulated server with the plan's own arguments.
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
from gemma_serving.planning.model.support import Answer, support_of
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.features import served_features
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.vllm_args import Modality, VllmOptions, vllm_arguments
from gemma_serving.planning.settings.workload import Workload
from localcloud.vllm.arguments import parse
from localcloud.vllm.media import check_items
from localcloud.vllm.media_items import MediaItem
from localcloud.vllm.protocol import RequestError
from localcloud.vllm.settings import read
from localcloud.vllm.startup import plan as start_of
from tests.records import replace

ROOT = Path(__file__).resolve().parents[2]
SILENT = "google/gemma-4-31B-it"
PATHS = {"H100": "GPU", "v6e-8": "TPU"}
BLOCK_OF: dict[Modality, str] = {"image": "vision_config", "video": "vision_config", "audio": "audio_config"}
ONE: dict[Modality, Workload] = {
    "image": Workload(images=1),
    "video": Workload(videos=1),
    "audio": Workload(audio_s=20),
}


def table(model: str, modality: Modality, accelerator: str) -> Answer:
    if BLOCK_OF[modality] not in data_file("models.json")[model]["config"]:
        return "no"
    row = support_of(modality, MODELS[model], ACCELERATORS[accelerator])
    assert row.source, "a cell of the table has a source"
    assert row.seen_on, "a cell of the table has a source that was read"
    return row.answer


def server_takes(deployment: Deployment, modality: Modality) -> bool:
    """Whether the simulated server with the plan's arguments answers a request with one item."""
    resolved = resolve(deployment)
    arguments = parse(["vllm", "serve", *vllm_arguments(resolved.vllm, model_or_path=resolved.model_id)])
    start = start_of(arguments, read({"VLLM_SIM_ACCELERATOR": deployment.accelerator if resolved.is_tpu else ""}))
    assert start.model is not None
    try:
        check_items([MediaItem(kind=modality, tokens=9)], arguments, start.model)
    except RequestError:
        return False
    return not start.is_jax or modality == "image"


def said_of(deployment: Deployment, modality: Modality) -> dict[str, bool]:
    """What each part says of the modality, by part."""
    resolved = resolve(deployment)
    asked = plan(replace(deployment, workload=ONE[modality]))
    found = {
        "outputs for smoke": getattr(served_features(resolved), f"{modality}s") > 0,
        "findings": not {"WRK04", "WRK07"} & {one.id for one in asked.findings},
        "simulated server": server_takes(deployment, modality),
    }
    return found if resolved.is_tpu else {**found, "activations": modality in item_tokens(resolved)}


@pytest.mark.parametrize("modality", get_args(Modality))
def test_each_part_says_of_a_modality_what_the_table_says(modality: Modality, subtests: pytest.Subtests):
    for model, accelerator in product(MODELS, PATHS):
        with subtests.test(f"{model} on {accelerator}"):
            deployment = Deployment(model=model, accelerator=accelerator)
            wanted = table(model, modality, accelerator) == "yes"
            said = said_of(deployment, modality)
            assert said == dict.fromkeys(said, wanted)


def test_the_page_and_the_finding_name_the_models_of_the_table():
    page = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
    sizes = {model: model.rpartition("gemma-4-")[2].removesuffix("-it") for model in MODELS}
    unheard = Deployment(model=SILENT, accelerator="H100", vllm=VllmOptions(limit_mm_per_prompt={"audio": 1}))
    page += next(one.advice for one in plan(unheard).findings if one.id == "WRK07")
    for words, modality, accelerator in (
        ("- The model is (.*):", "audio", "H100"),
        ("and only (.*) reads videos:", "video", "v6e-8"),
        (r"(.*) do\.$", "audio", "H100"),
    ):
        (line,) = re.findall(words, page)
        named = {size for size in sizes.values() if re.search(rf"\b{size}\b", line)}
        assert named == {sizes[model] for model in MODELS if table(model, modality, accelerator) == "yes"}
