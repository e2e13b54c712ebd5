"""A roll-out: its decisions, every end that it can have, and an interruption at each step."""

import pytest

from cloud.clock import GOOGLE_CLOCK
from cloud.google_api import GoogleListError, UnansweredError
from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from contracts.outputs import RolloutPlan
from contracts.rollout_record import RolloutRecord, read_record
from contracts.service_traffic import BY_REVISION, LATEST
from scripts.cli.access import AccessError
from scripts.rollout.decisions import (
    Measured,
    fault_of,
    has_traffic,
    stale_revisions,
    state_of,
    steps_left,
    whole,
)
from scripts.rollout.run import Rollout
from scripts.rollout.service import ServiceAtGoogle, ServiceChangedError

NAME = "projects/p/locations/r/services/s"
PLAN = RolloutPlan(service=NAME, steps=(10, 50, 100), requests=4, max_slowdown=2.0, max_failed=0.0)
FAST = Measured(requests=4, failed=0, ttft_s=0.1, tok_per_s=100.0)
LABELS = {"managed-by": "gemma-serving", "gemma-serving-project": "gemma-serving", "gemma-serving-stack": "x"}
READY = [{"type": "Ready", "state": "CONDITION_SUCCEEDED"}]


class Google:
    """Cloud Run as an API: one service, its revisions, etags; requests that end in an error can be planted."""

    def __init__(self, *revisions, latest_ready=None, failed=()):
        self.etag = 1
        self.revisions = {
            name: {"name": f"{NAME}/revisions/{name}", "createTime": f"2026-01-0{number}", "conditions": READY}
            for number, name in enumerate(revisions, start=1)
        }
        for name in failed:
            self.revisions[name]["conditions"] = []
        self.ready = latest_ready or revisions[-1]
        self.traffic = [
            {"type": BY_REVISION, "revision": revisions[-2] if len(revisions) > 1 else revisions[-1], "percent": 100}
        ]
        self.seen, self.fail_at, self.answer_lost = [], None, False
        self.has_tag_urls, self.refuse_waiting = True, False
        self.date = None
        self.annotations, self.down, self.notes, self.before_patch = {}, (), 0, lambda: None

    def get(self, api, path):
        assert (api, path) == ("run", f"v2/{NAME}")
        GOOGLE_CLOCK.see(self.date)
        if "GET" in self.down:
            raise UnansweredError("Google failed 4 times (HTTP 503); try again later.")
        statuses = []
        for target in self.traffic:
            tag = {"uri": f"https://{target['tag']}---s"} if target.get("tag") and self.has_tag_urls else {}
            statuses.append({**target, **tag})
        return {
            "name": NAME,
            "uri": "https://s",
            "etag": str(self.etag),
            "labels": LABELS,
            "annotations": {**self.annotations},
            "latestCreatedRevision": f"{NAME}/revisions/{list(self.revisions)[-1]}",
            "latestReadyRevision": f"{NAME}/revisions/{self.ready}",
            "traffic": self.traffic,
            "trafficStatuses": statuses,
        }

    def patch(self, api, path, body, parameters):
        if "PATCH" in self.down:
            raise UnansweredError("Google failed 4 times (HTTP 503); try again later.")
        self.before_patch()
        if parameters == {"updateMask": "annotations"}:
            return self.note(body)
        assert parameters == {"updateMask": "traffic,annotations"}
        self.seen.append([(each.get("revision"), each.get("percent", 0)) for each in body["traffic"]])
        if self.fail_at == len(self.seen):
            raise KeyboardInterrupt
        if body["etag"] != str(self.etag):
            raise GoogleListError(409, "Conflict", "")
        self.etag += 1
        self.traffic, self.annotations = body["traffic"], body["annotations"]
        if self.answer_lost:
            raise GoogleListError(409, "Conflict", "")
        return {"name": "o", "done": False}

    def note(self, body):
        if body["etag"] != str(self.etag):
            raise GoogleListError(409, "Conflict", "")
        self.notes += 1
        self.etag += 1
        self.annotations = body["annotations"]
        return {"name": "o", "done": False}

    def post(self, api, path, body):
        assert path == "v2/o:wait"
        if self.refuse_waiting:
            raise GoogleListError(403, "Forbidden", "")
        return {"name": "o", "done": True}

    def delete(self, api, path, parameters):
        del self.revisions[path.rpartition("/")[2]]
        return {"done": True}

    def pages(self, api, path):
        yield {"revisions": list(self.revisions.values())}

    @property
    def record(self):
        return read_record(self.get("run", f"v2/{NAME}"))

    @property
    def shares(self):
        return {each["revision"]: each["percent"] for each in self.traffic if each.get("percent")}


class Checks:
    """Gates with planted figures: by default every check passes."""

    def __init__(self, smoke="", slow_from=None, dead_from=None, dead=()):
        self.smoke_fault, self.slow_from, self.asked, self.measured = smoke, slow_from, [], 0
        self.dead_from, self.dead = dead_from, dead

    def smoke(self, url):
        self.asked.append(url)
        return self.smoke_fault

    def measure(self, url, requests):
        self.asked.append(url)
        if url.startswith(self.dead):
            raise CommandRefusedError(f"{url} cannot be measured: connection refused")
        if url.startswith("https://next"):
            self.measured += 1
            if self.measured == self.dead_from:
                raise CommandRefusedError(f"{url} cannot be measured: connection refused")
            if self.measured == self.slow_from:
                return Measured(requests=4, failed=0, ttft_s=0.5, tok_per_s=90.0)
        return FAST


def rollout(google, checks=None):
    refreshed = []
    made = Rollout(
        stack="x",
        plan=PLAN,
        service=ServiceAtGoogle(api=google, name=NAME, limit_s=60),
        gates=checks or Checks(),
        refresh=lambda: refreshed.append(google.shares),
        say=lambda _: None,
    )
    return made, refreshed


def test_a_good_revision_gets_the_traffic_in_steps_and_is_pinned_without_tags():
    google, checks = Google("s-1", "s-2"), Checks()
    made, refreshed = rollout(google, checks)
    report = made.to_latest()
    assert [dict(step) for step in google.seen] == [
        {"s-1": 100, "s-2": 0},
        {"s-1": 90, "s-2": 10},
        {"s-1": 50, "s-2": 50},
        {"s-1": 0, "s-2": 100},
        {"s-2": 100},
    ]
    assert google.traffic == [{"type": BY_REVISION, "revision": "s-2", "percent": 100}]
    assert checks.asked[:3] == ["https://next---s", "https://last---s", "https://next---s"]
    assert (report.outcome, report.exit_code, refreshed) == ("rolled out", ExitCode.DONE, [{"s-2": 100}])
    assert [gate.share for gate in report.gates] == [0, 10, 50, 100]


def test_smoke_checks_that_fail_leave_every_request_where_it_was():
    google = Google("s-1", "s-2")
    made, refreshed = rollout(google, Checks(smoke="The smoke checks failed: chat."))
    report = made.to_latest()
    assert (report.outcome, report.exit_code) == ("rolled back", ExitCode.FAILED)
    assert "failed its check at 0 % of the traffic. The smoke checks failed: chat." in report.reason
    assert all(step[0] == ("s-1", 100) for step in google.seen)
    assert refreshed == [{"s-1": 100}]


@pytest.mark.parametrize(("slow_from", "share"), [(1, 0), (2, 10), (3, 50), (4, 100)])
def test_a_revision_that_is_slow_at_any_share_goes_back_with_the_figure(slow_from, share):
    google = Google("s-1", "s-2")
    report = rollout(google, Checks(slow_from=slow_from))[0].to_latest()
    assert (report.outcome, google.shares) == ("rolled back", {"s-1": 100})
    assert report.gates[-1].share == share
    assert "is 0.500 s, but 0.100 s with the old revision (5.0 times slower). Maximum: 2 times slower" in report.reason


@pytest.mark.parametrize(("dead_from", "share"), [(1, 0), (2, 10), (3, 50), (4, 100)])
def test_a_revision_that_stops_answering_at_any_share_loses_its_requests(dead_from, share):
    google = Google("s-1", "s-2")
    made, refreshed = rollout(google, Checks(dead_from=dead_from))
    report = made.to_latest()
    assert (report.outcome, report.exit_code) == ("rolled back", ExitCode.FAILED)
    assert google.traffic == [{"type": BY_REVISION, "revision": "s-1", "percent": 100}]
    assert report.gates[-1].share == share
    assert "It could not be checked: https://next---s cannot be measured: connection refused" in report.reason
    assert refreshed == [{"s-1": 100}]


@pytest.mark.parametrize(("smoke", "lost_from", "share"), [(True, None, 0), (False, 1, 0), (False, 3, 50)])
def test_a_revision_that_was_not_reached_is_not_one_that_failed(smoke, lost_from, share):
    """The old one has the requests, because it is the one that was checked; the same command continues."""
    google = Google("s-1", "s-2")
    checks = Checks()

    def lost(*_):
        checks.measured += 1
        if smoke or (lost_from and checks.measured > lost_from):
            raise AccessError("no identity token for https://s")
        return "" if len(_) == 1 else FAST

    checks.smoke = lost if smoke else checks.smoke
    checks.measure = checks.measure if smoke else lost
    made, refreshed = rollout(google, checks)
    report = made.to_latest()
    assert (report.outcome, report.exit_code, google.shares) == ("not verified", ExitCode.FAILED, {"s-1": 100})
    assert (report.gates[-1].share, report.gates[-1].checked) == (share, False)
    assert "could not be checked" in report.reason
    assert "no identity token" in report.reason
    assert "run `gemma rollout x` to continue" in report.reason
    assert refreshed == [{"s-1": 100}]
    assert rollout(google)[0].to_latest().outcome == "rolled out"


def test_an_old_revision_that_does_not_answer_does_not_hold_up_the_new_one():
    google = Google("s-1", "s-2")
    report = rollout(google, Checks(dead=("https://last",)))[0].to_latest()
    assert (report.outcome, report.before, google.shares) == ("rolled out", None, {"s-2": 100})


def test_tags_without_a_url_give_every_request_to_the_old_revision():
    google = Google("s-1", "s-2")
    google.has_tag_urls = False
    report = rollout(google)[0].to_latest()
    assert (report.outcome, google.shares) == ("rolled back", {"s-1": 100})
    assert "It could not be checked: Google returned no URL for the tags" in report.reason


def test_an_operation_that_cannot_be_asked_for_ends_with_a_report():
    google = Google("s-1", "s-2")
    google.refuse_waiting = True
    report = rollout(google)[0].to_latest()
    assert (report.outcome, report.exit_code, report.traffic) == ("interrupted", ExitCode.FAILED, {"s-1": 100})
    assert "Cannot read the result of the change of s (Forbidden). Run the same" in report.reason
    assert "`gemma rollout x --to s-1` rolls back." in report.reason


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_after_an_interruption_at_any_step_something_serves_and_both_ways_are_one_command(at):
    for go_on in (True, False):
        google = Google("s-1", "s-2")
        google.fail_at = at
        with pytest.raises(KeyboardInterrupt):
            rollout(google)[0].to_latest()
        assert sum(google.shares.values()) == 100
        google.fail_at = None
        made = rollout(google)[0]
        report = made.to_latest() if go_on else made.to_revision("s-1")
        assert report.exit_code is ExitCode.DONE
        assert google.traffic == [{"type": BY_REVISION, "revision": "s-2" if go_on else "s-1", "percent": 100}]


def test_a_change_of_somebody_else_is_left_alone():
    google = Google("s-1", "s-2")
    service = ServiceAtGoogle(api=google, name=NAME, limit_s=60)
    seen = service.read()
    google.etag += 1
    with pytest.raises(ServiceChangedError, match=r"changed during the rollout\. Its traffic was not modified"):
        service.shift(seen, whole("s-2"), RolloutRecord())
    assert google.shares == {"s-1": 100}


def test_a_change_whose_answer_was_lost_is_seen_to_be_done():
    google = Google("s-1", "s-2")
    google.answer_lost = True
    service = ServiceAtGoogle(api=google, name=NAME, limit_s=60)
    record = RolloutRecord(revision="s-2")
    assert has_traffic(service.shift(service.read(), whole("s-2"), record), whole("s-2"))


def test_a_latest_revision_that_did_not_start_gets_nothing():
    google = Google("s-1", "s-2", latest_ready="s-1", failed=("s-2",))
    report = rollout(google)[0].to_latest()
    assert (report.outcome, report.exit_code, google.seen) == ("failed", ExitCode.FAILED, [])
    assert "Revision s-2 did not start and gets no traffic. s-1 serves." in report.reason


def test_a_revision_that_has_all_requests_is_pinned_and_nothing_is_checked():
    google, checks = Google("s-1"), Checks()
    google.traffic = [{"type": LATEST, "percent": 100}]
    report = rollout(google, checks)[0].to_latest()
    assert (report.outcome, checks.asked) == ("nothing to do", [])
    assert google.traffic == [{"type": BY_REVISION, "revision": "s-1", "percent": 100}]


def test_stale_revisions_are_deleted_beyond_the_last_good_one():
    google = Google("s-1", "s-2", "s-3", "s-4")
    report = rollout(google)[0].to_latest()
    assert list(report.retired) == ["s-1", "s-2"]
    assert list(google.revisions) == ["s-3", "s-4"]
    assert list(rollout(google)[0].to_latest().retired) == []


def test_a_revision_with_requests_or_a_tag_or_of_a_foreign_service_is_never_deleted():
    google = Google("s-1", "s-2", "s-3", "s-4", "s-5")
    google.traffic = [
        {"type": BY_REVISION, "revision": "s-1", "percent": 100},
        {"type": BY_REVISION, "revision": "s-2", "tag": "mine"},
    ]
    service = google.get("run", f"v2/{NAME}")
    revisions = list(google.revisions.values())
    assert stale_revisions(service, revisions, ["s-5"]) == ["s-3", "s-4"]
    assert stale_revisions({**service, "labels": {}}, revisions, ["s-5"]) == ()


def test_going_back_to_a_revision_that_cannot_serve_names_those_that_can():
    google = Google("s-1", "s-2", "s-3", failed=("s-2",))
    made = rollout(google)[0]
    with pytest.raises(CommandRefusedError, match=r"s-2 did not start. Ready revisions: s-1, s-3\."):
        made.to_revision("s-2")
    with pytest.raises(CommandRefusedError, match="s-9 does not exist"):
        made.to_revision("s-9")
    assert google.seen == []


def test_an_interrupted_roll_out_goes_on_with_the_next_step():
    assert steps_left(PLAN, 0) == (10, 50, 100)
    assert steps_left(PLAN, 10) == (50, 100)
    google = Google("s-1", "s-2")
    google.traffic = [
        {"type": BY_REVISION, "revision": "s-1", "percent": 50},
        {"type": BY_REVISION, "revision": "s-2", "percent": 50},
    ]
    state = state_of(google.get("run", f"v2/{NAME}"))
    assert (state.phase, state.serving, state.latest, state.share) == ("roll out", "s-1", "s-2", 50)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (FAST, ""),
        (Measured(requests=4, failed=1, ttft_s=0.1, tok_per_s=100.0), "1 of 4 requests failed. Maximum: 0 of them"),
        (Measured(requests=0, failed=0, ttft_s=None, tok_per_s=None), "0 of 0 requests failed"),
        (Measured(requests=4, failed=0, ttft_s=0.19, tok_per_s=51.0), ""),
        (
            Measured(requests=4, failed=0, ttft_s=0.1, tok_per_s=40.0),
            "40.0 tok/s, but the old one 100.0 tok/s (2.5",
        ),
    ],
)
def test_a_measurement_is_judged_by_its_limits(now, said):
    fault = fault_of(PLAN, FAST, now)
    assert (said in fault) if said else fault == ""


def test_a_dry_run_shows_what_would_be_done_and_what_both_revisions_cost():
    google = Google("s-1", "s-2")
    made, refreshed = rollout(google)
    first = made.look()
    assert (first.phase, first.revision, first.serving, first.steps) == ("roll out", "s-2", "s-1", (10, 50, 100))
    assert (first.usd_per_hour, first.usd_per_hour_after) == (None, None)  # Google does not say what they may have
    machine = {
        "containers": [{"resources": {"limits": {"cpu": "8", "memory": "32Gi"}}}],
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "gpuZonalRedundancyDisabled": True,
    }
    for revision, most in (("s-1", 3), ("s-2", 2)):
        google.revisions[revision].update({**machine, "scaling": {"maxInstanceCount": most}})
    priced = made.look()
    assert priced.usd_per_hour == pytest.approx(priced.usd_per_hour_after / 2 * 5, abs=0.001)
    assert priced.usd_per_hour_after > 0.5
    assert made.look().plan == priced.plan
    back = made.look("s-1")
    assert (back.phase, back.revision, back.steps) == ("roll back", "s-1", (100,))
    with pytest.raises(CommandRefusedError, match="Revision s-9 does not exist"):
        made.look("s-9")
    google.traffic = [{"type": BY_REVISION, "revision": "s-2", "percent": 100}]
    plans = {first.plan, priced.plan, back.plan, made.look().plan, made.look(again=True).plan}
    assert len(plans) == 5
    assert (google.seen, google.notes, refreshed) == ([], 0, [])
