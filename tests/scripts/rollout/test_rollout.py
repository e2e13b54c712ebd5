"""A rollout: every end that it can have, and an interruption at each step."""

from types import SimpleNamespace

import pytest

from cloud.google_api import GoogleListError
from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import from_json
from contracts.outputs import StackOutputs
from contracts.service_traffic import BY_REVISION, LATEST
from scripts.rollout import __main__ as command
from scripts.rollout import run
from scripts.rollout.run import Rollout
from tests.scripts.sample_outputs import sample_outputs

NAME = "projects/p/locations/r/services/s"
READY = [{"type": "Ready", "state": "CONDITION_SUCCEEDED"}]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(run, "PAUSE_S", 0.0)


class Google:
    """Cloud Run as an API: one service, its revisions and etags. By default the newest revision has the tag of an `up`."""

    def __init__(self, *revisions, latest_ready=None, failed=()):
        self.etag = 1
        self.revisions = {
            name: {"name": f"{NAME}/revisions/{name}", "createTime": f"2026-01-0{number}", "conditions": READY}
            for number, name in enumerate(revisions, start=1)
        }
        for name in failed:
            self.revisions[name]["conditions"] = []
        self.ready = latest_ready or revisions[-1]
        self.traffic = [pinned(revisions[-2]), {"type": LATEST, "tag": "next"}] if len(revisions) > 1 else []
        self.seen, self.fail_at, self.error, self.moves = [], None, {}, True

    def get(self, api, path):
        if path == "v2/o":
            return {"name": "o", "done": True, **self.error}
        assert (api, path) == ("run", f"v2/{NAME}")
        statuses = [
            {**target, **({"uri": f"https://{target['tag']}---s"} if target.get("tag") else {})}
            for target in self.traffic
        ]
        return {
            "name": NAME,
            "uri": "https://s",
            "etag": str(self.etag),
            "latestCreatedRevision": f"{NAME}/revisions/{list(self.revisions)[-1]}",
            "latestReadyRevision": self.ready and f"{NAME}/revisions/{self.ready}",
            "traffic": self.traffic,
            "trafficStatuses": statuses,
        }

    def change(self, verb, api, path, *, body, parameters):
        assert (verb, parameters) == ("PATCH", {"updateMask": "traffic"})
        self.seen.append([(each.get("revision"), each.get("percent", 0)) for each in body["traffic"]])
        if self.fail_at == len(self.seen):
            raise KeyboardInterrupt
        if body["etag"] != str(self.etag):
            raise GoogleListError(409, "Conflict.", "")
        self.etag += 1
        if self.moves:
            self.traffic = body["traffic"]
        return {"name": "o", "done": False}

    def pages(self, api, path):
        yield {"revisions": list(self.revisions.values())}

    @property
    def shares(self):
        return {each["revision"]: each["percent"] for each in self.traffic if each.get("percent")}


def pinned(revision, percent=100):
    return {"type": BY_REVISION, "revision": revision, "percent": percent}


def rollout(google, smoke=lambda *_: "", refresh=lambda: None):
    return Rollout(stack="x", name=NAME, api=google, start_s=60, smoke=smoke, refresh=refresh, say=lambda _: None)


def rolled_out(google, to=None, **parts):
    made = rollout(google, **parts)
    return made.run(*made.look(to))


def test_a_revision_that_fails_its_checks_never_has_traffic_and_loses_its_tag():
    google = Google("s-1", "s-2")
    report = rolled_out(google, smoke=lambda *_: "The smoke checks failed: chat.")
    assert (report.outcome, report.traffic) == ("rolled back", {"s-1": 100})
    assert report.reason == "Revision s-2 failed its checks, so s-1 has all traffic. The smoke checks failed: chat."
    assert (google.seen, google.traffic) == ([[("s-1", 100)]], [pinned("s-1")])
    assert rolled_out(google).outcome == "rolled out"
    assert google.seen[1:] == [[("s-2", 0), ("s-1", 100)], [("s-2", 100)]]


@pytest.mark.parametrize("at", [1, 2])
def test_after_an_interruption_at_any_step_something_serves_and_both_ways_are_one_command(at):
    for to in (None, "s-1"):
        google = Google("s-1", "s-2")
        google.traffic, google.fail_at = [pinned("s-1")], at
        with pytest.raises(KeyboardInterrupt):
            rolled_out(google)
        assert google.shares == {"s-1": 100}
        google.fail_at = None
        rolled_out(google, to=to)
        assert google.traffic == [pinned(to or "s-2")]


def test_a_change_of_another_client_is_left_alone():
    """An `up` during the checks creates a revision that nobody has checked."""
    google = Google("s-1", "s-2")

    def changed(*_):
        google.etag += 1
        return ""

    with pytest.raises(
        ScriptError, match=r"Cannot move the traffic of s: Conflict\. Another client may have changed it"
    ):
        rolled_out(google, smoke=changed)
    assert google.shares == {"s-1": 100}
    made = rollout(google)
    look, service = made.look()
    google.etag += 1
    with pytest.raises(ScriptError, match="Cannot move the traffic of s"):
        made.run(look, service)
    assert google.shares == {"s-1": 100}


def test_a_change_that_google_does_not_make_is_reported_with_its_reason():
    google = Google("s-1", "s-2")
    google.moves, google.error = False, {"error": {"message": "no quota."}}
    with pytest.raises(ScriptError, match=r"The traffic of s was not moved: no quota\."):
        rolled_out(google)


def test_a_latest_revision_that_did_not_start_gets_nothing():
    google = Google("s-1", "s-2", latest_ready="s-1", failed=("s-2",))
    with pytest.raises(
        CommandRefusedError, match=r"Revision s-2 did not start and gets no traffic\..* 100 % s-1 serves"
    ):
        rollout(google).look()


def test_shares_that_google_does_not_say_stop_the_run_before_anything_moves():
    google = Google("s-1", "s-2")
    google.traffic = [pinned("s-1", 90)]
    with pytest.raises(ScriptError, match="Google did not return the traffic split of s"):
        rolled_out(google)
    google.ready, google.traffic = "", []
    with pytest.raises(CommandRefusedError, match=r"No revision of s serves yet\. Run `gemma up x` until it succeeds"):
        rolled_out(google)
    assert google.seen == []


def test_going_back_to_a_revision_that_cannot_serve_names_those_that_can():
    google = Google("s-1", "s-2", "s-3", failed=("s-2",))
    with pytest.raises(CommandRefusedError, match=r"s-2 did not start. Ready revisions: s-1, s-3\."):
        rollout(google).look("s-2")
    with pytest.raises(CommandRefusedError, match="s-9 does not exist"):
        rollout(google).look("s-9")
    report = rolled_out(google, to="s-1")
    assert (report.outcome, google.traffic) == ("rolled back manually", [pinned("s-1")])


def test_a_state_that_could_not_be_refreshed_is_reported():
    def locked():
        raise ScriptError("The stack is locked.")

    report = rolled_out(Google("s-1", "s-2"), refresh=locked)
    assert (report.outcome, report.state_is_behind) == ("rolled out", True)
    assert report.reason == "Revision s-2 has all traffic. The stack is locked."


def test_a_dry_run_shows_what_would_be_done_and_what_both_revisions_cost():
    google = Google("s-1", "s-2")
    first, _ = rollout(google).look()
    assert (first.phase, first.revision, first.serving, first.traffic) == ("roll out", "s-2", "s-1", {"s-1": 100})
    assert (first.usd_per_hour, first.usd_per_hour_after) == (None, None)  # Google does not say what they may have
    machine = {
        "containers": [{"resources": {"limits": {"cpu": "8", "memory": "32Gi"}}}],
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "gpuZonalRedundancyDisabled": True,
    }
    for revision, most in (("s-1", 3), ("s-2", 2)):
        google.revisions[revision].update({**machine, "scaling": {"maxInstanceCount": most}})
    priced, _ = rollout(google).look()
    assert priced.usd_per_hour == pytest.approx(priced.usd_per_hour_after / 2 * 5, abs=0.001)
    assert priced.usd_per_hour_after > 0.5
    assert rollout(google).look()[0].plan == priced.plan
    back, _ = rollout(google).look("s-1")
    assert (back.phase, back.revision) == ("roll back", "s-1")
    google.traffic = [pinned("s-2")]
    assert len({first.plan, priced.plan, back.plan, rollout(google).look()[0].plan}) == 4
    assert google.seen == []


def test_a_tpu_stack_has_no_revisions_and_is_told_what_rolls_back(monkeypatch):
    outputs = from_json(StackOutputs, sample_outputs(target="tpu"))
    monkeypatch.setattr("engine.deployment.read_deployment", lambda _stack: SimpleNamespace(resources=()))
    monkeypatch.setattr("engine.state.outputs_in", lambda *_: outputs)
    with pytest.raises(CommandRefusedError) as refused:
        command._of_stack("tpu-v6e1")
    assert "is a TPU stack, which has no revisions" in str(refused.value)
    assert "cloudRun" not in str(refused.value)
