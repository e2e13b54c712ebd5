"""Waits of hours with the intervals that are in use, on a virtual clock: how long each lasts, and how many requests it costs."""

import asyncio
import random
from typing import Any

import pytest

from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.http_transport import HttpTpuTransport
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted
from gcp_tpu_provider.tests.test_lifecycle import serving
from gcp_tpu_provider.tests.virtual_time import VirtualLoop
from gcp_tpu_provider.transport import Pacing

WAITING = ("CREATING", "WAITING_FOR_RESOURCES")
ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a")
TWO_HOURS_S = 7200
MOST_REQUESTS = 1000


def waiting(*, zones: tuple[str, ...] = ZONES, **scripts: tuple[str, ...]) -> FakeTpu:
    given = {zone.replace("_", "-"): script for zone, script in scripts.items()}
    return FakeTpu(scripts={**dict.fromkeys(ZONES, WAITING), **given}, zones=zones)


def real(cloud: FakeTpu) -> FakeEngine:
    random.seed(0)
    return FakeEngine(cloud, pacing=Pacing())


class TestTotal:
    def test_capacity_that_is_being_provisioned_at_its_end_has_half_an_hour_more(self):
        provisioning = (*["WAITING_FOR_RESOURCES"] * 60, *["PROVISIONING"] * 60, "ACTIVE")
        engine = real(waiting(us_east5_a=provisioning))
        engine.up(wanted(zones=list(ZONES), waitPerZoneS=7200, waitTotalS=300))
        assert engine.outputs["state"] == "ACTIVE"
        assert 300 < engine.waited_s < 2100


class TestRequests:
    def test_two_hours_in_one_zone(self):
        cloud = waiting(zones=ZONES * 15)
        engine = real(cloud)
        with pytest.raises(Aborted):
            engine.up(wanted(zones=[ZONES[0]], waitPerZoneS=TWO_HOURS_S))
        assert engine.waited_s >= TWO_HOURS_S
        assert len(cloud.calls) < MOST_REQUESTS

    def test_two_hours_until_the_machine_is_ready(self):
        cloud = FakeTpu(boots=lambda _metadata: [{"phase": "loading", "document-hash": "", "detail": ""}])
        engine = real(cloud)
        ready = {**serving()["ready"], "timeoutS": TWO_HOURS_S}
        with pytest.raises(Aborted):
            engine.up({**serving(), "ready": ready})
        assert engine.waited_s >= TWO_HOURS_S
        assert len(cloud.calls) < MOST_REQUESTS


class Overloaded(HttpTpuTransport):
    """Answers 429 with Retry-After three times, then the request."""

    calls = 0

    async def _once(self, method: str, path: str, query: Any, body: Any) -> dict[str, Any]:
        self.calls += 1
        if self.calls <= 3:
            raise GoogleError(429, "RESOURCE_EXHAUSTED", "slow down", retry_after_s=30)
        return {"name": path}


def test_retry_after_is_the_pause_and_no_request_is_sent_before_it_ended():
    transport = Overloaded(pacing=Pacing())
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        answer = runner.run(transport.call("GET", "v2alpha1/projects/p/locations"))
        assert runner.get_loop().time() == pytest.approx(90)
    assert answer["name"]
    assert transport.calls == 4
