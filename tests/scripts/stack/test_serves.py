"""What a stack serves now: three answers, and the same for every command."""

from dataclasses import replace

import pytest

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.resource_types import CAPACITY_COMPONENT, SERVICE_COMPONENT
from gemma_serving.contracts.stack_facts import CloudFacts, LostPart
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack import facts as stack_facts
from gemma_serving.scripts.stack import serves
from gemma_serving.scripts.stack.facts import facts_of, read_facts
from gemma_serving.scripts.stack.serves import differs, moved_traffic, serves_now
from tests.scripts.planted_states import queued, resource, service, stack_resource, state

TPU = {"target": "tpu", "auth": "tunnel", "state": "ACTIVE"}
COMPONENT = resource(CAPACITY_COMPONENT, "capacity")
DEPLOYED = state(stack_resource(**TPU), queued(state="ACTIVE"))
PAST = "2026-01-01T10:00:00Z"
NETWORK = resource("gcp:compute/network:Network", "network")


def test_a_stack_that_an_up_deploys_is_refused_with_that_up(monkeypatch):
    monkeypatch.setattr(serves, "stack_locks", lambda _stack: ())
    monkeypatch.setattr(serves, "running_up", lambda stack: f"`gemma up {stack}` runs.")
    with pytest.raises(CommandRefusedError, match=r"^`gemma up x` runs[.]$"):
        serves.require_deployed(facts_of(state(NETWORK)))


@pytest.mark.parametrize(
    ("cloud", "word", "why"),
    [
        (CloudFacts(state="ACTIVE", phase=Present("ready")), "deployed", ""),
        (CloudFacts(state="ACTIVE", phase=Present("failed")), "deployed", ""),
        (CloudFacts(state="WAITING_FOR_RESOURCES"), "waiting", ""),
        (
            CloudFacts(state="SUSPENDED", has_ended=True, run_end="planned", planned_end=PAST),
            "ended",
            "Nothing serves since the planned end of the run at 2026-01-01 10:00 UTC.",
        ),
        (
            CloudFacts(state="SUSPENDED", has_ended=True, run_end="early", planned_end=PAST),
            "ended",
            "Nothing serves. The TPU VM was preempted or deleted before the planned end of its run at 2026-01-01 10:00 UTC.",
        ),
        (
            CloudFacts(state="SUSPENDED", has_ended=True, run_end="preempted"),
            "ended",
            "Nothing serves. Google preempted the TPU VM (spot).",
        ),
        (
            CloudFacts(state="ACTIVE", phase=Present("node PREEMPTED"), has_ended=True),
            "ended",
            "Nothing serves. Google reports the server as node PREEMPTED.",
        ),
        (
            CloudFacts(state="MISSING", has_ended=True),
            "ended",
            "Nothing serves. The server no longer exists.",
        ),
    ],
)
def test_google_says_what_serves(cloud, word, why):
    found = serves_now(replace(facts_of(DEPLOYED), server=Present(cloud)))
    assert (found.word, found.why) == (word, why)


@pytest.mark.parametrize(
    ("is_torn", "is_begun", "more"),
    [
        (True, True, " A teardown of this folder has not ended."),
        (True, False, " A teardown of this folder has not ended."),
        (False, True, " The last `gemma up` of this folder has not ended."),
        (False, False, ""),
    ],
)
def test_of_a_server_that_no_longer_exists_only_this_folders_records_say_more(monkeypatch, is_torn, is_begun, more):
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.is_unfinished", lambda _: is_torn)
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.is_interrupted", lambda _: is_begun)
    gone = Present(CloudFacts(state="MISSING", has_ended=True))
    found = serves_now(replace(facts_of(DEPLOYED), server=gone))
    assert found.why == f"Nothing serves. The server no longer exists.{more}"


SERVES = CloudFacts(ready="x-1", state="READY", declared="x-1", stored="x-1", running="x-1", traffic={"x-1": 100})
RUN = service(0, uri="https://s")


@pytest.mark.parametrize(
    ("server", "cloud", "lost", "said"),
    [
        (RUN, SERVES, Present([LostPart("It is gone.")]), ["It is gone."]),
        (RUN, SERVES, Unknown("no answer"), []),
        (RUN, replace(SERVES, stored="x-2"), None, ["The revision was changed outside Pulumi: x-2 instead of x-1."]),
        (RUN | {"initErrors": ["It failed."]}, replace(SERVES, stored="x-2"), None, []),
        (
            RUN,
            replace(SERVES, scaling={"minInstanceCount": 1}),
            None,
            ["The scaling of the service was changed outside Pulumi: minInstanceCount 1."],
        ),
        (
            RUN,
            CloudFacts(state="MISSING", has_ended=True),
            None,
            ["Nothing serves. The server no longer exists."],
        ),
    ],
)
def test_what_google_has_otherwise_is_said_unless_it_is_unknown_or_of_a_failed_up(server, cloud, lost, said):
    facts = replace(facts_of(state(stack_resource(), server)), server=Present(cloud), lost=lost)
    assert differs(facts) == said


@pytest.mark.parametrize(
    ("cloud", "shares"),
    [
        (SERVES, ""),
        (replace(SERVES, traffic=None), ""),
        (replace(SERVES, state="FAILED", stored="x-2"), ""),
        (replace(SERVES, traffic={"x-1": 90, "x-0": 10}), "90 % x-1, 10 % x-0"),
        (replace(SERVES, traffic={"x-0": 100}), "100 % x-0"),
        (replace(SERVES, state="FAILED", traffic={"x-0": 100}), "100 % x-0"),
        (replace(SERVES, state="DEPLOYING", traffic={"x-0": 100}), ""),
    ],
)
def test_traffic_of_another_revision_than_the_latest_was_moved_by_a_person(cloud, shares):
    said = moved_traffic(replace(facts_of(state(stack_resource(), RUN)), server=Present(cloud)))
    assert said.partition(".")[0] == (f"Traffic was moved outside Pulumi: {shares}" if shares else "")


def test_a_request_that_google_no_longer_has_and_never_granted_was_no_server():
    """An `up` that continued an interrupted wait, and to which no zone granted capacity, keeps the entry of its request."""
    kept = state(NETWORK, COMPONENT, queued(state="WAITING_FOR_RESOURCES"))
    found = serves_now(replace(facts_of(kept), server=Present(CloudFacts(state="MISSING", has_ended=True))))
    assert found.why == "Nothing serves. The last request for capacity failed, or the last `up` stopped before it."


@pytest.mark.parametrize(
    ("kept", "word", "why"),
    [
        (DEPLOYED, "deployed", ""),
        (state(stack_resource(**TPU, deadline=PAST), queued(state="ACTIVE")), "ended", "2026-01-01 10:00 UTC"),
        (state(stack_resource(**TPU | {"state": "ACCEPTED"}), queued(state="ACCEPTED")), "waiting", "ACCEPTED"),
        (state(queued(state="ACTIVE")), "unknown", "not complete"),
        (state(NETWORK), "no server", "No server exists, only 1 resource."),
        (
            state(NETWORK, COMPONENT),
            "no server",
            "The last request for capacity failed, or the last `up` stopped before it. `gemma capacity x` shows",
        ),
        (state(NETWORK, pending=[queued()]), "no server", "may have created resources"),
        (state(), "not deployed", ""),
        (StackState(stack="x", status="missing", detail="It is not deployed."), "not deployed", "not deployed"),
        (StackState(stack="x", status="unreadable", detail="The bucket did not answer."), "unknown", "did not answer"),
    ],
)
def test_without_google_it_is_as_of_the_last_up(kept, word, why):
    found = serves_now(facts_of(kept))
    assert found.word == word
    assert why in found.why


def test_a_server_that_was_never_created_has_not_ended():
    facts = facts_of(state(NETWORK, pending=[queued()]))
    assert serves_now(replace(facts, server=Present(CloudFacts(state="MISSING", has_ended=True)))).word == "no server"


@pytest.mark.parametrize(
    ("server", "word"),
    [
        (None, "no server"),
        (Absent(), "no server"),
        (Unknown("503"), "unknown"),
        (Present(CloudFacts(state="READY")), "deployed"),
    ],
)
def test_a_state_without_a_server_is_no_proof_that_none_exists(server, word):
    facts = replace(facts_of(state(NETWORK, resource(SERVICE_COMPONENT, "vllm"))), server=server)
    assert serves_now(facts).word == word
    assert facts.is_unrecorded is (word == "deployed")


@pytest.mark.parametrize(
    ("kept", "began"),
    [
        (state(stack_resource(**TPU), NETWORK), True),
        (state(stack_resource(**TPU), NETWORK, COMPONENT), False),
        (state(resource("pulumi:pulumi:Stack", "x", outputs={"target": "tpu"}), NETWORK), False),
        (DEPLOYED, False),
    ],
    ids=["a deletion", "state delete", "a first up that failed", "deployed"],
)
def test_only_a_deletion_takes_the_server_of_a_complete_up_and_its_component_from_the_state(kept, began):
    facts = facts_of(kept)
    assert facts.teardown_began is began
    assert ("A teardown did not finish: the state still has 1 resource." in serves_now(facts).why) is began


def test_an_answer_that_does_not_come_is_unknown(monkeypatch):
    monkeypatch.setattr(stack_facts, "connect", lambda _: None)

    def silent(*_arguments, **_options):
        raise ScriptError("Google returned an error: 503.")

    monkeypatch.setattr(stack_facts, "cloud_facts", silent)
    found = serves_now(read_facts(DEPLOYED, "server", limit_s=5))
    assert (found.word, found.why) == (
        "unknown",
        "Cannot check whether the server exists: Google returned an error: 503.",
    )
    monkeypatch.setattr(stack_facts, "cloud_facts", lambda *_, **__: CloudFacts(state="SUSPENDED", has_ended=True))
    assert serves_now(read_facts(DEPLOYED, "server", limit_s=5)).word == "ended"
