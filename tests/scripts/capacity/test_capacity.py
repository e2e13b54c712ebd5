"""The checks of each place and their order, asked of a local cloud."""

import json
from pathlib import Path

import pytest

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.cost.capacity_order import ABOVE
from gemma_serving.scripts.capacity.__main__ import COMMAND
from gemma_serving.scripts.cli.command import run_command
from localcloud.tests.conftest import PROJECT_POLICY, Client, grant
from localcloud.world.cloud import REGIONS
from localcloud.world.scenario import Fault, OperationDurations, Run, Scenario, Stock, Tpu, TpuDurations, TpuZone
from tests.cloud.populated import PROJECT, open_world, owner

ROOT = Path(__file__).resolve().parents[3]
INSTANT = OperationDurations(instant=True)
SLOW = TpuDurations(waiting_for_resources=1e9)
V6E = ("v6e-1", "v6e-4", "v6e-8")
DRY = TpuZone(accelerator_types=V6E, flex_start=True, stock={"FLEX_START": Stock(chips=0)})


def zones(**changes):
    """The zones of the local cloud, with some changed."""
    return {**Tpu().zones, **{name.replace("_", "-"): zone for name, zone in changes.items()}}


class Capacity:
    """A project on a local cloud, and the command."""

    def __init__(self, world, folder, capsys):
        self.world, self.folder, self.capsys = world, folder, capsys

    def scenario(self, **changes):
        self.world.cloud.cloud.scenario = Scenario(**{"operations": INSTANT, **changes})

    def asked(self):
        """Return the requests that the local cloud got."""
        return Client(self.world.cloud.base_url, self.world.cloud.token).ok("GET", "/admin/requests")["requests"]

    def ask_for(self, zone):
        """Create the queued resource of stack tpu-v6e4."""
        self.world.queued("gemma-tpu-v6e4", dict(owner("tpu-v6e4").labels), zone, active=False)

    def serve(self, name, gpu="nvidia-l4", cpu="8", memory="32Gi", **changes):
        """Create a service in asia-southeast1 with a GPU, and two instances at most."""
        template = {
            "containers": [
                {"image": "i", "resources": {"limits": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": "1"}}}
            ],
            "nodeSelector": {"accelerator": gpu},
            "gpuZonalRedundancyDisabled": True,
            "scaling": {"maxInstanceCount": 2},
            **changes,
        }
        path = f"v2/projects/{PROJECT}/locations/asia-southeast1/services?serviceId={name}"
        self.world.call("POST", "run", path, {"labels": dict(owner("s").labels), "template": template})

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


@pytest.fixture
def world(tmp_path, monkeypatch, capsys):
    scenario = Scenario(operations=INSTANT, tpu=Tpu(durations_s=SLOW))
    with open_world(scenario, places=REGIONS) as opened:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
        for path in shipped_files(ROOT):
            (tmp_path / path.name).write_text(path.read_text().replace("asia-northeast1-b, ", ""))
        yield Capacity(opened, tmp_path, capsys)


# --- the three checks -------------------------------------------------------------------------------------------------------------


def responses(place):
    return tuple(place[check]["answer"] for check in ("hardware", "provisioning", "quota"))


def test_each_gate_is_open_closed_or_not_known_for_a_reason(world):
    poor = TpuZone(accelerator_types=V6E, flex_start=True, preemptible_quota_chips=3)
    world.scenario(tpu=Tpu(durations_s=SLOW, zones=zones(us_east5_b=poor)))
    code, report = world.report("v6e-4")
    found = {place["location"]: place for place in report["locations"]}
    assert code == 0
    assert responses(found["us-east5-a"]) == ("yes", "yes", "yes")
    assert responses(found["us-central1-b"]) == ("yes", "no", "yes")
    assert responses(found["us-east1-d"]) == ("yes", "unknown", "yes")
    assert responses(found["us-east5-b"]) == ("yes", "yes", "no")
    assert found["us-east5-b"]["quota"]["detail"] == "3 chips, 4 needed"
    assert found["us-west1-c"]["hardware"]["detail"] == "the zone does not offer v6e-4"
    assert [place["open"] for place in report["locations"]] == sorted(
        (p["open"] for p in report["locations"]), reverse=True
    )
    assert all(check["source"] for place in report["locations"] for check in (place["hardware"], place["provisioning"]))


def test_a_zone_without_the_image_of_the_machine_is_closed(world):
    world.scenario(tpu=Tpu(runtime_versions=("tpu-ubuntu2204-base",)))
    check = world.places("v6e-4")["us-east5-a"]["hardware"]
    assert (check["answer"], check["detail"]) == ("no", "the zone does not offer runtime version v2-alpha-tpuv6e")


def test_what_exists_counts_against_the_quota_but_not_the_stacks_own(world):
    tight = TpuZone(accelerator_types=V6E, flex_start=True, preemptible_quota_chips=4)
    world.scenario(tpu=Tpu(durations_s=SLOW, zones=zones(us_east5_a=tight)))
    world.ask_for("us-east5-a")
    quota = world.places("v6e-4")["us-east5-a"]["quota"]
    assert (quota["answer"], quota["used"], quota["limit"], quota["needed"]) == ("no", 4, 4, 4)
    assert quota["detail"] == "4 chips, 4 needed, 4 in use"
    assert world.places("--stack", "tpu-v6e4")["us-east5-a"]["quota"]["answer"] == "yes"


def test_a_reservation_is_accepted_where_there_is_one(world):
    order(world, "reservation\n    reservation: ours")
    found = world.places("--stack", "tpu-v6e4")["us-east5-a"]
    assert found["provisioning"] == {
        "model": "reservation",
        "answer": "no",
        "detail": "the project has no reservation there",
        "source": "Cloud TPU API, reservations",
    }
    assert found["quota"]["answer"] == "yes"


def test_instances_of_other_services_count_by_gpu_and_by_redundancy(world):
    world.scenario(run=Run(gpu_quota=9, gpu_quota_zonal_redundancy=9, cpu_quota=900, memory_quota_gib=1600))
    world.serve("one")
    world.serve("two", gpuZonalRedundancyDisabled=False)
    world.serve("three", "nvidia-rtx-pro-6000", cpu="20", memory="80Gi")
    world.serve("four", scaling={"maxInstanceCount": 1})
    place = world.places("L4")["asia-southeast1"]
    assert (place["quota"]["used"], place["quota"]["limit"], place["quota"]["answer"]) == (3, 9, "yes")
    assert sorted(request["name"].rpartition("/")[2] for request in place["requests"]) == ["four", "one", "two"]


# --- partial answers -------------------------------------------------------------------------------------------------------------


def test_a_zone_that_fails_is_said_in_its_row_and_the_exit_code_says_so(world):
    world.scenario(faults=(Fault(method="tpu.projects.locations.acceleratorTypes.list", count=1, status=400),))
    code, printed = world.run("v6e-4")
    assert code == 1
    assert printed.out.count("not read") == 3, "a row for each form"
    assert "Unknown, because the read failed:" in printed.out
    assert printed.out.count("│ yes ") > 5


def test_an_api_that_is_off_is_named_with_the_command_that_enables_it(world):
    world.world.call("POST", "serviceusage", f"v1/projects/{PROJECT}/services/tpu.googleapis.com:disable", {})
    code, report = world.report("v6e-4")
    command = f"gcloud services enable tpu.googleapis.com --project={PROJECT}"
    assert code == 1
    assert report["problems"] == [
        f"the list of zones and 2 more: API tpu is off in project {PROJECT}. To fix it, run: {command}"
    ]
    assert {place["hardware"]["answer"] for place in report["locations"]} == {"unknown"}
    assert not [entry for entry in world.asked() if entry["id"] == "tpu.projects.locations.acceleratorTypes.list"]


def test_a_role_that_is_missing_is_named(world):
    opened, email = world.world.cloud, world.world.account("nobody", "theirs")
    client = Client(opened.base_url, opened.token)
    grant(client, PROJECT_POLICY, "roles/serviceusage.serviceUsageConsumer", member=f"serviceAccount:{email}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", opened.cloud.tokens.issue_access_token(email))
        code, report = world.report("v6e-4", "L4")
    said = "\n".join(report["problems"])
    assert code == 1
    for role in ("roles/tpu.viewer", "roles/run.viewer"):
        assert f"--role={role}" in said
    assert len(report["problems"]) < 12


def test_the_command_only_reads(world):
    world.run()
    written = [entry for entry in world.asked() if entry["method"] != "GET"]
    assert written == []


# --- forms of capacity, and what waits -----------------------------------------------------------------------------------------------

FORMS = ("flex-start", "spot", "standard")


def forms(place):
    return {form["form"]: form for form in place["forms"]}


def order(world, forms="[spot, standard]", ceiling=""):
    """Let stack tpu-v6e4 have other forms of capacity, and a ceiling."""
    path = world.folder / "Pulumi.tpu-v6e4.yaml"
    most = f"\n    maxUsdPerHour: {ceiling}" if ceiling else ""
    text = path.read_text()
    assert "    provisioning: flex-start\n" in text
    path.write_text(text.replace("    provisioning: flex-start\n", f"    provisioning: {forms}{most}\n"))


def test_each_form_has_its_own_quota_and_price(world):
    only_standard = TpuZone(accelerator_types=V6E, flex_start=True, preemptible_quota_chips=0, quota_chips=8)
    world.scenario(tpu=Tpu(durations_s=SLOW, zones=zones(us_east5_a=only_standard)))
    found = forms(world.places("v6e-4")["us-east5-a"])
    assert tuple(found) == FORMS
    assert {form: one["quota"]["answer"] for form, one in found.items()} == {
        "flex-start": "no",
        "spot": "no",
        "standard": "yes",
    }
    assert [one["quota"]["id"] for one in found.values()] == [
        "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI",
        "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI",
        "TPUV6EPerProjectPerZoneForTPUAPI",
    ]
    assert found["flex-start"]["usd_per_hour"] < found["spot"]["usd_per_hour"] < found["standard"]["usd_per_hour"]
    assert [one["last_answer"] for one in found.values()] == [None] * 3


def test_a_quota_that_cannot_be_read_is_unknown_for_its_form_and_no_other(world):
    world.scenario(faults=(Fault(method="serviceusage.services.consumerQuotaMetrics.get", count=1, status=403),))
    code, report = world.report("v6e-4")
    found = forms(next(place for place in report["locations"] if place["location"] == "us-east5-a"))
    responses = [found[form]["quota"]["answer"] for form in FORMS]
    assert code == 1
    assert responses in (["unknown", "unknown", "yes"], ["yes", "yes", "unknown"])


def test_the_order_of_a_stack_is_shown_and_the_ceiling_marks_what_is_not_requested(world):
    order(world, ceiling="8.00")
    code, report = world.report("--stack", "tpu-v6e4")
    place = next(place for place in report["locations"] if place["location"] == "us-east5-a")
    found = forms(place)
    assert code == 0
    assert tuple(found) == ("spot", "standard", "flex-start"), "the stack's forms first"
    assert [one["in_stack"] for one in found.values()] == [True, True, False]
    assert [one["not_requested"] for one in found.values()] == [None, ABOVE, None]
    other = next(place for place in report["locations"] if place["location"] == "us-east1-d")
    assert not any(one["in_stack"] for one in other["forms"])
    printed = world.run("--stack", "tpu-v6e4")[1].out
    row = next(line for line in printed.splitlines() if "us-east5-a" in line and "standard" in line)
    assert row.startswith("> us-east5-a")
    assert "10.80^" in row
    assert "price is above tpu.maxUsdPerHour" in " ".join(printed.split())


def test_the_last_answer_of_each_form_has_its_cause(world):
    tight = TpuZone(accelerator_types=V6E, flex_start=True, preemptible_quota_chips=3)
    world.scenario(tpu=Tpu(durations_s=SLOW, zones=zones(us_east5_a=DRY, us_east5_b=tight)))
    world.ask_for("us-east5-a")
    world.ask_for("us-east5-b")
    found = world.places("v6e-4")
    waits = forms(found["us-east5-a"])["flex-start"]["last_answer"]
    fails = forms(found["us-east5-b"])["flex-start"]["last_answer"]
    assert (waits["state"], waits["cause"]) == ("WAITING_FOR_RESOURCES", "stock")
    assert (fails["state"], fails["cause"]) == ("FAILED", "quota")
    assert any("us-east5-b: FAILED (Quota limit" in clause for clause in waits["evidence"])
    assert forms(found["us-east5-a"])["spot"]["last_answer"] is None
    printed = world.run("v6e-4")[1].out
    assert "us-east5-a, flex-start: stack tpu-v6e4 is WAITING_FOR_RESOURCES, " in printed
    assert " old (stock: Google gives no reason for WAITING_FOR_RESOURCES;" in printed


# --- what people see ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["H100"], 'ACCELERATOR is "H100". This project deploys v5e-1,'),
        (["--write", "tpu-v6e4"], "--write"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(world, arguments, said):
    code, printed = world.run(*arguments)
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert said in printed.err
