"""The nonce of a restart in a machine's metadata: the provider neither sees it as drift nor removes it, for both of Google's APIs."""

import pytest

from gcp_tpu_provider.tests.harness import wanted
from gemma_serving.cloud.google_api import connect
from gemma_serving.cloud.tpu_machine import TpuMachine
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.serving_document import RESTART_METADATA_KEY
from localcloud.environment import API_OVERRIDES
from tests.agreement.test_compute import PROJECT, Place, place, serving

__all__ = ["place"]
LABELS = dict(Ownership(project="gemma-serving", stack="dev").labels)


def on_tpu(document: str = "one", **changes):
    metadata = {"enable-guest-attributes": "TRUE", "document": document}
    return wanted(**{"project": PROJECT, "metadata": metadata, "network": None, **changes})


@pytest.mark.parametrize("given", [serving, on_tpu], ids=["compute-engine", "cloud-tpu"])
def test_a_preview_shows_no_change_with_and_without_a_refresh_and_a_change_keeps_the_nonce(
    place: Place, monkeypatch: pytest.MonkeyPatch, given
):
    for api in ("COMPUTE", "TPU"):
        monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", f"{place.cloud.base_url}/{API_OVERRIDES[api]}")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", place.cloud.token)
    engine = place.engine
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
