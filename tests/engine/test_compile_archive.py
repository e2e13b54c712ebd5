"""`tpu.compileCache: bucket` with weights of the hub: the stack makes its bucket, the machine archives into one folder of it, and nothing is left."""

import base64
from pathlib import Path

import pytest

from gemma_serving.vm_agent.archives import Archive
from gemma_serving.vm_agent.cloud import MetadataClient
from tests.agreement.test_machines import has_own_view
from tests.engine.conftest import HF_CANARY, assert_nowhere_in_clear, until

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


def test_teardown_deletes_the_archives_with_the_bucket(workspace, deployed):
    workspace.teardown(STACK)
    listed = workspace.get("storage", "storage/v1/b?project=local-project").get("items", [])
    assert [one["name"] for one in listed if one["name"] == BUCKET] == []
