"""The policy pack with the real engine: each rule refuses a fault in a program that is not ours, its fix removes the violation, and our own stacks pass."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "packages" / "policies"
DIGEST = "@sha256:" + "4" * 64
HELLO = "us-docker.pkg.dev/cloudrun/container/hello"
DOCUMENT = {"schema": 1, "image": "vllm/vllm-tpu:nightly", "command": ["vllm"], "args": [], "env": {}, "port": 8000}
PROGRAM = """
import json
import pulumi

for each in json.load(open("resources.json")):
    inputs = each["inputs"]
    if each.get("later"):  # known only after the bucket exists
        bucket = pulumi.CustomResource("gcp:storage/bucket:Bucket", "other", {**each["bucket"], "url": None})
        inputs = {**inputs, each["later"]: bucket.id.apply(lambda _, value=inputs[each["later"]]: value)}
    pulumi.CustomResource(each["type"], each["name"], inputs)
"""
QUEUED = {
    "zone": "us-east5-a",
    "acceleratorType": "v6e-4",
    "runtimeVersion": "v2-alpha-tpuv6e",
    "provisioningModel": "spot",
}
BUCKET = {"name": "weights-of-others", "location": "SOUTHAMERICA-WEST1", "uniformBucketLevelAccess": True}
FAULTY = [
    {"type": "gcp:storage/bucket:Bucket", "name": "weights", "inputs": BUCKET},
    {
        "type": "gcp:projects/iAMMember:IAMMember",
        "name": "reader",
        "inputs": {"project": "local-project", "role": "roles/viewer", "member": "allUsers"},
    },
    {
        "type": "gcp:cloudrunv2/service:Service",
        "name": "web",
        "inputs": {
            "name": "web",
            "location": "us-east4",
            "deletionProtection": False,
            "invokerIamDisabled": True,
            "template": {"containers": [{"image": f"{HELLO}:latest"}]},
        },
    },
    {
        "type": "gcp-tpu:index:QueuedResource",
        "name": "chips",
        "inputs": {
            **QUEUED,
            "enableExternalIps": True,
            "metadata": {"gemma-serving-document": json.dumps(DOCUMENT)},
        },
    },
]
FIXED = [
    {**FAULTY[0], "inputs": {**BUCKET, "location": "US-EAST5"}},
    {**FAULTY[1], "inputs": {**FAULTY[1]["inputs"], "member": "group:team@example.com"}},
    {
        **FAULTY[2],
        "inputs": {
            **FAULTY[2]["inputs"],
            "invokerIamDisabled": False,
            "template": {"containers": [{"image": f"{HELLO}{DIGEST}"}]},
        },
    },
    {
        **FAULTY[3],
        "inputs": {
            **QUEUED,
            "provisioningModel": "flex-start",
            "maxRunDurationS": 604800,
            "enableExternalIps": False,
            "metadata": {"gemma-serving-document": json.dumps({**DOCUMENT, "image": f"vllm/vllm-tpu{DIGEST}"})},
        },
    },
]
DEPLOYED = [each for each in FIXED if each["name"] != "web"]
"""The local cloud starts containers with a model server only."""
VIOLATIONS = {
    "allowed-regions": [
        'default: `region` is "asia-east1", but only us-* is allowed',
        'weights: `location` is "SOUTHAMERICA-WEST1", but only us-* is allowed; choose an allowed place',
    ],
    "no-public-access": [
        'reader: `member` is "allUsers", but a grant to everyone is not allowed; name the members',
        "web: `invokerIamDisabled` is true, but Cloud Run must check the permission of each caller; remove it and grant",
    ],
    "image-by-digest": [
        f'web: `template.containers[0].image` is "{HELLO}:latest", but an image must end with @sha256:',
        'chips: `metadata.gemma-serving-document.image` is "vllm/vllm-tpu:nightly", but an image must end with @sha256:',
    ],
    "run-limit": [
        "chips: `maxRunDurationS` is not set, but a TPU or GPU machine must end after at most 604800 s; set",
        "set `maxRunDurationS` to 604800 or less and `provisioningModel` to flex-start.",
    ],
    "no-external-addresses": ["chips: `enableExternalIps` is true, but an address on the internet is not allowed; set"],
}
LATER = {
    "type": "gcp:projects/iAMMember:IAMMember",
    "name": "late",
    "inputs": {"project": "local-project", "role": "roles/viewer", "member": "allAuthenticatedUsers"},
    "later": "member",
    "bucket": {"name": "other-of-others", "location": "US-EAST5", "uniformBucketLevelAccess": True},
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """A copy of the pack with the environment of its locked requirements."""
    folder = tmp_path_factory.mktemp("pack") / "policies"
    shutil.copytree(PACK, folder, ignore=shutil.ignore_patterns(".venv", "tests", "__pycache__"))
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, ".venv"], cwd=folder, check=True)
    install = [uv, "pip", "install", "--quiet", "--python", ".venv/bin/python", "--require-hashes"]
    subprocess.run([*install, "-r", "requirements.txt"], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def foreign(workspace):
    """The folder of a program that has nothing of this project but the provider."""
    folder = workspace.folder / "foreign"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text(
        json.dumps(
            {
                "name": "foreign",
                "runtime": {"name": "python", "options": {"virtualenv": sys.prefix}},
                "plugins": {"providers": [{"name": "gcp-tpu", "path": "../project/packages/gcp-tpu"}]},
            }
        )
    )
    use_region(folder, "us-east4")
    (folder / "__main__.py").write_text(PROGRAM)
    workspace.pulumi("stack", "init", "dev", "--cwd", folder)
    return folder


def use_region(folder, region):
    config = {"gcp:project": "local-project", "gcp:region": region}
    (folder / "Pulumi.dev.yaml").write_text(json.dumps({"config": config}))


def configured(folder, **rules):
    path = folder.parent / f"policies-{len(list(folder.parent.glob('policies-*')))}.json"
    path.write_text(json.dumps(rules))
    return path


def run(workspace, folder, command, pack, *, resources=None, config=None, expect=0):
    if resources is not None:
        (folder / "resources.json").write_text(json.dumps(resources))
    options = [] if config is None else ["--policy-pack-config", config]
    answer = workspace.pulumi(
        *command, "--cwd", folder, "--stack", "dev", "--policy-pack", pack, *options, expect=expect
    )
    return " ".join(answer.text.split())


@pytest.fixture(scope="module")
def only_us(foreign):
    return configured(foreign, **{"allowed-regions": {"allowed": ["us-*"]}})


def test_each_rule_refuses_its_fault(workspace, foreign, pack, only_us, subtests):
    use_region(foreign, "asia-east1")
    text = run(workspace, foreign, ["preview"], pack, resources=FAULTY, config=only_us, expect=1)
    for rule, messages in VIOLATIONS.items():
        with subtests.test(rule):
            assert f"[mandatory] {rule} " in text
            assert [message for message in messages if message not in text] == []
    assert (
        text.count("[mandatory]") == sum(len(messages) for messages in VIOLATIONS.values()) - 1
    )  # one message is two parts
    assert "[advisory]" not in text


def test_its_fix_removes_each_violation(workspace, foreign, pack, only_us):
    use_region(foreign, "us-east4")
    for command, resources in ((["preview"], FIXED), (["up", "--yes", "--skip-preview"], DEPLOYED)):
        text = run(workspace, foreign, command, pack, resources=resources, config=only_us)
        assert "[mandatory]" not in text
        assert "[advisory]" not in text
        assert "gemma-serving-policies@v" in text


def test_an_unknown_input_is_named_once_in_the_preview_and_checked_by_up(workspace, foreign, pack, only_us):
    later = [*DEPLOYED, LATER]
    text = run(workspace, foreign, ["preview"], pack, resources=later, config=only_us)
    assert text.count("[advisory]") == 1
    assert "`member` of late cannot be known before `pulumi up`" in text
    text = run(workspace, foreign, ["up", "--yes", "--skip-preview"], pack, config=only_us, expect=1)
    assert 'late: `member` is "allAuthenticatedUsers", but a grant to everyone is not allowed' in text
    policy = workspace.post("cloudresourcemanager/v1/projects/local-project:getIamPolicy", {})
    members = [member for binding in policy["bindings"] for member in binding["members"]]
    assert "group:team@example.com" in members
    assert "allAuthenticatedUsers" not in members


def test_the_state_of_a_stack_can_be_analyzed(workspace, foreign, pack, only_us):
    analyze = ["policy", "analyze"]
    assert "[mandatory]" not in run(workspace, foreign, analyze, pack, config=only_us)
    short = configured(foreign, **{"run-limit": {"maxRunDurationS": 3600}})
    text = run(workspace, foreign, analyze, pack, config=short, expect=1)
    assert "chips: `maxRunDurationS` is 604800, but a TPU or GPU machine must end after at most 3600 s; set" in text


def test_the_configuration_sets_levels_and_exemptions_and_refuses_mistakes(workspace, foreign, pack, subtests):
    chips = "gcp-tpu:index:QueuedResource::chips"
    limit = {"maxRunDurationS": 3600}
    rows = {
        "advisory": ({"run-limit": {**limit, "enforcementLevel": "advisory"}}, 0, "[advisory] run-limit"),
        "disabled": ({"run-limit": {**limit, "enforcementLevel": "disabled"}}, 0, "Resources:"),
        "exempt": ({"run-limit": {**limit, "exempt": [chips]}}, 0, "Resources:"),
        "a name": ({"run-limit": {"maxRunDuration": "1h"}}, 1, "has maxRunDuration, but its settings are exempt, maxRunDurationS"),
        "a type": ({"run-limit": {"maxRunDurationS": "1h"}}, 1, "maxRunDurationS: Invalid type. Expected: integer"),
        "a rule": ({"run-limt": {"maxRunDurationS": 60}}, 1, "error: configuring policy pack"),
        "an empty list": ({"allowed-regions": {"allowed": []}}, 1, "allowed: Array must have at least 1 items"),
    }  # fmt: skip
    for name, (rules, code, shown) in rows.items():
        with subtests.test(name):
            text = run(workspace, foreign, ["preview"], pack, resources=FIXED, config=configured(foreign, **rules), expect=code)  # fmt: skip
            assert shown in text
            assert "Traceback" not in text
            assert name not in ("disabled", "exempt") or "run-limit" not in text


def test_our_own_stacks_pass(workspace, pack, subtests):
    for stack, unknown in (("tpu-v6e4", 1), ("l4-qat", 1)):
        with subtests.test(stack):
            workspace.pulumi("stack", "init", stack)
            regions = json.loads(
                '{"allowed-regions": {"allowed": ["us-*", "europe-west4", "asia-northeast1", "southamerica-west1"]}}'
            )
            config = configured(workspace.folder / "foreign", **regions)
            answer = workspace.pulumi(
                "preview", "--stack", stack, "--policy-pack", pack, "--policy-pack-config", config
            )
            assert "[mandatory]" not in answer.text
            assert answer.text.count("[advisory]") == unknown, answer.text[-3000:]
            assert "no-public-access" in answer.text  # the members are service accounts that do not exist yet
