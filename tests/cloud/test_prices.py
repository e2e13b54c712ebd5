"""What found resources cost so far is an upper bound at list prices, and unknown where use decides."""

from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.cloud.kinds import by_name
from gemma_serving.cloud.prices import usd_per_hour, usd_so_far
from gemma_serving.cloud.search import resource_of
from localcloud.tests.google_bodies import google_body
from tests.cloud.populated import owner

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def found(kind, document, schema, **body):
    field = "creationTimestamp" if kind == "TPU instance" else "createTime"
    created = {field: (NOW - timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")}
    item = google_body(document, schema, {"name": "projects/p/locations/l/things/t", **created, **body})
    return resource_of(by_name(kind), item, project="p", owner=owner("x"))


def queued(state, accelerator="v6e-4", **more):
    spec = {"nodeSpec": [{"node": {"acceleratorType": accelerator}}]}
    return found("TPU queued resource", "tpu.v2alpha1", "QueuedResource", state={"state": state}, tpu=spec, **more)


def service(least, **limits):
    container = {"resources": {"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1", **limits}}}
    template = {
        "containers": [container],
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "gpuZonalRedundancyDisabled": True,
        "scaling": {"minInstanceCount": least},
    }
    return found("Cloud Run service", "run.v2", "GoogleCloudRunV2Service", template=template)


@pytest.mark.parametrize(
    ("item", "usd"),
    [
        (queued("ACTIVE", provisioningModel="FLEX_START"), 4 * 1.35),
        (queued("ACTIVE", provisioningModel="SPOT"), 4 * 1.78),
        (queued("ACTIVE", spot={}), 4 * 1.78),
        (queued("ACTIVE"), 4 * 2.70),
        (queued("ACTIVE", "v5litepod-8"), 8 * 1.20),
        (queued("ACTIVE", "v5p-8"), None),
        (queued("WAITING_FOR_RESOURCES"), 0.0),
        (queued("FAILED"), 0.0),
        (queued("ACTIVE", "v4-8"), None),
        (service(1), 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
        (service(2, memory="32768Mi", cpu="8000m"), 2 * 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
        (service(0), None),
    ],
)
def test_list_prices(item, usd):
    assert usd_per_hour(item) == (None if usd is None else pytest.approx(usd))
    assert usd_so_far(item, NOW) == (None if usd is None else pytest.approx(3 * usd))


def test_the_node_of_a_queued_resource_is_paid_with_it():
    node = {"acceleratorType": "v6e-4", "queuedResource": "projects/p/locations/l/queuedResources/q"}
    assert usd_per_hour(found("TPU node", "tpu.v2alpha1", "Node", **node)) is None
    assert usd_per_hour(found("TPU node", "tpu.v2alpha1", "Node", acceleratorType="v6e-4")) == pytest.approx(10.8)
