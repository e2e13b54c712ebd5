"""The gates of each place, the order of promise, the history of stock, and the change of a stack's file, asked of a local cloud."""

import asyncio
import itertools
import json
import math
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests
from google.auth.transport.requests import AuthorizedSession
from rich.console import Console

from cloud import google_api, offers
from cloud.caller import CALLS, GoogleCaller
from cloud.capacity import QueuedResource
from cloud.google_api import GoogleListError
from contracts.parallel import each_in_time
from localcloud.tests import idle_cloud
from localcloud.tests.google_bodies import google_answer, google_body
from localcloud.world import oauth
from localcloud.world.scenario import Fault, OperationDurations, Run, Scenario, Tpu, TpuDurations, TpuZone
from planning.planner import plan
from planning.solve.candidates import deployable_accelerators
from scripts.capacity import history, table
from scripts.capacity.__main__ import COMMAND
from scripts.capacity.gates import Need, judge
from scripts.capacity.history import HistoryError, StockHistory, read_history, record_requests
from scripts.cli.command import run_command
from stacks.loading import from_file
from stacks.planned import to_deployment

PROJECT = "capacity-project"
ROOT = Path(__file__).resolve().parents[3]
INSTANT = OperationDurations(instant=True)
SLOW = TpuDurations(waiting_for_resources=1e9)
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
V6E = ("v6e-1", "v6e-4", "v6e-8")


def zones(**changes):
    """The zones of the local cloud, with some changed."""
    return {**Tpu().zones, **{name.replace("_", "-"): zone for name, zone in changes.items()}}


class World:
    """A project on a local cloud, and the command."""

    def __init__(self, cloud, folder, monkeypatch, capsys):
        self.cloud, self.folder, self.environment, self.capsys = cloud, folder, monkeypatch, capsys

    def admin(self, verb, path, body=None):
        headers = {"Authorization": f"Bearer {self.cloud.token}"}
        answer = requests.request(verb, self.cloud.base_url + path, json=body, headers=headers, timeout=30)
        assert answer.ok, answer.text
        return answer.json() if answer.content else {}

    def scenario(self, **changes):
        document = Scenario(**{"operations": INSTANT, **changes}).model_dump(mode="json")
        self.admin("PUT", "/admin/scenario", document)

    def log_in_as(self, email):
        path = self.folder / "key.json"
        key = oauth.credentials_file(
            path, email=email, project=PROJECT, token_uri=f"{self.cloud.base_url}/oauth2/token"
        )

        async def know():
            self.cloud.cloud.store.put("oauth.keys", email, {"public": key})

        asyncio.run_coroutine_threadsafe(know(), self.cloud.loop).result(20)
        self.environment.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
        self.environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))

    def ask_for(self, zone, stack="tpu-v6e4", kind="v6e-4", **body):
        """Create a queued resource as a stack does, and return its name."""
        parent = f"projects/{PROJECT}/locations/{zone}"
        labels = {
            "managed-by": "gemma-serving",
            "gemma-serving-project": "gemma-serving",
            "gemma-serving-stack": stack,
        }
        node = {"acceleratorType": kind, "runtimeVersion": "v2-alpha-tpuv6e", "labels": labels}
        given = {
            "provisioningModel": "FLEX_START",
            "runDuration": {"maxRunDuration": "14400s"},
            "tpu": {"nodeSpec": [{"parent": parent, "nodeId": f"gemma-{stack}", "node": node}]},
            **body,
        }
        self.admin("POST", f"/tpu/v2alpha1/{parent}/queuedResources?queuedResourceId=gemma-{stack}", given)
        return f"{parent}/queuedResources/gemma-{stack}"

    def run(self, *arguments):
        """Return the exit code and what was printed."""
        self.capsys.readouterr()
        code = run_command(COMMAND, ["--project", PROJECT, *arguments])
        return code, self.capsys.readouterr()

    def report(self, *arguments):
        code, printed = self.run("--json", *arguments)
        return code, json.loads(printed.out)

    def places(self, *arguments):
        """Return the places of one accelerator by name, in their order."""
        return {place["location"]: place for place in self.report(*arguments)[1]["locations"]}

    def file(self, stack):
        return self.folder / f"Pulumi.{stack}.yaml"


@pytest.fixture
def world(tmp_path, monkeypatch, capsys):
    scenario = Scenario(operations=INSTANT, tpu=Tpu(durations_s=SLOW))
    with idle_cloud.start(project=PROJECT, scenario=scenario) as cloud:
        for api in ("serviceusage", "tpu", "run"):
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}", f"{cloud.base_url}/{api}/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.token)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
        for path in ROOT.glob("Pulumi.*.yaml"):
            # One open zone that no stack has, for `--write` to add.
            (tmp_path / path.name).write_text(path.read_text().replace("asia-northeast1-b, ", ""))
        yield World(cloud, tmp_path, monkeypatch, capsys)


# --- the three gates -------------------------------------------------------------------------------------------------------------


def answers(place):
    return tuple(place[gate]["answer"] for gate in ("hardware", "provisioning", "quota"))


def test_each_gate_is_open_closed_or_not_known_for_a_reason(world):
    poor = TpuZone(accelerator_types=V6E, flex_start=True, preemptible_quota_chips=3)
    world.scenario(tpu=Tpu(durations_s=SLOW, zones=zones(us_east5_b=poor)))
    code, report = world.report("v6e-4")
    found = {place["location"]: place for place in report["locations"]}
    assert code == 0
    assert answers(found["us-east5-a"]) == ("yes", "yes", "yes")
    assert answers(found["us-central1-b"]) == ("yes", "no", "yes")
    assert answers(found["us-east1-d"]) == ("yes", "unknown", "yes")
    assert answers(found["us-east5-b"]) == ("yes", "yes", "no")
    assert found["us-east5-b"]["quota"]["detail"] == "the quota is 3 chips, but 4 are needed"
    assert found["us-west1-c"]["hardware"]["detail"] == "the zone does not offer v6e-4"
    assert [place["open"] for place in report["locations"]] == sorted(
        (p["open"] for p in report["locations"]), reverse=True
    )
    assert all(gate["source"] for place in report["locations"] for gate in (place["hardware"], place["provisioning"]))


def test_a_zone_without_the_image_of_the_machine_is_closed(world):
    world.scenario(tpu=Tpu(runtime_versions=("tpu-ubuntu2204-base",)))
    gate = world.places("v6e-4")["us-east5-a"]["hardware"]
    assert (gate["answer"], gate["detail"]) == ("no", "the zone does not offer runtime version v2-alpha-tpuv6e")


def test_the_v5e_is_asked_for_by_the_name_of_the_api(world):
    found = world.places("v5e-4", "--provisioning", "standard")
    assert answers(found["us-west4-a"]) == ("yes", "yes", "yes")
    assert "list price" in found["us-west4-a"]["provisioning"]["source"]


def test_what_exists_counts_against_the_quota_but_not_the_stacks_own(world):
    tight = TpuZone(accelerator_types=V6E, flex_start=True, preemptible_quota_chips=4)
    world.scenario(tpu=Tpu(durations_s=SLOW, zones=zones(us_east5_a=tight)))
    world.ask_for("us-east5-a")
    quota = world.places("v6e-4")["us-east5-a"]["quota"]
    assert (quota["answer"], quota["used"], quota["limit"], quota["needed"]) == ("no", 4, 4, 4)
    assert quota["detail"] == "4 of 4 chips are in use, but 4 are needed"
    assert world.places("--stack", "tpu-v6e4")["us-east5-a"]["quota"]["answer"] == "yes"


def test_on_demand_has_another_quota_than_spot_and_flex_start(world):
    only_spot = TpuZone(accelerator_types=V6E, flex_start=True, quota_chips=0)
    world.scenario(tpu=Tpu(zones=zones(us_east5_a=only_spot)))
    for model, answer in (("standard", "no"), ("spot", "yes")):
        assert world.places("v6e-4", "--provisioning", model)["us-east5-a"]["quota"]["answer"] == answer


def test_a_reservation_is_accepted_where_there_is_one(world):
    found = world.places("v6e-4", "--provisioning", "reservation")["us-east5-a"]
    assert found["provisioning"] == {
        "model": "reservation",
        "answer": "no",
        "detail": "the project has no reservation there",
        "source": "Cloud TPU API, reservations",
    }
    assert found["quota"]["answer"] == "yes"


def test_regions_of_cloud_run_have_their_own_gates(world):
    world.scenario(run=Run(gpu_quota_overrides={"us-east4/nvidia-l4": 0}))
    found = world.places("L4")
    assert answers(found["europe-west1"]) == ("yes", "yes", "yes")
    assert answers(found["us-central1"]) == ("yes", "unknown", "no")
    assert "by invitation" in found["us-central1"]["provisioning"]["detail"]
    assert found["us-east4"]["quota"]["limit"] == 0
    assert world.places("--stack", "l4-qat")["us-east4"]["quota"]["detail"] == "the quota is 0 GPUs, but 1 are needed"


def service(name, **template):
    """A service as Cloud Run answers it."""
    body = {
        "name": name,
        "createTime": "2026-11-20T00:00:00Z",
        "labels": {"managed-by": "gemma-serving", "gemma-serving-project": "gemma-serving", "gemma-serving-stack": "s"},
        "template": {
            "nodeSelector": {"accelerator": "nvidia-l4"},
            "gpuZonalRedundancyDisabled": True,
            "scaling": {"maxInstanceCount": 2},
            **template,
        },
        "terminalCondition": {"state": "CONDITION_SUCCEEDED"},
    }
    return google_body("run.v2", "GoogleCloudRunV2Service", body)


class Google:
    """Answers made by hand, each of which Google's discovery documents allow."""

    def __init__(self, by_path):
        self.by_path = by_path

    def pages(self, api, path):
        yield self.get(api, path)

    def get(self, api, path):
        found = next((body for part, body in self.by_path.items() if part in path), {})
        body = found() if callable(found) else found
        return google_answer("GET", f"{api}/{path}", body)


def read(google, *, remaining_s=lambda: 30.0, **asked):
    names = asked.pop("names", ("v6e-4",))
    kinds = [one for name in names for one in deployable_accelerators(name)]
    question = offers.CapacityQuestion(project=PROJECT, accelerators=kinds, **asked)
    caller = GoogleCaller(project=PROJECT, google=google, member="user:me@example.com")
    return question, offers.read_all(caller, question, remaining_s=remaining_s)


def judged(google, past=None, need=None, **more):
    question, found = read(google, **more)
    return judge(question, found, past or StockHistory(), need or Need())


def limits(metric, dimension, *places, limit):
    """A quota's metric as Service Usage answers it."""
    buckets = [{"dimensions": {dimension: place}, "effectiveLimit": str(limit)} for place in places]
    return {
        "metric": metric,
        "consumerQuotaLimits": [{"unit": f"1/{{project}}/{{{dimension}}}", "quotaBuckets": buckets}],
    }


def test_instances_of_other_services_count_by_gpu_and_by_redundancy():
    name = f"projects/{PROJECT}/locations/us-east4/services/"
    listed = [
        service(name + "one"),
        service(name + "two", gpuZonalRedundancyDisabled=False),
        service(name + "three", nodeSelector={"accelerator": "nvidia-rtx-pro-6000"}),
        service(name + "four", scaling={}),
    ]
    quota = limits("m", "region", "us-east4", limit=3)
    found = judged(Google({"us-east4/services": {"services": listed}, "consumerQuotaMetrics": quota}), names=("L4",))
    place = next(place for place in found if place.place == "us-east4")
    assert (place.use.used, place.use.limit, place.quota.answer) == (2, 3, "yes")
    assert [own.name.rpartition("/")[2] for own in place.own] == ["one", "two", "four"]


# --- partial answers -------------------------------------------------------------------------------------------------------------


def listed_zones(*names):
    return {"locations": [{"name": f"projects/{PROJECT}/locations/{name}", "locationId": name} for name in names]}


def catalog(zone, *kinds):
    name = f"projects/{PROJECT}/locations/{zone}/acceleratorTypes/"
    return {"acceleratorTypes": [{"name": name + kind, "type": kind} for kind in kinds]}


VERSIONS = {"runtimeVersions": [{"name": "x/runtimeVersions/v2-alpha-tpuv6e", "version": "v2-alpha-tpuv6e"}]}


def many(zones, **more):
    return {
        **{f"{zone}/acceleratorTypes": catalog(zone, *V6E) for zone in zones},
        "runtimeVersions": VERSIONS,
        "consumerQuotaMetrics": limits("m", "zone", *zones, limit=64),
        "locations?": listed_zones(*zones),
        **more,
    }


def test_a_zone_that_does_not_answer_in_time_leaves_the_others_alone():
    release = threading.Event()

    def hang():
        release.wait(60)
        return {}

    names = ["us-east5-a", "us-east5-b", "us-east1-d"]
    google = Google({**many(names), "us-east5-b/acceleratorTypes": hang})
    # CapacityQuestion before each wait: for the zones, for the quota, and for each of the calls of the three zones but the one that hangs.
    budget = itertools.chain([60.0] * (2 + 3 * len(names) - 1), itertools.repeat(0.0))
    found = {place.place: place for place in judged(google, remaining_s=lambda: next(budget))}
    release.set()
    assert (found["us-east5-b"].hardware.answer, found["us-east5-b"].hardware.is_read) == ("unknown", False)
    assert found["us-east5-b"].hardware.detail == "acceleratorTypes in us-east5-b: no response in time"
    assert found["us-east5-a"].is_open
    assert found["us-east1-d"].hardware.answer == "yes"


def test_what_did_not_end_in_time_is_none_and_what_fails_is_raised():
    release = threading.Event()
    rest = iter([60.0, 0.0])
    found = each_in_time([lambda: release.wait(60), lambda: "done"], workers=2, remaining_s=lambda: next(rest))
    release.set()
    assert found == [None, "done"]
    with pytest.raises(ZeroDivisionError):
        each_in_time([lambda: 1 / 0], workers=1, remaining_s=lambda: 60.0)


def test_all_calls_of_forty_zones_are_under_way_together():
    """Forty zones need 120 calls; 64 at a time are two rounds after the list of zones, whatever a call takes."""
    names = [f"us-test{number}-a" for number in range(40)]
    together = threading.Barrier(CALLS, timeout=60)
    lock, calls = threading.Lock(), []

    class Counted(Google):
        def pages(self, api, path):
            if "acceleratorTypes" in path or "runtimeVersions" in path or "queuedResources" in path:
                with lock:
                    calls.append(path)
                    first = len(calls) <= CALLS
                if first:
                    together.wait()
            return super().pages(api, path)

    found = judged(Counted(many(names)), remaining_s=lambda: 60.0)
    assert len(calls) == 3 * len(names)
    assert sum(place.hardware.answer == "yes" for place in found) == 40


def test_a_zone_that_fails_is_said_in_its_row_and_the_exit_code_says_so(world):
    world.scenario(faults=(Fault(method="tpu.projects.locations.acceleratorTypes.list", count=1, status=400),))
    code, printed = world.run("v6e-4")
    assert code == 1
    assert printed.out.count("not read") == 1
    assert "Unknown, because the read failed:" in printed.out
    assert printed.out.count("│ yes ") > 5


def test_an_api_that_is_off_is_named_with_the_command_that_enables_it(world):
    world.admin("POST", f"/serviceusage/v1/projects/{PROJECT}/services/tpu.googleapis.com:disable", {})
    code, report = world.report("v6e-4")
    command = f"gcloud services enable tpu.googleapis.com --project={PROJECT}"
    assert code == 1
    assert report["problems"] == [
        f"the list of zones and 1 more: API tpu is off in project {PROJECT}. To fix it, run: {command}"
    ]
    assert {place["hardware"]["answer"] for place in report["locations"]} == {"unknown"}
    seen = world.admin("GET", "/admin/requests")["requests"]
    assert not [entry for entry in seen if entry["id"] == "tpu.projects.locations.acceleratorTypes.list"]


def test_a_role_that_is_missing_is_named(world):
    world.admin("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "nobody"})
    world.log_in_as(f"nobody@{PROJECT}.iam.gserviceaccount.com")
    code, report = world.report("v6e-4", "L4")
    said = "\n".join(report["problems"])
    assert code == 1
    for role in ("roles/tpu.viewer", "roles/run.viewer", "roles/serviceusage.serviceUsageViewer"):
        assert f"--role={role}" in said
    assert len(report["problems"]) < 12


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"run/v2/projects/{PROJECT}/locations/-/services", 400),
        (f"tpu/v2alpha1/projects/{PROJECT}/locations/-/acceleratorTypes", 403),
        (f"tpu/v2alpha1/projects/{PROJECT}/locations/us-nowhere1-a/runtimeVersions", 403),
    ],
)
def test_the_local_cloud_refuses_places_that_google_refuses(world, path, status):
    api, _, rest = path.partition("/")
    with pytest.raises(GoogleListError) as refused:
        google_api.connect().get(api, rest)
    assert refused.value.status == status


def test_reading_runtime_versions_takes_the_permission_of_that_name(world):
    world.admin("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "nobody"})
    world.log_in_as(f"nobody@{PROJECT}.iam.gserviceaccount.com")
    with pytest.raises(GoogleListError, match=r"tpu\.runtimeversions\.list"):
        google_api.connect().get("tpu", f"v2alpha1/projects/{PROJECT}/locations/us-east5-a/runtimeVersions")


def test_the_command_only_reads(world):
    world.run()
    written = [entry for entry in world.admin("GET", "/admin/requests")["requests"] if entry["method"] != "GET"]
    assert written == []


# --- what waits, and the history of stock ------------------------------------------------------------------------------------------


def queued(state, *, created=NOW, stack="s", zone="us-east5-a", kind="v6e-4", **more):
    """A queued resource as Cloud TPU answers it."""
    labels = {"managed-by": "gemma-serving", "gemma-serving-project": "gemma-serving", "gemma-serving-stack": stack}
    node = {"acceleratorType": kind, **({"labels": labels} if stack else {})}
    body = {
        "name": f"projects/{PROJECT}/locations/{zone}/queuedResources/gemma-{stack}",
        "createTime": created.strftime("%Y-%m-%dT%H:%M:%S.123456789Z"),
        "provisioningModel": "FLEX_START",
        "state": {"state": state},
        "tpu": {"nodeSpec": [{"nodeId": "n", "node": node}]},
        **more,
    }
    return google_body("tpu.v2alpha1", "QueuedResource", body)


def test_chips_are_counted_by_node_and_by_topology():
    spec = {"multiNodeParams": {"nodeCount": 3}, "node": {"acceleratorConfig": {"type": "V6E", "topology": "2x4"}}}
    request = QueuedResource(queued("ACTIVE", tpu={"nodeSpec": [spec, {"node": {"acceleratorType": "v5litepod-4"}}]}))
    assert (request.chips("v6e"), request.chips("v5litepod"), request.stack) == (24, 4, None)


@pytest.mark.parametrize(
    ("body", "model"),
    [
        ({}, "flex-start"),
        ({"provisioningModel": "STANDARD", "spot": {}}, "spot"),
        ({"provisioningModel": "RESERVATION_BOUND"}, "reservation"),
        ({"provisioningModel": "STANDARD"}, "standard"),
    ],
)
def test_a_request_says_how_it_buys(body, model):
    assert QueuedResource(queued("ACTIVE", **body)).provisioning == model


def seen(past, state, at, **more):
    return past.with_requests([QueuedResource(queued(state, **more))], at)


def latest(past, zone="us-east5-a"):
    found = past.latest(zone, "v6e-4", "flex-start")
    return found and (found.outcome, datetime.fromisoformat(found.at))


def test_a_grant_is_never_made_newer_than_what_is_known():
    later = NOW + timedelta(hours=1)
    waiting = seen(StockHistory(), "WAITING_FOR_RESOURCES", later)
    assert latest(waiting) == ("waiting", later)
    granted = seen(waiting, "ACTIVE", later + timedelta(hours=5))
    assert latest(granted) == ("granted", later)
    assert latest(seen(StockHistory(), "ACTIVE", later)) == ("granted", NOW)
    assert latest(seen(granted, "SUSPENDED", later + timedelta(hours=9))) == ("granted", later)


def test_a_failure_keeps_googles_words_and_the_time_at_which_it_was_seen_first():
    error = {"state": "FAILED", "failedData": {"error": {"code": 8, "message": "no more capacity"}}}
    request = QueuedResource({**queued("FAILED"), "state": google_body("tpu.v2alpha1", "QueuedResourceState", error)})
    past = StockHistory().with_requests([request], NOW + timedelta(minutes=1))
    past = past.with_requests([request], NOW + timedelta(days=1))
    assert latest(past) == ("failed", NOW + timedelta(minutes=1))
    assert past.sightings[0].detail == "no more capacity"


def test_a_name_that_is_used_again_is_another_request():
    first = seen(StockHistory(), "FAILED", NOW)
    both = seen(first, "WAITING_FOR_RESOURCES", NOW + timedelta(days=1), created=NOW + timedelta(hours=20))
    assert len(both.sightings) == 2
    assert latest(both)[0] == "waiting"


def test_what_is_too_old_is_dropped():
    old = seen(StockHistory(), "FAILED", NOW)
    assert seen(old, "CREATING", NOW + timedelta(days=history.KEPT_DAYS + 1)).sightings == ()


def test_the_history_is_kept_between_runs_and_decides_the_order(world):
    world.ask_for("us-east5-b")
    first = world.places("v6e-4")
    assert first["us-east5-b"]["requests"][0]["state"] in {
        "ACCEPTED",
        "WAITING_FOR_RESOURCES",
        "PROVISIONING",
        "ACTIVE",
    }
    kept = json.loads((world.folder / "results" / "capacity.json").read_text())
    assert (kept["schemaVersion"], [one["zone"] for one in kept["sightings"]]) == (1, ["us-east5-b"])
    outcome = kept["sightings"][0]["outcome"]
    order = [place for place, found in first.items() if found["open"]]
    assert order[0 if outcome == "granted" else -1] == "us-east5-b"
    granted = {**kept["sightings"][0], "outcome": "granted", "created": "2026-01-01T00:00:00Z", "zone": "us-east5-a"}
    granted["at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept["sightings"].append(granted)
    (world.folder / "results" / "capacity.json").write_text(json.dumps(kept))
    again = world.places("v6e-4")
    assert next(iter(again)) == "us-east5-a"
    assert again["us-east5-a"]["stock"]["outcome"] == "granted"


def test_a_grant_to_us_opens_the_gate_of_the_provisioning_model():
    past = seen(StockHistory(), "ACTIVE", NOW, zone="us-east1-d")
    found = {place.place: place for place in judged(Google(many(["us-east1-d", "us-central1-b"])), past)}
    assert found["us-east1-d"].models["flex-start"].answer == "yes"
    assert found["us-east1-d"].models["flex-start"].source.startswith("granted to gemma-s")
    assert found["us-central1-b"].models["flex-start"].answer == "no"


def test_requests_of_others_are_not_kept(world):
    record_requests([QueuedResource(queued("ACTIVE", stack=""))], NOW)
    assert not (world.folder / "results").exists()


@pytest.mark.parametrize("text", ["{", '{"schemaVersion": 9}', '{"schemaVersion": 1, "sightings": [{}]}', "[]"])
def test_a_history_that_cannot_be_read_stops_nothing_and_is_not_overwritten(world, text):
    path = world.folder / "results" / "capacity.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(HistoryError, match="Move the file to start a new one"):
        read_history()
    world.ask_for("us-east5-b")
    code, printed = world.run("v6e-4")
    assert code == 0
    assert "capacity.json" in printed.err
    assert path.read_text() == text


# --- what people see ---------------------------------------------------------------------------------------------------------------


def test_the_table_fits_into_100_columns_without_folding_a_place(world, monkeypatch):
    world.ask_for("us-east5-b")
    monkeypatch.setattr(table, "console", lambda stream: Console(file=stream, highlight=False, width=100))
    _, printed = world.run("v6e-4", "L4")
    rows = [line for line in printed.out.splitlines() if "│" in line]
    assert len(rows) == 8 + 5
    assert max(len(line.rstrip()) for line in rows) <= 100
    assert any(line.startswith("southamerica-west1-a ") for line in rows)
    assert "4 more zones do not offer v6e-4." in printed.out
    assert "tpu-v6e4: " in next(line for line in rows if line.startswith("us-east5-b"))


def test_piped_output_has_no_control_characters(world):
    _, printed = world.run("v6e-1")
    assert "\x1b" not in printed.out
    assert "Locations are sorted by availability" in printed.out


def test_the_places_of_a_stack_are_marked_and_ties_keep_its_order(world):
    _, report = world.report("--stack", "tpu-v6e4")
    own = [place["location"] for place in report["locations"] if place["in_stack"]]
    assert own == ["us-east5-a", "us-east5-b", "europe-west4-a", "southamerica-west1-a"]
    code, printed = world.run("--stack", "tpu-v6e4")
    assert (code, printed.out.count("\n> us-east5-")) == (0, 2)


def test_all_accelerators_of_the_project_are_compared_without_a_name(world):
    _, report = world.report()
    assert {place["accelerator"] for place in report["locations"]} == {
        *(f"{kind}-{chips}" for kind in ("v5e", "v6e") for chips in (1, 4, 8)),
        "L4",
        "RTX PRO 6000",
    }
    assert all(math.isfinite(place["usd_per_hour"]) for place in report["locations"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["H100"], 'ACCELERATOR is "H100". This project deploys v5e-1,'),
        (["--stack", "nope"], "Pulumi.nope.yaml not found"),
        (["--provisioning", "free"], "it must be flex-start, spot, standard or reservation"),
        (["--write", "tpu-v6e4", "v6e-1"], "--write cannot be combined with ACCELERATOR or --provisioning"),
        (["--write", "tpu-v6e4", "--stack", "l4-qat"], "Remove --stack"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(world, arguments, said):
    code, printed = world.run(*arguments)
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert said in printed.err


# --- the change of a stack's file -------------------------------------------------------------------------------------------------


def fits(path):
    settings = from_file(path, project=PROJECT)
    return plan(to_deployment(settings, path.parent)).fits


def test_the_open_zones_are_written_with_all_comments_and_the_file_plans_as_fitting(world):
    path = world.file("tpu-v6e4")
    before = path.read_text().replace("provisioning: flex-start", "provisioning: flex-start  # a wait, not a refusal")
    path.write_text(before)
    code, printed = world.run("--write", "tpu-v6e4", "--yes")
    zones = "[us-east5-a, us-east5-b, europe-west4-a, southamerica-west1-a]"
    better = "[us-east5-a, us-east5-b, europe-west4-a, asia-northeast1-b, southamerica-west1-a]"
    assert code == 0
    assert f"+    zones: {better}" in printed.out
    assert path.read_text() == before.replace(zones, better)
    assert fits(path)
    code, printed = world.run("--write", "tpu-v6e4", "--yes")
    assert (code, "Nothing was written" in printed.err) == (0, True)
    # A machine in a gateway's network needs a subnetwork of it.
    path.write_text(before.replace("  gemma-serving:tpu:\n", "  gemma-serving:tpu:\n    gateway: front\n"))
    block = "{ region: us-east5, regions: [us-east5, europe-west4], backends: [{ stack: tpu-v6e4 }] }"
    front = path.with_name("Pulumi.front.yaml")
    front.write_text(f"config:\n  gemma-serving:target: gateway\n  gemma-serving:gateway: {block}\n")
    assert world.run("--write", "tpu-v6e4", "--yes")[0] == 0
    front.unlink()
    assert from_file(path, project=PROJECT).tpu.zones == ["us-east5-a", "us-east5-b", "europe-west4-a"]


def test_without_a_terminal_and_without_yes_nothing_is_written(world):
    before = world.file("tpu-v6e4").read_text()
    code, printed = world.run("--write", "tpu-v6e4")
    assert (code, world.file("tpu-v6e4").read_text()) == (2, before)
    assert "Pass --yes" in printed.err


@pytest.mark.parametrize(("typed", "code"), [("yes\n", 0), ("no\n", 2), ("", 2)])
def test_a_person_is_asked(world, monkeypatch, typed, code):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: typed, raising=False)
    before = world.file("tpu-v6e4").read_text()
    assert world.run("--write", "tpu-v6e4")[0] == code
    assert (world.file("tpu-v6e4").read_text() != before) == (code == 0)


def test_a_zone_where_the_stack_has_a_request_stays_and_stays_first(world):
    """Without its zone `up` would give the request up."""
    closed = TpuZone(accelerator_types=V6E, flex_start=True, preemptible_quota_chips=0)
    world.ask_for("southamerica-west1-a")
    world.scenario(tpu=Tpu(durations_s=SLOW, zones=zones(southamerica_west1_a=closed)))
    code, printed = world.run("--write", "tpu-v6e4", "--yes")
    assert code == 0
    assert "The stack has a capacity request in southamerica-west1-a" in printed.err
    assert from_file(world.file("tpu-v6e4"), project=PROJECT).tpu.zones[0] == "southamerica-west1-a"


def test_where_no_place_is_open_nothing_is_written_and_the_nearest_is_named(world):
    empty = {name: zone.model_copy(update={"preemptible_quota_chips": 0}) for name, zone in Tpu().zones.items()}
    world.scenario(tpu=Tpu(zones=empty))
    before = world.file("tpu-v6e4").read_text()
    code, printed = world.run("--write", "tpu-v6e4", "--yes")
    assert (code, world.file("tpu-v6e4").read_text()) == (2, before)
    assert "the quota is 0 chips, but 4 are needed" in printed.err


def test_the_region_of_a_service_is_written_and_what_that_means_is_said(world):
    world.scenario(run=Run(gpu_quota_overrides={"us-east4/nvidia-l4": 0, "europe-west1/nvidia-l4": 0}))
    code, printed = world.run("--write", "l4-qat", "--yes", "--json")
    assert code == 0
    assert "+    region: europe-west4" in json.loads(printed.out)["change"]["diff"]
    assert "Stage the weights again" in printed.err
    assert from_file(world.file("l4-qat"), project=PROJECT).cloud_run.region == "europe-west4"
    assert fits(world.file("l4-qat"))


def test_forty_zones_take_two_rounds_over_http_and_no_more(world, monkeypatch):
    """Counted, not timed: the list of zones and the quota first, then three calls for each zone, all independent."""
    more = {f"us-test{number}-a": TpuZone(accelerator_types=V6E, flex_start=True) for number in range(28)}
    world.scenario(tpu=Tpu(zones={**Tpu().zones, **more}))
    order, plain, lock = [], AuthorizedSession.request, threading.Lock()

    def counted(session, method, url, **options):
        with lock:
            order.append(url.partition("?")[0].rpartition("/")[2])
        return plain(session, method, url, **options)

    monkeypatch.setattr(AuthorizedSession, "request", counted)
    code, report = world.report("v6e-4")
    assert (code, len(report["locations"])) == (0, 40)
    assert order.count("locations") == 1
    assert len(order) == 2 + 3 * 40
    assert set(order[2:]) == {"acceleratorTypes", "runtimeVersions", "queuedResources"}
