"""What Google offers stands once, in the planner's data: the local cloud has a generated copy, and the lists that need another form name the same GPUs."""

from pathlib import Path

import pytest

from dev.authors.planning_tables import local_cloud_catalog, provider_machines
from gemma_serving.planning.data.prices import PRICES
from gemma_serving.planning.machine.hardware import ACCELERATORS, CLOUD_RUN_GPUS
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.fields import block_fields
from localcloud.json_values import packaged
from localcloud.world.cloud import REGIONS
from localcloud.world.scenario import Run

PROVIDER = "packages/gcp-tpu/gcp_tpu_provider/machines.json"
COPY = "packages/localcloud/world/data/catalog.json"


def test_the_local_cloud_has_the_planners_catalog():
    assert (Path(__file__).parents[2] / COPY).read_text() == local_cloud_catalog()


def test_the_provider_has_the_planners_machine_types():
    assert (Path(__file__).parents[2] / PROVIDER).read_text() == provider_machines()


GPUS = set(CLOUD_RUN_GPUS.values())
SCENARIO = "packages/localcloud/world/scenario.py"
LISTS = {
    "gemma_serving/planning/settings/cloud_run.py": next(
        field.annotations[0].arguments[0].values for field in block_fields(CloudRunSettings) if field.path == "gpu"
    ),
    f"{SCENARIO} gpu_drivers": Run().gpu_drivers,
    f"{SCENARIO} gpu_regions": Run().gpu_regions,
}


@pytest.mark.parametrize("path", LISTS)
def test_every_list_of_gpus_has_those_of_the_planner(path):
    assert sorted(LISTS[path]) == sorted(GPUS), f"{path} has other GPUs than machines.json"


def test_every_gpu_of_the_planner_has_a_simulated_speed():
    lacking = sorted(GPUS - set(packaged("localcloud.vllm", "boots.json")["cards"]))
    assert not lacking, f"packages/localcloud/vllm/data/boots.json has no {lacking} in `cards`"


def test_every_price_of_cloud_run_has_a_sku():
    known = {sku.get("price") for sku in packaged("localcloud.services", "skus.json")["skus"]}
    lacking = sorted(key for key in PRICES if key.startswith("cloud_run_") and key not in known)
    assert not lacking, f"packages/localcloud/services/data/skus.json has no SKU of {lacking}"


def test_every_region_of_a_gpu_exists_in_the_local_cloud_also_those_by_invitation():
    named = {region for card in ACCELERATORS.values() for region in card.cloud_run.regions}
    lacking = sorted(named - REGIONS.keys())
    assert not lacking, f"packages/localcloud/world/data/regions.json has no {lacking}"
