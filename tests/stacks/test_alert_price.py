"""The price in the expression of the alert Daily cost."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gemma_serving.contracts.naming import Names
from gemma_serving.planning.cost.subject import examine
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.observability import alert_values
from gemma_serving.stacks.planned import to_deployment

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("provisioning", "ceiling_usd", "usd"),
    [
        ("flex-start", None, 1.35),
        (["flex-start", "spot", "standard"], None, 3.24),
        (["flex-start", "spot"], 1.5, 1.45707),
    ],
)
def test_an_order_of_forms_has_the_price_of_the_most_expensive_form_that_may_be_requested(
    tmp_path, provisioning, ceiling_usd, usd
):
    """The alert is declared before any form is in use. A lower price would let a day of standard pass in silence."""
    config = yaml.safe_load((ROOT / "examples/stacks/Pulumi.tpu-v6e1-e4b.yaml").read_text())["config"]
    tpu = {**config["gemma-serving:tpu"], "provisioning": provisioning}
    config["gemma-serving:tpu"] = tpu if ceiling_usd is None else {**tpu, "maxUsdPerHour": ceiling_usd}
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(yaml.safe_dump({"config": config}))
    settings = from_file(path, project="my-project")
    names = Names(project="my-project", stack="x")
    context = SimpleNamespace(settings=settings, subject=examine(to_deployment(settings)), names=names)
    assert alert_values(context).usd_per_hour == pytest.approx(usd)
