"""Each check of the doctor is ok, missing, or unknown; its commands, followed in order, end in an all-ok project."""

import itertools
import re
import shlex
import threading
from pathlib import Path

import pytest

from gemma_serving.cloud import registry
from gemma_serving.contracts import installation
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.engine import runner
from gemma_serving.engine import state as state_module
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.doctor import checkup, machine
from gemma_serving.scripts.doctor.__main__ import COMMAND
from gemma_serving.scripts.doctor.checkup import concurrently
from gemma_serving.scripts.doctor.diagnosis import DoctorCheck, missing, ok, unknown
from gemma_serving.scripts.doctor.permissions import permissions_of
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.loading import from_file
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import Client
from localcloud.tests.server import gcloud_commands
from localcloud.world.scenario import Hub, Run, Scenario
from tests.scripts.doctor import rows
from tests.scripts.doctor.conftest import INSTANT, PROJECT, RUN, TPU, WRONG
from tests.tools.ci_page import page_commands

ROOT = Path(__file__).resolve().parents[3]


def fits(text, pattern):
    """Return whether a text is a pattern's, in which each `*` is any text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


@pytest.mark.parametrize("name", rows.ROWS)
def test_each_check_has_a_status_its_reason_and_the_command_that_fixes_it(world, name):
    row = rows.ROWS[name]
    for step in row.steps:
        step(world)
    lines = world.lines(row.check, row.stack)
    if row.status is None:
        assert lines == []
        return
    (line,) = lines
    assert line["status"] == row.status, line
    assert fits(line["detail"], row.detail), line
    assert fits(line["fix"], row.fix), line
    assert line["values"].items() >= row.values.items(), line


# As a whole


def not_ok(report):
    return {line["check"]: line["status"] for line in report["checks"] if line["status"] != "ok"}


def test_a_ready_project_is_all_ok_for_a_cloud_run_stack(world):
    world.stage(RUN)
    code, report = world.doctor(RUN)
    assert (code, report["ready"], not_ok(report)) == (0, True, {})
    assert {key for line in report["checks"] for key in line} == {"check", "detail", "fix", "values", "status"}


def offline(world):
    """Let this machine reach neither the hub nor the registry."""
    world.environment.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    world.environment.setattr(registry, "TOKENS", "http://127.0.0.1:1/token")


NO_OFFERS = rows.fails("tpu.projects.locations.acceleratorTypes.list", 403)
OFFERS = [f"v6e-4 in {zone}" for zone in stack_settings(TPU, project=PROJECT).tpu.zones]


@pytest.mark.parametrize(
    ("steps", "code", "lines"),
    [
        pytest.param([offline], 0, ["hub", "image"], id="a hub and a registry that this machine cannot reach"),
        pytest.param([NO_OFFERS], 1, OFFERS, id="zones that Google does not list"),
    ],
)
def test_only_an_unknown_line_that_a_deployment_needs_makes_the_project_unready(world, steps, code, lines):
    for step in steps:
        step(world)
    ended, report = world.doctor(TPU)
    assert (ended, report["ready"], not_ok(report)) == (code, code == 0, dict.fromkeys(lines, "unknown"))


def test_a_project_has_to_be_named(world, capsys):
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        world.environment.delenv(name, raising=False)
    assert run_command(COMMAND, []) == 2
    assert "--project" in capsys.readouterr().err


def test_people_get_a_table_and_the_commands_in_order(world, capsys):
    world.disable("run")
    world.disable("artifactregistry")
    assert run_command(COMMAND, ["--project", PROJECT, "--stack", RUN]) == 1
    printed = capsys.readouterr().out
    commands = printed.partition("Fix, in this order:\n")[2].splitlines()
    assert commands[0] == f"  {rows.enables('artifactregistry').replace(' --', ' run.googleapis.com --')}"
    assert "missing  not enabled; 2 checks: API artifactregistry, run\n" in printed
    assert printed.startswith(f"Project {PROJECT}, stack {RUN}: ")


def test_one_zone_s_quota_is_requested_because_one_is_enough_and_lines_fit_a_terminal(world, capsys):
    rows.NO_CHIPS(world)
    assert run_command(COMMAND, ["--project", PROJECT, "--stack", TPU]) == 1
    printed = capsys.readouterr().out
    assert printed.count("gcloud beta quotas preferences create") == 1
    assert "--dimensions=zone=us-east5-a " in printed
    table = printed.partition("Fix, in this order:\n")[0]
    assert max(map(len, table.splitlines())) <= 80


def test_without_a_connection_gcloud_is_not_told_to_log_in_again():
    lost = unknown("No connection to run.googleapis.com (ConnectionError). Check it.", check="APIs")
    refused = missing("no working gcloud login", "gcloud auth login", check="gcloud login")
    assert checkup._online([refused]) == [refused]
    assert checkup._online([lost, refused])[1] == unknown(lost.detail, check="gcloud login")


def test_a_stack_that_is_deployed_in_another_project_is_refused(world, capsys):
    item = {
        "urn": f"urn:pulumi:s::gemma-serving::{CAPACITY_TYPE}::capacity",
        "type": CAPACITY_TYPE,
        "outputs": {"project": "their-own"},
    }
    read = lambda stack: StackState(stack=stack, status="read", resources=(item,))  # noqa: E731 - one line
    world.environment.setattr(state_module, "read", read)
    world.environment.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    assert run_command(COMMAND, ["--stack", TPU]) == 2
    assert f'project "{PROJECT}": stack {TPU} is deployed in project their-own' in capsys.readouterr().err


def test_a_token_that_google_refuses_is_the_only_line(world):
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "expired")
    (line,) = world.doctor(TPU)[1]["checks"]
    assert (line["check"], line["status"], line["fix"]) == ("credentials", "missing", "unset GOOGLE_OAUTH_ACCESS_TOKEN")


def test_a_person_without_the_right_to_use_the_project_gets_the_one_command_that_unlocks_the_rest(world):
    person = "ann@example.com"
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.cloud.tokens.issue_access_token(person))
    (credentials, line) = world.doctor()[1]["checks"]
    assert (credentials["check"], line["check"], line["status"]) == ("credentials", "quota project", "missing")
    assert "--role=roles/serviceusage.serviceUsageConsumer" in line["fix"]
    world.grant("roles/serviceusage.serviceUsageConsumer", f"user:{person}")
    found = not_ok(world.doctor()[1])
    assert ("quota project" in found, found["permissions of iam.serviceAccountUser"]) == (False, "missing")
    world.grant("roles/owner", f"user:{person}")
    assert world.doctor()[0] == 0


@pytest.mark.parametrize("stack", [TPU, RUN])
def test_following_the_commands_ends_in_a_ready_project(world, stack):
    """A project where everything is off, a caller without a role, and a bare machine."""
    world.service_account("deployer")
    rows.NO_CHIPS(world)
    models = {stack_settings(one, project=PROJECT).model: "gated" for one in (TPU, RUN)}
    world.scenario(run=Run(gpu_quota=0, cpu_quota=0, memory_quota_gib=0), hub=Hub(repositories=models))
    rows.enforced("iam.disableServiceAccountCreation")(world)
    for api in ("iam", "artifactregistry", "secretmanager", "storage", "tpu", "compute", "iap", "run"):
        world.disable(api)
    world.gcloud("core")
    world.engine.logged_in = False
    world.environment.delenv("PULUMI_CONFIG_PASSPHRASE")
    world.log_in_as(f"deployer@{PROJECT}.iam.gserviceaccount.com")
    followed = []
    for _ in itertools.repeat(None, 8):
        code, report = world.doctor(stack)
        if code == 0:
            break
        for fix in dict.fromkeys(line["fix"] for line in report["checks"] if line["status"] != "ok"):
            if fix:
                world.follow(fix, stack)
                followed.append(fix)
    assert (not_ok(report), code, report["ready"]) == ({}, 0, True)
    assert len(followed) > 15


def test_a_check_that_does_not_end_cannot_be_told():
    release = threading.Event()

    def hang():
        release.wait(120)
        return ()

    quick = ok("done", check="quick")
    # The clock at the start, when the first check that ends is waited for (all are left), and then (0.05 s are).
    readings_s = iter((0.0, 0.0, 59.95))
    lines = concurrently(
        [DoctorCheck(name="slow", run=hang), DoctorCheck(name="quick", run=lambda: (quick,))],
        limit_s=60.0,
        clock=lambda: next(readings_s),
    )
    release.set()
    assert [(line.check, line.word) for line in lines] == [("slow", "unknown"), ("quick", "ok")]


def test_the_doctor_changes_nothing(world):
    world.doctor(TPU)
    world.doctor(RUN)
    calls = world.admin("GET", "/admin/requests")["requests"]
    writes = {
        call["id"] for call in calls if call["method"] != "GET" and not call["id"].startswith(("hub.", "registry"))
    }
    assert writes == {
        "cloudresourcemanager.projects.testIamPermissions",
        "cloudresourcemanager.projects.getEffectiveOrgPolicy",
    }


# Commands that fix, as they are printed


def test_each_fault_of_the_tunnels_role_is_missing_and_its_command_fixes_it(world, subtests):
    role = f"{rows.ROLES}/gemmaTunnel"
    rows.tunnel("gemmaTunnel")(world)
    for fault, verb, body, words in (
        ("absent", "", None, "does not exist"),
        ("deleted", "DELETE", None, "is deleted and grants nothing; it can be restored for 7 days"),
        ("disabled", "PATCH", {"stage": "DISABLED"}, "is disabled"),
        ("incomplete", "PATCH", {"includedPermissions": ["tpu.nodes.get"]}, "lacks permissions that a tunnel needs: tpu.nodes.update, tpu.operations.get"),
    ):  # fmt: skip
        with subtests.test(fault):
            if verb:
                world.admin(verb, role, body)
            (line,) = world.lines("role gemmaTunnel", TPU)
            assert (line["status"], words in line["detail"]) == ("missing", True), line
            world.follow(line["fix"], TPU)
            (line,) = world.lines("role gemmaTunnel", TPU)
            assert (line["status"], line["detail"]) == ("ok", "3 permissions")


def test_the_commands_about_the_key_followed_in_order_end_in_one_that_can_be_used(world):
    rows.key_user(world)
    rows.new_key(world)
    (line,) = world.lines("secrets key", RUN)
    world.follow(line["fix"], RUN)
    (line,) = world.lines("secrets key", RUN)
    assert (line["status"], line["detail"]) == ("ok", f"{rows.KEY}: you can encrypt and decrypt")


def passphrase(world):
    (line,) = world.lines("Pulumi passphrase", RUN)
    return line["status"], line["detail"], line["fix"]


def test_the_engine_checks_the_passphrase_with_the_salt_of_the_settings_file_before_all_others(world):
    salted = rows.settings(("config:\n", "encryptionsalt: v1:x\nconfig:\n"), stack=RUN)
    assert passphrase(world)[0] == "ok"
    assert world.engine.backends == [], "without a salt every passphrase is right"
    salted(world)
    line = world.doctor(RUN)[1]["checks"][1]
    assert (line["check"], line["detail"]) == (
        "Pulumi passphrase",
        f"PULUMI_CONFIG_PASSPHRASE decrypts Pulumi.{RUN}.yaml",
    )
    (asked,) = world.engine.backends
    assert (asked.startswith("file:///"), asked.startswith("file:///state")) == (True, False), (
        "never the user's backend"
    )
    world.engine.refusal, world.engine.stacks = WRONG, (RUN,)
    wrong = f"PULUMI_CONFIG_PASSPHRASE is not the passphrase that wrote encryptionsalt in Pulumi.{RUN}.yaml"
    assert passphrase(world) == ("missing", wrong, "export PULUMI_CONFIG_PASSPHRASE=PASSPHRASE")
    world.engine.stacks = ()
    assert "if a trial on the local cloud wrote the line, delete it" in passphrase(world)[1]
    world.engine.logged_in = False
    assert passphrase(world)[1] == wrong, "unknown whether it has a state"
    world.engine.refusal = "error: the disk is full"
    status, detail, _ = passphrase(world)
    assert (status, detail.endswith(": the disk is full")) == ("unknown", True)


RIGHT = f"PULUMI_CONFIG_PASSPHRASE is right, but Pulumi.{RUN}.yaml "
NOT_OF_STATE = f"PULUMI_CONFIG_PASSPHRASE is not the passphrase of the state of stack {RUN}"
OF_STATE = "PULUMI_CONFIG_PASSPHRASE decrypts the state"
EXPORT, REFRESH = "export PULUMI_CONFIG_PASSPHRASE=PASSPHRASE", f"pulumi config refresh --stack {RUN} --force"
SALT, SECRET = "encryptionsalt: v1:file\nconfig:\n", "config:\n  gemma-serving:hfToken: { secure: v1:abc }\n"


@pytest.mark.parametrize(
    ("wrong_salts", "text", "answer"),
    [
        (("v1:state",), "config:\n", ("missing", NOT_OF_STATE, EXPORT)),
        (("v1:state",), SALT, ("missing", NOT_OF_STATE, EXPORT)),
        ((), "config:\n", ("ok", OF_STATE, "")),
        ((), SALT, ("ok", OF_STATE, "")),
        (("v1:file",), SALT, ("missing", f"{RIGHT}has the encryptionsalt of another passphrase", REFRESH)),
        ((), SECRET, ("missing", f"{RIGHT}has secrets without their encryptionsalt", REFRESH)),
    ],
)
def test_the_passphrase_is_judged_by_the_state_and_then_by_the_file(world, wrong_salts, text, answer):
    world.engine.stacks, world.engine.wrong_salts = (RUN,), wrong_salts
    world.engine.secrets = {"type": "passphrase", "state": {"salt": "v1:state"}}
    world.write(RUN, ("config:\n", text))
    assert passphrase(world) == answer
    world.engine.secrets = {"type": "cloud", "state": {"url": "gcpkms://projects/p"}}
    assert passphrase(world)[0] == "ok"


def test_a_drafter_is_missing_until_its_copy_is_staged_with_the_hash_of_the_settings(world):
    drafter = "google/gemma-4-26B-A4B-it-assistant"
    speculative = f"    speculative: {{ method: draft-model, drafter: {drafter} }}"
    hashes = f"  gemma-serving:bucket: {{ parts: {{ {drafter}: 'sha256:{'a' * 64}' }} }}\n"
    world.stage(RUN)
    rows.below("  gemma-serving:vllm:", speculative, stack=RUN)(world)
    staged_model, part = world.lines("weights", RUN)
    assert (staged_model["status"], part["status"]) == ("ok", "missing")
    assert (part["detail"], part["fix"]) == (f"drafter {drafter} is not staged", rows.STAGE)
    vllm = "  gemma-serving:vllm:\n"
    world.write(RUN, (vllm, f"{hashes}{vllm}{speculative}\n"))
    _, part = world.lines("weights", RUN)
    assert (part["status"], part["detail"].startswith("No weights are staged in")) == ("missing", True)
    assert f"gemma-4-26B-A4B-it-assistant-{'a' * 16}" in part["detail"]


def buckets_of(commands, project):
    """Return the commands of the pages about CI that create a bucket, for a project."""
    found = [
        command
        for command in commands
        if command[:2] == ["storage", "buckets"] and command[2] != "add-iam-policy-binding"
    ]
    return [[word.replace("my-project", project) for word in command] for command in found]


@pytest.fixture(scope="module")
def page():
    """The commands of the pages about CI, and the real gcloud if it is installed: read before a test changes PATH."""
    return page_commands(), gcloud_commands.installed()


def test_the_lines_that_create_the_state_bucket_are_those_of_the_page(page, world, tmp_path):
    commands, real = page
    rows.lacks_bucket(world)
    (line,) = world.lines("Pulumi backend")
    assert (line["status"], line["detail"]) == (
        "missing",
        f"gs://{rows.STATE} does not exist; it stores the state of all stacks",
    )
    assert [shlex.split(part)[1:] for part in line["fix"].split(" && ")] == buckets_of(commands, PROJECT)
    first = [command[:3] for command in commands if f"gs://{rows.STATE}" in command][:3]
    assert first == [["storage", "buckets", verb] for verb in ("create", "update", "add-iam-policy-binding")]
    world.admin("POST", f"/storage/storage/v1/b?project={PROJECT}", {"name": rows.STATE, "location": "us"})
    (line,) = world.lines("Pulumi backend")
    assert line["fix"] == f"pulumi login gs://{rows.STATE}", "it exists: the engine has another problem"
    if real is not None:
        words = buckets_of(commands, "local-project")
        with idle_cloud.start(scenario=Scenario(operations=INSTANT)) as cloud:
            outcomes = gcloud_commands.run(real, cloud.base_url, tmp_path, words, token=cloud.token)
            assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
            made = Client(cloud.base_url, cloud.token).ok("GET", f"/storage/storage/v1/b/{rows.STATE}")
        assert (made["name"], made["location"], made["versioning"]) == (rows.STATE, "US", {"enabled": True})
        assert made["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
        assert made["iamConfiguration"]["publicAccessPrevention"] == "enforced"


def test_only_a_missing_pulumi_is_fixed_by_its_installer(tmp_path, monkeypatch):
    def refuse():
        raise CommandRefusedError("The Pulumi CLI is not installed.")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "Pulumi.yaml").write_text("name: my-infra\n")
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    (found,) = machine._pulumi(None)
    assert (found.fix, "the project my-infra" in found.detail) == (installation.NEW_FOLDER, True)
    monkeypatch.setattr(runner, "pulumi", refuse)
    (found,) = machine._pulumi(None)
    assert found.fix == installation.INSTALL_PULUMI


@pytest.mark.parametrize("cache", [None, "machine"])
def test_a_tpu_stack_that_archives_its_programs_needs_the_permissions_for_a_bucket_and_a_secret(cache):
    changes = {"tpu.compileCache": cache} if cache else {}
    settings = from_file(settings_file(TPU, ROOT), project=PROJECT, changes=changes)
    of_archives = {"roles/storage.admin", "roles/secretmanager.admin"}
    assert {each.role for each in permissions_of(settings)} & of_archives == (set() if cache else of_archives)
