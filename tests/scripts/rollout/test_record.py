"""The record of a roll-out: one holder at a time, a way back that is tried for minutes, a refusal that is remembered."""

import json
import os
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from cloud.google_api import GoogleListError, UnansweredError
from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.rollout_record import ROLLOUT_ANNOTATION, RolloutHolder, RolloutRecord, UnreadableRecord
from contracts.service_traffic import BY_REVISION
from scripts.cli.access import AccessError
from scripts.cli.command import run_command
from scripts.rollout import __main__ as main
from scripts.rollout import hold as holds
from scripts.rollout.patience import LIMIT_S, Patience
from scripts.rollout.run import Rollout
from stacks.hooks.observed_service import next_step
from tests.cloud.populated import WRONG_CLOCKS, off_by
from tests.scripts.rollout.test_rollout import FAST, READY, Checks, Google
from tests.scripts.rollout.test_rollout import NAME as SERVICE
from tests.scripts.rollout.test_rollout import rollout as plain_rollout

NOW = datetime.now(UTC)
BACK = [{"type": BY_REVISION, "revision": "s-1", "percent": 100}]


class Time:
    """A clock that only sleeping moves; `at` are actions at seconds of it."""

    def __init__(self, at=()):
        self.s, self.at = 0.0, dict(at)

    def sleep(self, seconds):
        self.s += seconds
        for moment in [moment for moment in self.at if moment <= self.s]:
            self.at.pop(moment)()

    def now(self):
        return NOW + timedelta(seconds=self.s)


def rollout(google, checks=None, time_=None):
    time_ = time_ or Time()
    made, refreshed = plain_rollout(google, checks)
    patience = Patience(clock=lambda: time_.s, sleep=time_.sleep)
    return replace(made, now=time_.now, patience=patience), refreshed


def shut(google, *verbs):
    return lambda: setattr(google, "down", verbs)


class During(Checks):
    """Checks that do something while the new revision is measured for the nth time."""

    def __init__(self, at, action, **planted):
        super().__init__(**planted)
        self.at, self.action = at, action

    def measure(self, url, requests):
        if url.startswith("https://next") and self.measured + 1 == self.at:
            self.action()
        return super().measure(url, requests)


def held_by(google, **holder):
    """Plant the record of a run at 10 %; by default its process is this one."""
    known = {"id": "other", "user": "ann", "host": socket.gethostname(), "process": os.getpid()}
    whole = RolloutHolder(**{**known, "since": datetime.now(UTC).isoformat(), **holder})
    record = RolloutRecord(holder=whole, revision="s-2", serving="s-1", share=10, renewed_at=NOW.isoformat())
    google.traffic = [
        {"type": BY_REVISION, "revision": "s-1", "percent": 90, "tag": "last"},
        {"type": BY_REVISION, "revision": "s-2", "percent": 10, "tag": "next"},
    ]
    google.annotations = {ROLLOUT_ANNOTATION: record.text()}
    return record


def test_the_record_follows_the_traffic_and_keeps_the_other_annotations():
    google, seen = Google("s-1", "s-2"), []
    google.annotations = {"theirs": "x"}
    patch = google.patch

    def watched(*arguments):
        answer = patch(*arguments)
        seen.append((google.record.share, google.record.outcome, dict(google.shares)))
        return answer

    google.patch = watched
    assert rollout(google)[0].to_latest().outcome == "rolled out"
    assert [share for share, *_ in seen] == [0, 10, 50, 100, 100]
    assert [outcome for _, outcome, _ in seen] == [None, None, None, None, "rolled out"]
    record = google.record
    assert (record.revision, record.serving, record.holder.process, record.refused) == ("s-2", "s-1", os.getpid(), None)
    assert google.annotations["theirs"] == "x"
    assert json.loads(google.annotations[ROLLOUT_ANNOTATION])["schema"] == 1


def test_the_way_back_is_tried_until_google_answers_again():
    google = Google("s-1", "s-2")
    time_ = Time(at={420: shut(google)})
    checks = During(2, shut(google, "PATCH"), slow_from=2)
    made, refreshed = rollout(google, checks, time_)
    report = made.to_latest()
    assert (report.outcome, report.traffic, google.traffic) == ("rolled back", {"s-1": 100}, BACK)
    assert 420 <= time_.s < LIMIT_S
    assert refreshed == [{"s-1": 100}]


def test_a_change_that_google_made_without_an_answer_is_the_way_back_too():
    google, lost = Google("s-1", "s-2"), []
    patch = google.patch

    def answers_once(*arguments):
        answer = patch(*arguments)
        if google.shares == {"s-1": 100} and not lost and len(google.seen) > 2:
            lost.append(answer)
            raise UnansweredError("no answer")
        return answer

    google.patch = answers_once
    report = rollout(google, Checks(slow_from=2))[0].to_latest()
    assert (report.outcome, google.traffic, len(lost)) == ("rolled back", BACK, 1)
    assert sum(step == [("s-1", 100)] for step in google.seen) == 1


def test_a_revision_that_keeps_requests_is_named_with_the_command_also_in_json(monkeypatch, capsys):
    for down, still, traffic in (
        (("PATCH",), "10 % of the traffic still goes to s-2, which failed its check at 10 %", {"s-1": 90, "s-2": 10}),
        (("PATCH", "GET"), "It is unknown how much traffic goes to s-2, which failed its check at 10 %", None),
    ):
        google, time_ = Google("s-1", "s-2"), Time()
        made, refreshed = rollout(google, During(2, shut(google, *down), slow_from=2), time_)
        monkeypatch.setattr(main, "_of_stack", lambda _, made=made: made)
        assert run_command(main.COMMAND, ["--stack", "x", "--json"]) == ExitCode.FAILED
        report = json.loads(capsys.readouterr().out)
        assert (report["outcome"], report["traffic"], report["schema_version"]) == ("not rolled back", traffic, 2)
        assert still in report["reason"]
        assert "5.0 times slower" in report["reason"]
        assert "`gemma rollout x --to s-1`" in report["reason"]
        assert time_.s >= LIMIT_S
        assert (google.shares, refreshed) == ({"s-1": 90, "s-2": 10}, [])
        google.down = ()
        assert rollout(google)[0].to_revision("s-1").traffic == {"s-1": 100}


def test_a_way_back_that_is_ended_by_hand_leaves_the_reason_and_the_refusal():
    google, time_ = Google("s-1", "s-2"), Time()

    def stop():
        google.down = ()
        raise KeyboardInterrupt

    time_.at[60] = stop
    with pytest.raises(KeyboardInterrupt):
        rollout(google, During(2, shut(google, "PATCH"), slow_from=2), time_)[0].to_latest()
    record = google.record
    assert (record.outcome, record.refused.revision, google.shares) == ("interrupted", "s-2", {"s-1": 90, "s-2": 10})
    assert "5.0 times slower" in record.reason
    sentence = next_step(google.get("run", f"v2/{SERVICE}"), "x", time_.now())
    assert "To continue anyway, run `gemma rollout x --again`" in sentence
    report = rollout(google)[0].to_latest()
    assert report.outcome == "refused"
    assert "10 % of the traffic goes to s-2; `gemma rollout x --to s-1` rolls back." in report.reason


def test_a_refusal_of_google_is_not_tried_for_minutes():
    google, time_ = Google("s-1", "s-2"), Time()
    patch = google.patch

    def forbids(*arguments):
        if len(google.seen) == 2:
            raise GoogleListError(403, "Forbidden", "")
        return patch(*arguments)

    google.patch = forbids
    report = rollout(google, Checks(slow_from=2), time_)[0].to_latest()
    assert (report.outcome, report.traffic, time_.s) == ("not rolled back", {"s-1": 90, "s-2": 10}, 0)
    assert "10 % of the traffic still goes to s-2, which failed its check at 10 %" in report.reason
    assert "Cannot change service s: Forbidden" in report.reason


def test_a_second_roll_out_changes_nothing_and_names_the_holder():
    google = Google("s-1", "s-2")
    held_by(google)
    made, refreshed = rollout(google)
    report = made.to_latest(again=True)
    assert (report.outcome, report.exit_code) == ("held", ExitCode.REFUSED)
    assert f"ann@{socket.gethostname()} (process {os.getpid()}, since 20" in report.reason
    assert "is rolling out s-2, so this run changed nothing" in report.reason
    assert (google.seen, google.notes, refreshed) == ([], 0, [])


def test_a_dead_hold_is_taken_over_and_the_report_says_whose():
    gone = {"process": 2**22 + 7}
    elsewhere = {"host": "elsewhere"}
    found = []
    for holder, after_s, outcome, said in (
        (gone, 0, "rolled out", ": its process is gone."),
        (elsewhere, 599, "held", "ann@elsewhere (process "),
        (elsewhere, 601, "rolled out", ": it has not renewed its record for 10 min."),
        ({"since": "2020-01-01T00:00:00+00:00"}, 0, "rolled out", ": its process is gone."),
    ):
        google, time_ = Google("s-1", "s-2"), Time()
        held_by(google, **holder)
        time_.s = after_s
        report = rollout(google, time_=time_)[0].to_latest()
        if report.outcome != outcome or said not in report.reason:
            found.append((holder, after_s, report.outcome, report.reason))
        if outcome == "rolled out":
            assert report.reason.startswith("Took over the rollout of ann@")
            assert [gate.share for gate in report.gates] == [10, 50, 100]
    assert found == []


@pytest.mark.parametrize("skew", WRONG_CLOCKS, ids=str)
@pytest.mark.parametrize(("silent_s", "outcome"), [(60, "held"), (660, "rolled out")])
def test_a_wrong_clock_of_this_machine_neither_takes_over_a_live_hold_nor_waits_for_a_dead_one(
    monkeypatch, skew, silent_s, outcome
):
    """The other run renewed the record by Google's date, which each of Google's responses has."""
    google = Google("s-1", "s-2")
    google.date = format_datetime(NOW + timedelta(seconds=silent_s), usegmt=True)
    held_by(google, host="elsewhere")
    clock = off_by(monkeypatch, skew)
    monkeypatch.setattr("scripts.rollout.run.datetime", clock)
    assert plain_rollout(google)[0].to_latest().outcome == outcome
    if outcome == "rolled out":
        late = datetime.fromisoformat(google.record.renewed_at) - NOW - timedelta(seconds=silent_s)
        assert abs(late) < timedelta(minutes=1)
        since = datetime.fromisoformat(google.record.holder.since)
        assert abs(since - clock.now(UTC)) < timedelta(minutes=1), "the process's own clock"


def test_a_run_that_lost_its_hold_stops_and_never_goes_back_over_another():
    """The other one went back by `--to` while this one measured; then its own check fails, or passes."""
    for slow_from in (2, None):
        google = Google("s-1", "s-2")
        other = rollout(google)[0]
        made, refreshed = rollout(google, During(2, lambda other=other: other.to_revision("s-1"), slow_from=slow_from))
        report = made.to_latest()
        assert (report.outcome, report.exit_code, report.traffic) == ("stopped", ExitCode.FAILED, {"s-1": 100})
        assert "took over the rollout of s: Revision s-1 gets all traffic." in report.reason
        assert google.traffic == BACK
        assert (google.record.outcome, refreshed) == ("rolled back manually", [])


def test_a_conflict_with_an_equal_wish_of_another_run_is_not_its_own():
    google = Google("s-1", "s-2")

    def other_is_faster():
        """Another run with the same wish writes between the read and the PATCH of this one."""
        if len(google.seen) == 1:
            google.before_patch = lambda: None
            body = google.get("run", f"v2/{SERVICE}")
            mine = google.record
            stranger = replace(mine, holder=replace(mine.holder, id="other", user="ann"), share=10)
            traffic = [{**body["traffic"][0], "percent": 90}, {**body["traffic"][1], "percent": 10}]
            google.traffic, google.annotations = traffic, {ROLLOUT_ANNOTATION: stranger.text()}
            google.etag += 1

    google.before_patch = other_is_faster
    report = rollout(google)[0].to_latest()
    assert (report.outcome, google.shares) == ("stopped", {"s-1": 90, "s-2": 10})
    assert "ann@" in report.reason
    assert google.record.holder.id == "other"


def test_two_that_begin_at_the_same_moment_are_one_roll_out():
    google = Google("s-1", "s-2")
    google.before_patch = lambda: (setattr(google, "before_patch", lambda: None), held_by(google), bump(google))
    report = rollout(google)[0].to_latest()
    assert report.outcome == "stopped"
    assert "changed during the rollout. Its traffic was not modified" in report.reason
    assert google.record.holder.user == "ann"
    assert google.record.runs


def bump(google):
    google.etag += 1


def test_an_up_that_makes_a_revision_in_the_middle_stops_the_run_and_its_shares_stay():
    google = Google("s-1", "s-2")

    def up():
        google.revisions["s-3"] = {"name": f"{SERVICE}/revisions/s-3", "createTime": "2026-01-09", "conditions": READY}
        google.ready = "s-3"
        google.traffic = [{key: each[key] for key in ("type", "revision", "percent")} for each in google.traffic]
        bump(google)

    report = rollout(google, During(2, up, slow_from=2))[0].to_latest()
    assert (report.outcome, report.traffic) == ("stopped", {"s-1": 90, "s-2": 10})
    assert "Revision s-3 of s was created during the rollout, so this rollout stopped." in report.reason
    assert (google.record.outcome, google.record.reason) == ("interrupted", report.reason)


def test_an_up_that_changes_nothing_of_the_roll_out_does_not_stop_it():
    """Also one that comes between the read and the PATCH of this run."""
    google = Google("s-1", "s-2")

    def once():
        if len(google.seen) == 2:
            bump(google)
            google.before_patch = lambda: None

    google.before_patch = once
    made, _ = rollout(google, During(2, lambda: bump(google)))
    assert made.to_latest().outcome == "rolled out"


def test_to_takes_over_from_a_run_that_goes_on():
    google = Google("s-1", "s-2")
    held_by(google)
    report = rollout(google)[0].to_revision("s-1")
    assert (report.outcome, report.exit_code, google.traffic) == ("rolled back manually", ExitCode.DONE, BACK)
    assert "Took over the rollout of ann@" in report.reason
    assert "a rollback does not wait" in report.reason


def test_to_is_tried_for_minutes_too_and_ends_with_a_report():
    google, time_ = Google("s-1", "s-2"), Time()
    held_by(google)
    time_.at[120] = shut(google)
    made, _ = rollout(google, time_=time_)
    google.down = ("PATCH",)
    assert made.to_revision("s-1").traffic == {"s-1": 100}
    held_by(google)
    google.down = ("PATCH",)
    report = made.to_revision("s-1")
    assert (report.outcome, report.traffic) == ("not rolled back", {"s-1": 90, "s-2": 10})
    assert "Run `gemma rollout x --to s-1` again." in report.reason


def test_a_refused_revision_is_not_offered_again_without_its_reason():
    google, time_ = Google("s-1", "s-2"), Time()
    assert rollout(google, Checks(slow_from=2), time_)[0].to_latest().outcome == "rolled back"
    steps = len(google.seen)
    time_.s += 2 * 3600
    report = rollout(google, time_=time_)[0].to_latest()
    assert (report.outcome, report.exit_code, report.traffic) == ("refused", ExitCode.REFUSED, {"s-1": 100})
    assert "Revision s-2 was refused 2 h ago: Revision s-2 failed its check at 10 % of the traffic." in report.reason
    assert "5.0 times slower" in report.reason
    assert "To roll it out anyway, run `gemma rollout x --again`." in report.reason
    assert len(google.seen) == steps
    assert rollout(google, time_=time_)[0].to_latest(again=True).outcome == "rolled out"
    assert google.record.refused is None


class Unreachable(Checks):
    """Checks on a machine that may not call the service."""

    def smoke(self, url):
        raise AccessError("no credentials for the service")


def test_a_refusal_outlives_a_second_try_that_checked_nothing():
    google = Google("s-1", "s-2")
    rollout(google, Checks(slow_from=2))[0].to_latest()
    assert rollout(google, Unreachable())[0].to_latest(again=True).outcome == "not verified"
    assert google.record.refused.revision == "s-2"
    assert rollout(google)[0].to_latest().outcome == "refused"


def test_a_new_revision_after_a_refused_one_is_rolled_out():
    google = Google("s-1", "s-2")
    rollout(google, Checks(slow_from=2))[0].to_latest()
    google.revisions["s-3"] = {"name": f"{SERVICE}/revisions/s-3", "createTime": "2026-01-03", "conditions": READY}
    google.ready = "s-3"
    assert rollout(google)[0].to_latest().outcome == "rolled out"


def test_requests_that_to_took_away_are_given_back_only_by_order():
    google = Google("s-1", "s-2")
    held_by(google, process=2**22 + 7)
    rollout(google)[0].to_revision("s-1")
    report = rollout(google)[0].to_latest()
    assert report.outcome == "refused"
    assert "routed all traffic to s-1 with --to" in report.reason
    assert rollout(google)[0].to_revision("s-2").traffic == {"s-2": 100}
    assert google.record.refused is None


def test_a_record_that_cannot_be_read_is_not_no_record():
    for text in ("{", '{"schema": 2}', '{"schema": 1, "holder": 5}', "[]"):
        google = Google("s-1", "s-2")
        google.annotations = {ROLLOUT_ANNOTATION: text}
        assert isinstance(google.record, UnreadableRecord)
        report = rollout(google)[0].to_latest()
        assert (report.outcome, report.exit_code, google.seen) == ("unknown", ExitCode.REFUSED, [])
        assert "To write a new record and roll out the latest revision" in report.reason
        assert rollout(google)[0].to_latest(again=True).outcome == "rolled out"


def test_shares_that_google_does_not_say_stop_the_run_before_anything_moves():
    google = Google("s-1", "s-2")
    get = google.get
    google.get = lambda *path: {**get(*path), "trafficStatuses": []}
    with pytest.raises(ScriptError, match="Google did not return the traffic split of s, so no traffic was moved"):
        rollout(google)[0].to_latest()
    assert google.seen == []


def test_an_interruption_is_written_down_and_the_next_run_goes_on():
    google = Google("s-1", "s-2")
    google.fail_at = 3
    with pytest.raises(KeyboardInterrupt):
        rollout(google)[0].to_latest()
    record = google.record
    assert (record.outcome, record.share, record.runs) == ("interrupted", 10, False)
    google.fail_at = None
    report = rollout(google)[0].to_latest()
    assert (report.outcome, [gate.share for gate in report.gates]) == ("rolled out", [10, 50, 100])


def test_a_refresh_that_fails_is_part_of_the_report():
    google = Google("s-1", "s-2")

    def locked():
        raise CommandRefusedError("Stack x is locked by ann@host.")

    made = replace(rollout(google, Checks(slow_from=2))[0], refresh=locked)
    report = made.to_latest()
    assert (report.outcome, report.state_is_behind, report.exit_code) == ("rolled back", True, ExitCode.FAILED)
    assert report.reason.endswith("All traffic goes to s-1 again. Stack x is locked by ann@host.")


def test_a_hold_is_renewed_while_a_check_takes_long(monkeypatch):
    monkeypatch.setattr(holds, "RENEWAL_S", 0.005)
    google = Google("s-1", "s-2")

    def wait():
        end_s = time.monotonic() + 30
        while not google.notes and time.monotonic() < end_s:
            time.sleep(0.005)

    made: Rollout = rollout(google, During(2, wait))[0]
    report = made.to_latest()
    assert google.notes > 0
    assert (report.outcome, report.gates[-1].measured) == ("rolled out", FAST)


def test_no_secret_of_a_check_is_kept_in_the_record():
    google = Google("s-1", "s-2")
    token = "hf_" + "a" * 34
    rollout(google, Checks(smoke=f"The smoke checks failed: HF_TOKEN={token} " + "x" * 5000))[0].to_latest()
    assert token not in google.annotations[ROLLOUT_ANNOTATION]
    assert len(google.annotations[ROLLOUT_ANNOTATION]) < 4096
    assert google.record.refused.revision == "s-2"


def test_again_and_to_are_two_orders(capsys):
    assert run_command(main.COMMAND, ["--stack", "x", "--again", "--to", "s-1"]) == ExitCode.REFUSED
    assert "cannot be combined" in capsys.readouterr().err
