"""Each check of the doctor is ok, missing, or unknown; its commands, followed in order, end in an all-ok project."""

import asyncio
import base64
import functools
import itertools
import json
import os
import re
import shlex
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
import requests
from google.oauth2 import service_account

from gemma_serving.cloud.staging.bucket import WeightsBucket
from gemma_serving.cloud.staging.copying import CopyPlan, stage
from gemma_serving.cloud.staging.sources import FolderSource
from gemma_serving.contracts import installation
from gemma_serving.contracts.answers import Absent, Present, Unknown
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.engine import runner
from gemma_serving.engine import state as state_module
from gemma_serving.engine.state import StackState
from gemma_serving.planning.data.checkpoints import CHECKPOINTS
from gemma_serving.scripts.capacity.__main__ import COMMAND as CAPACITY
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.doctor import blocking as blocking_module
from gemma_serving.scripts.doctor import (
    capacity,
    checkup,
    limits,
    machine,
    model,
    passphrase,
    permissions,
    project,
    tunnel_role,
)
from gemma_serving.scripts.doctor.__main__ import COMMAND
from gemma_serving.scripts.doctor.blocking import blocking_checks
from gemma_serving.scripts.doctor.checkup import concurrently
from gemma_serving.scripts.doctor.diagnosis import Diagnosis, DoctorCheck, missing, unknown
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.hooks.run_recorder import RunRecorder
from localcloud.running.shims import OPERATOR_TOKEN, install
from localcloud.tests import idle_cloud
from localcloud.tests.server import gcloud_commands
from localcloud.tests.services.test_run_rules import GPU
from localcloud.world import oauth
from localcloud.world.scenario import ComputeTpu, Fault, OperationDurations, Run, Scenario, Tpu
from tests.cloud.test_template_age import APRIL, JULY
from tests.tools.ci_page import page_commands

PROJECT = "doctor-project"
ROOT = Path(__file__).resolve().parents[3]
CANARY = "hf_canary0123456789"
INSTANT = OperationDurations(instant=True)
APIS = ("iam", "artifactregistry", "secretmanager", "storage", "tpu", "compute", "iap", "run", "logging")


def with_chips(count):
    """Return the zones with a quota of this many chips in each."""
    quota = {"preemptible_quota_chips": count, "quota_chips": count}
    return {name: zone.model_copy(update=quota) for name, zone in Tpu().zones.items()}


NO_CHIPS = with_chips(0)


MODULES = {
    **dict.fromkeys(("API", "permissions", "policy", "keys of"), (project,)),
    **dict.fromkeys(("quota of", "v6e"), (project, capacity)),
    "Pulumi passphrase": (passphrase,),
    **dict.fromkeys(("gcloud", "registry", "Pulumi"), (machine,)),
    "role": (tunnel_role,),
    "limits": (limits,),
    "credentials": (),
}
"""Whose checks give a line of the report, by how the line begins; the others are about what the server runs."""
KEY_OF_ALL = functools.cache(oauth.new_private_key)
"""Making a key takes longer than a whole report."""
GCLOUD = """#!/bin/sh
case "$1 $2" in
  "version --format=json") echo '{versions}' ;;
  "auth print-access-token")
    [ -n "{account}" ] && echo ya29.secret && exit 0
    echo "ERROR: (gcloud.auth.print-access-token) You do not currently have an active account selected." >&2
    exit 1 ;;
  "config get") echo "{account}" ;;
esac
"""


class Internet:
    """The hub, Docker Hub and its tokens on one port. `status` is what each answers."""

    def __init__(self):
        self.status = {"hub": (200, ""), "image": (200, "")}
        self.head = {name: one.commit for name, one in CHECKPOINTS.items()}
        self.seen_tokens = []
        self.absent = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path.startswith("/token"):
                    return self.answer(200, "", b'{"token": "anonymous"}')
                outer.seen_tokens.append(self.headers.get("Authorization"))
                name, _, commit = self.path.removeprefix("/api/models/").partition("/revision/")
                head = outer.head.get(name)
                if outer.absent and name.startswith(outer.absent):
                    return self.answer(404, "RepoNotFound", b"{}")
                is_known = commit in {"", head, getattr(CHECKPOINTS.get(name), "commit", "")}
                if outer.status["hub"][0] == 200 and not is_known:
                    return self.answer(404, "RevisionNotFound", b"{}")
                return self.answer(*outer.status["hub"], json.dumps({"id": name, "sha": commit or head}).encode())

            def do_HEAD(self):
                self.answer(*outer.status["image"], b"")

            def answer(self, status, code, body):
                self.send_response(status)
                if code:
                    self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ratelimit-remaining", "97;w=21600")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_words):
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


NO_BUCKET = (
    "error: error listing stacks: could not list bucket: blob (code=NotFound): storage: bucket doesn't exist: "
    "googleapi: Error 404: The specified bucket does not exist., notFound"
)
"""Pulumi 3.256.0, `pulumi whoami` and `pulumi login` with a bucket that Cloud Storage answers with 404; recorded 2026-11-23."""


class Engine:
    """The answers of `pulumi whoami`, `config get`, `stack ls` and, in an empty backend, of `stack init`."""

    def __init__(self):
        self.logged_in = True
        self.stacks, self.refusal, self.secrets = (), "", {}
        self.wrong_salts = ()
        self.backends = []
        self.error = "error: PULUMI_ACCESS_TOKEN must be set"

    def run(self, *arguments, **options):
        code, out, error = self.answer(arguments, options)
        return subprocess.CompletedProcess(arguments, code, out, error)

    def answer(self, arguments, options):
        if arguments[0] == "config":
            return 0, f"{CANARY}\n", ""
        if arguments[:2] == ("stack", "init"):
            self.backends.append(options["variables"]["PULUMI_BACKEND_URL"])
            (file,) = Path(arguments[-1]).glob("Pulumi.*.yaml")
            is_wrong = any(salt in file.read_text() for salt in self.wrong_salts)
            refusal = WRONG if is_wrong else self.refusal
            return 255 if refusal else 0, "", refusal
        if not self.logged_in or (arguments[:2] == ("stack", "export") and arguments[-1] not in self.stacks):
            return 255, "", self.error if not self.logged_in else f"error: no stack named '{arguments[-1]}' found"
        if arguments[:2] == ("stack", "export"):
            return 0, json.dumps({"version": 3, "deployment": {"secrets_providers": self.secrets}}), ""
        if arguments[0] == "stack":
            return 0, json.dumps([{"name": name} for name in self.stacks]), ""
        return 0, '{"user": "me", "url": "file:///state"}', ""


class World:
    """A project on a local cloud, the machine that asks, and the command."""

    def __init__(self, cloud, tmp_path, monkeypatch, capsys):
        self.cloud, self.folder, self.environment, self.capsys = cloud, tmp_path, monkeypatch, capsys
        self.internet, self.engine = Internet(), Engine()
        self.settings = {path.stem.removeprefix("Pulumi."): path.read_text() for path in shipped_files(ROOT)}

    def admin(self, verb, path, body=None):
        headers = {"Authorization": f"Bearer {self.cloud.token}"}
        answer = requests.request(verb, self.cloud.base_url + path, json=body, headers=headers, timeout=30)
        assert answer.ok, answer.text
        return answer.json() if answer.content else {}

    def log_in_as(self, email):
        """Use the key file of a service account, known to the project or not."""
        path = self.folder / "key.json"
        key = oauth.credentials_file(
            path, email=email, project=PROJECT, token_uri=f"{self.cloud.base_url}/oauth2/token"
        )

        async def know():
            self.cloud.cloud.store.put("oauth.keys", email, {"public": key})

        asyncio.run_coroutine_threadsafe(know(), self.cloud.loop).result(10)
        self.environment.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
        self.environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))

    account = "me@example.com"
    """Account that is logged in to gcloud; empty for none."""

    def gcloud(self, *components):
        """Put a gcloud with these components on PATH; none at all if there are none."""
        path = self.folder / "bin" / "gcloud"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        if components:
            versions = json.dumps(dict.fromkeys(("Google Cloud SDK", *components), "528.0.0"))
            path.write_text(GCLOUD.format(versions=versions, account=self.account))
            path.chmod(0o755)
        self.environment.setenv("PATH", f"{path.parent}:/usr/sbin")

    def write(self, stack, *changes):
        """Write the stack's settings into the project's folder, with parts of the text replaced."""
        text = self.settings[stack]
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        (self.folder / f"Pulumi.{stack}.yaml").write_text(text)

    def doctor(self, stack=None, *arguments):
        """Return the exit code and the report of `doctor --json`."""
        self.capsys.readouterr()
        chosen = ["--stack", stack] if stack else []
        code = run_command(COMMAND, ["--project", PROJECT, "--json", *chosen, *arguments])
        printed = self.capsys.readouterr()
        assert CANARY not in printed.out + printed.err
        return code, json.loads(printed.out)

    def line(self, check, stack=None):
        """Return one line of the report, for which only the checks of its module run: all others would call Google too."""
        modules = next((modules for start, modules in MODULES.items() if check.startswith(start)), (model,))

        def needed(one):
            return not one.name.startswith(("permissions of", "policy")) or check.startswith(one.name)

        with self.environment.context() as few:
            few.setattr(
                checkup,
                "_checks",
                lambda checkup: [each for one in modules for each in one.checks(checkup) if needed(each)],
            )
            _, report = self.doctor(stack)
        found = [line for line in report["checks"] if line["check"] == check]
        assert found, [line["check"] for line in report["checks"]]
        return found[0]

    def state(self, check, stack=None):
        return self.line(check, stack)["status"]

    def scenario(self, **changes):
        document = Scenario(operations=INSTANT, **changes).model_dump(mode="json")
        self.admin("PUT", "/admin/scenario", document)

    def service_account(self, account_id):
        """Make a service account."""
        self.admin("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": account_id})

    def policy(self, constraint, **rule):
        body = {"policy": {"constraint": f"constraints/{constraint}", **rule}}
        self.admin("POST", f"/cloudresourcemanager/v1/projects/{PROJECT}:setOrgPolicy", body)

    def disable(self, api):
        self.admin("POST", f"/serviceusage/v1/projects/{PROJECT}/services/{api}.googleapis.com:disable", {})

    def grant(self, role, member):
        path = f"/cloudresourcemanager/v1/projects/{PROJECT}"
        policy = self.admin("POST", f"{path}:getIamPolicy", {})
        policy["bindings"] = [*policy.get("bindings", []), {"role": role, "members": [member]}]
        self.admin("POST", f"{path}:setIamPolicy", {"policy": policy})

    def stage(self, stack, *, without="", commit="", template=JULY):
        """Put the weights into the bucket, as `scripts.stage_model` does, from a folder or from a commit of the hub."""
        checkpoint = self.folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "config.json").write_text("{}")
        (checkpoint / "model.safetensors").write_text("weights")
        (checkpoint / "chat_template.jinja").write_text(template)
        self.admin("POST", f"/serviceusage/v1/projects/{PROJECT}/services/storage.googleapis.com:enable", {})
        name = f"{PROJECT}-gemma-{stack}-models"
        existing = self.admin("GET", f"/storage/storage/v1/b?project={PROJECT}").get("items", [])
        if name not in {bucket["name"] for bucket in existing}:
            self.admin("POST", f"/storage/storage/v1/b?project={PROJECT}", {"name": name, "location": "us-east4"})
        prefix = re.search(r"model: [\w.-]+/(\S+)", self.settings[stack])[1]
        self.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", self.cloud.token)
        source, target = FolderSource(folder=checkpoint), WeightsBucket(name, PROJECT)
        if commit:
            self.environment.setattr(FolderSource, "revision", commit)
        plan = CopyPlan(source=source, target=target, prefix=prefix)
        stage(plan, lambda _file, _copied: None, lambda _work, _done, _total: None)
        self.environment.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
        if without:
            self.admin("DELETE", f"/storage/storage/v1/b/{name}/o/{prefix}%2F{without}")

    def follow(self, command, stack):
        """Have the effect of a printed command."""
        for part in command.split(" && "):
            self._follow(part, stack)

    def _follow(self, command, stack):  # noqa: C901, PLR0912 - one case for each command
        words = shlex.split(command)
        options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
        match words:
            case ["gcloud", "services", "enable", service, _]:
                self.admin("POST", f"/serviceusage/v1/projects/{PROJECT}/services/{service}:enable", {})
            case ["gcloud", "projects", "add-iam-policy-binding", project, *_]:
                assert project == PROJECT
                self.grant(options["role"], options["member"])
            case ["gcloud", "iam", "roles", "create", role_id, *_]:
                role = {"title": options["title"], "includedPermissions": options["permissions"].split(",")}
                path = f"/iam/v1/projects/{options['project']}/roles"
                self.admin("POST", path, {"roleId": role_id, "role": role})
            case ["gcloud", "iam", "roles", "undelete", role_id, where]:
                self.admin("POST", f"/iam/v1/{where[2:].replace('=', 's/')}/roles/{role_id}:undelete", {})
            case ["gcloud", "iam", "roles", "update", role_id, where, _]:
                path = f"/iam/v1/{where[2:].replace('=', 's/')}/roles/{role_id}"
                held = self.admin("GET", path).get("includedPermissions", [])
                added = options.get("add-permissions", "").split(",") if "add-permissions" in options else []
                body = {"stage": options["stage"]} if "stage" in options else {"includedPermissions": [*held, *added]}
                self.admin("PATCH", path, body)
            case ["gcloud", "kms", *rest]:
                self._follow_kms(rest, options)
            case ["gcloud", "beta", "quotas", "preferences", "create", *_]:
                assert int(options["preferred-value"]) > 0
                assert options["email"]
                self.scenario()
            case ["gcloud", "resource-manager", "org-policies", "disable-enforce", constraint, _]:
                self.policy(constraint, booleanPolicy={"enforced": False})
            case ["gcloud", "resource-manager", "org-policies", "allow", constraint, value, _]:
                self.policy(constraint, listPolicy={"allowedValues": [value]})
            case ["gcloud", "auth", "login"]:
                self.account = "me@example.com"
                self.gcloud("core", "alpha")
            case ["gcloud", "components", "install", "alpha"]:
                self.gcloud("core", "alpha")
            case ["pulumi", "login"]:
                self.engine.logged_in = True
            case ["export", assignment]:
                self.environment.setenv(*assignment.split("=", 1))
            case ["gemma", "stage_model", name]:
                assert name == stack
                self.stage(stack)
            case ["hf", "auth", "login"] | ["gemma", "save_token", *_]:
                self.internet.status["hub"] = (200, "")
            case _:
                pytest.fail(f"not a command that can be run: {command}")

    def _follow_kms(self, words, options):
        if words[:2] == ["keys", "add-iam-policy-binding"]:
            policy = {"bindings": [{"role": options["role"], "members": [options["member"]]}]}
            self.admin("POST", f"/cloudkms/v1/{words[2]}:setIamPolicy", {"policy": policy})
            return
        assert words[1] == "create"
        parent = f"projects/{options['project']}/locations/{options['location']}"
        if words[0] == "keyrings":
            self.admin("POST", f"/cloudkms/v1/{parent}/keyRings?keyRingId={words[2]}", {})
            return
        ring, body = f"{parent}/keyRings/{options['keyring']}", {"purpose": "ENCRYPT_DECRYPT"}
        assert options["purpose"] == "encryption"
        self.admin("POST", f"/cloudkms/v1/{ring}/cryptoKeys?cryptoKeyId={words[2]}", body)


@pytest.fixture
def world(tmp_path, monkeypatch, capsys):
    """A ready project, asked by its owner on a ready machine."""
    with idle_cloud.start(project=PROJECT, scenario=Scenario(operations=INSTANT)) as cloud:
        world = World(cloud, tmp_path, monkeypatch, capsys)
        served = (
            "serviceusage",
            "cloudresourcemanager",
            "storage",
            "tpu",
            "run",
            "secretmanager",
            "compute",
            "iam",
            "cloudkms",
        )
        for api in served:
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}", f"{cloud.base_url}/{api}/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.token)
        monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", CANARY)
        monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///state")
        monkeypatch.setenv("HF_ENDPOINT", world.internet.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(model, "REGISTRY", world.internet.url)
        monkeypatch.setattr(model, "TOKENS", f"{world.internet.url}/token")
        monkeypatch.setattr(runner, "run", world.engine.run)
        monkeypatch.setattr(RunRecorder, "past_limits", lambda _: Absent())
        monkeypatch.setattr(oauth, "new_private_key", KEY_OF_ALL)
        # google-auth looks up a regional boundary at Google's own address, which no variable redirects.
        lookup = "_is_regional_access_boundary_lookup_required"
        monkeypatch.setattr(service_account.Credentials, lookup, lambda _self: False)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
        for stack in ("tpu-v6e4", "l4-qat", "rtx6000-31b"):
            world.write(stack)
        world.gcloud("core", "alpha")
        yield world
        world.internet.server.shutdown()


def test_a_ready_project_is_all_ok_for_a_cloud_run_stack(world):
    world.service_account("ci-guard")
    world.stage("l4-qat")
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.token)
    code, report = world.doctor("l4-qat")
    assert [line for line in report["checks"] if line["status"] != "ok"] == []
    assert code == 0


def test_wrong_arguments_are_refused_and_a_project_has_to_be_named(world, capsys):
    for arguments in (["--stack", "nope"], ["--project", "; rm -rf /"], ["--project", "abc"]):
        assert run_command(COMMAND, arguments) == 2
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        world.environment.delenv(name, raising=False)
    assert run_command(COMMAND, []) == 2
    assert "--project" in capsys.readouterr().err


def test_people_get_a_table_and_the_commands_in_order(world, capsys):
    world.disable("run")
    world.disable("artifactregistry")
    assert run_command(COMMAND, ["--project", PROJECT, "--stack", "l4-qat"]) == 1
    printed = capsys.readouterr().out
    commands = printed.partition("Fix, in this order:\n")[2].splitlines()
    assert (
        commands[0]
        == f"  gcloud services enable artifactregistry.googleapis.com run.googleapis.com --project={PROJECT}"
    )
    assert "missing  not enabled; 2 checks: API artifactregistry, run\n" in printed
    assert printed.startswith(f"Project {PROJECT}, stack l4-qat: ")


def test_one_zone_s_quota_is_requested_because_one_is_enough(world, capsys):
    world.scenario(tpu=Tpu(zones=NO_CHIPS))
    assert run_command(COMMAND, ["--project", PROJECT, "--stack", "tpu-v6e4"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("gcloud beta quotas preferences create") == 1
    assert "--dimensions=zone=us-east5-a " in printed


def test_without_a_connection_gcloud_is_not_told_to_log_in_again():
    lost = unknown("No connection to run.googleapis.com (ConnectionError). Check it.", check="APIs")
    refused = missing("no working gcloud login", "gcloud auth login", check="gcloud login")
    assert checkup._online([refused]) == [refused]
    assert checkup._online([lost, refused])[1] == unknown(lost.detail, check="gcloud login")


def test_a_stack_that_is_deployed_in_another_project_is_refused_with_both(world, monkeypatch, capsys):
    item = {
        "urn": f"urn:pulumi:s::gemma-serving::{CAPACITY_TYPE}::capacity",
        "type": CAPACITY_TYPE,
        "outputs": {"project": "their-own"},
    }
    monkeypatch.setattr(state_module, "read", lambda stack: StackState(stack=stack, status="read", resources=(item,)))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    assert run_command(COMMAND, ["--stack", "tpu-v6e4"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f'doctor: project "{PROJECT}": stack tpu-v6e4 is deployed in project their-own')
    assert "use project their-own (gcp:project or GOOGLE_CLOUD_PROJECT)" in error


def test_a_quota_that_another_service_uses_up_is_judged_as_capacity_judges_it(world, capsys):
    world.scenario(run=Run(gpu_quota=1))
    world.admin("POST", f"/run/v2/projects/{PROJECT}/locations/us-east4/services?serviceId=theirs", GPU)
    run_command(CAPACITY, ["--project", PROJECT, "--stack", "l4-qat", "--json"])
    gates = {place["location"]: place["quota"] for place in json.loads(capsys.readouterr().out)["locations"]}
    assert gates["us-east4"]["answer"] == "no"
    line = world.line("quota of GPUs in us-east4", "l4-qat")
    assert (line["status"], line["detail"]) == ("missing", "1 GPUs, 1 needed, 1 in use")
    assert "--preferred-value=2 " in line["fix"]


def test_an_api_that_is_off_is_missing_with_the_command_that_enables_it(world):
    world.disable("tpu")
    _, report = world.doctor("tpu-v6e4")
    by_name = {line["check"]: line for line in report["checks"]}
    assert {line["status"] for line in report["checks"]} == {"ok", "missing", "unknown"}
    line = by_name["API tpu"]
    assert {*line} == {"check", "detail", "fix", "values", "status"}
    assert (line["status"], line["fix"]) == (
        "missing",
        f"gcloud services enable tpu.googleapis.com --project={PROJECT}",
    )
    assert by_name["v6e-4 in us-east5-a"]["status"] == "unknown"
    assert by_name["quota of chips in us-east5-a"]["status"] == "unknown"


def test_limits_without_a_known_guard_are_named_and_do_not_make_the_project_unready(world, capsys):
    """Only the account's document proves it; a guard with another account may exist, so the line is not `missing`."""
    code, report = world.doctor("tpu-v6e4")
    assert (code, report["ready"]) == (0, True)
    (line,) = [line for line in report["checks"] if line["status"] != "ok"]
    why = f"project {PROJECT} has no account ci-guard (docs/costs.md, Schedule the guard)"
    said = f"no guard is known, so maxAge is not enforced: {why}"
    assert (line["check"], line["status"], line["detail"], line["fix"]) == ("limits", "unknown", said, "")
    assert run_command(COMMAND, ["--project", PROJECT, "--stack", "tpu-v6e4"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert f"unknown limits: {said}" in " ".join(printed.split())
    world.service_account("ci-guard")
    line = world.line("limits", "tpu-v6e4")
    assert (line["status"], line["detail"].split(";")[0]) == ("ok", "account ci-guard exists")
    world.log_in_as(f"stranger@{PROJECT}.iam.gserviceaccount.com")
    line = world.line("limits", "tpu-v6e4")
    assert (line["status"], line["fix"].rpartition("/")[2]) == ("unknown", "iam.serviceAccountAdmin --condition=None")
    world.write("tpu-v6e4", ("  gemma-serving:maxAge: 24h", "  # gemma-serving:maxAge: 24h"))
    assert "limits" not in {line["check"] for line in world.doctor("tpu-v6e4")[1]["checks"]}


# --- the project ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["l4-qat", "tpu-v6e4"])
def test_a_stack_needs_the_log_of_its_server(world, stack):
    """`pulumi up` reads it when a revision does not start, and `scripts.logs` at any time."""
    world.disable("logging")
    assert (
        world.line("API logging", stack)["fix"] == f"gcloud services enable logging.googleapis.com --project={PROJECT}"
    )
    world.admin("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "deployer"})
    world.log_in_as(f"deployer@{PROJECT}.iam.gserviceaccount.com")
    line = world.line("permissions of logging.viewer", stack)
    assert (line["status"], line["detail"]) == ("missing", "missing permissions: logging.logEntries.list")
    assert "--role=roles/logging.viewer" in line["fix"]


def test_apis_that_the_caller_may_not_read_cannot_be_told(world):
    world.log_in_as(f"stranger@{PROJECT}.iam.gserviceaccount.com")
    line = world.line("APIs")
    assert line["status"] == "unknown"
    assert "--role=roles/serviceusage.serviceUsageViewer" in line["fix"]


def test_a_permission_that_is_not_held_is_missing_with_its_role(world):
    email = f"deployer@{PROJECT}.iam.gserviceaccount.com"
    world.log_in_as(email)
    line = world.line("permissions of iam.serviceAccountUser")
    assert (line["status"], line["detail"]) == ("missing", "missing permissions: iam.serviceAccounts.actAs")
    world.admin("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "deployer"})
    world.follow(line["fix"], None)
    assert world.state("permissions of iam.serviceAccountUser") == "ok"


def test_permissions_cannot_be_told_when_google_does_not_answer(world):
    world.scenario(faults=[{"method": "cloudresourcemanager.projects.testIamPermissions", "count": 999, "status": 400}])
    code, report = world.doctor()
    line = next(line for line in report["checks"] if line["check"] == "permissions of iam.serviceAccountUser")
    assert (line["status"], code) == ("unknown", 1)


@pytest.mark.parametrize(
    ("constraint", "rule", "check", "command"),
    [
        ("iam.disableServiceAccountCreation", {"booleanPolicy": {"enforced": True}}, "", "disable-enforce"),
        ("gcp.resourceLocations", {"listPolicy": {"allowedValues": ["in:eu-locations"]}}, " for us-east4", "allow"),
        ("iam.allowedPolicyMemberDomains", {"listPolicy": {"allowedValues": ["C01234567"]}}, "", "delete"),
    ],
)
def test_a_policy_that_would_refuse_the_stack_is_missing(world, constraint, rule, check, command):
    world.write("l4-qat", ("    region: us-east4\n", "    region: us-east4\n    public: true\n"))
    assert world.state(f"policy {constraint}{check}", "l4-qat") == "ok"
    world.policy(constraint, **rule)
    line = world.line(f"policy {constraint}{check}", "l4-qat")
    assert line["status"] == "missing"
    assert line["fix"].startswith(f"gcloud resource-manager org-policies {command} {constraint}")


@pytest.mark.parametrize(
    ("stack", "denied", "instead"),
    [
        ("l4-qat", ["storage"], " Exempt the project, or set bucket.existing"),
        ("l4-qat", ["storage", "run"], " Exempt the project"),
        ("tpu-v6e4", ["artifactregistry"], " Exempt the project"),
        ("tpu-v6e4", ["bigquery"], None),
    ],
)
def test_an_organization_that_demands_its_own_keys_is_told_with_the_services_and_what_to_set(
    world, stack, denied, instead
):
    name = "policy gcp.restrictNonCmekServices"
    assert world.state(name, stack) == "ok"
    world.policy(
        "gcp.restrictNonCmekServices", listPolicy={"deniedValues": [f"is:{one}.googleapis.com" for one in denied]}
    )
    line = world.line(name, stack)
    if instead is None:
        assert line["status"] == "ok"
        return
    assert line["status"] == "missing"
    assert line["detail"].endswith(f"but a stack sets none.{instead}")
    policy, _, command = line["fix"].removeprefix("echo ").partition(" | ")
    assert json.loads(*shlex.split(policy)) == {"constraint": f"constraints/{name.split()[1]}", "restoreDefault": {}}
    assert command == f"gcloud resource-manager org-policies set-policy /dev/stdin --project={PROJECT}"


def test_an_organization_that_forbids_keys_of_accounts_is_told_that_none_is_needed(world):
    name = "keys of service accounts"
    assert name not in {line["check"] for line in world.doctor()[1]["checks"]}
    world.policy("iam.disableServiceAccountKeyCreation", booleanPolicy={"enforced": True})
    line = world.line(name)
    assert (line["status"], "federation of docs/ci.md" in line["detail"]) == ("ok", True)


def test_a_grant_for_the_names_of_stacks_is_unknown_on_the_project_if_the_creation_is_granted(world):
    email = f"ci-deploy@{PROJECT}.iam.gserviceaccount.com"
    world.admin("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "ci-deploy"})
    world.grant("roles/serviceusage.serviceUsageConsumer", f"serviceAccount:{email}")
    world.log_in_as(email)
    assert world.state("permissions of storage.admin", "l4-qat") == "missing"
    role = {"title": "gemmaCreator", "includedPermissions": sorted(permissions.CREATIONS)}
    world.admin("POST", f"/iam/v1/projects/{PROJECT}/roles", {"roleId": "gemmaCreator", "role": role})
    world.grant(f"projects/{PROJECT}/roles/gemmaCreator", f"serviceAccount:{email}")
    line = world.line("permissions of storage.admin", "l4-qat")
    assert (line["status"], "storage.buckets.get" in line["detail"]) == ("unknown", True)
    assert "storage.buckets.create" not in line["detail"]


def with_role(world, setting="gemmaTunnel"):
    lines = f"    tunnelMembers: ['user:a@example.com']\n    tunnelRole: {setting}\n"
    world.write("tpu-v6e4", ("  gemma-serving:tpu:\n", f"  gemma-serving:tpu:\n{lines}"))
    return world.line("role gemmaTunnel", "tpu-v6e4")


def test_each_fault_of_the_tunnels_role_is_missing_and_its_command_fixes_it(world, subtests):
    role = f"/iam/v1/projects/{PROJECT}/roles/gemmaTunnel"

    def lack(*kept):
        world.admin("PATCH", role, {"includedPermissions": ["tpu.nodes.get", *kept]})

    for fault, do, words in (
        ("absent", lambda: None, "does not exist"),
        (
            "deleted",
            lambda: world.admin("DELETE", role),
            "is deleted and grants nothing; it can be restored for 7 days",
        ),
        ("disabled", lambda: world.admin("PATCH", role, {"stage": "DISABLED"}), "is disabled"),
        ("incomplete", lack, "lacks permissions that a tunnel needs: tpu.nodes.update, tpu.operations.get"),
    ):
        with subtests.test(fault):
            do()
            line = with_role(world)
            assert (line["status"], words in line["detail"]) == ("missing", True), line
            world.follow(line["fix"], "tpu-v6e4")
            line = with_role(world)
            assert (line["status"], line["detail"]) == ("ok", "3 permissions")
    lack("tpu.nodes.update", "tpu.operations.get", "tpu.nodes.delete")
    assert with_role(world)["detail"] == "3 permissions, plus some that a tunnel does not need: tpu.nodes.delete"
    named = with_role(world, f"projects/{PROJECT}/roles/gemmaTunnel")
    assert named["status"] == "ok"


def test_a_role_of_another_project_cannot_be_granted(world):
    line = with_role(world, "projects/another-project/roles/gemmaTunnel")
    assert (line["status"], "only be granted in its own project" in line["detail"]) == ("missing", True)
    assert f"--project={PROJECT}" in line["fix"]


def test_a_role_that_the_caller_may_not_read_cannot_be_told(world):
    world.admin("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "deployer"})
    world.grant("roles/serviceusage.serviceUsageConsumer", f"serviceAccount:deployer@{PROJECT}.iam.gserviceaccount.com")
    world.log_in_as(f"deployer@{PROJECT}.iam.gserviceaccount.com")
    line = with_role(world)
    assert (line["status"], "--role=roles/iam.roleViewer" in line["fix"]) == ("unknown", True)
    line = with_role(world, "organizations/123/roles/gemmaTunnel")
    assert line["status"] == "unknown"
    assert line["fix"].startswith("gcloud organizations add-iam-policy-binding 123 ")
    world.disable("iam")
    line = with_role(world)
    assert (line["status"], "services enable iam.googleapis.com" in line["fix"]) == ("unknown", True)


def test_policies_that_end_the_way_to_a_machine_are_missing(world):
    name = "policy compute.disableGuestAttributesAccess"
    assert world.state(name, "tpu-v6e4") == "ok"
    world.policy("compute.disableGuestAttributesAccess", booleanPolicy={"enforced": True})
    line = world.line(name, "tpu-v6e4")
    assert (line["status"], "gcloud cannot open a tunnel" in line["detail"]) == ("missing", True)
    world.follow(line["fix"], "tpu-v6e4")
    assert world.state(name, "tpu-v6e4") == "ok"
    assert name not in {line["check"] for line in world.doctor("l4-qat")[1]["checks"]}


def test_os_login_as_a_duty_rules_out_keys_in_the_metadata(world):
    world.policy("compute.requireOsLogin", booleanPolicy={"enforced": True})
    checks = {line["check"] for line in world.doctor("tpu-v6e4")[1]["checks"]}
    assert "policy compute.requireOsLogin" not in checks, "with OS Login the policy refuses nothing"
    world.write("tpu-v6e4", ("  gemma-serving:tpu:\n", "  gemma-serving:tpu:\n    ssh: metadata-key\n"))
    line = world.line("policy compute.requireOsLogin", "tpu-v6e4")
    assert line["status"] == "missing"
    assert line["fix"] == "pulumi config set --stack tpu-v6e4 --path gemma-serving:tpu.ssh os-login"


def test_policies_that_the_caller_may_not_read_cannot_be_told(world):
    world.log_in_as(f"stranger@{PROJECT}.iam.gserviceaccount.com")
    line = world.line("policy iam.disableServiceAccountCreation")
    assert line["status"] == "unknown"
    assert "roles/orgpolicy.policyViewer" in line["fix"]


# --- the accelerator -----------------------------------------------------------------------------------------------------------


def test_the_quota_of_gpus_is_read(world):
    line = world.line("quota of GPUs in us-east4", "l4-qat")
    assert (line["status"], line["values"]) == ("ok", {"limit": 3.0, "needed": 1.0})
    assert line["detail"] == "3 GPUs, 1 needed"
    world.scenario(run=Run(gpu_quota=0))
    assert world.state("quota of GPUs in us-east4", "l4-qat") == "missing"


def test_the_quota_of_an_rtx_pro_6000_counts_thousandths(world):
    settings = world.settings["rtx6000-31b"]
    region = re.search(r"region: (\S+)", settings)[1]
    line = world.line(f"quota of GPUs in {region}", "rtx6000-31b")
    assert line["values"]["limit"] == 3.0
    world.scenario(run=Run(gpu_quota=0, memory_quota_gib=40, cpu_quota=20))
    line = world.line(f"quota of GPUs in {region}", "rtx6000-31b")
    assert line["status"] == "missing"
    assert int(re.search(r"--preferred-value=(\d+)", line["fix"])[1]) % 1000 == 0
    memory = world.line(f"quota of GiB in {region}", "rtx6000-31b")
    assert (memory["status"], memory["values"]["limit"]) == ("missing", 40.0)


def test_a_stack_with_its_own_network_needs_quota_for_one(world):
    world.admin("POST", f"/serviceusage/v1/projects/{PROJECT}/services/compute.googleapis.com:enable", {})
    line = world.line("quota of networks", "l4-qat")
    free = int(line["detail"].split()[0]) - int(line["detail"].split(", ")[1].split()[0])
    assert (line["status"], free > 0) == ("ok", True)
    for number in range(free):
        body = {"name": f"other-{number}", "autoCreateSubnetworks": False}
        world.admin("POST", f"/compute/compute/v1/projects/{PROJECT}/global/networks", body)
    line = world.line("quota of networks", "l4-qat")
    assert line["status"] == "missing"
    assert "request NETWORKS at https://" in line["fix"]
    world.settings["l4-qat"] += "    directVpc: false\n"
    (world.folder / "Pulumi.l4-qat.yaml").write_text(world.settings["l4-qat"])
    assert "quota of networks" not in {one["check"] for one in world.doctor("l4-qat")[1]["checks"]}


def test_a_quota_that_google_does_not_name_cannot_be_told(world):
    zones = {name: zone for name, zone in Tpu().zones.items() if name != "us-east5-b"}
    world.scenario(tpu=Tpu(zones=zones))
    line = world.line("quota of chips in us-east5-b", "tpu-v6e4")
    assert line["values"] == {"limit": 0.0, "needed": 4.0}
    world.scenario(faults=[{"method": "serviceusage.services.consumerQuotaMetrics.get", "count": 999, "status": 404}])
    assert world.state("quota of chips in us-east5-b", "tpu-v6e4") == "unknown"


def test_the_quota_of_one_zone_is_enough(world):
    one = {
        name: zone.model_copy(update={"preemptible_quota_chips": 4 * (name == "us-east5-a")})
        for name, zone in Tpu().zones.items()
    }
    world.scenario(tpu=Tpu(zones=one))
    line = world.line("quota of chips in us-east5-b", "tpu-v6e4")
    assert (line["status"], line["fix"]) == ("ok", "")
    assert line["detail"] == "0 chips, 4 needed, but us-east5-a has enough"
    world.scenario(tpu=Tpu(zones=NO_CHIPS))
    assert world.state("quota of chips in us-east5-b", "tpu-v6e4") == "missing"


def test_the_quota_of_instances_is_that_of_compute_engine(world):
    world.write("tpu-v6e4", ("  gemma-serving:tpu:\n", "  gemma-serving:tpu:\n    api: compute-engine\n"))
    line = world.line("quota of chips in us-east5", "tpu-v6e4")
    assert (line["status"], line["values"]) == ("ok", {"limit": 1536.0, "needed": 4.0})
    regions = stack_settings("tpu-v6e4", project=PROJECT).tpu.regions
    world.scenario(tpu=Tpu(compute=ComputeTpu(preemptible_quota_overrides=dict.fromkeys(regions, 0))))
    line = world.line("quota of chips in us-east5", "tpu-v6e4")
    assert (line["status"], line["values"]) == ("missing", {"limit": 0.0, "needed": 4.0})
    assert (
        "--quota-id=PREEMPTIBLE-TPU-V6E-per-project-region --dimensions=region=us-east5 --preferred-value=4"
        in line["fix"]
    )
    world.scenario(tpu=Tpu(compute=ComputeTpu(preemptible_quota_overrides={"us-east5": 0})))
    line = world.line("quota of chips in us-east5", "tpu-v6e4")
    assert (line["status"], line["fix"]) == ("ok", "")
    assert re.search("0 chips, 4 needed, but [a-z0-9-]+ has enough", line["detail"])
    world.scenario(tpu=Tpu(compute=ComputeTpu(preemptible_quota_overrides={"us-east5": 0}, family_quota_chips=4)))
    assert world.state("quota of chips in us-east5", "tpu-v6e4") == "ok"
    world.scenario(faults=[{"method": "serviceusage.services.consumerQuotaMetrics.get", "count": 999, "status": 403}])
    assert world.state("quota of chips in us-east5", "tpu-v6e4") == "unknown"


def with_order(world, forms, more=""):
    """Let stack tpu-v6e4 request forms of capacity in an order."""
    world.write("tpu-v6e4", ("    provisioning: flex-start\n", f"    provisioning: [{forms}]\n{more}"))


def test_the_quota_of_every_form_of_an_order_is_checked(world):
    with_order(world, "flex-start, spot, standard")
    only_preemptible = {name: zone.model_copy(update={"quota_chips": 0}) for name, zone in Tpu().zones.items()}
    world.scenario(tpu=Tpu(zones=only_preemptible))
    assert world.state("quota of chips (flex-start, spot) in us-east5-a", "tpu-v6e4") == "ok"
    line = world.line("quota of chips (standard) in us-east5-a", "tpu-v6e4")
    assert (line["status"], line["values"]) == ("missing", {"limit": 0.0, "needed": 4.0})
    assert "--quota-id=TPUV6EPerProjectPerZoneForTPUAPI --dimensions=zone=us-east5-a" in line["fix"]
    assert blocked(world, "tpu-v6e4") == ([], []), "another form can be requested in each zone"
    world.scenario(tpu=Tpu(zones=NO_CHIPS))
    assert len(blocked(world, "tpu-v6e4")[0]) == 2 * len(stack_settings("tpu-v6e4", project=PROJECT).tpu.zones)


def test_a_form_above_the_ceiling_needs_no_quota(world):
    with_order(world, "flex-start, standard", "    maxUsdPerHour: 8\n")
    only_preemptible = {name: zone.model_copy(update={"quota_chips": 0}) for name, zone in Tpu().zones.items()}
    world.scenario(tpu=Tpu(zones=only_preemptible))
    assert world.state("quota of chips in us-east5-a", "tpu-v6e4") == "ok"


def test_on_compute_engine_each_form_has_its_quota_checked(world):
    with_order(world, "spot, standard", "    api: compute-engine\n")
    assert world.state("quota of chips (spot) in us-east5", "tpu-v6e4") == "ok"
    line = world.line("quota of chips (standard) in us-east5", "tpu-v6e4")
    assert (line["status"], line["values"]) == ("missing", {"limit": 0.0, "needed": 4.0})
    assert blocked(world, "tpu-v6e4") == ([], [])


def test_a_zone_is_offered_if_one_form_is_accepted(world):
    add = ("    zones: [", "    zones: [us-central1-b, ")
    world.write("tpu-v6e4", add)
    assert world.state("v6e-4 in us-central1-b", "tpu-v6e4") == "missing"
    world.write("tpu-v6e4", add, ("    provisioning: flex-start\n", "    provisioning: [flex-start, spot]\n"))
    line = world.line("v6e-4 in us-central1-b", "tpu-v6e4")
    assert line["status"] == "ok"
    assert line["detail"].endswith("; not as flex-start")


def test_a_zone_that_does_not_offer_the_type_is_missing(world):
    zones = Tpu().zones
    world.scenario(tpu=Tpu(zones={**zones, "us-east5-a": zones["us-west4-a"]}))
    line = world.line("v6e-4 in us-east5-a", "tpu-v6e4")
    assert line["status"] == "missing"
    assert "remove us-east5-a from gemma-serving:tpu.zones" in line["fix"]
    world.scenario(faults=[{"method": "tpu.projects.locations.acceleratorTypes.list", "count": 999, "status": 403}])
    assert world.state("v6e-4 in us-east5-b", "tpu-v6e4") == "unknown"


def test_a_runtime_version_that_the_zone_does_not_list_names_its_own_key(world):
    world.write(
        "tpu-v6e4", ("    provisioning: flex-start\n", "    provisioning: flex-start\n    runtimeVersion: v2-none\n")
    )
    line = world.line("v6e-4 in us-east5-a", "tpu-v6e4")
    assert (line["status"], line["detail"]) == ("missing", "the zone does not offer runtime version v2-none")
    assert line["fix"].startswith("remove tpu.runtimeVersion, or set one of tpu-ubuntu2204-base, v2-alpha-tpuv5")
    assert "v6e-4 in us-east5-a" in blocked(world, "tpu-v6e4")[0]


# --- this machine --------------------------------------------------------------------------------------------------------------


def test_gcloud_and_its_alpha_component(world):
    world.gcloud("core")
    line = world.line("gcloud alpha", "tpu-v6e4")
    assert (line["status"], line["fix"]) == ("missing", "gcloud components install alpha")
    world.gcloud()
    assert world.state("gcloud", "tpu-v6e4") == "missing"
    world.gcloud("core")
    (world.folder / "bin" / "gcloud").write_text("#!/bin/sh\nexit 1\n")
    assert world.state("gcloud", "tpu-v6e4") == "unknown"


def test_gcloud_without_a_network_is_not_advised_to_log_in(world):
    world.gcloud("core")
    said = "ERROR: (gcloud.auth.print-access-token) There was a problem refreshing your current auth tokens: Max retries exceeded"
    (world.folder / "bin" / "gcloud").write_text(f"#!/bin/sh\necho '{said} with url: /token' >&2\nexit 1\n")
    line = world.line("gcloud login", "tpu-v6e4")
    assert (line["status"], line["fix"]) == ("unknown", "")


def test_no_credentials_are_missing(world):
    world.environment.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
    world.environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(world.folder / "none.json"))
    line = world.line("credentials", "tpu-v6e4")
    assert (line["status"], line["fix"]) == (
        "missing",
        "unset GOOGLE_APPLICATION_CREDENTIALS",
    )  # it precedes gcloud's login


def test_credentials_that_google_refuses_are_missing(world):
    world.log_in_as(f"gone@{PROJECT}.iam.gserviceaccount.com")

    async def forget():
        world.cloud.cloud.store.delete("oauth.keys", f"gone@{PROJECT}.iam.gserviceaccount.com")

    asyncio.run_coroutine_threadsafe(forget(), world.cloud.loop).result(10)
    assert world.state("credentials") == "missing"


def test_a_token_that_google_refuses_is_the_only_line(world):
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "expired")
    _, report = world.doctor("tpu-v6e4")
    (line,) = report["checks"]
    assert (line["check"], line["status"], line["fix"]) == ("credentials", "missing", "unset GOOGLE_OAUTH_ACCESS_TOKEN")


def test_credentials_cannot_be_told_when_google_cannot_be_reached(world):
    world.log_in_as(f"anyone@{PROJECT}.iam.gserviceaccount.com")
    path = world.folder / "key.json"
    key = json.loads(path.read_text())
    path.write_text(json.dumps({**key, "token_uri": "http://127.0.0.1:1/token"}))
    assert world.state("credentials") == "unknown"


def test_a_person_without_the_right_to_use_the_project_gets_the_one_command_that_unlocks_the_rest(world):
    person = "ann@example.com"
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.cloud.tokens.issue_access_token(person))
    _, report = world.doctor()
    (credentials, line) = report["checks"]
    assert (credentials["check"], line["check"], line["status"]) == ("credentials", "quota project", "missing")
    assert "--role=roles/serviceusage.serviceUsageConsumer" in line["fix"]
    grant(world, person, "roles/serviceusage.serviceUsageConsumer")
    _, report = world.doctor()
    checks = {line["check"]: line["status"] for line in report["checks"]}
    assert "quota project" not in checks
    assert checks["permissions of iam.serviceAccountUser"] == "missing"
    grant(world, person, "roles/owner")
    assert world.doctor()[0] == 0


def grant(world, person, role):
    path = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    policy = world.admin("POST", f"{path}:getIamPolicy")
    policy["bindings"].append({"role": role, "members": [f"user:{person}"]})
    world.admin("POST", f"{path}:setIamPolicy", {"policy": policy})


def test_backend_and_passphrase(world):
    world.engine.logged_in = False
    assert world.line("Pulumi backend")["fix"] == "pulumi login"
    world.engine.logged_in = True
    world.environment.delenv("PULUMI_CONFIG_PASSPHRASE")
    world.environment.delenv("PULUMI_CONFIG_PASSPHRASE_FILE", raising=False)
    assert world.line("Pulumi passphrase", "l4-qat")["fix"] == "export PULUMI_CONFIG_PASSPHRASE_FILE=FILE"
    world.write("l4-qat", ("config:\n", "secretsprovider: gcpkms://projects/p\nconfig:\n"))
    assert world.state("Pulumi passphrase", "l4-qat") == "ok"
    world.environment.setattr(runner, "run", refuse_to_end)
    assert world.state("Pulumi backend") == "unknown"


WRONG = "error: could not create secrets manager for new stack: incorrect passphrase"


def test_the_engine_checks_the_passphrase_with_the_salt_of_the_settings_file_before_all_others(world):
    assert world.line("Pulumi passphrase", "l4-qat")["detail"] == "PULUMI_CONFIG_PASSPHRASE is set"
    assert world.engine.backends == [], "without a salt every passphrase is right"
    world.write("l4-qat", ("config:\n", "encryptionsalt: v1:x\nconfig:\n"))
    assert world.doctor("l4-qat")[1]["checks"][1] == {
        "check": "Pulumi passphrase",
        "detail": "PULUMI_CONFIG_PASSPHRASE decrypts Pulumi.l4-qat.yaml",
        "fix": "",
        "values": {},
        "status": "ok",
    }
    (asked,) = world.engine.backends
    assert asked.startswith("file:///"), asked
    assert not asked.startswith("file:///state"), "the stack is never created in the user's backend"

    world.engine.refusal, world.engine.stacks = WRONG, ("l4-qat",)
    deployed = world.line("Pulumi passphrase", "l4-qat")
    wrong = "PULUMI_CONFIG_PASSPHRASE is not the passphrase that wrote encryptionsalt in Pulumi.l4-qat.yaml"
    assert (deployed["status"], deployed["detail"]) == ("missing", wrong)
    assert deployed["fix"] == "export PULUMI_CONFIG_PASSPHRASE=PASSPHRASE"
    world.engine.stacks = ()
    assert (
        "if a trial on the local cloud wrote the line, delete it" in world.line("Pulumi passphrase", "l4-qat")["detail"]
    )
    world.engine.logged_in = False
    assert world.line("Pulumi passphrase", "l4-qat")["detail"] == wrong, "unknown whether it has a state"

    world.engine.refusal = "error: the disk is full"
    unclear = world.line("Pulumi passphrase", "l4-qat")
    assert (unclear["status"], unclear["detail"].endswith(": the disk is full")) == ("unknown", True)
    world.environment.delenv("PULUMI_BACKEND_URL")
    world.environment.setenv("PULUMI_HOME", str(world.folder))
    assert [line for line in world.doctor("l4-qat")[1]["checks"] if line["check"] == "Pulumi passphrase"] == []


def test_the_passphrase_is_judged_by_the_state_and_then_by_the_file(world):
    secret, salt = "  gemma-serving:hfToken: { secure: v1:abc }\n", "encryptionsalt: v1:file\n"
    world.engine.stacks = ("l4-qat",)
    world.engine.secrets = {"type": "passphrase", "state": {"salt": "v1:state"}}
    right = "PULUMI_CONFIG_PASSPHRASE is right, but Pulumi.l4-qat.yaml "
    for name, wrong_salts, text, expected in (
        (
            "the state's",
            ("v1:state",),
            "",
            "PULUMI_CONFIG_PASSPHRASE is not the passphrase of the state of stack l4-qat",
        ),
        (
            "and the file's own",
            ("v1:state",),
            salt,
            "PULUMI_CONFIG_PASSPHRASE is not the passphrase of the state of stack l4-qat",
        ),
        ("no salt, no secret", (), "", "PULUMI_CONFIG_PASSPHRASE decrypts the state"),
        ("another salt of it", (), salt, "PULUMI_CONFIG_PASSPHRASE decrypts the state"),
        ("a salt of another", ("v1:file",), salt, f"{right}has the encryptionsalt of another passphrase"),
        ("secrets alone", (), secret, f"{right}has secrets without their encryptionsalt"),
    ):
        world.engine.wrong_salts = wrong_salts
        world.write("l4-qat", ("config:\n", f"config:\n{text}" if text == secret else f"{text}config:\n"))
        line = world.line("Pulumi passphrase", "l4-qat")
        assert line["detail"] == expected, name
        fix = "pulumi config refresh --stack l4-qat --force" if "is right" in expected else ""
        assert line["fix"] == (fix or ("" if line["status"] == "ok" else "export PULUMI_CONFIG_PASSPHRASE=PASSPHRASE"))
    world.engine.secrets = {"type": "cloud", "state": {"url": "gcpkms://projects/p"}}
    assert world.state("Pulumi passphrase", "l4-qat") == "ok"


STATE = "my-pulumi-state"


def lacking_bucket(world):
    """Name a bucket for the states in the environment, as get-started does, and return the doctor's line about it."""
    world.environment.setenv("PULUMI_BACKEND_URL", f"gs://{STATE}")
    world.engine.logged_in, world.engine.error = False, NO_BUCKET
    return world.line("Pulumi backend")


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


def test_the_lines_that_create_the_state_bucket_run_as_printed_and_are_those_of_the_page(page, world, tmp_path):
    commands, gcloud = page
    line = lacking_bucket(world)
    assert (line["status"], line["detail"]) == (
        "missing",
        f"gs://{STATE} does not exist; it stores the state of all stacks",
    )
    assert [shlex.split(part)[1:] for part in line["fix"].split(" && ")] == buckets_of(commands, PROJECT)
    first = [command[:3] for command in commands if f"gs://{STATE}" in command][:3]
    assert first == [["storage", "buckets", verb] for verb in ("create", "update", "add-iam-policy-binding")]
    folder = install(
        tmp_path / "shims", environment={"LOCALCLOUD_URL": world.cloud.base_url, OPERATOR_TOKEN: world.cloud.token}
    )
    subprocess.run(["bash", "-ec", line["fix"]], env={"PATH": f"{folder}:/usr/bin:/bin"}, check=True, timeout=60)
    bucket = world.admin("GET", f"/storage/storage/v1/b/{STATE}")
    closed = bucket["iamConfiguration"]
    assert (bucket["versioning"], closed["uniformBucketLevelAccess"]["enabled"]) == ({"enabled": True}, True)
    assert closed["publicAccessPrevention"] == "enforced"
    assert world.line("Pulumi backend")["fix"] == f"pulumi login gs://{STATE}", (
        "it exists: the engine has another problem"
    )
    if gcloud is not None:
        real = buckets_of(commands, "local-project")
        with idle_cloud.start(scenario=Scenario(operations=INSTANT)) as cloud:
            outcomes = gcloud_commands.run(gcloud, cloud.base_url, tmp_path, real, token=cloud.token)
            assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
            headers = {"Authorization": f"Bearer {cloud.token}"}
            made = requests.get(f"{cloud.base_url}/storage/storage/v1/b/{STATE}", headers=headers, timeout=30).json()
        same = ("name", "location", "versioning")
        assert [made[key] for key in same] == [bucket[key] for key in same]
        assert made["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
        assert made["iamConfiguration"]["publicAccessPrevention"] == "enforced"


def test_a_state_bucket_that_cannot_be_seen_is_not_said_to_be_missing(world):
    world.disable("storage")
    line = lacking_bucket(world)
    assert (line["status"], line["detail"]) == ("unknown", f"API storage is off in project {PROJECT}")
    world.follow(line["fix"], None)
    world.scenario(faults=[Fault(method="storage.buckets.get", status=403, count=9)])
    line = world.line("Pulumi backend")
    assert (line["status"], "buckets create" in line["fix"]) == ("unknown", False)


def test_only_a_missing_pulumi_is_fixed_by_its_installer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Pulumi.yaml").write_text("name: my-infra\n")
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    (found,) = machine._pulumi(None)
    assert (found.fix, "the project my-infra" in found.detail) == (installation.NEW_FOLDER, True)
    monkeypatch.setattr(runner, "pulumi", refuse)
    (found,) = machine._pulumi(None)
    assert found.fix == installation.INSTALL_PULUMI


def refuse():
    raise CommandRefusedError("The Pulumi CLI is not installed.")


def refuse_to_end(*_arguments, **_options):
    raise ScriptError("`pulumi whoami` timed out after 120 s.")


# --- what the server runs ------------------------------------------------------------------------------------------------------


def test_weights_are_missing_until_they_are_staged_whole(world):
    line = world.line("weights", "l4-qat")
    assert (line["status"], line["fix"]) == ("missing", "gemma stage_model l4-qat")
    world.stage("l4-qat", without="model.safetensors")
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.token)
    line = world.line("weights", "l4-qat")
    assert (line["status"], "model.safetensors" in line["detail"]) == ("missing", True)
    world.stage("l4-qat")
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.token)
    assert world.state("weights", "l4-qat") == "ok"
    world.scenario(faults=[{"method": "storage.objects.get", "count": 999, "status": 403}])
    assert world.state("weights", "l4-qat") == "unknown"


def test_the_age_of_the_template_is_said_and_fails_nothing(world):
    assert not [line for line in world.doctor("l4-qat")[1]["checks"] if line["check"] == "chat template"]
    for text, status, age, detail in (
        (JULY, "ok", "2026-07", "it has Google's fixes of April and 9 July 2026"),
        (APRIL, "ok", "2026-04", "it has Google's fixes of April 2026, but lacks Google's fix of 9 July 2026"),
        ("{{ messages }}", "unknown", "unknown", "it has an unknown age: it was not read, or does not write what"),
    ):
        world.stage("l4-qat", template=text)
        world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.token)
        line = world.line("chat template", "l4-qat")
        assert (line["status"], line["values"], line["fix"]) == (status, {"age": age}, "")
        assert line["detail"].startswith(detail)


def test_a_drafter_is_missing_until_its_copy_is_staged_with_the_hash_of_the_settings(world):
    speculative = "    speculative: { method: draft-model, drafter: google/gemma-4-26B-A4B-it-assistant }\n"
    options = "  gemma-serving:vllm:\n"

    def lines(bucket=""):
        world.write("l4-qat", (options, bucket + options + speculative))
        _, report = world.doctor("l4-qat")
        return [line for line in report["checks"] if line["check"] == "weights"]

    world.stage("l4-qat")
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.token)
    model, part = lines()
    assert (model["status"], part["status"]) == ("ok", "missing")
    assert part["detail"] == "drafter google/gemma-4-26B-A4B-it-assistant is not staged"
    assert part["fix"] == "gemma stage_model l4-qat"
    hashes = f"  gemma-serving:bucket: {{ parts: {{ google/gemma-4-26B-A4B-it-assistant: 'sha256:{'a' * 64}' }} }}\n"
    _, part = lines(hashes)
    assert (part["status"], "cannot be read or lists no file, in" in part["detail"]) == ("missing", True)
    assert f"gemma-4-26B-A4B-it-assistant-{'a' * 16}" in part["detail"]


def test_weights_may_lie_in_a_bucket_that_another_tool_filled(world):
    folder = "models/ours/"
    bucket = f"  gemma-serving:weights: bucket\n  gemma-serving:bucket: {{existing: theirs, prefix: '{folder}'}}\n"
    world.write("l4-qat", ("  gemma-serving:weights: bucket\n", bucket))
    world.admin("POST", f"/serviceusage/v1/projects/{PROJECT}/services/storage.googleapis.com:enable", {})
    assert world.line("weights", "l4-qat")["detail"] == "bucket theirs does not exist"
    world.admin("POST", f"/storage/storage/v1/b?project={PROJECT}", {"name": "theirs", "location": "us-east4"})

    def put(name, content):
        path = f"/upload/storage/v1/b/theirs/o?uploadType=media&name={quote(folder + name, safe='')}"
        world.admin("POST", path, content)

    put("model.safetensors", {})
    line = world.line("weights", "l4-qat")
    assert (line["status"], line["fix"]) == ("missing", "gemma stage_model l4-qat")
    put("config.json", {})
    line = world.line("weights", "l4-qat")
    place = f"gs://theirs/{folder}".rstrip("/")
    assert line["status"] == "ok"
    assert line["detail"].startswith(f"2 objects, 0.00 GiB in {place}, without a gemma-serving-manifest.json: ")
    files = [{"name": name, "size_bytes": 2} for name in ("model.safetensors", "config.json")]
    put("gemma-serving-manifest.json", {"files": files})
    assert world.line("weights", "l4-qat")["detail"] == f"2 files, 0.00 GiB in {place}"
    put("chat_template.jinja", {})
    line = world.line("weights", "l4-qat")
    assert (line["status"], line["detail"]) == (
        "missing",
        f"it does not list chat_template.jinja, which the server will also load, in {place}",
    )


def test_the_hub_is_asked_with_the_token_that_the_server_will_have(world):
    assert world.line("hub", "tpu-v6e4")["detail"].endswith("(no token needed)")
    world.internet.status["hub"] = (401, "GatedRepo")
    line = world.line("hub", "tpu-v6e4")
    assert (line["status"], "gated" in line["detail"]) == ("missing", True)
    assert line["fix"] == "gemma save_token tpu-v6e4 hfToken"
    world.write("tpu-v6e4", ("config:\n", "config:\n  gemma-serving:hfToken: { secure: v1:abc }\n"))
    world.internet.status["hub"] = (403, "GatedRepo")
    assert "not accepted the terms" in world.line("hub", "tpu-v6e4")["detail"]
    world.internet.status["hub"] = (401, "")
    assert "is invalid" in world.line("hub", "tpu-v6e4")["detail"]
    world.internet.status["hub"] = (200, "")
    assert world.state("hub", "tpu-v6e4") == "ok"
    assert world.internet.seen_tokens[-1] == f"Bearer {CANARY}"


def test_the_commit_of_the_settings_exists_and_a_stack_without_one_is_told_how_to_keep_one(world):
    model, newer, none = "google/gemma-4-E2B-it", "1" * 40, "0" * 40
    known = world.internet.head[model]
    line = world.line("commit", "tpu-v6e4")
    assert (line["status"], line["detail"]) == ("ok", f"{model} has {known}")
    world.internet.head[model] = newer
    line = world.line("commit", "tpu-v6e4")
    assert (line["status"], line["detail"]) == ("ok", f"{model} has {known}")
    world.write("tpu-v6e4", (f"modelRevision: {known}", f'modelRevision: "{none}"'))
    line = world.line("commit", "tpu-v6e4")
    assert (line["status"], line["detail"]) == ("missing", f"{model} has no commit {none}")
    page = f"https://huggingface.co/{model}/commits/main"
    assert line["fix"] == f"set gemma-serving:modelRevision: {newer} in Pulumi.tpu-v6e4.yaml ({page})"
    setting = f"pulumi config set --stack tpu-v6e4 gemma-serving:modelRevision {newer}"
    world.write("tpu-v6e4", (f"  gemma-serving:modelRevision: {known}\n", ""))
    line = world.line("commit", "tpu-v6e4")
    said = (
        f"modelRevision is not set: the server loads the main branch of {model}, now {newer}; to pin it, run: {setting}"
    )
    assert (line["status"], line["detail"]) == ("ok", said)
    del world.internet.head[model]
    assert world.line("commit", "tpu-v6e4")["status"] == "unknown", "a hub that names no commit proves nothing"


def test_weights_of_another_commit_than_that_of_the_settings_are_named(world):
    world.stage("l4-qat", commit="0" * 40)
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.token)
    line = world.line("weights", "l4-qat")
    assert line["status"] == "missing"
    assert "modelRevision is 2096d38dad51a19b8e982b44241c47102a8bbb00, but the weights in " in line["detail"]


def test_an_id_that_the_hub_does_not_have_comes_with_the_nearest_ones(world):
    world.write("tpu-v6e4", ("model: google/gemma-4-E2B-it\n", "model: google/gemma-4-E2B-itt\n"))
    world.internet.status["hub"] = (404, "RepoNotFound")
    line = world.line("hub", "tpu-v6e4")
    assert (line["status"], line["detail"].split(";")[0]) == (
        "missing",
        "google/gemma-4-E2B-itt does not exist on the hub or is private",
    )
    assert "closest existing ids: google/gemma-4-E2B-it," in line["detail"]
    assert line["fix"] == "set gemma-serving:model: google/gemma-4-E2B-it in Pulumi.tpu-v6e4.yaml"
    world.write("tpu-v6e4")
    fix = "set gemma-serving:model: AN_ID_OF_THE_HUB in Pulumi.tpu-v6e4.yaml; or, if it is private: gemma save_token tpu-v6e4 hfToken"
    assert world.line("hub", "tpu-v6e4")["fix"] == fix, "another is a choice"


def test_a_secret_by_reference_is_looked_up_and_the_hub_is_asked_with_its_value(world):
    version = f"projects/{PROJECT}/secrets/their-token/versions/1"
    world.write("tpu-v6e4", ("config:\n", f"config:\n  gemma-serving:hfTokenSecret: {version}\n"))
    line = world.line("hfTokenSecret", "tpu-v6e4")
    assert (line["status"], line["detail"]) == ("missing", f"{version} does not exist")
    assert line["fix"] == "gemma save_token tpu-v6e4 hfToken --secret their-token"
    assert world.state("hub", "tpu-v6e4") == "unknown"
    path = f"/secretmanager/v1/projects/{PROJECT}/secrets"
    world.admin("POST", f"{path}?secretId=their-token", {"replication": {"automatic": {}}})
    data = base64.b64encode(CANARY.encode()).decode()
    world.admin("POST", f"{path}/their-token:addVersion", {"payload": {"data": data}})
    assert world.state("hfTokenSecret", "tpu-v6e4") == "ok"
    assert world.line("hub", "tpu-v6e4")["detail"].endswith(f"(the token of {version})")
    assert world.internet.seen_tokens[-1] == f"Bearer {CANARY}"
    world.admin("POST", f"{path}/their-token/versions/1:disable", {})
    assert world.line("hfTokenSecret", "tpu-v6e4")["detail"] == f"{version} is DISABLED"


def test_a_hub_or_registry_that_this_machine_cannot_reach_does_not_fail(world):
    world.service_account("ci-guard")
    world.environment.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    world.environment.setattr(model, "TOKENS", "http://127.0.0.1:1/token")
    code, report = world.doctor("tpu-v6e4")
    assert {line["check"]: line["status"] for line in report["checks"] if line["status"] != "ok"} == {
        "hub": "unknown",
        "image": "unknown",
    }
    assert (code, report["ready"]) == (0, True)


def test_an_image_that_the_registry_does_not_have_is_missing(world):
    assert world.line("image", "l4-qat")["detail"].endswith("97 Docker Hub pulls left for this address")
    world.internet.status["image"] = (404, "")
    assert world.state("image", "l4-qat") == "missing"
    world.internet.status["image"] = (429, "")
    assert world.state("image", "l4-qat") == "unknown"


def test_the_token_of_docker_hubs_account_has_to_lie_where_the_settings_say(world):
    secret = f"projects/{PROJECT}/secrets/docker-hub"
    weights, account = "  gemma-serving:weights: bucket\n", f"{{username: someone, tokenSecret: {secret}/versions/1}}"
    world.write("l4-qat", (weights, f"{weights}  gemma-serving:dockerHub: {account}\n"))
    line = world.line("docker hub", "l4-qat")
    assert (line["status"], line["fix"].split()[:4]) == ("missing", ["gcloud", "secrets", "create", "docker-hub"])
    secrets = f"/secretmanager/v1/projects/{PROJECT}/secrets"
    world.admin("POST", f"{secrets}?secretId=docker-hub", {"replication": {"automatic": {}}})
    world.admin("POST", f"{secrets}/docker-hub:addVersion", {"payload": {"data": "eA=="}})
    assert world.state("docker hub", "l4-qat") == "ok"
    world.admin("POST", f"{secrets}/docker-hub/versions/1:disable", {})
    line = world.line("docker hub", "l4-qat")
    assert (line["status"], "is DISABLED" in line["detail"]) == ("missing", True)
    assert line["fix"].startswith("gcloud secrets versions add docker-hub")


# --- as a whole ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["tpu-v6e4", "l4-qat"])
def test_following_the_commands_ends_in_a_ready_project(world, stack):
    """A project where everything is off, a caller without a role, and a bare machine."""
    email = f"deployer@{PROJECT}.iam.gserviceaccount.com"
    for account_id in ("deployer", "ci-guard"):
        world.service_account(account_id)
    world.scenario(tpu=Tpu(zones=NO_CHIPS), run=Run(gpu_quota=0, cpu_quota=0, memory_quota_gib=0))
    world.policy("iam.disableServiceAccountCreation", booleanPolicy={"enforced": True})
    for api in APIS:
        world.disable(api)
    world.gcloud("core")
    world.engine.logged_in = False
    world.environment.delenv("PULUMI_CONFIG_PASSPHRASE")
    world.internet.status["hub"] = (401, "GatedRepo")
    world.log_in_as(email)
    followed = []
    for _ in itertools.repeat(None, 8):
        code, report = world.doctor(stack)
        if code == 0:
            break
        for fix in dict.fromkeys(line["fix"] for line in report["checks"] if line["status"] != "ok"):
            if fix:
                world.follow(fix, stack)
                followed.append(fix)
    assert [line for line in report["checks"] if line["status"] != "ok"] == []
    assert (code, report["ready"]) == (0, True)
    assert len(followed) > 15


def test_a_check_that_does_not_end_cannot_be_told():
    release = threading.Event()

    def hang():
        release.wait(120)
        return ()

    ok = Diagnosis("passed", check="quick")
    # The clock at the start, when the first check that ends is waited for (all are left), and then (0.05 s are).
    readings_s = iter((0.0, 0.0, 59.95))
    lines = concurrently(
        [DoctorCheck(name="slow", run=hang), DoctorCheck(name="quick", run=lambda: (ok,))],
        limit_s=60.0,
        clock=lambda: next(readings_s),
    )
    release.set()
    assert [(line.check, line.state) for line in lines] == [("slow", "unknown"), ("quick", "passed")]


def test_the_doctor_changes_nothing(world):
    world.doctor("tpu-v6e4")
    world.doctor("l4-qat")
    requests_made = world.admin("GET", "/admin/requests")["requests"]
    writes = {entry["id"] for entry in requests_made if entry["method"] != "GET"}
    assert writes == {
        "cloudresourcemanager.projects.testIamPermissions",
        "cloudresourcemanager.projects.getEffectiveOrgPolicy",
    }


KEY = f"projects/{PROJECT}/locations/us/keyRings/r/cryptoKeys/k"
NEW_KEY = (
    f"gcloud kms keyrings create r --project={PROJECT} --location=us",
    f"gcloud kms keys create k --project={PROJECT} --location=us --keyring=r --purpose=encryption",
)
"""As in docs/ci.md."""
NAMES_KEY = ("config:\n", f"secretsprovider: gcpkms://{KEY}\nencryptedkey: a21z\nconfig:\n")


@pytest.fixture
def keyed(world):
    """A stack whose secrets a key in Cloud KMS encrypts, and a caller with the roles of a reader."""
    world.write("l4-qat", NAMES_KEY)
    world.admin("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "key-user"})
    email = f"key-user@{PROJECT}.iam.gserviceaccount.com"
    for role in ("roles/cloudkms.viewer", "roles/serviceusage.serviceUsageConsumer"):
        world.grant(role, f"serviceAccount:{email}")
    world.log_in_as(email)
    return world


def keys(world):
    _, report = world.doctor("l4-qat")
    return [line for line in report["checks"] if line["check"] == "secrets key"]


def test_the_commands_about_the_key_followed_in_order_end_in_one_that_can_be_used(keyed):
    keyed.disable("cloudkms")
    (line,) = keys(keyed)
    assert (line["status"], line["fix"]) == (
        "missing",
        f"gcloud services enable cloudkms.googleapis.com --project={PROJECT}",
    )
    keyed.follow(line["fix"], "l4-qat")
    for command in NEW_KEY:
        (line,) = keys(keyed)
        assert line["status"] == "missing"
        keyed.follow(command, "l4-qat")
    (line,) = keys(keyed)
    keyed.follow(line["fix"], "l4-qat")
    (line,) = keys(keyed)
    assert (line["status"], line["detail"]) == ("ok", f"{KEY}: you can encrypt and decrypt")


def test_an_account_that_may_only_decrypt_is_told_what_it_cannot_do(keyed):
    for command in NEW_KEY:
        keyed.follow(command, "l4-qat")
    (line,) = keys(keyed)
    assert (line["status"], line["detail"]) == (
        "missing",
        f"{KEY} does not exist (docs/ci.md creates one) or you do not have permission to decrypt with it",
    )
    assert line["fix"].endswith("--role=roles/cloudkms.cryptoKeyEncrypterDecrypter")
    keyed.follow(line["fix"].replace("EncrypterDecrypter", "Decrypter"), "l4-qat")
    (line,) = keys(keyed)
    assert line["status"] == "ok"
    assert (
        "can decrypt; creating or changing a stack needs roles/cloudkms.cryptoKeyEncrypterDecrypter" in line["detail"]
    )


def test_a_key_that_google_does_not_answer_about_is_unknown(keyed):
    keyed.scenario(
        faults=[Fault(method="cloudkms.projects.locations.keyRings.cryptoKeys.testIamPermissions", status=403, count=9)]
    )
    (line,) = keys(keyed)
    assert line["status"] == "unknown"


# --- what stops `gemma up` ------------------------------------------------------------------------------------------------------


def blocked(world, stack, *, is_known=False, has_server=False, image=""):
    """Return the checks that stop `up`, and those that could not be checked."""
    settings = stack_settings(stack, project=PROJECT)
    server = {"type": CAPACITY_TYPE, "inputs": {"image": image}}
    resources = (server,) if has_server else ()
    state = StackState(stack=stack, status="read" if is_known else "missing", resources=resources)
    lines = blocking_checks(settings, state)
    states = {state: [line.check for line in lines if line.state == state] for state in ("failed", "unknown")}
    assert len(lines) == sum(map(len, states.values()))
    return states["failed"], states["unknown"]


def test_a_ready_project_and_an_api_that_only_keeps_logs_do_not_block(world):
    world.disable("logging")
    assert blocked(world, "tpu-v6e4") == ([], [])
    world.stage("l4-qat")
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.token)
    assert blocked(world, "l4-qat") == ([], [])


def test_an_api_that_is_off_blocks_and_its_quota_is_unknown(world):
    world.disable("tpu")
    failed, unknown = blocked(world, "tpu-v6e4", is_known=True, has_server=True)
    assert failed == ["API tpu"]
    assert all("us-east5-a" in check or " in " in check for check in unknown)


def test_a_quota_of_zero_blocks_only_in_all_zones_and_only_a_server_that_is_new(world):
    world.scenario(tpu=Tpu(zones=NO_CHIPS))
    zones = [f"quota of chips in {zone}" for zone in stack_settings("tpu-v6e4", project=PROJECT).tpu.zones]
    assert blocked(world, "tpu-v6e4") == (zones, [])
    assert blocked(world, "tpu-v6e4", is_known=True, has_server=True) == ([], [])
    one = dict(NO_CHIPS)
    one["us-east5-a"] = Tpu().zones["us-east5-a"]
    world.scenario(tpu=Tpu(zones=one))
    assert blocked(world, "tpu-v6e4") == ([], [])


def test_a_renewal_that_the_quota_does_not_allow_is_no_reason_to_refuse_the_first_machine(world):
    world.scenario(tpu=Tpu(zones=with_chips(4)))
    world.write("tpu-v6e4", ("    maxRunDuration:", "    renewBefore: 1h\n    maxRunDuration:"))
    assert blocked(world, "tpu-v6e4") == ([], [])
    world.scenario(tpu=Tpu(zones=with_chips(3)))
    assert len(blocked(world, "tpu-v6e4")[0]) > 1


def test_weights_that_are_not_staged_and_a_gpu_quota_of_zero_block_a_new_service(world):
    world.scenario(run=Run(gpu_quota=0))
    assert blocked(world, "l4-qat") == (["quota of GPUs in us-east4", "weights"], [])
    assert blocked(world, "l4-qat", is_known=True, has_server=True) == ([], [])


def test_gpus_that_others_use_may_be_free_again_and_do_not_block(world):
    world.stage("l4-qat")
    world.environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.cloud.token)
    world.scenario(run=Run(gpu_quota=1))
    world.admin("POST", f"/run/v2/projects/{PROJECT}/locations/us-east4/services?serviceId=theirs", GPU)
    assert blocked(world, "l4-qat") == ([], [])


def test_a_commit_that_the_hub_does_not_have_blocks_and_a_hub_that_does_not_answer_is_unknown(world):
    model, known = "google/gemma-4-E2B-it", CHECKPOINTS["google/gemma-4-E2B-it"].commit
    world.write("tpu-v6e4", (f"modelRevision: {known}", f'modelRevision: "{"0" * 40}"'))
    assert blocked(world, "tpu-v6e4") == (["commit"], [])
    world.internet.status["hub"] = (404, "RepoNotFound")
    assert blocked(world, "tpu-v6e4") == (["hub"], [])
    world.internet.status["hub"] = (503, "")
    assert blocked(world, "tpu-v6e4") == ([], ["hub"]), model


def test_an_image_or_an_adapter_that_does_not_exist_blocks_and_a_silent_registry_does_not(world):
    world.internet.status["image"] = (404, "")
    assert blocked(world, "tpu-v6e4") == (["image"], [])
    world.internet.status["image"] = (429, "")
    assert blocked(world, "tpu-v6e4") == ([], ["image"])
    world.internet.status["image"] = (200, "")
    lora = "lora: { adapters: { sql: my-org/nope } }"
    world.write("tpu-v6e4", ("    maxModelLen:", f"    {lora}\n    maxModelLen:"))
    assert blocked(world, "tpu-v6e4") == ([], [])
    world.internet.absent = "my-org/nope"
    assert blocked(world, "tpu-v6e4") == (["adapter my-org/nope"], [])
    line = world.line("adapter my-org/nope", "tpu-v6e4")
    assert line["detail"] == "my-org/nope does not exist on the hub or is private"
    assert line["fix"].startswith("set AN_ID_OF_THE_HUB for the adapter my-org/nope in Pulumi.tpu-v6e4.yaml; or, if it")


def test_an_image_of_artifact_registry_is_asked_of_its_registry_with_the_callers_login(world):
    registry = "us-docker.pkg.dev"
    image = {"repository": f"{registry}/vertex-ai/servers/vllm", "digest": f"sha256:{'a' * 64}", "version": "0.31.0"}
    world.write("l4-qat", ("config:\n", f"config:\n  gemma-serving:image: {json.dumps(image)}\n"))
    world.environment.setenv("LOCALCLOUD_URL", world.cloud.base_url)
    line = world.line("image", "l4-qat")
    assert (line["status"], "does not exist in Artifact Registry, or your account" in line["detail"]) == (
        "missing",
        True,
    )
    assert "image" in blocked(world, "l4-qat")[0]
    world.admin("POST", "/admin/images", {"images": [f"{image['repository']}@{image['digest']}"]})
    assert world.state("image", "l4-qat") == "ok"
    assert "image" not in blocked(world, "l4-qat")[0]


def test_an_image_that_serves_and_left_the_registry_does_not_stop_a_change(world):
    world.internet.status["image"] = (404, "")
    assert blocked(world, "tpu-v6e4", is_known=True, has_server=True) == (["image"], [])
    digest = stack_settings("tpu-v6e4", project=PROJECT).image.digest
    assert blocked(world, "tpu-v6e4", is_known=True, has_server=True, image=f"vllm@{digest}") == ([], [])


def test_a_limit_that_is_used_up_blocks_and_an_unknown_use_does_not(world, monkeypatch):
    for answer, expected in (
        (Present("Stack tpu-v6e4 exceeds maxAge 10 min (age 40 min)"), (["limits"], [])),
        (Unknown("the use of maxAge is unknown"), ([], ["limits"])),
        (Absent(), ([], [])),
    ):
        monkeypatch.setattr(RunRecorder, "past_limits", lambda _, answer=answer: answer)
        assert blocked(world, "tpu-v6e4", is_known=True, has_server=True) == expected
        assert blocked(world, "tpu-v6e4", is_known=True) == ([], []), "nothing was started"


def test_a_private_image_that_the_account_of_docker_hub_pulls_does_not_block(world):
    account = f"{{username: someone, tokenSecret: projects/{PROJECT}/secrets/docker-hub/versions/1}}"
    world.write("tpu-v6e4", ("config:\n", f"config:\n  gemma-serving:dockerHub: {account}\n"))
    world.internet.status["image"] = (401, "")
    assert blocked(world, "tpu-v6e4") == ([], ["image"])


def test_the_user_s_own_weights_are_staged_from_a_folder_and_the_hub_is_not_asked(world):
    commit = "  gemma-serving:modelRevision: 2096d38dad51a19b8e982b44241c47102a8bbb00\n"
    world.write("l4-qat", (commit, "  gemma-serving:modelConfig: own\n"))
    assert world.line("weights", "l4-qat")["fix"] == "gemma stage_model l4-qat --from FOLDER"
    _, report = world.doctor("l4-qat")
    assert not [line for line in report["checks"] if line["check"] == "hub"]


def test_a_wrong_passphrase_and_a_read_only_settings_file_block(world, monkeypatch):
    path = world.folder / "Pulumi.tpu-v6e4.yaml"
    monkeypatch.setattr(os, "access", lambda asked, mode: (asked, mode) != (path, os.W_OK))
    assert blocked(world, "tpu-v6e4") == (["settings file"], [])
    assert blocked(world, "tpu-v6e4", is_known=True) == ([], []), "the engine writes no salt"
    world.write("tpu-v6e4", ("config:\n", "encryptionsalt: v1:x\nconfig:\n"))
    assert blocked(world, "tpu-v6e4") == ([], [])
    world.engine.refusal = WRONG
    assert blocked(world, "tpu-v6e4") == (["Pulumi passphrase"], [])


def test_what_google_does_not_answer_does_not_block(world, monkeypatch):
    def silent(*_words, **_options):
        raise ScriptError("no answer")

    monkeypatch.setattr(project, "read_enabled_apis", silent)
    monkeypatch.setattr(capacity, "read_all", silent)
    assert blocked(world, "tpu-v6e4") == ([], ["APIs", "quota and zones"])
    answered = threading.Event()
    monkeypatch.setattr(capacity, "read_all", lambda *_words, **_options: answered.wait(60))
    monkeypatch.setattr(blocking_module, "LIMIT_S", 0.2)
    assert "quota and zones" in blocked(world, "tpu-v6e4")[1]
    answered.set()
