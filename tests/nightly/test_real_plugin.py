"""Every stack with the stand-in of the gcp plugin and with the real one, each on its own local cloud: both send the same changes.

In a new project the real plugin needs no command that the project does not print, and without quota `gemma up` creates nothing.
The engine downloads the real plugin, so only `make nightly` uses it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.stacks.program import run
from tests.engine.conftest import FAILURE, copy_project, open_workspace
from tests.engine.test_new_project import execute, follow_the_doctor
from tests.stacks.conftest import configured

__all__ = ["configured"]  # a fixture

ROOT = Path(__file__).resolve().parents[2]
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))
LIMIT_S = 3600
MOST = 5000  # requests that the local cloud stores
HIDDEN = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")  # variables of a real project, which must not reach the stacks
ABSENT = "(absent)"
IDENTITIES = ("name", "role", "key", "id", "port", "zone", "selector")
READING = re.compile(r":(?:get|list|test|fetch|search|query)[A-Z]\w*$|/wait$|:wait$|:access$")
REPEATED = frozenset({None, 409, 412, 429, 500, 502, 503, 504})  # a client retries after these, which depends on timing
CHANCE = (
    (re.compile(r"https?://[^/\s]+/(?:compute/(?=compute/)|storage/(?=storage/))?"), "//"),
    (re.compile(r"(?<=-\d{5}-)[a-z0-9]{3}\b"), "..."),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "..."),
    (re.compile(r"(?<=gemma-serving-runs=)\S+"), "..."),
    (re.compile(r"(?<=/alertPolicies/)\d+/conditions/\d+"), "..."),
)
"""Parts of texts that differ between two local clouds: ports, random suffixes of revisions, operation ids, times of runs."""
GIVEN_ID = re.compile(r"(?<=/alertPolicies/)\d+$|(?<=/notificationChannels/)\d+$|(?<=/dashboards/)\d+$")
"""Ids that the cloud gives at random. A deletion has no body, so all deletions of a kind count as one resource's."""
IGNORED = frozenset(
    {
        "etag",
        "fingerprint",
        "requestId",
        "generation",
        "ifGenerationMatch",
        "alt",
        "prettyPrint",
        "upload_id",
        "gemma-serving-ends-at",
    }
)
"""Query parameters and fields that may differ: each cloud or client chooses its own, Google's Go clients state the default, or a run ends at its own time."""


def is_built(stack):
    """Return whether a stack's image is built first, which needs docker."""
    return "gemma-serving:image:" in settings_file(stack, ROOT).read_text()


def changes(log):
    """Return the changes in a log that the operator's programs sent and did not have to repeat."""
    return [
        entry
        for entry in log
        if entry["method"] != "GET"
        and entry.get("id")
        and not READING.search(entry["path"])
        and entry.get("status") not in REPEATED
        and entry.get("operator", True)
    ]


def compared(first, second):
    """Return the differences between the changes of two logs, for each resource in order. The order of resources is free."""
    left, right = by_resource(first), by_resource(second)
    found = []
    for resource in dict.fromkeys([*left, *right]):
        ours, theirs = left.get(resource, []), right.get(resource, [])
        left_steps, right_steps = (" > ".join(map(step, each)) or ABSENT for each in (ours, theirs))
        if left_steps != right_steps:
            found.append((resource, left_steps, right_steps))
            continue
        for one, other in zip(ours, theirs, strict=True):
            for part in ("query", "body", "content"):
                found += values(f"{resource} {part}", one.get(part), other.get(part))
            if (one["status"] < 400) != (other["status"] < 400):
                found.append((f"{resource} status", one["status"], other["status"]))
    ours, theirs = grants(first), grants(second)
    found += [(path, each, ABSENT) for path, each in ours - theirs]
    return found + [(path, ABSENT, each) for path, each in theirs - ours]


def step(entry):
    return f"{entry['method']} {entry['path'].partition(':')[2]}".strip()


def by_resource(log):
    found = {}
    for entry in changes(log):
        if not is_policy(entry):
            found.setdefault(resource_of(entry), []).append(entry)
    return found


def resource_of(entry):
    """Return the path of the resource that a request changes. A creation has its name in the query or the body."""
    path = entry["path"].partition(":")[0]
    if GIVEN_ID.search(path):
        path = GIVEN_ID.sub(str((entry.get("body") or {}).get("displayName", "...")), path)
    if entry["method"] != "POST" or ":" in entry["path"]:
        return path
    query, body = (entry.get(part) if isinstance(entry.get(part), dict) else {} for part in ("query", "body"))
    ids = [value for key, value in sorted(query.items()) if key.endswith("Id") and key != "requestId"]
    names = [*ids, query.get("name"), *(body.get(key) for key in ("name", "accountId", "displayName"))]
    return "/".join([path, *[each for each in names if isinstance(each, str)][:1]])


def values(at, one, two):
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted({*one, *two} - set(IGNORED)):
            yield from values(f"{at}.{key}", one.get(key, ABSENT), two.get(key, ABSENT))
    elif isinstance(one, list) and isinstance(two, list):
        yield from values(at, keyed(one), keyed(two))
    elif plain(one) != plain(two):
        yield at, one, two


def keyed(items):
    """Return the items of a list by a field that identifies them, or by position."""
    for name in IDENTITIES:
        keys = [
            plain(str(item[name])) for item in items if isinstance(item, dict) and isinstance(item.get(name), str | int)
        ]
        if keys and len(keys) == len(set(keys)) == len(items):
            return dict(zip(keys, items, strict=True))
    return {str(number): item for number, item in enumerate(items)}


def plain(value):
    for form, replacement in CHANCE if isinstance(value, str) else ():
        value = form.sub(replacement, value)
    return value


def is_policy(entry):
    return entry["path"].endswith(":setIamPolicy") or (entry["method"] == "PUT" and entry["path"].endswith("/iam"))


def grants(log):
    """Return all grants that each resource with a policy had at any time, because their order varies."""
    found = set()
    for entry in filter(is_policy, changes(log)):
        for binding in (entry["body"].get("policy") or entry["body"]).get("bindings", []):
            role = f"{binding['role']} if {binding['condition']}" if binding.get("condition") else binding["role"]
            found |= {(entry["path"].partition(":")[0], f"{role} {member}") for member in binding.get("members", [])}
    return found


def sent(stack, providers, folder):
    """Return the requests that the life of a stack sends with one kind of plugin."""
    copy, log = folder / f"project-{providers}", folder / f"{providers}.json"
    copy_project(copy)
    cloud = [sys.executable, "-m", "localcloud", "run", "--providers", providers, "--scenario", "prepared", "--"]
    variables = {key: value for key, value in os.environ.items() if key == "PULUMI_HOME" or not key.startswith(HIDDEN)}
    command = [*cloud, str(Path(__file__).with_name("stack_life.sh")), stack, str(log)]
    done = subprocess.run(
        command, cwd=copy, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = json.loads(log.read_text())["requests"]
    assert len(found) < MOST, "the local cloud may have stored only some of the requests"
    return found


def apis(command):
    """Return the APIs that a command enables."""
    return set(re.findall(r"\S+\.googleapis\.com", command)) if "services enable" in command else set()


def with_plugins_of_the_caller(workspace):
    if "PULUMI_HOME" in os.environ:
        workspace.environment["PULUMI_HOME"] = os.environ["PULUMI_HOME"]


@pytest.mark.skipif(
    "GEMMA_SERVING_NIGHTLY" not in os.environ,
    reason="the real gcp plugin, which the engine downloads: run `make nightly`",
)
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("stack", STACKS)
def test_both_plugins_send_the_same(stack, tmp_path):
    assert compared(sent(stack, "standin", tmp_path), sent(stack, "real", tmp_path)) == []


@pytest.mark.skipif(
    "GEMMA_SERVING_NIGHTLY" not in os.environ,
    reason="the real gcp plugin, which the engine downloads: run `make nightly`",
)
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("stack", [name for name in STACKS if not is_built(name)])
def test_a_stack_lives_in_a_new_project_by_the_printed_commands_alone(stack, tmp_path):
    with open_workspace(tmp_path, "--scenario", "new-project", "--providers", "real") as workspace:
        with_plugins_of_the_caller(workspace)
        workspace.pulumi("stack", "init", stack)
        refused = workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack, expect=None)
        (enable,) = set(re.findall(r"gcloud services enable [^`\n]+", refused.text))
        assert refused.code != 0
        assert execute(workspace, enable) == 0
        commands = follow_the_doctor(workspace, stack)
        # Enabled APIs take effect one after another, and the doctor prints those that have not.
        assert all(apis(each) <= apis(enable) for each in commands if "cloudquotas" not in each)
        workspace.pulumi("preview", "--stack", stack)
        workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
        workspace.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", stack)
        assert workspace.script("teardown", "--stack", stack, "--yes", "--json").json["clean"] is True


@pytest.mark.skipif(
    "GEMMA_SERVING_NIGHTLY" not in os.environ,
    reason="the real gcp plugin, which the engine downloads: run `make nightly`",
)
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("stack", [name for name in STACKS if not is_built(name)])
def test_gemma_up_is_refused_without_quota_before_anything_is_created(stack, tmp_path):
    with open_workspace(tmp_path, "--scenario", "new-project-without-quota", "--providers", "real") as workspace:
        with_plugins_of_the_caller(workspace)
        refused = workspace.script("gemma", "up", stack, "--yes", expect=FAILURE)
        (enable,) = set(re.findall(r"gcloud services enable (?!cloudquotas)[^`\n]+", refused.text))
        assert execute(workspace, enable) == 0
        workspace.advance(240)
        refused = workspace.script("gemma", "up", stack, "--yes", expect=FAILURE)
        assert "0 chips, " in refused.text or "0 GPUs, " in refused.text, refused.text
        assert "Nothing was changed." in refused.text
        changed = [entry["id"] for entry in changes(workspace.admin("requests")["requests"]) if entry["status"] < 400]
        assert set(changed) == {"serviceusage.services.enable"}


@pytest.mark.parametrize("stack", STACKS)
def test_the_change_of_the_life_is_one_that_each_stack_permits(stack, configured, declare):
    life = Path(__file__).with_name("stack_life.sh").read_text(encoding="utf-8")
    configured(stack, vllm__maxModelLen=int(re.search(r"vllm\.maxModelLen (\d+)", life)[1]))
    recorder, _ = declare(run)
    assert recorder.declared


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_life_of_a_stack_is_in_the_log_and_a_planted_difference_is_found(tmp_path):
    log = sent("l4-12b-qat", "standin", tmp_path)
    service = "run.projects.locations.services"
    assert {f"{service}.patch", f"{service}.delete"} <= {entry["id"] for entry in changes(log)}
    planted = json.loads(json.dumps(log))
    patched = next(entry for entry in planted if entry["id"] == f"{service}.patch")
    patched["body"]["template"]["containers"][0]["args"].append("--seed=1")
    assert [difference[1:] for difference in compared(planted, log)] == [("--seed=1", ABSENT)]
