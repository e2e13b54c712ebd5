"""The price of the form of capacity in use, in its zone: never the plan's, which is the first form's."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.scripts.stack.price_in_use import price_in_use, usd_per_hour_in_use
from tests.scripts.sample_outputs import sample_outputs

STACK = "tpu-v6e1"
OUTPUTS = from_json(StackOutputs, sample_outputs(target="tpu"))


def outputs_of(form, zone):
    return replace(OUTPUTS, provisioning=form, location=zone, plan=replace(OUTPUTS.plan, accelerator="v6e-1"))


@pytest.mark.parametrize(
    ("form", "zone", "text"),
    [
        (None, "us-east5-a", "$1.42/h"),
        ("flex-start", "us-east5-a", "$1.35/h"),
        ("spot", "us-east5-a", "$1.40/h"),
        ("spot", "europe-west4-a", "$1.78/h"),
        ("standard", "europe-west4-a", "$2.97/h"),
        ("spot", "southamerica-west1-a", "price unknown"),
    ],
)
def test_the_price_is_of_the_form_in_use_in_its_zone(form, zone, text):
    assert price_in_use(STACK, outputs_of(form, zone)) == text


def test_a_price_file_of_the_stack_counts_and_one_that_cannot_be_read_leaves_the_price_unknown(tmp_path, monkeypatch):
    path = tmp_path / "own.json"
    monkeypatch.setattr(
        "gemma_serving.scripts.stack.settings.stack_settings", lambda *_, **__: SimpleNamespace(prices=str(path))
    )
    path.write_text(json.dumps({"as_of": "2026-11-01", "v6e_spot_usd_per_chip_hour": 0.5}))
    assert usd_per_hour_in_use(STACK, outputs_of("spot", "us-east5-a")) == 0.5
    path.write_text("{")
    assert usd_per_hour_in_use(STACK, outputs_of("spot", "us-east5-a")) is None
