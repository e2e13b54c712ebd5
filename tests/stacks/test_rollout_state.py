"""One sentence says where a roll-out is: who gets the requests, who moves them, and what to run."""

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from contracts.rollout_record import (
    NO_ROLLOUT,
    ROLLOUT_ANNOTATION,
    RefusedRevision,
    RolloutHolder,
    RolloutRecord,
    UnreadableRecord,
    read_record,
    record_text,
)
from contracts.service_traffic import BY_REVISION, LATEST, known_shares
from stacks.hooks.observed_service import next_step
from stacks.hooks.rollout_state import LEASE_S, RENEWAL_S, holder_is_gone, view_of

NOW = datetime.now(UTC)
HERE = RolloutHolder(id="a", user="ann", host=socket.gethostname(), process=os.getpid(), since=NOW.isoformat())
RUNS = RolloutRecord(holder=HERE, revision="s-2", serving="s-1", share=10, renewed_at=NOW.isoformat())
KILLED = replace(RUNS, holder=replace(HERE, process=2**22 + 7), renewed_at=(NOW - timedelta(minutes=4)).isoformat())
ELSEWHERE = replace(RUNS, holder=replace(HERE, host="elsewhere"))
REFUSED = RefusedRevision(revision="s-2", at=(NOW - timedelta(hours=2)).isoformat(), reason="It was slow.")
CONTINUE, BACK = "`gemma rollout x`", "`gemma rollout x --to s-1`"


def service(shares, record=None, latest="s-2", ready=None):
    statuses = [{"type": BY_REVISION, "revision": name, "percent": percent} for name, percent in shares.items()]
    annotations = {} if record is None else {ROLLOUT_ANNOTATION: record if isinstance(record, str) else record.text()}
    return {
        "annotations": annotations,
        "latestCreatedRevision": f"projects/p/revisions/{latest}",
        "latestReadyRevision": f"projects/p/revisions/{ready or latest}",
        "trafficStatuses": statuses,
    }


SPLIT = {"s-1": 90, "s-2": 10}


@pytest.mark.parametrize(
    ("given", "phase", "parts"),
    [
        pytest.param(service({"s-2": 100}), "none", (), id="all of it"),
        pytest.param(service({"s-1": 100}), "waits", ("Revision s-2 has no traffic yet", CONTINUE), id="no request"),
        pytest.param(
            service(SPLIT), "waits", ("Traffic: 90 % s-1, 10 % s-2. No rollout is", CONTINUE, BACK), id="no record"
        ),
        pytest.param(
            service(SPLIT, RUNS), "under way", ("90 % s-1, 10 % s-2", f"ann@{HERE.host} (process {HERE.process}, "),
            id="under way",
        ),
        pytest.param(
            service(SPLIT, KILLED), "interrupted",
            ("90 % s-1, 10 % s-2", "The rollout of s-2 was interrupted 4 min ago: ann@", "its process is gone", CONTINUE, BACK),
            id="killed",
        ),
        pytest.param(
            service(SPLIT, replace(RUNS, outcome="interrupted", reason="Google said no.")), "interrupted",
            ("was interrupted 0 s ago: Google said no.", CONTINUE, BACK), id="ended without an outcome",
        ),
        pytest.param(
            service(SPLIT, KILLED, "s-3"), "interrupted",
            ("Revision s-3 was created since and has no traffic", "To roll it out, run", BACK), id="a third revision",
        ),
        pytest.param(
            service(SPLIT, RUNS, "s-3"), "under way", ("Revision s-3 was created since and has no traffic.",),
            id="a third revision beside a run",
        ),
        pytest.param(
            service(SPLIT, None, "s-3"), "waits", ("90 % s-1, 10 % s-2", "Revision s-3 was created since"),
            id="a third revision without a record",
        ),
        pytest.param(
            service({"s-1": 100}, replace(RUNS, outcome="rolled back", refused=REFUSED)), "refused",
            ("Revision s-2 was refused 2 h ago: It was slow.", "`gemma rollout x --again`"),
            id="refused",
        ),
        pytest.param(
            service({"s-1": 100}, replace(RUNS, outcome="rolled back", refused=REFUSED), "s-3"), "waits",
            ("Revision s-3 has no traffic yet",), id="a new one after a refused one",
        ),
        pytest.param(service(SPLIT, "{"), "unknown", ("cannot be read: it is not JSON", "--again"), id="no JSON"),
        pytest.param(service(SPLIT, '{"schema":2}'), "unknown", ("its schema is 2, but this release reads",), id="newer"),
        pytest.param(service({}), "unknown", ("The traffic split is unknown",), id="no shares"),
        pytest.param(service({"s-1": 90}), "unknown", ("The traffic split is unknown",), id="not all shares"),
        pytest.param({}, "none", (), id="nothing ever served"),
    ],
)  # fmt: skip
def test_a_service_says_where_its_roll_out_is(given, phase, parts):
    view = view_of(given, "x", NOW)
    assert view.phase == phase
    assert [part for part in parts if part not in view.sentence] == []
    assert bool(view.sentence) is (phase != "none")
    assert next_step(given, "x", NOW) == view.sentence


def test_a_holder_on_another_machine_is_gone_when_it_has_missed_its_renewals():
    assert RENEWAL_S * 4 < LEASE_S
    assert holder_is_gone(ELSEWHERE, NOW + timedelta(seconds=LEASE_S - 1)) == ""
    assert "not renewed its record for 10 min" in holder_is_gone(ELSEWHERE, NOW + timedelta(seconds=LEASE_S + 1))
    assert holder_is_gone(RUNS, NOW) == ""
    assert holder_is_gone(KILLED, NOW) == "its process is gone"
    assert holder_is_gone(replace(ELSEWHERE, renewed_at="now"), NOW) == "its record has no time"


def test_a_record_is_written_and_read_without_a_loss():
    whole = replace(RUNS, outcome="rolled back", reason='Said "no".', refused=REFUSED)
    for record in (NO_ROLLOUT, RUNS, whole):
        assert read_record(service({}, record)) == record
    by_hand = RolloutRecord(outcome="rolled back manually")
    assert by_hand.text() == '{"outcome":"rolled back manually","schema":1}'
    assert read_record(service({}, by_hand)) == by_hand
    assert NO_ROLLOUT.text() == '{"schema":1}'
    assert read_record({}) == NO_ROLLOUT
    newer = whole.text().replace('"schema":1', '"schema":1,"added":true')
    assert read_record(service({}, newer)) == whole
    assert isinstance(read_record(service({}, '{"schema":1,"share":"much"}')), UnreadableRecord)


def test_the_program_declares_the_record_as_it_is_also_if_it_cannot_be_read():
    assert record_text(None) == record_text({}) == NO_ROLLOUT.text()
    for text in (KILLED.text(), "{", '{"schema": 2}'):
        assert record_text(service(SPLIT, text)) == text


def test_shares_are_known_whole_or_not_at_all():
    assert known_shares(service(SPLIT)) == SPLIT
    assert known_shares(service({"s-1": 90})) is None
    assert known_shares(service({})) is None
    followed = {**service({}), "trafficStatuses": [{"type": LATEST, "percent": 100}]}
    assert known_shares(followed) == {"s-2": 100}
    assert known_shares({"trafficStatuses": [{"type": LATEST, "percent": 100}]}) == {}
