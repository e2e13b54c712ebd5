"""A stack that an earlier commit deployed: the new code previews it, deploys over it and changes it, without a replacement or a loss.

The earlier commit has a checkout and an environment of its own, and both work on one running local cloud. `UPGRADE_FROM=COMMIT` names another
commit than the last release.
"""

import os
import re
import shutil
import subprocess

import pytest

from dev.tools.engine.language_host import WARM_PROGRAMS
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.engine.trial import STATE_VARIABLE
from tests.engine.conftest import ALICE, FAILURE, HF_CANARY, KEY_CANARY, PROJECT, ROOT, Workspace, open_workspace

pytestmark = [pytest.mark.engine, pytest.mark.long]

BEFORE_RELEASES = "df716a66"
"""Commit to start from while no release has a tag."""
SETUP_LIMIT_S = 1800
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))
MORE = {
    "tpu-v6e1": {"tpu.tunnelMembers": [ALICE], "maxAge": "20h", "maxUsd": 90},
    "tpu-v6e1-e4b": {"tpu.api": "compute-engine"},
    "tpu-v6e4": {"alerts.email": "a@example.com", "metrics.enabled": True, "weights": "bucket"},
    "l4-12b-qat": {"cloudRun.invokers": [ALICE], "cloudRun.compileCache": "bucket"},
}
"""Settings for the resources that no stack declares as it is written."""
STARTS = {
    "tpu.projects.locations.queuedResources.create",
    "compute.instances.insert",
    "run.projects.locations.services.create",
}
"""Methods that start a machine."""
SERVER = re.compile(r"[$:](?:gcp-tpu:index:QueuedResource|gcp:cloudrunv2/service:Service)::")
"""URN of the resource that serves."""
CHANGED, WORKLOADS = 2048, {"tpu-v6e4-turbo": 8192}
"""Lengths that the change in place sets; the workload of a stack may need more."""
BLOCKED = {"tpu-v6e4-turbo": ("FIT05", {"vllm.speculativeConfig": None})}
"""Stacks of an earlier commit that the new code blocks while they have a setting, with the rule and the first remedy that it prints."""
GATEWAY = {
    "gateway": """\
config:
  gemma-serving:target: gateway
  gemma-serving:gateway:
    region: us-east5
    regions: [us-east5]
    backends: [{ stack: tpu-a }]
""",
    "tpu-a": """\
config:
  gemma-serving:target: tpu
  gemma-serving:model: google/gemma-4-E2B-it
  gemma-serving:alerts: { enabled: false }
  gemma-serving:vllm: { maxModelLen: 8192 }
  gemma-serving:tpu:
    acceleratorType: v6e-1
    zones: [us-east5-b]
    maxRunDuration: 24h
    gateway: gateway
""",
}
"""Settings of the former target, and of a stack behind it."""
ENVOY = "docker.io/envoyproxy/envoy@sha256:eb2c01c13125d1629637cb4e4cce7207009fb7cc2c8027f9742758549d15b6f4"
GATEWAY_NETWORK = {
    "network": f"projects/{PROJECT}/global/networks/gemma-gateway",
    "subnetwork": "gemma-gateway",
    "privateGoogleAccess": True,
}
URN = "urn:pulumi:tpu-a::gemma-serving::gemma-serving:index:"
ENGINES_OWN = {"pulumi:providers:pulumi", "pulumi:pulumi:Stack"}
"""Types that the engine writes in each run."""
LIMITED = "with a limit in hours, which nothing enforces any more. To delete the stack, run `gemma teardown {}`."
RECORD_LIMIT = """\
import json, pathlib, sys
from gemma_serving.contracts.fields import to_json
from gemma_serving.engine import backend
from gemma_serving.scripts.stack.limit_record import LimitRecord, limit_name
backend.home_folder = lambda: pathlib.Path(sys.argv[2])
record = LimitRecord(project="local-project", plans=("a1",), since="2026-12-01T10:00:00+00:00")
backend.memory().write(limit_name(sys.argv[1]), json.dumps(to_json(record)))
"""
"""Program of an earlier commit whose assistant had limits in hours: it records one of a stack, in the folder of the new checkout."""


def commit_before():
    """Return the commit to start from. Only a checkout without the whole history may lack it, and skips the tests."""
    tag = _git("describe", "--tags", "--match", "v*", "--abbrev=0", "HEAD^").stdout.strip()
    commit = os.environ.get("UPGRADE_FROM") or tag or BEFORE_RELEASES
    if _git("rev-parse", "--verify", f"{commit}^{{commit}}").returncode != 0:
        is_whole = _git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"
        assert not is_whole, f"this checkout has no commit {commit}: name another one by UPGRADE_FROM"
        pytest.skip(f"this checkout lacks the history with commit {commit}: run `git fetch --unshallow`")
    return commit


def _git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


class Earlier(Workspace):
    """A checkout of the earlier commit, with its own environment, on the same cloud."""

    @property
    def python(self):
        return self.folder / "project" / ".venv" / "bin" / "python"

    @property
    def engine(self):
        return self.python.with_name("pulumi")

    def script(self, name, *arguments, **options):
        return self.run(self.python, "-m", f"scripts.{name}", *arguments, **options)


def check_out(commit, folder):
    """Write a commit's files, its examples among its stacks, and set them up by its own `make setup`."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive.stdout, check=True)
    for example in folder.glob("examples/stacks/Pulumi.*.yaml"):
        shutil.copy2(example, folder)  # as `gemma init --like` does
    hidden = ("VIRTUAL_ENV", "PYTHONPATH")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        ["make", "setup"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SETUP_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The earlier checkout and this one, on one local cloud."""
    commit = commit_before()
    folder = tmp_path_factory.mktemp("upgrade")
    check_out(commit, folder / "earlier" / "project")
    with open_workspace(folder, "--speed", "100") as now:
        # Without the state's folder, the earlier commands write their settings into their own files and not into a trial's copies.
        yield Earlier(folder / "earlier", {**now.environment, WARM_PROGRAMS: "", STATE_VARIABLE: ""}), now


def deploy(earlier, now, stack, more):
    """Deploy a stack as its user does, with tokens, and hand its settings file, which has the stack's salt, to the new checkout."""
    earlier.pulumi("stack", "init", stack)
    earlier.configure(stack, **more)
    earlier.script("save_token", "hfToken", "--stack", stack, stdin=HF_CANARY)
    earlier.script("save_token", "apiKey", "--stack", stack, stdin=KEY_CANARY)
    if "weights: bucket" in earlier.settings(stack).read_text():
        earlier.stage(stack)
    earlier.up(stack)
    shutil.copy2(earlier.settings(stack), now.settings(stack))


def ids(workspace, stack):
    """Return the ids in the state by URN, with the token's present type where the state has its former one."""
    own = (each for each in workspace.resources(stack) if each["type"] not in ENGINES_OWN)
    return {each["urn"].replace("index:HfTokenSecret", "index:HuggingFaceToken"): each.get("id") for each in own}


def record_limit(earlier, now, stack):
    """Record a limit as the earlier commit did. Return how many there are: none if it had no limits."""
    if not (earlier.folder / "project" / "scripts" / "stack" / "limit_record.py").exists():
        return 0
    earlier.run(earlier.python, "-c", RECORD_LIMIT, stack, now.folder / "project")
    return 1


def take_over(now, stack):
    """Preview and deploy with the new code: each resource but watching ones stays, and no other request deletes anything or starts a second machine.

    Return what `gemma up` printed.
    """
    before = ids(now, stack)
    now.call("DELETE", "admin/requests")
    steps = now.pulumi("preview", "--json", "--stack", stack).json["steps"]
    changed = [(step["op"], step["urn"]) for step in steps if step["op"] != "same"]
    assert {op for op, _ in changed} <= {"update", "create", "delete"}, changed
    gone = {urn for op, urn in changed if op == "delete"}
    assert all(":Observability$gcp:monitoring/" in urn for urn in gone), "only these are no longer a default"
    said = now.script("up", "--stack", stack, "--yes").text
    after = ids(now, stack)
    assert {urn: after.get(urn) for urn in before if urn not in gone} == {
        urn: id_ for urn, id_ in before.items() if urn not in gone
    }
    sent = [entry["id"] for entry in now.admin("requests")["requests"] if entry.get("operator") and entry.get("id")]
    assert sent
    deletions = [id_ for id_ in sent if id_.endswith(".delete") and not id_.startswith("monitoring.")]
    assert [*deletions, *(id_ for id_ in sent if id_ in STARTS)] == []
    now.assert_no_changes(stack)
    return said


@pytest.mark.parametrize("stack", STACKS)
def test_a_deployed_stack_is_taken_over_changed_in_place_and_torn_down(both, stack):
    earlier, now = both
    if not earlier.settings(stack).exists():
        pytest.skip(f"the earlier commit has no {stack}: nothing to take over")
    deploy(earlier, now, stack, MORE.get(stack, {}))
    rule, remedy = BLOCKED.get(stack, ("", {}))
    if any(key.rpartition(".")[2] in now.settings(stack).read_text() for key in remedy):
        refused = now.pulumi("preview", "--stack", stack, expect=1)
        assert f"is blocked by {rule}" in refused.text
        assert f"Remove {next(iter(remedy))}" in refused.text
        now.configure(stack, **remedy)
    recorded = record_limit(earlier, now, stack)
    said = take_over(now, stack)
    machine = {urn: id_ for urn, id_ in ids(now, stack).items() if SERVER.search(urn)}
    assert len(machine) == 1
    length = WORKLOADS.get(stack, CHANGED)
    now.configure(stack, **{"vllm.maxModelLen": length})
    said += now.script("up", "--stack", stack, "--yes").text
    assert said.count(LIMITED.format(stack)) == recorded
    assert machine.items() <= ids(now, stack).items()
    assert now.served_length(stack) == length
    now.teardown(stack)


def test_a_gateway_of_the_earlier_commit_goes_and_the_machine_behind_it_stays(both):
    """The target `gateway` and `tpu.gateway` were removed. A machine stays in the gateway's network until its run ends."""
    earlier, now = both
    if not (earlier.folder / "project" / "stacks" / "gateway.py").exists():
        pytest.skip("the earlier commit has no gateway: nothing to delete")
    for stack, text in GATEWAY.items():
        earlier.pulumi("stack", "init", stack)
        earlier.settings(stack).write_text(text)
    images = now.admin("scenario")["images"]["existing"]
    now.change_scenario({"images": {"existing": [*images, ENVOY]}})
    for stack in ("gateway", "tpu-a", "gateway"):  # the second time with a service
        earlier.up(stack)
    for stack in GATEWAY:
        shutil.copy2(earlier.settings(stack), now.settings(stack))
    before = ids(now, "tpu-a")
    refused = now.pulumi("preview", "--stack", "tpu-a", expect=FAILURE)
    assert "gemma-serving:tpu.gateway is not a known setting" in refused.text
    now.configure("tpu-a", **{"tpu.gateway": None})
    refused = now.pulumi("preview", "--stack", "tpu-a", expect=FAILURE)
    assert (
        "which replaces projects/local-project/locations/us-east5-b/queuedResources/gemma-tpu-a while" in refused.text
    )
    now.configure("tpu-a", **{"tpu.existingNetwork": GATEWAY_NETWORK})
    steps = now.pulumi("preview", "--json", "--diff", "--stack", "tpu-a").json["steps"]
    changes = {(one["op"], *sorted(one.get("detailedDiff") or ()), one["urn"]) for one in steps if one["op"] != "same"}
    assert changes == {
        (
            "update",
            'metadata["gemma-serving-document"]',
            'metadata["startup-script"]',
            f"{URN}TpuQueuedResource$gcp-tpu:index:QueuedResource::capacity",
        ),
        *(
            ("delete", f"{URN}MachineRules$gcp:compute/firewall:Firewall::{rule}")
            for rule in ("network-iap", "network-server")
        ),
        ("delete", f"{URN}MachineRules::network"),
    }
    now.up("tpu-a")
    machine = {urn: id_ for urn, id_ in before.items() if SERVER.search(urn)}
    assert len(machine) == 1
    assert machine.items() <= ids(now, "tpu-a").items()
    for stack in ("tpu-a", "gateway"):
        now.teardown(stack)
    now.advance(2 * 3600)  # Cloud Run keeps addresses of the subnetwork
    now.teardown("gateway")
    assert now.made("/gemma-gateway") == []
