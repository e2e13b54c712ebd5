"""A ready project on a local cloud with its hub and registry, the machine that asks, and the steps that change them."""

import asyncio
import functools
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from google.oauth2 import service_account

from gemma_serving.cloud import registry
from gemma_serving.cloud.staging.bucket import WeightsBucket
from gemma_serving.cloud.staging.copying import CopyPlan, stage
from gemma_serving.cloud.staging.sources import FolderSource
from gemma_serving.contracts.proof import Asker
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.contracts.three_answers import Absent
from gemma_serving.engine import runner
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.doctor import (
    capacity,
    checkup,
    machine,
    model,
    passphrase,
    project,
    secrets_key,
    tunnel_role,
)
from gemma_serving.scripts.doctor.__main__ import COMMAND
from gemma_serving.stacks import bucket_weights
from gemma_serving.stacks.hooks.run_recorder import RunRecorder
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import Client
from localcloud.world import oauth
from localcloud.world.scenario import Hub, OperationDurations, Run, Scenario, Tpu

PROJECT = "doctor-project"
TPU, RUN = "tpu-v6e4", "l4-qat"
ROOT = Path(__file__).resolve().parents[3]
CANARY = "hf_canary0123456789"
WRONG = "error: could not create secrets manager for new stack: incorrect passphrase"
INSTANT = OperationDurations(instant=True)
SERVED = (
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
MODULES = {
    **dict.fromkeys(("API", "permissions", "policy", "keys of"), (project,)),
    **dict.fromkeys(("quota of", "v6e"), (project, capacity)),
    "Pulumi passphrase": (passphrase,),
    **dict.fromkeys(("gcloud", "registry", "Pulumi"), (machine,)),
    "role": (tunnel_role,),
    "secrets key": (secrets_key,),
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
        self.engine, self.changes = Engine(), {}
        self.settings = {path.stem.removeprefix("Pulumi."): path.read_text() for path in shipped_files(ROOT)}

    def admin(self, verb, path, body=None):
        return Client(self.cloud.base_url, self.cloud.token).ok(verb, path, body)

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

    def lines(self, check, stack=None):
        """Return the lines of a check, for which only the checks of its module run: all others would call Google too."""
        modules = next((modules for start, modules in MODULES.items() if check.startswith(start)), (model,))

        def needed(one):
            return not one.name.startswith(("permissions of", "policy")) or check.startswith(one.name)

        with self.environment.context() as few:
            few.setattr(
                checkup,
                "all_checks",
                lambda checkup: [each for one in modules for each in one.checks(checkup) if needed(each)],
            )
            _, report = self.doctor(stack)
        return [line for line in report["checks"] if line["check"] == check]

    def scenario(self, **changes):
        """Change parts of the scenario; the others stay."""
        self.changes |= changes
        document = Scenario(operations=INSTANT, **self.changes).model_dump(mode="json")
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

    def stage(self, stack, *, without="", commit=""):
        """Put the weights into the bucket, as `scripts.stage_model` does, from a folder or from a commit of the hub."""
        checkpoint = self.folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "config.json").write_text("{}")
        (checkpoint / "model.safetensors").write_text("weights")
        (checkpoint / "chat_template.jinja").write_text("{{ messages }}")
        self.admin("POST", f"/serviceusage/v1/projects/{PROJECT}/services/storage.googleapis.com:enable", {})
        name = f"{PROJECT}-gemma-{stack}-models"
        existing = self.admin("GET", f"/storage/storage/v1/b?project={PROJECT}").get("items", [])
        if name not in {bucket["name"] for bucket in existing}:
            self.admin("POST", f"/storage/storage/v1/b?project={PROJECT}", {"name": name, "location": "us-east4"})
        prefix = re.search(r"model: [\w.-]+/(\S+)", self.settings[stack])[1]
        source, target = FolderSource(folder=checkpoint), WeightsBucket(name, PROJECT, Asker(stack="x"), is_shared=True)
        with self.environment.context() as staging:
            staging.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", self.cloud.token)
            if commit:
                staging.setattr(FolderSource, "revision", commit)
            plan = CopyPlan(source=source, target=target, prefix=prefix)
            stage(plan, lambda _file, _copied: None, lambda _work, _done, _total: None)
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
                self.scenario(tpu=Tpu(), run=Run())
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
                self.scenario(hub=Hub())
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
        for api in SERVED:
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}", f"{cloud.base_url}/{api}/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.token)
        monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", CANARY)
        monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///state")
        monkeypatch.setenv("HF_ENDPOINT", f"{cloud.base_url}/hub")
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(registry, "REGISTRY", f"{cloud.base_url}/registry/registry-1.docker.io")
        monkeypatch.setattr(registry, "TOKENS", f"{cloud.base_url}/registry/auth.docker.io/token")
        monkeypatch.setattr(runner, "run", world.engine.run)
        monkeypatch.setattr(RunRecorder, "past_limits", lambda _: Absent())
        monkeypatch.setattr(oauth, "new_private_key", KEY_OF_ALL)
        for module, name in ((model, "_LIMIT_S"), (registry, "_LIMIT_S"), (bucket_weights, "LIMIT_S")):
            monkeypatch.setattr(module, name, 60.0)  # a busy machine needs more than a user would wait
        # google-auth looks up a regional boundary at Google's own address, which no variable redirects.
        lookup = "_is_regional_access_boundary_lookup_required"
        monkeypatch.setattr(service_account.Credentials, lookup, lambda _self: False)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
        for stack in (TPU, RUN, "rtx6000-31b"):
            world.write(stack)
        world.gcloud("core", "alpha")
        yield world
