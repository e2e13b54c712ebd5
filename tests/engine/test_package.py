"""The package with the real CLI, from a folder with `components/` of its own: no move replaces a resource, and a blocked plan declares none."""

import json
import shutil

import pytest

from tests.engine.conftest import HF_CANARY, PROJECT, open_workspace

pytestmark = [pytest.mark.engine, pytest.mark.long]
ACCOUNT = """import pulumi
import pulumi_gcp as gcp

project, location, zone = pulumi.Config("gcp").require("project"), "us-east4", "us-east5-a"
account = gcp.serviceaccount.Account("server", account_id="own-server")
readers = {"server": account.member}
value = pulumi.Config().require_secret("hfToken")
network = gcp.compute.Network("own", name="own", auto_create_subnetworks=False)
subnetwork = gcp.compute.Subnetwork("own", name="own", network=network.id, region="us-east5", ip_cidr_range="10.0.0.0/24", private_ip_google_access=True)
router = gcp.compute.Router("own", name="own", region="us-east5", network=network.id)
ranges = {"source_subnetwork_ip_ranges_to_nat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}
nat = gcp.compute.RouterNat("own", name="own", region="us-east5", router=router.name, nat_ip_allocate_option="AUTO_ONLY", **ranges)
with_nat = pulumi.Output.all(subnetwork.name, nat.id).apply(lambda known: known[0])
"""
IMPORTED = (
    ACCOUNT
    + """
from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService, CloudRunGpuServiceArgs
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import HuggingFaceToken, StoredSecretArgs
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource, TpuQueuedResourceArgs
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.tpu import TpuSettings

token = HuggingFaceToken("hf-token", StoredSecretArgs(project=project, secret_id="own-hf-token", value=value, readers=readers))
ModelBucket("models", ModelBucketArgs(project=project, name=f"{project}-own", location=location, readers=readers, protect=False))


def server(image):
    return VllmServer(image=IMAGES[image].reference, arguments=["google/gemma-4-E2B-it", "--max-model-len=8192"], secrets={"HF_TOKEN": token})


run = CloudRunSettings(region=location, gpu="nvidia-l4", cpu=8, memory_mib=32_768, concurrency=16, max_instances=1)
tpu = TpuSettings(accelerator_type="v6e-1", zones=(zone,), max_run_duration_s=4 * 3_600)
of_each = {"project": project, "service_account": account.email}
CloudRunGpuService("gpu", CloudRunGpuServiceArgs(service_name="own-gpu", service=run, server=server("vllm-openai"), **of_each))
TpuQueuedResource(
    "tpu",
    TpuQueuedResourceArgs(queued_resource_id="own-tpu", tpu=tpu, server=server("vllm-tpu"), network=network.id, subnetwork=with_nat, **of_each),
)
"""
)
PACKAGED = (
    ACCOUNT
    + """

class Component(pulumi.ComponentResource):
    def __init__(self, kind, title, inputs, outputs=()):
        super().__init__(f"gemma-serving:index:{kind}", title, {**dict.fromkeys(outputs), **inputs}, remote=True)


model = "google/gemma-4-E2B-it"
token = Component("HuggingFaceToken", "hf-token", {"project": project, "secretId": "own-hf-token", "value": value, "readers": readers}, ["versionName"])
Component("ModelBucket", "models", {"project": project, "name": f"{project}-own", "location": location, "readers": readers, "protect": False})
of_each = {"project": project, "serviceAccount": account.email, "secrets": {"HF_TOKEN": token.versionName}, "vllm": {"maxModelLen": 8192}, "model": model}
run = {"region": location, "gpu": "nvidia-l4", "cpu": 8, "memory": "32Gi", "concurrency": 16, "maxInstances": 1}
tpu = {"acceleratorType": "v6e-1", "zones": [zone], "maxRunDuration": "4h"}
gpu = Component("CloudRunGpuService", "gpu", {"serviceName": "own-gpu", "cloudRun": run, **of_each}, ["plan"])
Component("TpuQueuedResource", "tpu", {"queuedResourceId": "own-tpu", "tpu": tpu, "network": network.id, "subnetwork": with_nat, **of_each})
pulumi.export("fits", gpu.plan["fits"])
"""
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("package"), cold=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def consumer(workspace):
    """A project of its own, with the two plugins by their paths."""
    checkout, folder = workspace.folder / "project", workspace.folder / "consumer"
    for name in ("components", "scripts", "stacks"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise AssertionError('imported by the package')\n")
    plugins = {"gemma-serving": checkout / "components", "gcp-tpu": checkout / "packages" / "gcp-tpu"}
    listed = "".join(f"    - {{name: {name}, path: {path}}}\n" for name, path in plugins.items())
    runtime = f"runtime: {{name: python, options: {{virtualenv: {checkout / '.venv'}}}}}"
    (folder / "Pulumi.yaml").write_text(f"name: consumer\n{runtime}\nplugins:\n  providers:\n{listed}")

    def run(*words, program=None, **options):
        if program is not None:
            (folder / "__main__.py").write_text(program)
        path = str(checkout) if program is IMPORTED else ""
        return workspace.pulumi(*words, "--cwd", str(folder), environment={"PYTHONPATH": path}, **options)

    run("stack", "init", "dev")
    run("config", "set", "gcp:project", PROJECT)
    run("config", "set", "--secret", "hfToken", HF_CANARY)
    yield run
    shutil.rmtree(folder)


def _ours(exported):
    return {
        one["urn"]: one.get("id")
        for one in json.loads(exported)["deployment"]["resources"]
        if "::pulumi:" not in one["urn"]
    }


def test_a_move_between_import_and_package_replaces_nothing_in_either_direction(consumer):
    consumer("up", "--yes", "--skip-preview", program=IMPORTED)
    existed = _ours(consumer("stack", "export").out)
    for program, outputs in ((PACKAGED, {"fits": True}), (IMPORTED, {})):
        steps = json.loads(consumer("preview", "--json", program=program).out)["steps"]
        kinds = {step["op"] for step in steps if "::pulumi:" not in step["urn"]}
        assert kinds <= {"same", "update"}
        consumer("up", "--yes", "--skip-preview", program=program)
        assert _ours(consumer("stack", "export").out) == existed
        consumer("preview", "--expect-no-changes", program=program)
        assert json.loads(consumer("stack", "output", "--json").out) == outputs
    types = {
        urn.split("::")[2].rpartition("$")[2]
        for urn in existed
        if "gemma-serving:index" in urn.split("::")[2].rpartition("$")[2]
    }
    assert types == {
        f"gemma-serving:index:{name}"
        for name in ("CloudRunGpuService", "HuggingFaceToken", "ModelBucket", "TpuQueuedResource")
    }


def test_a_state_that_has_the_token_under_its_former_type_keeps_its_resources(consumer, workspace):
    exported = consumer("stack", "export").out
    former = workspace.folder / "former.json"
    former.write_text(exported.replace("index:HuggingFaceToken", "index:HfTokenSecret"))
    for program in (PACKAGED, IMPORTED):
        consumer("stack", "import", "--file", str(former))
        assert "HfTokenSecret" in consumer("stack", "export").out
        steps = json.loads(consumer("preview", "--json", program=program).out)["steps"]
        assert {step["op"] for step in steps} <= {"same", "update"}
    consumer("up", "--yes", "--skip-preview", program=IMPORTED)
    assert _ours(consumer("stack", "export").out) == _ours(exported)


def test_a_blocked_plan_and_an_invalid_input_name_the_input_and_change_nothing(consumer):
    before = consumer("stack", "export").out
    for changed, sentence in (
        (("gemma-4-E2B-it", "gemma-4-31B-it"), 'CloudRunGpuService "gpu" is blocked by FIT01, FIT03. Nothing was declared.'),
        (('"maxInstances": 1', '"maxInstances": 0'), "cloudRun.maxInstances: it is 0; expected a whole number"),
        (('"serviceName": "own-gpu"', '"serviceName": "Own"'), 'serviceName: it is "Own"; expected'),
        (('"model": model', '"model": account.email'), "model: it is an output or a secret"),
        (('"maxModelLen": 8192', '"extraArgs": ["--api-key=canary-1234"]'), "vllm.extraArgs: SEC01"),
    ):  # fmt: skip
        answer = consumer("preview", program=PACKAGED.replace(*changed), expect=None)
        assert answer.code != 0
        assert sentence in " ".join(answer.text.split())
        assert "canary" not in answer.text
    blocked = consumer("preview", program=PACKAGED.replace("gemma-4-E2B-it", "gemma-4-31B-it"), expect=None).text
    for name, place in (('CloudRunGpuService "gpu":', "L4"), ('TpuQueuedResource "tpu":', "v6e-1")):
        assert name in blocked
        assert blocked.count(f"FIT01: google/gemma-4-31B-it does not fit on {place}") == 1
    assert consumer("stack", "export").out == before
    consumer("destroy", "--yes", program=PACKAGED)


def test_the_cli_reads_the_same_schema_twice_and_finds_no_fault_in_it(consumer, workspace, tmp_path):
    folder = workspace.folder / "project" / "components"
    texts = [workspace.pulumi("package", "get-schema", str(folder)).out for _ in range(2)]
    assert texts[0] == texts[1]
    path = tmp_path / "schema.json"
    path.write_text(texts[0])
    workspace.pulumi("schema", "check", str(path))
