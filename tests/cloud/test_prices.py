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


CHIPS = {"v6e-4": (4, "v6e"), "v6e-12": (12, "v6e"), "v5litepod-8": (8, "v5e")}
"""Number and generation of the chips of slices with known prices."""
USD = {
    "v6e": {"flex-start": 1.35, "spot": 1.78, "standard": 2.70},
    "v5e": {"flex-start": 0.60, "spot": 0.58, "standard": 1.20},
}
"""US dollars per chip and hour."""
FORMS = [
    ("standard", {}),
    ("spot", {"spot": {}}),
    ("spot", {"provisioningModel": "SPOT"}),
    ("spot", {"scheduling": {"spot": True}}),
    ("flex-start", {"provisioningModel": "FLEX_START", "scheduling": {"spot": True}}),
]
BILLED = {"ACTIVE", "PROVISIONING", "SUSPENDING", "DELETING"}
STATUSES = {"PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "PENDING_STOP", "STOPPING"}


def about(usd):
    return None if usd is None else pytest.approx(usd)


@given(
    st.sampled_from([*BILLED, "WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED"]),
    st.lists(st.sampled_from([*CHIPS, *CHIPS, "v5p-8", "v6e-x", "v4-8"]), min_size=1, max_size=2),
    st.sampled_from(FORMS),
)
def test_capacity_costs_its_chips_at_the_price_of_its_form_while_google_bills_it(state, kinds, of):
    form, options = of
    item, is_known = queued(state, *kinds, **options), {*kinds} <= {*CHIPS}
    usd = sum(CHIPS[kind][0] * USD[CHIPS[kind][1]][form] for kind in kinds) if is_known else None
    assert running_usd_per_hour(item) == about(usd)
    assert usd_per_hour(item) == (about(usd) if state in BILLED else 0.0)
    parts = [price.key.partition("_")[0] for price in prices_of(item)]
    assert parts == ([CHIPS[kind][1] for kind in kinds] if is_known else [])


@given(st.sampled_from([*STATUSES, "TERMINATED"]), st.sampled_from(["STANDARD", "SPOT"]), st.booleans())
def test_a_machine_costs_its_chips_and_the_node_of_a_request_is_paid_with_it(status, model, has_chips):
    usd = 4 * USD["v6e"][model.lower()]
    item = instance(status, model, "ct6e-standard-4t" if has_chips else "n2-standard-4")
    assert usd_per_hour(item) == (0.0 if status not in STATUSES else about(usd) if has_chips else None)
    for key in ("spot", "preemptible"):
        assert usd_per_hour(node(schedulingConfig={key: model == "SPOT"})) == about(usd)
    of_request = node(queuedResource="projects/p/locations/l/queuedResources/q")
    assert (usd_per_hour(of_request), prices_of(of_request)) == (None, ())


@given(
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([("nvidia-l4", 0.0001867), ("nvidia-l4 redundant", 0.0002909), ("", 0.0), ("nvidia-b999", None)]),
    st.booleans(),
    st.sampled_from([{}, {"memory": "32768Mi", "cpu": "8000m"}]),
)
def test_a_service_costs_its_least_instances_with_all_containers(of_template, own, of, has_sidecar, limits):
    (gpu, _, redundant), usd_per_s = of[0].partition(" "), of[1]
    sidecars = [{"cpu": "1", "memory": "1Gi"}] if has_sidecar else []
    options = {"gpu": gpu, "redundant": bool(redundant), "sidecars": sidecars, **limits}
    item, least = service(of_template, scaling={"minInstanceCount": own}, **options), max(of_template, own)
    usd = None if usd_per_s is None else 3600 * (8 * 0.000018 + 32 * 0.000002 + has_sidecar * 0.00002 + usd_per_s)
    assert running_usd_per_hour(item) == about(usd)
    assert usd_per_hour(item) == (0.0 if not least else about(usd and usd * least))
    assert len(prices_of(item)) == (0 if usd is None else 2 + bool(gpu))


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
