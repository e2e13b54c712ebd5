"""The nonce of a restart in a machine's metadata: the provider neither sees it as drift nor removes it, for both of Google's APIs."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gcp_tpu_provider.http_transport import HttpTpuTransport
from gcp_tpu_provider.tests.harness import FAST, FakeEngine, wanted
from gemma_serving.cloud.google_api import connect
from gemma_serving.cloud.tpu_machine import TpuMachine
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.serving_document import RESTART_METADATA_KEY
from localcloud.environment import API_OVERRIDES
from localcloud.tests import idle_cloud
from localcloud.world.scenario import OperationDurations, Scenario
from tests.agreement.test_compute import PROJECT, runtimes, serving

LABELS = dict(Ownership(project="gemma-serving", stack="dev").labels)


class EachLoop:
    """A transport that opens a session for each call: the harness runs each operation in an event loop of its own."""

    async def call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        transport = HttpTpuTransport(FAST)
        try:
            return await transport.call(method, path, **more)
        finally:
            await transport.close()

    def now(self) -> datetime:
        """Return this machine's time: the local cloud has no other."""
        return datetime.now(UTC)


def on_tpu(document: str = "one", **changes):
    metadata = {"enable-guest-attributes": "TRUE", "document": document}
    return wanted(**{"project": PROJECT, "metadata": metadata, "network": None, **changes})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch):
    """The provider on a local cloud whose operations take no time, over HTTP."""
    scenario = Scenario(operations=OperationDurations(instant=True))
    with idle_cloud.start(scenario=scenario, runtimes=runtimes, speed=1.0) as cloud:
        for api in ("COMPUTE", "TPU"):
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", f"{cloud.base_url}/{API_OVERRIDES[api]}")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.token)
        pacing = replace(FAST, poll_first_s=0.01, poll_most_s=0.05, retry_first_s=0.01, retry_most_s=0.05)
        yield FakeEngine(EachLoop(), pacing, clock=None)  # type: ignore[arg-type] - a transport too


@pytest.mark.parametrize("given", [serving, on_tpu], ids=["compute-engine", "cloud-tpu"])
def test_a_preview_shows_no_change_with_and_without_a_refresh_and_a_change_keeps_the_nonce(engine: FakeEngine, given):
    engine.up(given(labels=LABELS))
    assert engine.state
    machine = TpuMachine(api=connect(PROJECT), name=str(engine.state.outputs["nodeName"]))
    owner = Ownership(project="gemma-serving", stack="dev")
    machine.set_metadata(RESTART_METADATA_KEY, "nonce-1", owner)
    assert machine.metadata(machine.owned_document(owner))[RESTART_METADATA_KEY] == "nonce-1"
    assert engine.preview(given(labels=LABELS)) == "same"
    engine.refresh()
    assert engine.preview(given(labels=LABELS)) == "same"
    assert engine.up(given("two", labels=LABELS)) == "update"
    kept = machine.metadata(machine.owned_document(owner))
    assert (kept[RESTART_METADATA_KEY], kept["document"]) == ("nonce-1", "two")
