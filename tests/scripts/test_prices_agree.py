"""The plan, the preview, the teardown and the guard name the same price for every stack that is shipped."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gemma_serving.cloud import prices
from gemma_serving.cloud.kinds import by_name
from gemma_serving.cloud.search import resource_of
from gemma_serving.cloud.spending import spending
from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.preview.plans import HOURLY, describe_stack
from gemma_serving.scripts.teardown.receipt import resource_json
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_deployment
from localcloud.tests.google_bodies import google_body
from tests.cloud.populated import owner

ROOT = Path(__file__).resolve().parents[2]
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MODELS = {"flex-start": "FLEX_START", "spot": "SPOT", "standard": "STANDARD"}


def made(kind, document, schema, place, collection, **body):
    created = {"createTime": (NOW - timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")}
    name = f"projects/p/locations/{place}/{collection}/gemma-x"
    return resource_of(
        by_name(kind), google_body(document, schema, {"name": name, **created, **body}), project="p", owner=owner("x")
    )


def deployed(settings, place):
    """Return what Google would list of a stack in a place: all that its price follows from."""
    if settings.tpu is not None:
        node = {"acceleratorType": settings.tpu.accelerator_type}
        queued = made(
            "TPU queued resource",
            "tpu.v2alpha1",
            "QueuedResource",
            place,
            "queuedResources",
            state={"state": "ACTIVE"},
            provisioningModel=MODELS[settings.tpu.forms[0].model],
            tpu={"nodeSpec": [{"node": node}]},
        )
        of_queue = {**node, "queuedResource": queued.name}
        return [queued, made("TPU node", "tpu.v2alpha1", "Node", place, "nodes", **of_queue)]
    run = settings.cloud_run
    limits = {"cpu": str(run.cpu), "memory": f"{run.memory_mib}Mi", "nvidia.com/gpu": "1"}
    template = {
        "containers": [{"resources": {"limits": limits}}],
        "nodeSelector": {"accelerator": run.gpu},
        "gpuZonalRedundancyDisabled": not run.zonal_redundancy,
        "scaling": {"minInstanceCount": 1},
    }
    return [made("Cloud Run service", "run.v2", "GoogleCloudRunV2Service", place, "services", template=template)]


@pytest.mark.parametrize("stack", STACKS)
def test_every_script_names_the_price_of_the_plan(stack, monkeypatch):
    settings = from_file(settings_file(stack, ROOT), project="my-project")
    planned = plan(to_deployment(settings))
    shown = describe_stack(settings_file(stack, ROOT).parent, stack, date="2026-11-20")
    assert shown.figures[HOURLY] == f"${planned.cost.usd_per_hour:,.2f}"
    assert planned.summary().cost.usd_per_hour == round(planned.cost.usd_per_hour, 4)
    monkeypatch.setattr("gemma_serving.cloud.spending._billed_s", lambda *_: (3 * 3600.0, 0.0))
    for one in planned.cost.places:
        found = deployed(settings, one.place)
        first = found[0]
        assert prices.usd_per_hour(first) == pytest.approx(one.usd_per_hour)
        (spent,) = spending(None, found, NOW)
        shown = resource_json(first, NOW, [spent])
        assert (shown["usd_per_hour"], shown["usd_so_far"]) == (
            pytest.approx(one.usd_per_hour, abs=1e-4),
            pytest.approx(3 * one.usd_per_hour, abs=1e-2),
        )
        assert spent.usd_per_hour == pytest.approx(one.usd_per_hour)
        assert spent.usd == pytest.approx(3 * one.usd_per_hour)
        assert one.usd_per_hour <= planned.cost.usd_per_hour
