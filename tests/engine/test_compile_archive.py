"""Compiled programs of a TPU stack as it is shipped: its first run archives them in a bucket of its own, later runs restore them, and nothing is left."""

import base64
from pathlib import Path

import pytest

from gemma_serving.contracts.compile_cache import ARCHIVE_METADATA_KEY
from gemma_serving.vm_agent.archives import Archive
from gemma_serving.vm_agent.cloud import MetadataClient
from tests.agreement.test_machines import has_own_view
from tests.engine.conftest import HF_CANARY, assert_nowhere_in_clear, until
from tests.engine.test_returning_capacity import documents, the_node

STACK = "tpu-v6e1"
BUCKET = "local-project-gemma-tpu-v6e1-models"
FOLDER = "compile-cache/v6e-1/"

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def deployed(workspace, tmp_path_factory):
    if not has_own_view(tmp_path_factory.mktemp("probe") / "machine"):
        pytest.skip("the system allows no mount namespaces")
    workspace.pulumi("stack", "init", STACK)
    workspace.pulumi("config", "set", "--secret", "hfToken", "--stack", STACK, stdin=HF_CANARY)
    workspace.configure(STACK, **{"tpu.compileCache": "bucket"})
    return workspace.up(STACK)


def archive_key(workspace):
    secret = "projects/local-project/secrets/gemma-tpu-v6e1-archive-key"
    answer = workspace.get("secretmanager", f"v1/{secret}/versions/1:access")
    return base64.b64decode(answer["payload"]["data"]).decode()


def objects(workspace):
    return workspace.get("storage", f"storage/v1/b/{BUCKET}/o").get("items", [])


def test_the_programs_of_the_server_reach_the_folder_without_its_token(workspace, deployed):
    (archive,) = until(lambda: objects(workspace), "an archive", 300)
    folder, _, name = archive["name"].rpartition("/")
    assert folder.startswith(FOLDER.rstrip("/"))
    signer = Archive(MetadataClient(), f"gs://{BUCKET}/{folder}", Path(), archive_key(workspace))
    assert signer.signed(name) is not None, "signed with the stack's key, for this folder"
    for path in (workspace.folder / "cloud" / "objects").iterdir():
        assert HF_CANARY.encode() not in path.read_bytes()


def test_the_key_of_the_archives_is_found_nowhere_in_clear(workspace, deployed):
    """State, metadata, logs, previews, the files of the machine: only Secret Manager has it. The engine keeps the first value."""
    key = archive_key(workspace)
    workspace.pulumi("preview", "--expect-no-changes", "--diff", "--stack", STACK)
    workspace.script("logs", "--stack", STACK, "--lines", "5000", "--since", "1d")
    assert_nowhere_in_clear(workspace, key)
    assert archive_key(workspace) == key


def test_the_machine_may_write_that_folder_and_read_the_rest(workspace, deployed):
    grants = [one["inputs"] for one in workspace.resources(STACK, "bucketIAMMember:BucketIAMMember")]
    assert {one["role"]: "condition" in one for one in grants} == {
        "roles/storage.objectViewer": False,
        "roles/storage.objectUser": True,
    }
    (condition,) = [one["condition"]["expression"] for one in grants if "condition" in one]
    assert condition == f'resource.name.startsWith("projects/_/buckets/{BUCKET}/objects/compile-cache/")'


def end_the_run(workspace):
    workspace.advance(4 * 3600 + 60)
    until(lambda: not documents(workspace, "tpu.nodes"), "the end of the run", 60)


def preempt(workspace):
    workspace.post("admin/preempt", {"node": the_node(workspace)["name"]})


def change_the_disk(workspace):
    workspace.configure(STACK, **{"tpu.bootDiskSizeGb": 120, "tpu.allowReplaceActive": True})


@pytest.mark.parametrize("ended", [end_the_run, preempt, change_the_disk])
def test_the_next_run_restores_what_an_expired_a_reclaimed_and_a_replaced_machine_stored(workspace, deployed, ended):
    (archive,) = until(lambda: objects(workspace), "an archive", 300)
    before = the_node(workspace)
    ended(workspace)
    said = workspace.script("up", "--stack", STACK, "--yes").out
    assert "The first start takes 12 min, each later one 8 min (planned)." in said
    assert the_node(workspace)["createTime"] > before["createTime"]
    log = workspace.script("logs", "--stack", STACK, "--lines", "5000", "--since", "1d").out
    restored = f"Compiled programs were restored from gs://{BUCKET}/{archive['name']}."
    assert restored in log.rpartition("Document (none): ")[2]
    assert objects(workspace) == [archive], "the same programs are archived once"


@pytest.mark.parametrize(
    ("words", "left"),
    [(("--keep-bucket",), "compiled programs in the retained bucket are ignored without their key"), ((), "")],
)
def test_teardown_says_that_the_next_start_is_a_first_one(workspace, deployed, words, left):
    assert workspace.script("teardown", "--stack", STACK, "--dry-run", *words, expect=1).out.count("a first one") == 1
    assert objects(workspace)


def test_teardown_deletes_the_archives_with_the_bucket(workspace, deployed):
    receipt = workspace.teardown(STACK)
    assert receipt["compiled_programs"] == "compiled programs go too: the next start is a first one"
    listed = workspace.get("storage", "storage/v1/b?project=local-project").get("items", [])
    assert [one["name"] for one in listed if one["name"] == BUCKET] == []


def test_a_deployed_stack_keeps_its_machine_until_the_printed_command_which_restarts_nothing(workspace, deployed):
    """A stack of a former release has no archive, and its file sets nothing."""
    workspace.configure(STACK, **{"tpu.compileCache": "machine"})
    workspace.up(STACK)
    node = the_node(workspace)
    workspace.configure(STACK, **{"tpu.compileCache": None})
    said = workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK).text
    kept = "The TPU VM keeps tpu.compileCache: machine, which the file does not set; the default is now bucket: `pulumi config set "
    assert kept in said
    command = said.partition(kept)[2].partition("`")[0]
    workspace.pulumi("config", "set", *command.split())
    workspace.up(STACK)
    assert workspace.get("storage", f"storage/v1/b/{BUCKET}")["name"] == BUCKET
    after = the_node(workspace)
    assert {name for name in after["metadata"] if after["metadata"][name] != node["metadata"].get(name)} == {
        ARCHIVE_METADATA_KEY
    }
    assert after["createTime"] == node["createTime"]
    workspace.teardown(STACK)
