"""`tpu.compileCache: bucket` with weights of the hub: the stack makes its bucket, the machine archives into one folder of it, and nothing is left."""

import json
import time

import pytest

from tests.engine.conftest import HF_CANARY
from tests.localcloud.running.test_machines import has_own_view

STACK = "tpu-v6e1"
BUCKET = "local-project-gemma-tpu-v6e1-models"
FOLDER = "compile-cache/v6e-1/"
LIMIT_S = 300

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def deployed(workspace, tmp_path_factory):
    if not has_own_view(tmp_path_factory.mktemp("probe") / "machine"):
        pytest.skip("the system allows no mount namespaces")
    workspace.pulumi("stack", "init", STACK)
    workspace.pulumi("config", "set", "--secret", "hfToken", "--stack", STACK, stdin=HF_CANARY)
    workspace.pulumi("config", "set", "--path", "gemma-serving:tpu.compileCache", "bucket", "--stack", STACK)
    return workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)


def objects(workspace):
    return workspace.get("storage", f"storage/v1/b/{BUCKET}/o").get("items", [])


def test_the_programs_of_the_server_reach_the_folder_without_its_token(workspace, deployed):
    deadline = time.monotonic() + LIMIT_S
    while not objects(workspace):
        assert time.monotonic() < deadline, "no archive came"
        time.sleep(0.2)
    (archive,) = objects(workspace)
    assert archive["name"].startswith(FOLDER)
    for path in (workspace.folder / "cloud" / "objects").iterdir():
        assert HF_CANARY.encode() not in path.read_bytes()


def test_the_machine_may_write_that_folder_and_read_the_rest(workspace, deployed):
    resources = json.loads(workspace.state(STACK))["checkpoint"]["latest"]["resources"]
    grants = [one["inputs"] for one in resources if one["type"].endswith("bucketIAMMember:BucketIAMMember")]
    assert {one["role"]: "condition" in one for one in grants} == {
        "roles/storage.objectViewer": False,
        "roles/storage.objectUser": True,
    }
    (condition,) = [one["condition"]["expression"] for one in grants if "condition" in one]
    assert condition == f'resource.name.startsWith("projects/_/buckets/{BUCKET}/objects/compile-cache/")'


def test_nothing_changes_right_after_up(workspace, deployed):
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK)


def test_teardown_deletes_the_archives_with_the_bucket(workspace, deployed):
    report = workspace.script("teardown", "--stack", STACK, "--yes", "--json").json
    assert report["clean"] is True
    listed = workspace.get("storage", "storage/v1/b?project=local-project").get("items", [])
    assert [one["name"] for one in listed if one["name"] == BUCKET] == []
