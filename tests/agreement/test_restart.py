"""The nonce of a restart in a machine's metadata: the provider neither sees it as drift nor removes it, for both of Google's APIs."""

from contracts.labels import Ownership
from gcp_tpu_provider.tests.harness import wanted
from tests.agreement.test_compute import PROJECT, place

__all__ = ["place"]
LABELS = dict(Ownership(project="gemma-serving", stack="dev").labels)


def on_tpu(document: str = "one", **changes):
    metadata = {"enable-guest-attributes": "TRUE", "document": document}
    return wanted(**{"project": PROJECT, "metadata": metadata, "network": None, **changes})
