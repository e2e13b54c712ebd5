"""`plan prices` reads Google's price catalog whole or writes nothing, and shows what changed."""

import json
import re
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tenacity import wait_none

from gemma_serving.cloud import google_api
from gemma_serving.cloud.price_file import book_of, list_prices
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.planning.data.prices import LIST_PRICES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.plan import prices
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.scripts.plan.prices import read_catalog
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import Client
from localcloud.world.scenario import Fault, OperationDurations, Scenario

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "local-project"
INSTANT = OperationDurations(instant=True)
NOW = datetime(2026, 11, 24, 23, 59, tzinfo=UTC)
TODAY = NOW.date().isoformat()
FLEX, SPOT = "v6e_flex_start_usd_per_chip_hour", "v6e_spot_usd_per_chip_hour"
COMPUTE, RUN = "6F81-5844-456A", "152E-C115-5142"


@pytest.fixture(scope="module")
def cloud():
    with idle_cloud.start(project=PROJECT, scenario=Scenario(operations=INSTANT)) as started:
        yield started


@pytest.fixture
def project(cloud, tmp_path, monkeypatch):
    """A project's folder, and the local cloud with its own scenario."""
    for name in ("Pulumi.yaml", "Pulumi.tpu-v6e1.yaml", "Pulumi.l4-qat.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING", f"{cloud.base_url}/cloudbilling/")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.token)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    monkeypatch.setattr(google_api, "_PAUSES", wait_none())
    monkeypatch.setattr(prices, "today", lambda: TODAY)
    monkeypatch.setenv("LOCALCLOUD_URL", cloud.base_url)
    monkeypatch.chdir(tmp_path)
    before = cloud.cloud.scenario
    yield tmp_path
    cloud.cloud.scenario = before


def with_scenario(cloud, **changes):
    cloud.cloud.scenario = cloud.cloud.scenario.model_copy(update=changes)


def run(capsys, *arguments):
    code = main(["prices", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_refresh_writes_a_dated_file_that_every_plan_of_the_project_uses(project, capsys):
    code, out, err = run(capsys)
    assert (code, out) == (0, "")
    assert re.search(r" [1-9]\d+ prices of", err)
    assert "none changed; wrote prices.json" in err
    book = book_of(None, project)
    assert book.as_of == TODAY
    # Each unit: chips by the hour, vCPU and GiB by the second behind a free amount, disks by the month.
    for key, region, usd in (
        (FLEX, "us-east5", 1.35),
        ("cloud_run_vcpu_usd_per_s", "us-east4", 1.8e-5),
        ("cloud_run_gib_usd_per_s", "asia-southeast1", 2.4e-6),
        ("cloud_run_l4_redundant_usd_per_s", "us-east4", 0.0002909),
        ("disk_usd_per_gib_month", "us-east5", 0.1),
        ("v5e_commitment_3y_usd_per_chip_hour", "us-west4", 0.54),
    ):
        assert book.regions[region][key] == pytest.approx(usd, rel=1e-12)
    question = to_question(from_file(project / "Pulumi.tpu-v6e1.yaml", project="p"), project, today=TODAY)
    planned = plan(question)
    assert planned.cost.prices_as_of == TODAY
    assert not {"CST04", "CST05"} & {finding.id for finding in planned.findings}
    assert run(capsys)[2].count("none changed; wrote") == 1


def test_a_changed_price_is_shown_with_before_after_and_its_date_and_a_dry_run_writes_nothing(project, capsys):
    run(capsys)
    document = json.loads((project / "prices.json").read_text())
    document["as_of"] = "2026-11-01"
    document["regions"]["us-east5"][FLEX] = 1.2
    (project / "prices.json").write_text(json.dumps(document))
    code, out, err = run(capsys, "--dry-run")
    assert code == 0
    assert f"{FLEX} in us-east5: $1.2 of 2026-11-01, now $1.35 (SKU " in " ".join(out.split())
    assert "1 changed; nothing was written (--dry-run)" in err
    assert json.loads((project / "prices.json").read_text()) == document
    report = json.loads(run(capsys, "--json")[1])
    assert report["changes"] == [
        {
            "key": FLEX,
            "region": "us-east5",
            "before_usd": 1.2,
            "before_as_of": "2026-11-01",
            "usd": 1.35,
            "sku": report["changes"][0]["sku"],
        }
    ]
    assert (report["written"], report["as_of"], report["unclear"], report["missing"]) == (True, TODAY, [], [])


def test_a_price_file_that_the_user_wrote_is_never_replaced(project, capsys):
    (project / "prices.json").write_text(json.dumps({FLEX: 1.1}))
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "Rename it and set gemma-serving:prices to its new name." in err
    assert json.loads((project / "prices.json").read_text()) == {FLEX: 1.1}
    # Under its new name it precedes the refreshed prices, which precede the list.
    (project / "prices.json").rename(project / "own.json")
    run(capsys)
    both = book_of("own.json", project)
    assert (both.price(FLEX, "us-east5-a").usd, both.price(FLEX, "us-east5-a").kind) == (1.1, "own")
    assert both.price(SPOT, "us-east5-a").as_of == TODAY


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"faults": (Fault(method="cloudbilling.services.skus.list", nth=2, count=9),)}, "failed 4 times (HTTP 503)"),
        (
            {"faults": (Fault(method="cloudbilling.services.skus.list", nth=2, status=403),)},
            "roles/serviceusage.serviceUsageConsumer",
        ),
    ],
)
def test_a_catalog_that_cannot_be_read_whole_keeps_the_earlier_file(project, cloud, capsys, changes, said):
    run(capsys)
    before = (project / "prices.json").read_bytes()
    with_scenario(cloud, **changes)
    code, out, err = run(capsys)
    assert (code, out) == (1, "")
    assert said in err
    assert (project / "prices.json").read_bytes() == before


def test_an_api_that_is_off_is_named_with_the_command_that_enables_it(project, cloud, capsys):
    client, api = Client(cloud.base_url, cloud.token), f"/serviceusage/v1/projects/{PROJECT}/services/cloudbilling"
    client.ok("POST", f"{api}.googleapis.com:disable", {})
    try:
        code, out, err = run(capsys)
    finally:
        client.ok("POST", f"{api}.googleapis.com:enable", {})
    assert (code, out) == (1, "")
    assert f"API cloudbilling is off in project {PROJECT}. Nothing was written. Run `gcloud services enable" in err
    assert not (project / "prices.json").exists()


def test_simulated_prices_are_named_and_never_used_outside_the_local_cloud(project, cloud, capsys, monkeypatch):
    assert "SKUs (local cloud, simulated), none changed" in run(capsys)[2]
    assert book_of(None, project).catalog.url == f"{cloud.base_url}/cloudbilling/v1/services"
    monkeypatch.delenv("LOCALCLOUD_URL")
    with pytest.raises(PlanningError, match="simulated prices of a local cloud"):
        book_of(None, project)
    assert list_prices(project) is LIST_PRICES
    assert run(capsys)[0] == 0, "a refresh replaces them"


def test_without_a_project_no_call_is_made(project, capsys, monkeypatch):
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    code, _, err = run(capsys)
    assert code == 2
    assert "No project set." in err


@dataclass
class Catalog:
    """Pages of SKUs, and the calls that were made."""

    pages_of: dict[str, list[list[dict]]]
    paths: list[str] = field(default_factory=list)

    def pages(self, api, path):
        self.paths.append(f"{api} {path}")
        for skus in self.pages_of[path.split("/")[2]]:
            yield {"skus": skus}


def sku(
    description,
    usd,
    *,
    usage="OnDemand",
    unit="h",
    region="us-east5",
    name="A-1",
    tiers=None,
):
    def money(value):
        return {"currencyCode": "USD", "units": str(int(value)), "nanos": round((value - int(value)) * 1e9)}

    rates = [{"startUsageAmount": start, "unitPrice": money(value)} for start, value in tiers or [(0, usd)]]
    expression = {"usageUnit": unit, "tieredRates": rates}
    return {
        "skuId": name,
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": [region],
        "pricingInfo": [{"pricingExpression": {}}, {"pricingExpression": expression}],
    }


V6E = sku("TpuV6e running in Columbus", 2.7)
CPU = sku("Services CPU (Instance-based billing) in us-east4", 0.0648, unit="h", region="us-east4")


def read(*compute, run=(CPU,)):
    catalog = Catalog({COMPUTE: [list(compute[:1]), list(compute[1:])], RUN: [list(run)]})
    return read_catalog(catalog)


def test_reserved_committed_and_similar_products_are_not_on_demand():
    found = read(
        V6E,
        sku("DWS Defined Duration V6e running in Columbus", 1.35),
        sku("TpuV6e attached to Spot Preemptible VMs running in Columbus", 1.4033, usage="Preemptible"),
        sku("Capacity Optimized TpuV6e running in Columbus", 2.6),
        sku("Reserved V6e TPU in Columbus in Calendar Mode", 1.89),
        sku("TpuV6e running in Columbus", 0.9, usage="Commit1Yr"),
        sku("Regional Balanced PD Capacity in Columbus", 0.2, unit="GiBy.mo"),
    ).found
    prices = {key: price.usd for (key, region), price in found.items() if region == "us-east5"}
    assert prices == {"v6e_standard_usd_per_chip_hour": 2.7, FLEX: 1.35, SPOT: 1.4033}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (sku(V6E["description"], 2.7, unit="GiBy.h"), "no price per h"),
        (sku(V6E["description"], 0), "no price per h"),
        ({**V6E, "pricingInfo": []}, "no price per h"),
    ],
)
def test_a_price_that_cannot_be_read_is_unclear_and_says_why(given, said):
    found = read(given)
    assert not [key for key, _ in found.found if key.startswith("v6e")]
    assert said in found.unclear["v6e_standard_usd_per_chip_hour", "us-east5"][0]


def test_a_catalog_with_other_descriptions_ends_the_refresh():
    with pytest.raises(ScriptError, match="None of the 1 SKUs of Cloud Run"):
        read(V6E, run=[sku("Something else", 1)])


def test_of_two_skus_with_different_prices_none_is_chosen_and_both_are_named(project, capsys, monkeypatch):
    twins = [sku(V6E["description"], 2.7, name="A-1"), sku("TpuV6e running in Columbus", 2.8, name="A-2")]
    catalog = Catalog({COMPUTE: [twins, [sku("TpuV6e running in Iowa", 2.7, region="us-central1")]], RUN: [[CPU]]})
    monkeypatch.setattr(google_api, "connect", lambda *_, **__: catalog)
    code, out, _ = run(capsys)
    assert code == 0
    key = "v6e_standard_usd_per_chip_hour"
    assert f"{key} in us-east5 is unclear, so the shipped price counts, $2.7" in out
    assert '"TpuV6e running in Columbus" (A-1): $2.7 per h and "TpuV6e running in Columbus" (A-2): $2.8 per h' in out
    price = book_of(None, project).price(key, "us-east5-a")
    assert (price.usd, price.is_unclear, price.missed_on) == (2.7, True, TODAY)
    same = read(twins[0], {**twins[1], "pricingInfo": twins[0]["pricingInfo"]})
    assert same.found[key, "us-east5"].usd == 2.7
