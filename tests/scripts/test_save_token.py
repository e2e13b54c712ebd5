"""A secret reaches Pulumi or Secret Manager through standard input only, and a server's key reaches every script."""

import base64
import io
import json
import subprocess

import pytest

from gemma_serving.cloud.secret_values import read_secret
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.engine import runner
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.save_token.__main__ import COMMAND
from gemma_serving.scripts.stack.access import open_stack_access
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import Client
from localcloud.world.scenario import OperationDurations, Scenario
from tests.scripts.sample_outputs import sample_outputs

PROJECT = "my-project"
SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
TOKEN = "hf_canary0123456789"
KEY = "canary-key-0123456789"


class Engine:
    """`pulumi config`, with what each call got on standard input."""

    def __init__(self):
        self.calls = []
        self.code, self.error = 0, "error: incorrect passphrase\n"

    def run(self, *arguments, stdin=None, **_):
        if arguments[0] != "config":
            return self.of_stack(arguments)
        self.calls.append((arguments, stdin))
        return subprocess.CompletedProcess(arguments, self.code, "", self.error)

    def of_stack(self, arguments):
        """A state with a salt, which is not that of the passphrase if `config` fails."""
        secrets = {"secrets_providers": {"type": "passphrase", "state": {"salt": "v1:state"}}}
        code = self.code if arguments[1] == "init" else 0
        state = json.dumps({"version": 3, "deployment": secrets})
        return subprocess.CompletedProcess(arguments, code, state, self.error)


@pytest.fixture
def pulumi(monkeypatch):
    fake = Engine()
    monkeypatch.setattr(runner, "run", fake.run)
    monkeypatch.setattr(runner, "listed_stacks", lambda: frozenset({"tpu-v6e4"}))
    return fake


def test_a_stack_without_a_state_gets_one_first(monkeypatch, capsys, pulumi):
    made = []
    monkeypatch.setattr(runner, "listed_stacks", frozenset)
    monkeypatch.setattr(runner, "query", lambda words, **_: made.append(words))
    assert save(monkeypatch, capsys, TOKEN, "hfToken")[0] == 0
    assert made == [["stack", "init", "tpu-v6e4", "--no-select"]]


@pytest.fixture
def cloud(monkeypatch):
    scenario = Scenario(operations=OperationDurations(instant=True))
    with idle_cloud.start(project=PROJECT, scenario=scenario) as running:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", f"{running.base_url}/secretmanager/")
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE", f"{running.base_url}/serviceusage/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", running.token)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        yield running


def save(monkeypatch, capsys, text, *arguments):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code = run_command(COMMAND, [*arguments, "--stack", "tpu-v6e4"])
    said = capsys.readouterr()
    assert text.strip() == "" or text.strip() not in said.out + said.err
    return code, said


@pytest.mark.parametrize(("key", "value"), [("hfToken", TOKEN), ("apiKey", KEY)])
def test_a_value_reaches_the_engine_through_standard_input_only(monkeypatch, capsys, pulumi, key, value):
    code, said = save(monkeypatch, capsys, f"{value}\n", key)
    assert code == 0
    assert pulumi.calls == [
        (("config", "set", "--secret", key, "--stack", "tpu-v6e4"), value),
        (("config", "rm", f"{key}Secret", "--stack", "tpu-v6e4"), None),
    ]
    assert "encrypted in Pulumi.tpu-v6e4.yaml. Next: gemma up tpu-v6e4" in said.err


@pytest.mark.parametrize(
    "wrong",
    [
        ("hfToken", "", "The Hugging Face token is empty"),
        ("hfToken", "sk-0123456789abcdef", "It must start with hf_"),
        ("hfToken", "hf_one\nhf_two", "one line of printable ASCII"),
        ("apiKey", "short", "minimum 16 characters"),
        ("apiKey", "with blank 0123456789", "without spaces"),
    ],
)
def test_what_can_be_no_secret_is_refused_and_not_repeated(monkeypatch, capsys, pulumi, wrong):
    key, text, sentence = wrong
    code, said = save(monkeypatch, capsys, text, key)
    assert (code, pulumi.calls) == (2, [])
    assert sentence in said.err


def test_an_unknown_secret_and_an_engine_that_refuses_are_one_sentence(monkeypatch, capsys, pulumi):
    code, said = save(monkeypatch, capsys, TOKEN, "token")
    assert (code, pulumi.calls) == (2, [])
    assert "it must be hfToken or apiKey" in said.err
    pulumi.code = 255
    code, said = save(monkeypatch, capsys, TOKEN, "hfToken")
    assert code == 1
    assert said.err.startswith(
        "save_token: The state of stack tpu-v6e4 cannot be decrypted. Set PULUMI_CONFIG_PASSPHRASE"
    )
    assert pulumi.calls == [], "the engine would write the salt of the wrong one"
    pulumi.error = "error: the disk is full\n"
    code, said = save(monkeypatch, capsys, TOKEN, "hfToken")
    assert said.err.splitlines() == ["save_token: `pulumi config set` failed: the disk is full"]


def test_a_value_in_secret_manager_never_passes_through_pulumi(monkeypatch, capsys, pulumi, cloud):
    for number in (1, 2):
        pulumi.calls.clear()
        code, said = save(monkeypatch, capsys, TOKEN, "hfToken", "--secret", "their-token", "--json")
        assert code == 0
        place = json.loads(said.out)["place"]
        assert place.endswith(f"/secrets/their-token/versions/{number}")
        assert pulumi.calls == [
            (("config", "set", "--plaintext", "hfTokenSecret", place, "--stack", "tpu-v6e4"), None),
            (("config", "rm", "hfToken", "--stack", "tpu-v6e4"), None),
        ]
        assert read_secret(place, project=PROJECT) == TOKEN
    # A teardown finds what carries the stack's labels, and this secret belongs to its owner.
    assert "labels" not in google(cloud).ok("GET", f"{SECRETS}/their-token")


@pytest.mark.parametrize("api", ["secretmanager", "tpu"])
def test_nothing_is_stored_and_no_value_is_read_while_an_api_of_the_stack_is_off(
    monkeypatch, capsys, pulumi, cloud, api
):
    service = f"/serviceusage/v1/projects/{PROJECT}/services/{api}.googleapis.com"
    google(cloud).ok("POST", f"{service}:disable", {})
    code, said = save(monkeypatch, capsys, TOKEN, "hfToken", "--secret", "their-token")
    assert (code, pulumi.calls) == (2, [])
    assert f"Run `gcloud services enable {api}.googleapis.com --project={PROJECT}`" in said.err
    google(cloud).ok("POST", f"{service}:enable", {})
    assert google(cloud).ok("GET", SECRETS).get("secrets", []) == []


def google(cloud):
    return Client(cloud.base_url, cloud.token)


def put_key(cloud):
    google(cloud).ok("POST", SECRETS, {"replication": {"automatic": {}}}, secretId="key")
    data = base64.b64encode(KEY.encode()).decode()
    return google(cloud).ok("POST", f"{SECRETS}/key:addVersion", {"payload": {"data": data}})["name"]


def test_the_stacks_own_key_is_sent_and_not_the_one_of_the_environment(monkeypatch, cloud):
    monkeypatch.setenv("GEMMA_API_KEY", "for-another-server")
    with open_stack_access(outputs_with_key(put_key(cloud))) as way:
        assert way.headers()["Authorization"] == f"Bearer {KEY}"
        assert KEY not in repr(way)


def outputs_with_key(version):
    return from_json(StackOutputs, sample_outputs(auth="none", apiKeySecret=version, project=PROJECT))


def test_a_key_that_may_not_be_read_names_the_grant_and_the_variable(monkeypatch, cloud):
    version = put_key(cloud)
    refusal = {"faults": [{"method": "secretmanager.projects.secrets.versions.access", "count": 99, "status": 403}]}
    google(cloud).ok("PUT", "/admin/scenario", refusal, merge="true")
    monkeypatch.delenv("GEMMA_API_KEY", raising=False)
    with pytest.raises(ScriptError, match=r"add-iam-policy-binding key .*secretAccessor Or set GEMMA_API_KEY"):
        open_stack_access(outputs_with_key(version))
    monkeypatch.setenv("GEMMA_API_KEY", KEY)
    with open_stack_access(outputs_with_key(version)) as way:
        assert way.headers()["Authorization"] == f"Bearer {KEY}"
