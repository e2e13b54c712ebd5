"""A report of the agent on a TPU VM holds for ten minutes: no command says of an older one what serves, and each says how old it is."""

from datetime import UTC, datetime, timedelta
from typing import get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.tpu_machine import TpuMachine
from gemma_serving.contracts.capacity_states import ACTIVE
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.stack_facts import CloudFacts
from gemma_serving.contracts.three_answers import Assumed, Present, Unknown
from gemma_serving.planning.rules.platforms import quota
from gemma_serving.planning.units import age
from gemma_serving.scripts.stack import deployed_server, serves
from gemma_serving.scripts.stack.facts import facts_of
from gemma_serving.scripts.status import judge, render
from gemma_serving.scripts.status.report import StackStatus
from gemma_serving.scripts.up import deploying
from tests.contract_keys import keys
from tests.laws import examples
from tests.scripts.planted_states import queued, stack_resource, state

NODE, NOW = "projects/p/locations/z/nodes/n", datetime(2026, 11, 22, 20, 0, tzinfo=UTC)
ENDS = ("ready", "failed")
A, B = "a" * 64, "b" * 64
law = settings(max_examples=examples(test=80, part=500, night=5000))


def reported(phase, age_s, serving):
    """The facts of a stack whose machine published this so many seconds ago; None: without a time."""
    published = {"phase": phase, "document-hash": A, "serving-hash": serving, "detail": "no image"}
    published |= {} if age_s is None else {"updated-at": (NOW - timedelta(seconds=age_s)).isoformat()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TpuMachine, "published", lambda _: published)
        patch.setattr(deployed_server.GOOGLE_CLOCK, "local_now", lambda: NOW)
        patch.setattr(deployed_server.GOOGLE_CLOCK, "_ahead", timedelta())
        cloud = deployed_server._with_phase(None, CloudFacts(state=ACTIVE, stored=A, declared=A), NODE)
    kept = state(stack_resource(target="tpu", auth="tunnel", state=ACTIVE), queued(state=ACTIVE))
    return deployed_server.replace(facts_of(kept), server=Present(cloud))


@law
@given(st.sampled_from([*keys()["phases"], ""]), st.none() | st.integers(0, 1300), st.sampled_from(["", A, B]))
def test_each_command_reads_a_report_with_its_age(phase, age_s, serving):
    facts = reported(phase, age_s, serving)
    cloud, is_old = facts.cloud, age_s is not None and age_s > 600
    status = StackStatus(stack="x", deployed=True, target="tpu", serves=serves.serves_now(facts), cloud=cloud)
    shown, row = render._serves(status, cloud), render._row(status, NOW.timestamp())[2]
    failure, old, starts = serves.failure_of(facts), serves.old_report(facts), serves.start_in_progress(facts)
    is_error = bool(old or failure)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploying, "read", lambda _: None)
        patch.setattr(deploying, "with_known_cause", lambda _state, known: known)
        try:
            deploying._require_no_failure(facts)
        except ScriptError as error:
            assert is_error
            assert old in str(error)
        else:
            assert not is_error
    if is_old:
        why = f"The agent on TPU VM n last reported {age(age_s)} ago, so whether it serves is unknown."
        assert (cloud.phase, cloud.phase_now, status.health) == (Unknown(why), None, None)
        assert cloud.phase.read_at == NOW - timedelta(seconds=age_s)
        assert (old, shown, row, failure, starts) == (f"{why} Run `gemma logs x`.", "", "unknown", "", "")
        assert (judge.next_command(status, facts), [*judge.drift_of(facts, "tpu")]) == ("gemma logs x", [])
        return
    assert (cloud.phase_now, old) == (phase or "booting", "")
    assert bool(starts) is (not serving and phase not in ENDS)
    assert (f"TPU VM is {phase or 'booting'}" in shown) is not bool(serving)
    assert bool(failure) is (phase == "failed")
    assert (judge.next_command(status, facts) == "gemma connect x") is (phase == "ready")


@pytest.mark.parametrize(
    ("function", "given"),
    [(quota.certain, "too_low"), (judge.document_that_serves, "phase"), (serves._no_server, "_state")],
)
def test_a_sentence_that_states_a_fact_takes_one_that_was_read(function, given):
    hint = str(get_type_hints(function)[given])
    assert "Present" in hint
    assert not {Unknown.__name__, Assumed.__name__} & {*hint.replace(".", "[").split("[")}
