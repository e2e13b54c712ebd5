"""What found resources cost per hour at known prices: now, and while they run. An unknown price is not zero."""

from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.cloud.kinds import by_name
from gemma_serving.cloud.prices import running_usd_per_hour, usd_per_hour
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


def instance(status):
    machine = "https://www.googleapis.com/compute/v1/projects/p/zones/us-east5-b/machineTypes/ct6e-standard-4t"
    return found("TPU instance", "compute.v1", "Instance", name="t", status=status, machineType=machine)


def service(least, *, gpu="nvidia-l4", sidecars=(), scaling=None, redundant=False, name="t", **limits):
    own = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1", **limits}
    template = {
        "containers": [{"resources": {"limits": one}} for one in (own, *sidecars)],
        "nodeSelector": {"accelerator": gpu},
        "gpuZonalRedundancyDisabled": not redundant,
        "scaling": {"minInstanceCount": least},
    }
    more = {"name": name, "template": template, "scaling": scaling or {}}
    return found("Cloud Run service", "run.v2", "GoogleCloudRunV2Service", **more)


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
        (queued("SUSPENDED"), 0.0),
        *((queued(state), 4 * 2.70) for state in ("PROVISIONING", "SUSPENDING", "DELETING")),
        *((instance(status), 4 * 2.70) for status in ("RUNNING", "REPAIRING", "PENDING_STOP", "STOPPING")),
        (instance("TERMINATED"), 0.0),
        (queued("ACTIVE", "v4-8"), None),
        (service(1), 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
        (service(2, memory="32768Mi", cpu="8000m"), 2 * 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
        (service(0), 0.0),
        (service(1, redundant=True), 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0002909)),
        (service(1, gpu="nvidia-b999"), None),
        (service(1, sidecars=[{"cpu": "1", "memory": "1Gi"}]), 3600 * (9 * 0.000018 + 33 * 0.000002 + 0.0001867)),
        (service(1, scaling={"minInstanceCount": 2}), 2 * 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
    ],
)
def test_list_prices(item, usd):
    assert usd_per_hour(item) == (None if usd is None else pytest.approx(usd))


@pytest.mark.parametrize(
    ("item", "usd"),
    [
        (queued("WAITING_FOR_RESOURCES", provisioningModel="FLEX_START"), 4 * 1.35),
        (queued("WAITING_FOR_RESOURCES", "v4-8"), None),
        (service(0), 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
        (service(2), 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
    ],
)
def test_the_price_while_it_runs_is_that_of_a_slice_or_of_one_instance(item, usd):
    assert running_usd_per_hour(item) == (None if usd is None else pytest.approx(usd))


def test_the_node_of_a_queued_resource_is_paid_with_it():
    node = {"acceleratorType": "v6e-4", "queuedResource": "projects/p/locations/l/queuedResources/q"}
    assert usd_per_hour(found("TPU node", "tpu.v2alpha1", "Node", **node)) is None
    assert usd_per_hour(found("TPU node", "tpu.v2alpha1", "Node", acceleratorType="v6e-4")) == pytest.approx(10.8)
