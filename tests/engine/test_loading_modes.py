"""Weights without a mount on Cloud Run, with the real CLI: streamed from gs://, copied into memory; and the compile cache's second start."""

import re
import shlex
from urllib.parse import quote

import pytest

from tests.engine.conftest import ROOT, until

STACK = "l4-12b-qat"
MODEL = "gemma-4-12B-it-qat-w4a16-ct"
BUCKET = f"local-project-gemma-{STACK}-models"
ARCHIVES = "compile-cache/"
WEIGHTS = rf"gs://{BUCKET}/{MODEL}-[0-9a-f]{{16}}"
"""The folder of the staged manifest."""

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def staged(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.stage(STACK)
    return workspace


def template(workspace):
    found = workspace.get("run", f"v2/projects/local-project/locations/us-east4/services/gemma-{STACK}")
    return found["template"], found["latestReadyRevision"].rpartition("/")[2]


def log_of(workspace, revision):
    return (workspace.folder / "cloud" / "logs" / f"{revision}.log").read_text()


def archives(workspace):
    found = workspace.get("storage", f"storage/v1/b/{BUCKET}/o?prefix={quote(ARCHIVES, safe='')}")
    return [item["name"] for item in found.get("items", [])]


def test_a_streamed_service_mounts_nothing_and_answers(staged):
    slow = {"cloudRun.directVpc": False, "cloudRun.compileCache": "off"}
    staged.configure(STACK, **{"cloudRun.mount.mode": "streamer", **slow})
    staged.up(STACK)
    made, revision = template(staged)
    (container,) = made["containers"]
    assert container["command"] == ["vllm", "serve"]
    assert re.fullmatch(WEIGHTS, container["args"][0])
    assert "--load-format=runai_streamer" in container["args"]
    assert {"name": "RUNAI_STREAMER_MEMORY_LIMIT", "value": str(4 * 2**30)} in container["env"]
    assert "volumes" not in made
    assert staged.served_length(STACK) == 8192
    # 10.3 GB without Direct VPC: as slow as the network, 75 MB/s.
    assert "Loading weights took 136" in log_of(staged, revision)
    staged.assert_no_changes(STACK)


def test_weights_in_memory_are_copied_by_the_container_itself_and_its_graphs_are_archived(staged):
    staged.configure(STACK, **{"cloudRun.mount.mode": "memory", "cloudRun.compileCache": "bucket"})
    staged.up(STACK)
    made, revision = template(staged)
    (container,) = made["containers"]
    assert container["command"][:2] == ["python3", "-c"]
    assert container["args"][1:4] == ["vllm", "serve", f"/mnt/weights/{MODEL}"]
    assert {volume["emptyDir"]["sizeLimit"] for volume in made["volumes"]} == {"12288Mi", "2Gi"}
    assert staged.served_length(STACK) == 8192
    log = log_of(staged, revision)
    assert re.search(f"{WEIGHTS} was copied to ", log)
    assert "No signed archive of compiled graphs is in " in log
    assert "copying the weights into memory took 136.86 seconds" in log
    (name,) = until(lambda: archives(staged), "an archive", 120)
    assert name.startswith(f"{ARCHIVES}nvidia-l4/")
    staged.assert_no_changes(STACK)


def test_the_next_start_finds_the_graphs_and_archives_nothing(staged):
    kept = archives(staged)
    staged.configure(STACK, **{"cloudRun.concurrency": 7})
    staged.up(STACK)
    log = log_of(staged, template(staged)[1])
    assert f"Compiled graphs were restored from gs://{BUCKET}/{kept[0]}" in log
    assert "Directly load the compiled graph(s) from the cache" in log
    assert "torch.compile takes" not in log
    assert archives(staged) == kept


def test_the_commands_of_the_page_replace_the_key_and_no_former_archive_is_loaded(staged):
    def key():
        version = f"projects/local-project/secrets/gemma-{STACK}-archive-key/versions/1"
        return staged.get("secretmanager", f"v1/{version}:access")["payload"]["data"]

    former, kept = key(), archives(staged)
    section = (
        (ROOT / "docs" / "recovery.md").read_text().partition("## Drop archived programs\n")[2].partition("\n## ")[0]
    )
    commands = re.findall(r"^gemma [^#\n]+", section, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        staged.script("gemma", *shlex.split(command.replace("l4-qat", STACK))[1:], "--yes")
    assert key() != former
    assert {*kept} <= {*archives(staged)}, "the objects stay until the bucket deletes them"
    log = log_of(staged, template(staged)[1])
    assert "Compiled graphs were restored" not in log
    assert "torch.compile takes" in log
    assert staged.served_length(STACK) == 8192


def test_the_servers_account_may_write_archives_and_nothing_else(staged):
    policy = staged.get("storage", f"storage/v1/b/{BUCKET}/iam?optionsRequestedPolicyVersion=3")
    own = [
        (one["role"], one.get("condition", {}).get("expression"))
        for one in policy["bindings"]
        if any("iam.gserviceaccount.com" in member for member in one["members"])
    ]
    folder = f"projects/_/buckets/{BUCKET}/objects/{ARCHIVES}"
    assert sorted(own, key=str) == [
        ("roles/storage.objectUser", f'resource.name.startsWith("{folder}")'),
        ("roles/storage.objectViewer", None),
    ]
    rules = staged.get("storage", f"storage/v1/b/{BUCKET}")["lifecycle"]["rule"]
    assert {"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": [ARCHIVES]}} in rules


def test_teardown_takes_the_archives_too(staged):
    staged.teardown(STACK)
