"""What found resources cost per hour at known prices: now, and while they run. An unknown price is not zero."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcp_tpu_provider.compute_request import INSTANCE_STATES
from gemma_serving.cloud.kinds import by_name
from gemma_serving.cloud.prices import (
    _micros,
    prices_of,
    running_usd_per_hour,
    seen_instance,
    seen_node,
    seen_queued,
    seen_service,
    usd_per_hour,
)
from gemma_serving.cloud.search import resource_of
from localcloud.tests.google_bodies import google_body
from tests.cloud.populated import owner

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def found(kind, document, schema, **body):
    field = "creationTimestamp" if kind == "TPU instance" else "createTime"
    created = {field: (NOW - timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")}
    item = google_body(document, schema, {"name": "projects/p/locations/l/things/t", **created, **body})
    return resource_of(by_name(kind), item, project="p", owner=owner("x"))


def queued(state, *accelerators, scheduling=None, **more):
    nodes = [{"acceleratorType": kind, "schedulingConfig": scheduling or {}} for kind in accelerators or ["v6e-4"]]
    state, tpu = {"state": state}, {"nodeSpec": [{"node": node} for node in nodes]}
    return found("TPU queued resource", "tpu.v2alpha1", "QueuedResource", state=state, tpu=tpu, **more)


def instance(status, model="STANDARD", machine="ct6e-standard-4t"):
    machine = f"https://www.googleapis.com/compute/v1/projects/p/zones/us-east5-b/machineTypes/{machine}"
    more = {"machineType": machine, "scheduling": {"provisioningModel": model}}
    return found("TPU instance", "compute.v1", "Instance", name="t", status=status, **more)


def node(accelerator="v6e-4", **more):
    return found("TPU node", "tpu.v2alpha1", "Node", acceleratorType=accelerator, **more)


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
        *(
            (instance(status), 4 * 2.70)
            for status in ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "PENDING_STOP", "STOPPING")
        ),
        (instance("TERMINATED"), 0.0),
        (instance("RUNNING", "SPOT"), 4 * 1.78),
        (instance("RUNNING", machine="n2-standard-4"), None),
        (queued("ACTIVE", "v6e-x"), None),
        (queued("ACTIVE", "v6e-12"), 12 * 2.70),
        (queued("ACTIVE", "v6e-4", "v6e-4"), 2 * 4 * 2.70),
        (queued("ACTIVE", "v6e-4", "v5p-8"), None),
        (node(), 4 * 2.70),
        *((node(schedulingConfig={key: True}), 4 * 1.78) for key in ("spot", "preemptible")),
        (queued("ACTIVE", scheduling={"spot": True}, provisioningModel="FLEX_START"), 4 * 1.35),
        (queued("ACTIVE", scheduling={"spot": True}), 4 * 1.78),
        (queued("ACTIVE", "v4-8"), None),
        (service(1), 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
        (service(2, memory="32768Mi", cpu="8000m"), 2 * 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
        (service(0), 0.0),
        (service(1, redundant=True), 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0002909)),
        (service(1, gpu="nvidia-b999"), None),
        (service(1, gpu=""), 3600 * (8 * 0.000018 + 32 * 0.000002)),
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


OF_REQUEST = node(queuedResource="projects/p/locations/l/queuedResources/q")


def test_the_node_of_a_queued_resource_is_paid_with_it():
    assert usd_per_hour(OF_REQUEST) is None


@pytest.mark.parametrize(
    ("item", "parts"),
    [
        (queued("WAITING_FOR_RESOURCES"), ["v6e"]),
        (queued("ACTIVE", "v6e-4", "v5litepod-8"), ["v6e", "v5e"]),
        (queued("ACTIVE", "v6e-4", "v5p-8"), []),
        (service(0), ["cloud", "cloud", "cloud"]),
        (service(0, gpu="nvidia-b999"), []),
        (OF_REQUEST, []),
    ],
)
def test_the_prices_of_a_resource_are_those_of_all_its_parts_or_none(item, parts):
    assert [price.key.partition("_")[0] for price in prices_of(item)] == parts


# What Google shows of a machine, for the record of runs.


def at(hours):
    return (NOW - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S.9Z")


def seconds(hours):
    """A time in whole seconds, rounded down."""
    return int(NOW.timestamp()) - hours * 3600


CREATED = {"createTime": at(9)}
NODE = {"name": "projects/p/locations/europe-west4-a/nodes/n", "acceleratorType": "v6e-4", "createTime": at(7)}
HOURS = st.none() | st.integers(1, 8)


@given(
    st.sampled_from(["ACTIVE", "SUSPENDING", "SUSPENDED", "PROVISIONING", "FAILED", "DELETING"]),
    st.sampled_from([None, "READY", "STOPPED", "PREEMPTED", "TERMINATED"]),
    st.sampled_from(["v6e-4", "v6e-4", "v5p-8"]),
    st.sampled_from([None, 3600]),
)
def test_a_queued_resource_had_a_machine_if_it_has_a_node_or_was_granted(state, node, accelerator, longest_s):
    name = "projects/p/locations/us-east5-a/queuedResources/q"
    run = {"runDuration": {"maxRunDuration": f"{longest_s}s"}} if longest_s else {}
    document = queued(state, accelerator, **CREATED, **run, name=name).document
    seen = seen_queued(document, None if node is None else {**NODE, "state": node})
    if node is None and state not in {"ACTIVE", "SUSPENDING", "SUSPENDED"}:
        assert seen is None
        return
    assert (seen.name, seen.requested_s, seen.longest_s, seen.is_service) == (name, seconds(9), longest_s, False)
    assert seen.started_s == (seconds(7) if node == "READY" else None)
    assert seen.micros_per_hour == (10_800_000 if accelerator == "v6e-4" else 0)


@pytest.mark.parametrize("state", ["READY", "CREATING", "STOPPED", "TERMINATED"])
def test_a_node_of_no_request_is_seen_while_it_is_up(state):
    seen = seen_node({**NODE, "state": state})
    if state in {"STOPPED", "TERMINATED"}:
        assert seen is None
        return
    assert (seen.name, seen.requested_s, seen.started_s) == (NODE["name"], seconds(7), seconds(7))
    assert (seen.micros_per_hour, seen.longest_s, seen.stopped_s) == (11_880_000, None, None)


@given(HOURS, HOURS, st.sampled_from(["RUNNING", "TERMINATED", "STOPPING"]), st.sampled_from([None, 7200]))
def test_an_instance_that_was_restarted_counts_from_its_request(started_h, stopped_h, status, longest_s):
    """Google keeps only the last start and the last stop."""
    shown = {"lastStartTimestamp": started_h, "lastStopTimestamp": stopped_h}
    times = {key: at(hours) for key, hours in shown.items() if hours is not None}
    scheduling = {"provisioningModel": "SPOT", **({"maxRunDuration": {"seconds": str(longest_s)}} if longest_s else {})}
    document = {**instance(status).document, "creationTimestamp": at(9), **times, "scheduling": scheduling}
    seen = seen_instance(document, "us-east5-a")
    if started_h is None:
        assert seen is None
        return
    is_stopped = INSTANCE_STATES.get(status) == "SUSPENDED"
    assert (seen.requested_s, seen.longest_s, seen.micros_per_hour) == (seconds(9), longest_s, 5_613_200)
    if is_stopped:
        assert seen.started_s == (None if stopped_h is None else seconds(started_h))
        assert seen.stopped_s == (None if stopped_h is None else seconds(stopped_h))
    else:
        assert (seen.started_s, seen.stopped_s) == (seconds(9 if stopped_h else started_h), None)


def test_a_service_is_seen_with_the_price_of_one_instance():
    seen = seen_service(service(3).document, "us-east4")
    assert (seen.requested_s, seen.started_s, seen.is_service) == (seconds(3), seconds(3), True)
    assert seen.micros_per_hour == round(3600e6 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867))


@pytest.mark.parametrize(
    ("usd", "micros"), [(None, 0), (0.0000001, 1), (1.00000000006, 1_000_000), (1.000000001, 1_000_001)]
)
def test_a_recorded_price_is_rounded_up_except_for_an_error_of_the_sum(usd, micros):
    assert _micros(usd) == micros
