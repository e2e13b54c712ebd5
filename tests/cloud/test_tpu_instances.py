"""TPU instances of Compute Engine: found by their labels in every zone, priced by their machine type, and up from their start."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from gemma_serving.cloud.capacity import capacity_kind, capacity_names
from gemma_serving.cloud.google_api import GoogleApi
from gemma_serving.cloud.kinds import INSTANCE, QUEUED, by_name
from gemma_serving.cloud.prices import usd_per_hour
from gemma_serving.cloud.search import Scope, resource_of, search
from gemma_serving.cloud.spending import spending
from gemma_serving.cloud.tpu_machine import TpuMachine
from gemma_serving.contracts.labels import StackLimits
from localcloud.tests.google_bodies import google_body
from localcloud.tests.services.test_instances import body_of
from localcloud.world.cloud import REGIONS
from tests.cloud.populated import PROJECT, World, asker, open_world, owner

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def make(world: World, name: str, labels: dict[str, str], zone: str) -> None:
    place = f"projects/{PROJECT}/zones/{zone}"
    account = world.call("GET", "compute", f"compute/v1/projects/{PROJECT}")["defaultServiceAccount"]
    body = {**body_of(name, zone=zone, account=account), "labels": labels}
    world.call("POST", "compute", f"compute/v1/{place}/instances", body)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world(places=REGIONS) as found:
        make(found, "gemma-x", dict(owner("x").labels), "southamerica-west1-a")
        make(found, "theirs", {"managed-by": "hand"}, "us-east5-a")
        yield found


def test_an_instance_is_found_in_a_zone_that_nothing_names(world: World):
    found = search(world.api, Scope(projects=(PROJECT,), asker=asker("x"))).found
    (item,) = [one for one in found if one.kind == INSTANCE]
    assert item.name == f"projects/{PROJECT}/zones/southamerica-west1-a/instances/gemma-x"
    assert item.location == "southamerica-west1-a"
    assert item.command == f"gcloud compute instances delete gemma-x --project={PROJECT} --zone=southamerica-west1-a"


def instance(
    status: str, *, model: str = "FLEX_START", started_h: float | None = None, machine: str = "ct6e-standard-4t"
):
    zone = "https://www.googleapis.com/compute/v1/projects/p/zones/europe-west4-a"
    started = {} if started_h is None else {"lastStartTimestamp": (NOW - timedelta(hours=started_h)).isoformat()}
    body = {
        "name": "t",
        "selfLink": f"{zone}/instances/t",
        "machineType": f"{zone}/machineTypes/{machine}",
        "status": status,
        "scheduling": {"provisioningModel": model},
        "creationTimestamp": (NOW - timedelta(hours=9)).isoformat(),
        **started,
    }
    item = google_body("compute.v1", "Instance", body)
    return resource_of(by_name(INSTANCE), item, project="p", owner=owner("x"))


@pytest.mark.parametrize(
    ("item", "usd"),
    [
        (instance("RUNNING"), 4 * 1.35),
        (instance("RUNNING", model="STANDARD"), 4 * 2.97),
        (instance("PENDING"), 0.0),
        (instance("TERMINATED"), 0.0),
        (instance("RUNNING", machine="n2-standard-4"), None),
    ],
)
def test_the_chips_cost_what_those_of_a_tpu_vm_cost_and_a_request_costs_nothing(item, usd):
    assert usd_per_hour(item) == (usd if usd is None else pytest.approx(usd))


def test_the_wait_of_an_instance_is_free(world: World):
    (one,) = spending(world.api, [instance("RUNNING", started_h=2)], NOW)
    assert (one.age_s, one.usd) == (pytest.approx(7200), pytest.approx(2 * 4 * 1.35))
    (waits,) = spending(world.api, [instance("PENDING")], NOW)
    assert (waits.age_s, waits.usd, waits.limits) == (0.0, 0.0, StackLimits())


def test_the_inputs_of_our_provider_name_what_it_makes():
    inputs = {"project": "p", "queuedResourceId": "q"}
    assert (capacity_kind(inputs), capacity_names(inputs, ["z"])) == (
        QUEUED,
        ["projects/p/locations/z/queuedResources/q"],
    )
    inputs["api"] = "compute-engine"
    assert (capacity_kind(inputs), capacity_names(inputs, ["z"])) == (INSTANCE, ["projects/p/zones/z/instances/q"])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"errors": [{"message": "no", "code": "A"}, {"code": "B"}]}, "no (A); no explanation (B)"),
        ({"message": "denied", "code": 7}, "denied (7)"),
        ({}, ""),
    ],
)
def test_a_change_that_google_refuses_is_said_in_its_words(error: dict[str, object], said: str):
    for end in ({"done": True}, {"status": "DONE"}):
        assert TpuMachine(api=cast("GoogleApi", None), name="p/n")._settled({**end, "error": error}) == said
