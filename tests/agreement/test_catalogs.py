"""What Google offers stands once, in the planner's data: the local cloud has a generated copy, and the lists that need another form name the same GPUs."""

from pathlib import Path

from authors.planning_tables import local_cloud_catalog, provider_machines
from gemma_serving.planning.data.prices import PRICES
from gemma_serving.planning.machine.hardware import CLOUD_RUN_GPUS
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.fields import block_fields
from localcloud.json_values import packaged
from localcloud.world.scenario import Run

PROVIDER = "packages/gcp-tpu/gcp_tpu_provider/machines.json"
COPY = "packages/localcloud/world/data/catalog.json"


def test_the_local_cloud_has_the_planners_catalog():
    assert (Path(__file__).parents[2] / COPY).read_text() == local_cloud_catalog()


def test_the_provider_has_the_planners_machine_types_and_quotas():
    assert (Path(__file__).parents[2] / PROVIDER).read_text() == provider_machines()


def test_every_list_of_gpus_has_those_of_the_planner():
    names = set(CLOUD_RUN_GPUS.values())
    assert {
        *next(field.annotations[0].values for field in block_fields(CloudRunSettings) if field.path == "gpu")
    } == names
    assert set(Run().gpu_drivers) == set(Run().gpu_regions) == names
    assert names <= set(packaged("localcloud.vllm", "boots.json")["cards"])
    skus = {sku.get("price") for sku in packaged("localcloud.services", "skus.json")["skus"]}
    assert {key for key in PRICES if key.startswith("cloud_run_")} <= skus
