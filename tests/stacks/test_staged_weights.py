"""Weights that are not staged stop `up` before the service is made, and a preview warns."""

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pulumi
import pytest
import requests

from gemma_serving.cloud.staging.bucket import crc32c
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.resource_types import SERVICE_TYPE
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.contracts.staged_weights import MANIFEST, STAGING_VARIABLE, manifest_hash
from gemma_serving.stacks.bucket_weights import StagedWeights
from gemma_serving.stacks.hooks import staged_weights
from gemma_serving.stacks.hooks.staged_weights import require_complete, require_weights_of_new_server
from gemma_serving.stacks.loading import from_file
from localcloud.tests import idle_cloud
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from tests.stacks.failed_start import context_of, failed_start

ROOT = Path(__file__).resolve().parents[2]
PROJECT, BUCKET, FOLDER = "local-project", "weights-of-a-stack", "models/gemma"
REMEDY = "Run `gemma stage_model x`, then `gemma up x`."


@pytest.fixture
def cloud(monkeypatch):
    with idle_cloud.start(scenario=Scenario(operations=OperationDurations(instant=True))) as started:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", f"{started.base_url}/storage/storage/v1/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", started.token)
        yield started


CONTENT = b"{}"


def manifest_of(*files, **changes):
    entry = {"size_bytes": len(CONTENT), "sha256": None, "crc32c": crc32c(CONTENT), **changes}
    return {"schema": 1, "files": [{"name": name, **entry} for name in files]}


STAGED = manifest_of("config.json")
HASH = manifest_hash(STAGED)


@pytest.fixture
def bucket(cloud):
    """Return a function that puts objects into the bucket, and makes it. A manifest is that of config.json, if the test says nothing else."""
    headers = {"Authorization": f"Bearer {cloud.token}"}

    def put(*names, manifest=STAGED):
        body, project = {"name": BUCKET, "location": "US-EAST4"}, {"project": PROJECT}
        url = f"{cloud.base_url}/storage/storage/v1/b"
        requests.post(url, json=body, params=project, headers=headers, timeout=60).raise_for_status()
        for name in names:
            target = f"{cloud.base_url}/upload/storage/v1/b/{BUCKET}/o"
            asked = {"uploadType": "media", "name": name}
            document = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
            data = document if name.endswith(MANIFEST) else CONTENT
            requests.post(target, data=data, params=asked, headers=headers, timeout=60).raise_for_status()

    return put


def weights(*, existing):
    return StagedWeights(
        project=PROJECT, bucket=BUCKET, prefix=FOLDER, stack="x", command="gemma stage_model x", existing=existing
    )


def require(*, existing=False):
    asyncio.run(require_complete(weights(existing=existing)))


def test_a_bucket_that_does_not_exist_holds_no_weights(monkeypatch, cloud):
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    text = f"No weights are staged in gs://{BUCKET}/{FOLDER}. The server cannot start without them. {REMEDY}"
    with pytest.raises(CommandRefusedError, match=re.escape(text)):
        require()


LISTED = (f"{FOLDER}/config.json", f"{FOLDER}/{MANIFEST}")
UNLISTED = (f"{FOLDER}/config.json", f"{FOLDER}/model.safetensors")
OTHER_HASH = "0" * 64
OTHERS = f"{FOLDER}-{'0' * 16}"
BESIDE = (f"{FOLDER}/other/x.jinja", f"{FOLDER}/other/{MANIFEST}", f"{FOLDER}-{HASH[:16]}/chat_template.jinja")
COPY = (f"{FOLDER}-{HASH[:16]}/config.json", f"{FOLDER}-{HASH[:16]}/{MANIFEST}", f"{FOLDER}-more/{MANIFEST}")
UNNAMED = (
    f"The weights are staged in gs://{BUCKET}/{FOLDER}-{HASH[:16]}, but Pulumi.x.yaml does not name them. "
    f"Run `pulumi config set --path gemma-serving:bucket.manifest sha256:{HASH} --stack x`, then `gemma up x`."
)
NO_MANIFEST = f"have no {MANIFEST}: staging is incomplete, or another tool copied them."
UNKNOWN_FILES = f"do not match their manifest: it does not list chat_template.jinja and 1 more, which the server will also load. {REMEDY}"
IN_A_BUCKET = {
    "of other stacks": (
        (f"models/other/{MANIFEST}", f"{FOLDER}-2/{MANIFEST}", f"{FOLDER}-2/config.json"),
        {},
        (True, "No weights are staged"),
    ),
    # A chat template of a stranger would be in every prompt, and the manifest would still be complete.
    "unknown files": ((*LISTED, f"{FOLDER}/chat_template.jinja", f"{FOLDER}/more/x.py"), {}, (True, UNKNOWN_FILES)),
    "a checkpoint below it, and a folder beside it": ((*LISTED, *BESIDE), {}, None),
    "in no folder": (("config.json", MANIFEST), {"prefix": "", "existing": True}, None),
    "bound, in no folder": (("config.json", MANIFEST), {"prefix": "", "existing": True, "manifest": HASH}, None),
    "no manifest": (UNLISTED, {}, (True, NO_MANIFEST)),
    "no manifest, in a bucket of others": (UNLISTED, {"existing": True}, (False, NO_MANIFEST)),
    # The settings name a manifest, so that there was one: somebody stages other weights now, or did not end.
    "bound, no manifest": (UNLISTED, {"existing": True, "manifest": OTHER_HASH}, (True, NO_MANIFEST)),
    # A colleague, or CI, has the settings without the hash that `gemma stage_model` wrote.
    "a copy that the settings do not name": (COPY, {}, (True, UNNAMED)),
    "that copy, and no hash of it": (COPY[:1], {}, (True, "No weights are staged")),
    "that copy, from another commit": (COPY, {"revision": "c" * 40}, (True, UNNAMED)),
    "bound to others than that copy": (COPY, {"manifest": OTHER_HASH}, (True, "No weights are staged")),
    "a folder with the name of a copy": (
        (f"{OTHERS}/config.json", f"{OTHERS}/{MANIFEST}"),
        {},
        (True, "No weights are staged"),
    ),
    "bound to them": (LISTED, {"manifest": HASH}, None),
    "bound to others": (LISTED, {"manifest": OTHER_HASH}, (True, f"gs://{BUCKET}/{FOLDER} have the hash {HASH}, but")),
    "changed in their own folder": (
        (f"{OTHERS}/config.json", f"{OTHERS}/{MANIFEST}"),
        {"prefix": OTHERS, "manifest": OTHER_HASH},
        (True, f"Run `gemma stage_model x --remove {OTHERS}`, then stage them again."),
    ),
}


@pytest.mark.parametrize("case", IN_A_BUCKET)
def test_only_the_weights_of_the_stack_with_their_manifest_are_staged(bucket, case):
    objects, changes, expected = IN_A_BUCKET[case]
    bucket(*objects)
    found = asyncio.run(replace(weights(existing=False), **changes).fault())
    assert (found and found.blocks) == (expected and expected[0])
    assert found is None or expected[1] in found.sentence


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b"", f"{MANIFEST} cannot be read or lists no file"),
        ({"files": []}, f"{MANIFEST} cannot be read or lists no file"),
        ({"files": ["config.json"]}, "1 of 1 files are missing or differ in size or checksum"),
        (
            manifest_of("config.json", "gone.safetensors"),
            "1 of 2 files are missing or differ in size or checksum",
        ),
        (
            manifest_of("config.json", crc32c="AAAAAA=="),
            "1 of 1 files are missing or differ in size or checksum",
        ),
    ],
)
def test_damaged_weights_stop_up_before_the_service(monkeypatch, bucket, manifest, said):
    bucket(f"{FOLDER}/config.json", f"{FOLDER}/{MANIFEST}", manifest=manifest)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    for existing in (False, True):
        with pytest.raises(CommandRefusedError, match=said) as refused:
            require(existing=existing)
        assert str(refused.value).endswith(REMEDY)
        assert f"The weights in gs://{BUCKET}/{FOLDER} do not match their manifest: " in str(refused.value)


@pytest.mark.parametrize(
    ("preview", "existing", "objects"),
    [(True, False, ()), (False, True, ("config.json",)), (True, False, ("config.json",))],
)
def test_a_preview_warns_and_so_does_up_where_the_server_may_start(monkeypatch, bucket, preview, existing, objects):
    bucket(*(f"{FOLDER}/{name}" for name in objects))
    warned = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: preview)
    require(existing=existing)
    assert len(warned) == 1


def test_a_server_that_is_bound_to_other_weights_is_refused_with_the_setting(monkeypatch, bucket):
    bucket(*LISTED)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    check = replace(weights(existing=False), manifest=OTHER_HASH)
    with pytest.raises(CommandRefusedError, match=r"bucket.manifest is 0+\. The folder's name has the other hash"):
        asyncio.run(require_complete(check))


@pytest.mark.parametrize("method", ["storage.objects.list", "storage.objects.get"])
def test_what_is_unknown_is_not_staged(monkeypatch, bucket, cloud, method):
    """The bucket refuses the list, or the manifest. A preview may run without access to it."""
    bucket(f"{FOLDER}/config.json", f"{FOLDER}/{MANIFEST}")
    fault = {"method": method, "count": 999, "status": 403}
    cloud.cloud.scenario = cloud.cloud.scenario.model_copy(update={"faults": (Fault.model_validate(fault),)})
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
    require()
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    with pytest.raises(CommandRefusedError, match=f"Cannot check the weights in gs://{BUCKET}/{FOLDER}"):
        require()
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "http://127.0.0.1:9/")
    with pytest.raises(CommandRefusedError, match=r"no connection to .* Nothing was changed"):
        require()


@pytest.mark.parametrize(("mode", "hooked"), [("bucket", True), ("hub", False)])
def test_only_a_service_that_reads_a_bucket_is_hooked(bound, mode, hooked):
    context = context_of(failed_start(weights=mode).settings)
    hooks = bound(lambda: staged_weights.require_staged_weights(context))
    assert hooks("gcp:storage/bucket:Bucket") is None
    of_service = hooks(SERVICE_TYPE)
    assert (of_service is not None) is hooked
    assert not hooked or (len(of_service.before_create), len(of_service.before_update)) == (1, 1)


SERVER = {"urn:pulumi:x::gemma-serving::gcp:cloudrunv2/service:Service::vllm": {"type": SERVICE_TYPE}}


@pytest.mark.parametrize("stack", ["l4-qat", "tpu-v6e1"])
def test_missing_weights_stop_up_before_the_first_resource_but_not_staging(monkeypatch, cloud, bucket, stack):
    changes = {"weights": "bucket", "bucket.existing": BUCKET, "bucket.prefix": FOLDER}
    settings = from_file(settings_file(stack, ROOT), project=PROJECT, changes=changes)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)

    def require_new(deployed):
        async def program():
            require_weights_of_new_server(settings, "x", deployed)

        asyncio.run(program())

    with pytest.raises(CommandRefusedError, match=r"No weights are staged in .* Google Cloud is unchanged[.]"):
        require_new({})
    require_new(SERVER)  # its update has a hook
    with monkeypatch.context() as staging:
        staging.setenv(STAGING_VARIABLE, "x")
        require_new({})
    with monkeypatch.context() as without_answer:
        without_answer.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "http://127.0.0.1:9/")
        require_new({})
    bucket(f"{FOLDER}/config.json", f"{FOLDER}/{MANIFEST}")
    require_new({})


def test_a_command_that_checks_weights_loads_no_sdk():
    probe = "import sys, gemma_serving.scripts.doctor.model; print(sorted({'pulumi', 'pulumi_gcp'} & {*sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
