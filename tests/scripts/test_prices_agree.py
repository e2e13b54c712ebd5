"""The plan, the preview, the teardown and the guard name the same price for every stack that is shipped."""

from pathlib import Path

import pytest

from gemma_serving.cloud import prices
from gemma_serving.cloud.spending import spending
from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.preview.plans import HOURLY, describe_stack
from gemma_serving.scripts.teardown.receipt import resource_json
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from tests.cloud.test_prices import NOW, node, queued, service

ROOT = Path(__file__).resolve().parents[2]
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))
MODELS = {"flex-start": "FLEX_START", "spot": "SPOT", "standard": "STANDARD"}


def deployed(settings, place):
    """Return what Google would list of a stack in a place: all that its price follows from."""
    if settings.tpu is not None:
        kind, name = settings.tpu.accelerator_type, f"projects/p/locations/{place}/queuedResources/gemma-x"
        request = queued("ACTIVE", kind, provisioningModel=MODELS[settings.tpu.forms[0].model], name=name)
        of_request = node(kind, queuedResource=name, name=f"projects/p/locations/{place}/nodes/gemma-x")
        return [request, of_request]
    run, name = settings.cloud_run, f"projects/p/locations/{place}/services/gemma-x"
    limits = {"cpu": str(run.cpu), "memory": f"{run.memory_mib}Mi"}
    return [service(1, gpu=run.gpu, redundant=run.zonal_redundancy, name=name, **limits)]


@pytest.mark.parametrize("stack", STACKS)
def test_every_script_names_the_price_of_the_plan(stack, monkeypatch):
    settings = from_file(settings_file(stack, ROOT), project="my-project")
    planned = plan(to_question(settings))
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
