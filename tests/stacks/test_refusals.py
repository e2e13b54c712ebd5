"""Every rejection of a settings file, of `--set` and of a component, word for word: `refusals.golden.txt` changes only where a message gets better."""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.plan.question import Question, deployment_from
from gemma_serving.stacks.loading import SettingsError, from_file, gateway_from_file
from gemma_serving.stacks.planned import to_deployment
from gemma_serving.stacks.schema import block_of, settings_schema
from tests.components import test_invalid_arguments as invalid

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("refusals.golden.txt")
REMEDY = "If the change is meant: UPDATE_GOLDEN=1 make test TESTS=tests/stacks/test_refusals.py, then read the difference of the golden file"
DIGEST = f"sha256:{'a' * 64}"
GATEWAY = {
    "target": "gateway",
    "gateway": {"region": "us-east5", "regions": ["us-east5"], "backends": [{"stack": "tpu-v6e4"}]},
}
PROBE = {"initialDelay": "0s", "period": "10s", "failureThreshold": 3, "timeout": "1s"}
NETWORK = {"network": "n", "subnetwork": "s", "privateGoogleAccess": True}
L4, TPU = "l4-qat", "tpu-v6e4"

CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    (TPU, {"target": "gpu"}),
    (TPU, {"target": "cloud-run"}),
    (L4, {"target": "tpu"}),
    (L4, {"target": "gateway"}),
    (TPU, {"cloudRun": {"region": "us-east4"}}),
    (TPU, {"model": None}),
    (TPU, {"model": "gemma"}),
    (TPU, {"model": "google/unknown-model"}),
    (TPU, {"weights": "prefetched-image"}),
    (TPU, {"image": "vllm-openai"}),
    (L4, {"image": {"repository": "vllm/vllm-tpu", "digest": DIGEST}}),
    (TPU, {"image": {"repository": "r", "digest": "latest"}}),
    (TPU, {"image": "unknown"}),
    (L4, {"weights": "prefetched-image"}),
    (L4, {"weights": "hub", "cloudRun.mount": {"mode": "streamer"}}),
    (L4, {"weights": "hub", "vllm.lora": {"adapters": {"sql": "gs://b/f"}}}),
    (L4, {"vllm.lora": {"adapters": {"s q l": "org/adapter"}}}),
    (L4, {"vllm.lora": {"adapters": {"sql": "adapter"}}}),
    (L4, {"vllm.lora": {"adapters": {"sql": "org/adapter"}, "rank": 17}}),
    (L4, {"vllm.maxLoraRank": 16}),
    (L4, {"vllm.multimodal": {"imageTokens": 100}}),
    (L4, {"vllm.multimodal": {"images": 2}, "vllm.limitMmPerPrompt": {"image": 3}}),
    (L4, {"vllm.speculative": {"method": "draft-model"}}),
    (L4, {"vllm.speculative": {"method": "n-gram", "drafter": "org/m"}}),
    (L4, {"vllm.speculativeConfig": {"method": [1]}}),
    (L4, {"vllm.enableAutoToolChoice": True}),
    (L4, {"vllm.allowedMediaDomains": ["https://a.example"]}),
    (L4, {"vllm.kvCacheDtype": "nvfp4"}),
    (L4, {"vllm.maxModelLen": "16k"}),
    (L4, {"vllm.gpuMemoryUtilization": "0.9"}),
    (L4, {"vllm.gpuMemoryUtilization": 1.5}),
    (L4, {"vllm.maxModelLength": 1}),
    (L4, {"vllm.extraArgs": ["--port=1"]}),
    (L4, {"tagret": "tpu"}),
    (L4, {"maxInstances": 3}),
    (L4, {"maxUsd": 12.5}),
    (L4, {"maxAge": "4 hours"}),
    (L4, {"labels": {"managed-by": "me"}}),
    (L4, {"labels": {"Key": "me"}}),
    (L4, {"endpointUrl": "models.example.com"}),
    (L4, {"acceptFindings": ["FIT99"]}),
    (L4, {"workload": {"users": 1, "ratePerS": 1.0}}),
    (L4, {"workload": {"inputTokens": 0}}),
    (L4, {"workload": {"imageTokens": 3}}),
    (L4, {"modelConfig": "no/such/file.json"}),
    (L4, {"modelConfig": "../x"}),
    (L4, {"prices": "no/such/prices.json"}),
    (L4, {"dockerHub": {"username": "someone", "tokenSecret": "projects/p/secrets/s/versions/latest"}}),
    (L4, {"image": {"repository": "vllm/vllm-openai", "digest": DIGEST, "buildContext": "images/x"},
          "dockerHub": {"username": "someone", "tokenSecret": "projects/p/secrets/s/versions/1"}}),
    (L4, {"image": {"repository": "us-docker.pkg.dev/p/r/vllm", "digest": DIGEST},
          "dockerHub": {"username": "someone", "tokenSecret": "projects/p/secrets/s/versions/1"}}),
    (L4, {"image": {"repository": "ghcr.io/me/vllm", "digest": DIGEST}}),
    (L4, {"bucket": {"retainOnDestroy": True, "existing": "my-models"}}),
    (L4, {"bucket": {"region": "us-east4"}}),
    (L4, {"bucket": {"prefix": "a//b"}}),
    (L4, {"bucket": {"manifest": "abc"}}),
    (L4, {"hfToken": "hf_clear"}),
    (L4, {"hfTokenSecret": "projects/p/secrets/s/versions/latest"}),
    (L4, {"alerts": {"email": "you"}}),
    (L4, {"alerts": {"webhook": "example.com"}}),
    (L4, {"alerts": {"ttft": "3s"}}),
    (L4, {"alerts": {"ttftGoal": 0.5}}),
    (L4, {"alerts": {"idle": "1m"}}),
    (L4, {"metrics": {"interval": "1s"}}),
    (L4, {"cloudRun.memory": 32}),
    (L4, {"cloudRun.memory": "32G"}),
    (L4, {"cloudRun.cpu": 5}),
    (L4, {"cloudRun.gpu": "nvidia-a100"}),
    (L4, {"cloudRun.region": "us"}),
    (L4, {"cloudRun.concurrency": 1001}),
    (L4, {"cloudRun.minInstances": 3}),
    (L4, {"cloudRun.maxInstances": 0}),
    (L4, {"cloudRun.requestTimeout": "2h"}),
    (L4, {"cloudRun.invokers": ["allUsers"]}),
    (L4, {"cloudRun.mount": {"mode": "fuse-cached"}}),
    (L4, {"cloudRun.mount": {"mode": "fuse", "cacheSize": "8Gi"}}),
    (L4, {"cloudRun.mount": {"options": ["--file-mode 444"]}}),
    (L4, {"cloudRun.readinessProbe": {"period": "0s"}}),
    (L4, {"cloudRun.readinessProbe": {"period": "10s", "timeout": "11s"}}),
    (L4, {"cloudRun.startupProbe": {**PROBE, "timeout": "1"}}),
    (L4, {"cloudRun.startupProbe": {"period": "10s"}}),
    (L4, {"cloudRun.ingress": "none"}),
    (L4, {"cloudRun.scaling": 1}),
    (TPU, {"tpu": "v6e-4"}),
    (TPU, {"tpu": None}),
    (TPU, {"tpu.acceleratorType": "v6e-3"}),
    (TPU, {"tpu.acceleratorType": "nvidia-l4"}),
    (TPU, {"tpu.acceleratorType": "tpu7x-4"}),
    (TPU, {"tpu.zones": []}),
    (TPU, {"tpu.zones": ["us-east5"]}),
    (TPU, {"tpu.zones": ["us-east5-a", "us-east5-a"]}),
    (TPU, {"tpu.zones": "us-east5-a"}),
    (TPU, {"tpu.provisioning": "on-demand"}),
    (TPU, {"tpu.provisioning": "reservation"}),
    (TPU, {"tpu.provisioning": ["flex-start", "on-demand"]}),
    (TPU, {"tpu.provisioning": ["flex-start", "spot:soon"]}),
    (TPU, {"tpu.provisioning": ["flex-start", "spot:0s"]}),
    (TPU, {"tpu.provisioning": ["spot", "spot:5m"]}),
    (TPU, {"tpu.provisioning": ["spot", "spot"]}),
    (TPU, {"tpu.provisioning": [{"spot": "5m"}]}),
    (TPU, {"tpu.provisioning": {"spot": "5m"}}),
    (TPU, {"tpu.provisioning": []}),
    (TPU, {"tpu.provisioning": 3}),
    (TPU, {"tpu.provisioning": ["flex-start", "reservation"], "tpu.reservation": "r"}),
    (TPU, {"tpu.provisioning": "reservation", "tpu.reservation": "r", "tpu.maxUsdPerHour": 9}),
    (TPU, {"tpu.provisioning": ["spot", "standard"], "tpu.renewBefore": "1h"}),
    (TPU, {"tpu.provisioning": "spot", "tpu.renewBefore": "1h"}),
    (TPU, {"tpu.maxUsdPerHour": 0}),
    (TPU, {"tpu.maxUsdPerHour": "6"}),
    (TPU, {"tpu.reservation": "r"}),
    (TPU, {"tpu.provisioningModel": "spot"}),
    (TPU, {"tpu.maxRunDuration": "4 hours"}),
    (TPU, {"tpu.maxRunDuration": 14400}),
    (TPU, {"tpu.renewBefore": "5h"}),
    (TPU, {"tpu.renewBefore": "0s"}),
    (TPU, {"tpu.maxRunDuration": None, "tpu.renewBefore": "1h"}),
    (TPU, {"tpu.idleAfter": "1m"}),
    (TPU, {"tpu.waitFor": "soon"}),
    (TPU, {"tpu.bootDiskSizeGb": 50}),
    (TPU, {"tpu.runtimeVersion": "v2 alpha"}),
    (TPU, {"tpu.existingNetwork": {"network": "n"}}),
    (TPU, {"tpu.existingNetwork": NETWORK}),
    (TPU, {"tpu.existingNetwork": {**NETWORK, "network": "projects/p/x"}, "tpu.zones": ["us-east5-a"]}),
    (TPU, {"tpu.existingNetwork": {**NETWORK, "subnetwork": "projects/h/regions/us-east1/subnetworks/s"},
           "tpu.zones": ["us-east5-a"]}),
    (TPU, {"tpu.existingNetwork": NETWORK, "tpu.zones": ["us-east5-a"], "tpu.gateway": "gateway"}),
    (TPU, {"tpu.tunnelMembers": ["everyone"]}),
    (TPU, {"tpu.tunnelRole": "a b"}),
    (TPU, {"tpu.api": "gke"}),
    (TPU, {"tpu.api": "compute-engine", "tpu.acceleratorType": "v5e-4"}),
    (TPU, {"tpu.api": "compute-engine", "tpu.provisioning": "reservation", "tpu.reservation": "r"}),
    (TPU, {"tpu.api": "compute-engine", "tpu.waitPerZone": "3h"}),
    (TPU, {"tpu.api": "compute-engine", "tpu.runtimeVersion": "v2-alpha-tpuv6e"}),
    (TPU, {"tpu.api": "compute-engine", "tpu.renewBefore": "1h"}),
    (TPU, {"tpu.api": "compute-engine", "tpu.tunnelRole": "role"}),
    ("gateway", {"gateway.regions": ["us-east5", "us-east5"]}),
    ("gateway", {"gateway.regions": []}),
    ("gateway", {"gateway.backends": []}),
    ("gateway", {"gateway.backends": [{"stack": "a"}, {"stack": "a"}]}),
    ("gateway", {"gateway.backends": [{"stack": "A B"}]}),
    ("gateway", {"gateway.minInstances": 3}),
    ("gateway", {"gateway.region": "east"}),
    ("gateway", {"model": "google/gemma-4-E2B-it"}),
    ("gateway", {"alerts": {"ttft": "1s"}}),
    ("gateway", {"gateway": None}),
]  # fmt: skip
"""Stack and changes of its file; None removes a key."""

PAIRS = [
    "vllm.maxModelLen", "vllm.maxModelLen=", "vllm.maxModelLen=16k", "vllm.maxModelLen=0", "maxModelLength=1",
    "vllm.gpuMemoryUtilization=1.5", "vllm.kvCacheDtype=int3", "vllm.kvCacheDtype=nvfp4", "vllm.limitMmPerPrompt=2",
    "vllm.enforceEager=yes", "vllm.extraArgs=--port=1", "vllm.blockSize=24", "tpu.provisioning=on-demand", "tpu.maxRunDuration=4 hours",
    "tpu.maxRunDuration=4", "tpu.renewBefore=5h", "tpu.renewBefore=0s", "tpu.bootDiskSizeGb=50", "tpu.zones=", "tpu.compileCache=yes",
    "tpu.existingNetwork.privateGoogleAccess=maybe", "cloudRun.concurrency=0", "cloudRun.maxInstances=0", "cloudRun.minInstances=-1",
    "cloudRun.requestTimeout=1", "cloudRun.startupProbe=1", "cloudRun.startupProbe.period=1", "cloudRun.startupProbe.failureThreshold=x",
    "cloudRun.memory=0", "cloudRun.memory=32", "cloudRun.cpu=five", "weightsMode=disk2", "weightsMode=streamer", "acceptFindings=FIT99",
    "endpointUrl=x y", "maxUsd=0", "measuredTokPerS=0", "cloudRun.directVpc=1", "cloudRun.zonalRedundancy=2",
    "cloudRun.cudaCompatibility=3", "cloudRun.compileCache=machine", "alerts.enabled=5", "alerts.dailyCost=-1", "tpu.zones=[a]",
    "model=x", "image=x", "cloudRun.cpu=5", "tpu.provisioning=[spot, x]", "tpu.maxUsdPerHour=0", "memory=3", "cloudRun.gpuQuota=-1",
    "publc=true", "workload.inputTokens=0", "workload.users=0", "platform=gke", "vllm.tensorParallelSize=3", "vllm.dtype=float32",
    "vllm.maxNumSeqs=1.5", "tpu.api=gke", "tpu.ssh=x", "tpu.tunnelMembers=everyone", "cloudRun.mount.uid=x", "cloudRun.cpuQuota=none4",
    "cloudRun.memoryQuota=x",
]  # fmt: skip
OF_STACK = [
    "tpu.zones=[us-east5]", "tpu.zones=us-east5-a", "tpu.acceleratorType=v6e-3", "tpu.provisionin=spot", "tpu.provisioning=x",
    "tpu.provisioning=spot spot:5m", "tpu.maxUsdPerHour=3", "vllm.maxModelLen=0", "tpu.maxRunDuration=4", "gcp:projec=x",
    "cloudRun.cpu=4", "maxUsd=x", "x=1", "image=x", "weights=none", "target=cloud-run", "tpu.renewBefore=5h", "tpu=", "model=none",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def values_of(stack: str) -> dict[str, Any]:
    if stack == "gateway":
        return copy.deepcopy(GATEWAY)
    config = yaml.safe_load(settings_file(stack, ROOT).read_text())["config"]
    return {key.partition(":")[2]: value for key, value in config.items()}


def changed(stack: str, changes: dict[str, Any]) -> dict[str, Any]:
    values = values_of(stack)
    for path, value in changes.items():
        place = values
        *parents, last = path.split(".")
        for part in parents:
            place = place.setdefault(part, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return values


def read_and_plan(folder: Path, stack: str, values: dict[str, Any]) -> str:
    """Return the rejection of a file, or of the plan of its settings; empty if both accept it."""
    path = folder / "Pulumi.x.yaml"
    config = {"gcp:project": "my-project", **{f"{PRODUCT}:{key}": value for key, value in values.items()}}
    path.write_text(yaml.safe_dump({"config": config}, sort_keys=False))
    try:
        if stack == "gateway":
            gateway_from_file(path)
            return ""
        found = plan(to_deployment(from_file(path)))
    except (SettingsError, PlanningError) as error:
        return str(error)
    blocking = [f"{one.id}: {one.message}" for one in found.findings if one.severity == "block"]
    return "\n".join(f"(the plan blocks) {text}" for text in blocking)


def wrong_types(stack: str) -> Iterator[tuple[str, object]]:
    """Yield the path of each key that a file can have, with a value of a type that it never has."""
    whole = settings_schema()

    def of(path: str, block: dict[str, Any]) -> Iterator[tuple[str, object]]:
        for key, value in block["properties"].items():
            place = f"{path}.{key}".removeprefix(".")
            yield place, [{"wrong": 1}]
            inner = block_of(whole, value)
            if inner:
                yield f"{place}.wrongKey", 1
                yield from of(place, inner)

    foreign = {"gateway"} if stack != "gateway" else set()
    foreign |= {"tpu"} if stack == L4 else {"cloudRun"}
    for path, value in of("", whole):
        head = path.partition(".")[0]
        is_own = (stack == L4) or head == "tpu"
        if head not in foreign and is_own and head not in {"hfToken", "apiKey", "target"}:
            yield path, value


def with_parents(stack: str, path: str, value: object) -> dict[str, Any]:
    """Return the values with one key set, below the blocks that exist; an image or model named by text becomes a block."""
    values = values_of(stack)
    place: Any = values
    *parents, last = path.split(".")
    for part in parents:
        if not isinstance(place.get(part), dict):
            place[part] = {}
        place = place[part]
    place[last] = value
    return values


def of_files(folder: Path) -> Iterator[tuple[str, str]]:
    for stack, changes in CONTRADICTIONS:
        yield f"{stack}: {json.dumps(changes)}", read_and_plan(folder, stack, changed(stack, changes))
    for stack in (L4, TPU):
        for path, value in wrong_types(stack):
            yield (
                f"{stack}: {path} = {json.dumps(value)}",
                read_and_plan(folder, stack, with_parents(stack, path, value)),
            )


BROKEN = [
    "config:\n  a: 1\n\tb: 2\n",
    "config: [",
    "a: \x00",
    "config:\n  gemma-serving:model: a\n  gemma-serving:model: b\n",
    "config: {}\nconfig: {}\n",
    "config:\n  gemma-serving:tpu: &one { ssh: true }\n  gemma-serving:vllm: *one\n",
    "config:\n  gemma-servng:model: a\n",
    "config:\n  gcp:project: p\n",
    "config:\n  gemma-serving:labels: { 2026-01-01: x }\n",
]
"""Texts that are no settings file. Errors in YAML name the line."""


def of_broken_files(folder: Path) -> Iterator[tuple[str, str]]:
    path = folder / "Pulumi.x.yaml"
    for text in BROKEN:
        path.write_text(text)
        with pytest.raises(SettingsError) as raised:
            from_file(path, project="my-project")
        yield f"file: {json.dumps(text)}", str(raised.value)


def of_set(question: Question) -> str:
    try:
        plan(deployment_from(question))
    except (SettingsError, PlanningError) as error:
        return str(error)
    return ""


def of_options() -> Iterator[tuple[str, str]]:
    for pair in PAIRS:
        asked = Question(model="google/gemma-4-E4B-it", accelerator="L4", set=(pair,))
        yield f"plan --model google/gemma-4-E4B-it --accelerator L4 --set {pair}", of_set(asked)
    for pair in OF_STACK:
        yield f"plan {TPU} --set {pair}", of_set(Question(stack=TPU, set=(pair,)))


def of_components() -> Iterator[tuple[str, str]]:
    for component, args, rows in (
        (CloudRunGpuService, invalid.SERVICE, invalid.OF_A_SERVICE),
        (TpuQueuedResource, invalid.CAPACITY, invalid.OF_CAPACITY),
    ):
        for changes, _ in rows:
            with pytest.raises(PlanningError) as raised:
                component("x", invalid.changed(args, changes))
            yield f"{component.__name__}: {changes}", str(raised.value)


def test_a_rejection_changes_only_on_purpose(tmp_path):
    texts = dict((*of_broken_files(tmp_path), *of_files(tmp_path), *of_options(), *of_components()))
    texts = {case: text.replace(f"{ROOT}/", "") for case, text in texts.items()}
    said = "".join(
        f"{case}\n    {text.replace(chr(10), chr(10) + '    ') or 'accepted'}\n" for case, text in texts.items()
    )
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(said, encoding="utf-8")
    assert said == GOLDEN.read_text(encoding="utf-8"), REMEDY


def test_no_rejection_names_the_parser():
    golden = GOLDEN.read_text(encoding="utf-8")
    for word in ("pydantic", "Traceback", "msgspec", "Input should", "NoneType", "ValidationError"):
        assert word not in golden
