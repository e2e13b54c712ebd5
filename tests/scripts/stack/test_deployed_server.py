"""What Google says of what serves, by the local cloud's HTTP server."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gemma_serving.cloud.clock import GoogleClock
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.guest_attributes import NOT_IDLE
from gemma_serving.contracts.labels import StackLimits
from gemma_serving.contracts.resource_types import CAPACITY_COMPONENT, SERVICE_COMPONENT
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY, document_hash
from gemma_serving.contracts.three_answers import Absent
from gemma_serving.scripts.smoke.failure import ServerFailure
from gemma_serving.scripts.stack import facts as stack_facts
from gemma_serving.scripts.stack.deployed_server import cloud_facts, serving
from gemma_serving.scripts.stack.facts import read_facts
from gemma_serving.scripts.stack.serves import serves_now
from gemma_serving.scripts.status.render import _idle, _notes
from gemma_serving.scripts.status.report import ServesNow, StackStatus
from localcloud.services.tpu import preempt
from localcloud.world.scenario import OperationDurations, Scenario, Tpu
from tests.cloud.populated import PROJECT, open_world, owner
from tests.polling import until
from tests.scripts.planted_states import DOCUMENT, NAME, queued, resource, service, stack_resource, state

ROOT = Path(__file__).parents[3]
ZONE = f"projects/{PROJECT}/locations/us-east5-a"
LABELS = dict(owner("x").labels)


@pytest.fixture
def world():
    with open_world() as opened:
        yield opened


def facts(world, found):
    return cloud_facts(world.api, serving(found), stack="x")


def machine(world, text=DOCUMENT, limit_s=None, form="FLEX_START"):
    """A machine with a document, whose agent has published nothing yet; the full name of its node."""
    parent, metadata = ZONE, {DOCUMENT_METADATA_KEY: text, "enable-guest-attributes": "TRUE"}
    is_spot = form == "SPOT"
    node = {
        "acceleratorType": "v6e-4",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "labels": {**LABELS, **StackLimits(idle_after_s=limit_s).labels},
        "metadata": metadata,
    }
    body = {
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": f"{NAME}-node", "node": node}]},
        "provisioningModel": form,
        **({} if is_spot else {"runDuration": {"maxRunDuration": "14400s"}}),
    }
    world.call("POST", "tpu", f"v2alpha1/{parent}/queuedResources?queuedResourceId={NAME}", body)
    request = f"v2alpha1/{parent}/queuedResources/{NAME}"
    until(lambda: world.call("GET", "tpu", request)["state"]["state"] == "ACTIVE", "it is ACTIVE")
    return f"{parent}/nodes/{NAME}-node"


def publish(world, node, **values):
    named = {key.replace("_", "-"): value for key, value in values.items()}
    world.cloud.cloud.runtimes.machines.attributes[node] = {"gemma-serving": named}


@pytest.mark.parametrize(("planned_min", "how"), [(-5, "planned"), (5, "early")])
def test_a_machine_that_is_gone_before_its_planned_end_was_preempted_or_deleted(world, planned_min, how):
    machine(world)
    world.cloud.cloud.timeline.advance(4 * 3600)
    ends = datetime.now(UTC) + timedelta(hours=4, minutes=planned_min)
    found = facts(world, state(stack_resource(), queued(deadline=ends.isoformat())))
    assert (found.state, found.planned_end, found.deadline) == ("SUSPENDED", ends.isoformat(), None)
    assert found.run_end == how


@pytest.mark.parametrize(
    ("ends", "how"), [("preempt", "preempted"), ("delete", None)], ids=["Google preempts it", "a user deletes it"]
)
def test_spot_capacity_without_a_planned_end_was_preempted_only_if_google_stopped_it(world, ends, how):
    node = machine(world, form="SPOT")
    if ends == "preempt":
        world.cloud.loop.call_soon_threadsafe(preempt, world.cloud.cloud, node)
    else:
        world.call("DELETE", "tpu", f"v2alpha1/{node}")

    def ended():
        found = facts(world, state(stack_resource(), queued()))
        return found if found.has_ended and found.state != "ACTIVE" else None

    found = until(ended, "its end")
    assert (found.run_end, found.planned_end) == (how, None)


IDLE = "2026-11-01T10:00:00+00:00"


@pytest.mark.parametrize(
    ("limit_s", "values", "line"),
    [
        (7_200, {"idle_since": IDLE}, "no request for 2 h, since 10:00:00; tpu.idleAfter is 2 h"),
        (None, {"idle_since": IDLE}, "no request for 2 h, since 10:00:00; tpu.idleAfter is not set"),
        (7_200, {"idle_since": NOT_IDLE}, ""),
        (7_200, {}, "unknown: the TPU VM does not report whether requests are running; tpu.idleAfter is 2 h"),
        (None, {}, ""),
    ],
)
def test_a_machine_shows_since_when_it_is_idle_beside_its_limit(world, monkeypatch, limit_s, values, line):
    node, now = machine(world, limit_s=limit_s), datetime(2026, 11, 1, 12, tzinfo=UTC)
    reports = {"phase": "ready", "updated_at": now.isoformat(), **values}
    publish(world, node, **reports)
    monkeypatch.setattr(GoogleClock, "now", lambda _: now)
    found = cloud_facts(world.api, serving(state(stack_resource(), queued())), stack="x")
    shown = _idle(found, lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S}", now.timestamp())
    assert (shown, found.idle_after_s) == (line, limit_s)


@pytest.mark.parametrize(
    ("phase", "document", "failed"),
    [("failed", DOCUMENT, True), ("retrying", DOCUMENT, False), ("loading", DOCUMENT, False), ("failed", "{}", False)],
    ids=["failed", "retrying", "loading", "failed with the document before"],
)
def test_smoke_waits_in_vain_only_for_a_machine_that_gave_up_this_document(world, monkeypatch, phase, document, failed):
    publish(
        world,
        machine(world),
        phase=phase,
        document_hash=document_hash(document),
        detail="line\nValueError: no memory.\n",
    )
    found = state(stack_resource(), queued(zone="us-east5-a", name=f"{ZONE}/queuedResources/{NAME}"))
    monkeypatch.setattr("gemma_serving.scripts.smoke.failure.states.read", lambda _stack: found)
    monkeypatch.setattr(stack_facts, "connect", lambda _project: world.api)
    said = ServerFailure("x")()
    assert (said is not None) is failed
    if failed:
        assert said.startswith("The server failed: ValueError: no memory. `gemma logs x` has its log, ")


def test_smoke_goes_on_waiting_where_google_cannot_be_asked(monkeypatch):
    def refused(_project):
        raise ScriptError("no login")

    monkeypatch.setattr("gemma_serving.scripts.smoke.failure.states.read", lambda _stack: state(queued()))
    monkeypatch.setattr(stack_facts, "connect", refused)
    assert ServerFailure("x")() is None


def test_a_request_that_waits_is_found_by_the_creation_that_the_state_has_begun():
    zones = dict(Tpu().zones)
    for zone in ("us-east5-a", "us-east5-b"):
        zones[zone] = zones[zone].model_copy(update={"capacity": {"v6e-4": 0}})
    with open_world(Scenario(operations=OperationDurations(instant=True), tpu=Tpu(zones=zones))) as world:
        world.queued(NAME, LABELS, "us-east5-b", active=False)
        found = facts(world, state(pending=[queued()]))
        assert (found.place, found.phase, found.usd) == ("us-east5-b", Absent(), 0)
        assert found.state in {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"}
        assert found.state_since


@pytest.mark.parametrize("kept", [queued(), service()])
def test_what_the_state_has_and_google_has_not_is_missing(world, kept):
    assert facts(world, state(kept)).state == "MISSING"


def test_a_service_shows_its_revision_and_what_it_costs(world):
    world.service(NAME, LABELS)

    def serving():
        found = facts(world, state(service(latestCreatedRevision="projects/p/revisions/r-1")))
        return found if found.running else None

    found = until(serving, "the service runs")
    assert (found.state, found.place, found.declared) == ("READY", "us-east4", "r-1")
    assert found.running.startswith(NAME)
    assert found.usd_per_hour == pytest.approx(3600 * (0.0001867 + 8 * 0.000018 + 32 * 0.000002), abs=1e-3)


UNANSWERED = {
    "cloud-run": (resource(SERVICE_COMPONENT, "vllm"), "l4-12b-qat"),
    "tpu": (resource(CAPACITY_COMPONENT, "capacity"), "tpu-v6e4"),
}


@pytest.mark.parametrize("target", UNANSWERED)
def test_a_server_whose_creation_nobody_answered_is_found_by_its_name_with_its_price(
    world, monkeypatch, tmp_path, target
):
    component, shipped = UNANSWERED[target]
    settings = (ROOT / f"Pulumi.{shipped}.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stack_facts, "connect", lambda _project: world.api)
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\n")
    (tmp_path / "Pulumi.x.yaml").write_text(settings)
    network = resource("gcp:compute/network:Network", "network", inputs={"project": PROJECT})
    kept = state(component, network)

    def found():
        return read_facts(kept, "cost", limit_s=60)

    assert (found().server, serves_now(found()).word) == (Absent(), "no server")
    if target == "cloud-run":
        world.service(NAME, dict(owner("other").labels))
        assert found().server == Absent(), "the service of another stack"
        world.call("DELETE", "run", f"v2/projects/{PROJECT}/locations/us-east4/services/{NAME}")
        world.service(NAME, LABELS)
    else:
        machine(world)
    until(lambda: found().is_unrecorded and found().cloud.usd_per_hour, "its server")
    assert (found().cloud.usd_per_hour > 0.7, serves_now(found()).word in {"waiting", "deployed"}) == (True, True)
    assert read_facts(state(network), "cost", limit_s=60).server is None, "no `up` began with a server"
    (tmp_path / "Pulumi.x.yaml").unlink()
    assert "the name of its server is unknown" in found().server.why


class Answers:
    """A Google whose service is planted, and costs nothing that could be read."""

    def __init__(self, **service):
        self.service = {
            "name": f"projects/{PROJECT}/locations/us-east4/services/{NAME}",
            "labels": LABELS,
            "createTime": "2026-11-01T00:00:00Z",
            "terminalCondition": {"state": "CONDITION_SUCCEEDED"},
            "template": {"containers": [], "scaling": {}},
            "latestCreatedRevision": "s/revisions/s-2",
            "latestReadyRevision": "s/revisions/s-2",
            **service,
        }

    def get(self, *_):
        return self.service

    def pages(self, *_):
        return iter(())


def divided(shares):
    statuses = [{"revision": name, "percent": percent} for name, percent in shares.items()]
    return cloud_facts(Answers(trafficStatuses=statuses), serving(state(service())), stack="x")


def test_a_division_of_the_requests_is_shown_with_its_shares():
    found = divided({"s-1": 90, "s-2": 10})
    assert found.traffic == {"s-1": 90, "s-2": 10}
    status = StackStatus(stack="x", deployed=True, serves=ServesNow(word="deployed"), target="cloud-run", cloud=found)
    assert dict(_notes(status, str, now_s=0.0, alone=True))["serves"] == "90 % s-1, 10 % s-2"
    assert status.to_json(0.0)["cloud"]["traffic"] == {"s-1": 90, "s-2": 10}


def test_shares_that_cannot_be_read_are_unknown():
    found = divided({"s-1": 90})
    assert (found.traffic, found.running) == (None, None)
    assert "Google did not return the traffic split of the service." in found.unknown


@pytest.mark.parametrize("api", ["tpu", "run"])
def test_what_an_api_that_is_off_hides_is_not_missing(world, api):
    """In a project that turned the API off, the machine or the service may live."""
    world.call("POST", "serviceusage", f"v1/projects/{PROJECT}/services/{api}.googleapis.com:disable", {})
    found = state(stack_resource(), queued() if api == "tpu" else service())
    with pytest.raises(ScriptError, match=f"Google returned an error: the API {api}.googleapis.com is off"):
        facts(world, found)
