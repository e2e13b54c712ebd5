"""`--set` takes every path of a settings file, by its own name and with its namespace."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.planning.errors import PlanningError
from gemma_serving.scripts.plan.question import ROOT, Question, deployment_from
from gemma_serving.stacks.loading import SettingsError

SCHEMA: dict[str, Any] = json.loads((ROOT / "docs/settings.schema.json").read_text(encoding="utf-8"))
DIGEST = f"sha256:{'0' * 64}"
IMAGE = ("image.repository=vllm/vllm-openai", f"image.digest={DIGEST}")
NETWORK = "tpu.existingNetwork={network: net, subnetwork: sub, privateGoogleAccess: true}"
PROBE = "cloudRun.startupProbe={initialDelay: 0s, period: 10s, failureThreshold: 3, timeout: 1s}"
BESIDE: Mapping[str, tuple[str, ...]] = {
    "image": IMAGE,
    "dockerHub": ("dockerHub={username: someone, tokenSecret: projects/p/secrets/s/versions/1}",),
    "vllm.enableAutoToolChoice": ("vllm.toolCallParser=gemma4",),
    "vllm.lora": ("vllm.lora.adapters={}",),
    "vllm.speculative": ("vllm.speculative={method: draft-model, drafter: google/gemma-4-E2B-it-assistant}",),
    "tpu.reservation": ("tpu.provisioning=reservation",),
    "tpu.existingNetwork": ("tpu.zones=[us-east5-a]", NETWORK),
    "cloudRun.startupProbe": (PROBE,),
    "cloudRun.mount.cacheSize": ("cloudRun.mount.mode=fuse-cached",),
    "bucket.region": ("bucket.existing=my-models",),
    "workload.ratePerS": ("workload.users=none",),
}
"""Other settings that a path, or each path of its block, needs."""
VALUES: Mapping[str, str] = {
    "gcp:project": "my-project",
    "modelConfig": "tests/fixtures/models/other-8b/config.json",
    "draftConfig": "tests/fixtures/models/other-8b/config.json",
    "prices": "tests/fixtures/models/prices.json",
    "endpointUrl": "https://models.example.com",
    "acceptFindings": "[FIT07]",
    "image.version": "0.28.0",
    "tpu.idleAfter": "1h",
    "vllm.speculative.method": "draft-model",
    "cloudRun.mount.cacheSize": "8Gi",
}
"""Values of paths whose schema has no example that a stack can use as it is."""


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        node = {**SCHEMA["$defs"][node["$ref"].rpartition("/")[2]], **rest}
    return node


def leaves(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    node = resolved(node)
    kinds = [node, *map(resolved, node.get("anyOf", []))]
    inner = {key: value for kind in kinds for key, value in kind.get("properties", {}).items()}
    if not inner:
        yield path, node
    for key, value in inner.items():
        yield from leaves(f"{path}.{key}" if path else key, value)


def sample(node: dict[str, Any]) -> Any:
    """Return a value that the schema allows."""
    node = resolved(node)
    if node.get("default"):
        return node["default"]
    for key in ("examples", "enum"):
        if key in node:
            return node[key][0]
    if "anyOf" in node:
        return sample(node["anyOf"][0])
    text = DIGEST if "sha256" in node.get("pattern", "") else "x"
    values = {
        "boolean": True,
        "string": text,
        "object": {},
        "array": [sample(node["items"])] if "items" in node else [],
    }
    return node.get("const") or values.get(node["type"], max(node.get("minimum", 1), 1))


PATHS = {
    path.removeprefix(f"{PRODUCT}:"): node
    for path, node in leaves("", {"properties": SCHEMA["properties"]["config"]["properties"]})
}


def pairs_of(path: str, node: dict[str, Any], namespace: str) -> tuple[str, ...]:
    value = VALUES.get(path) or sample(node)
    beside = next((pairs for block, pairs in BESIDE.items() if f"{path}.".startswith(f"{block}.")), ())
    return (*beside, f"{namespace}{path}={value if isinstance(value, str) else json.dumps(value)}")


def test_set_takes_every_path_of_a_settings_file_with_and_without_its_namespace():
    refused: dict[str, str] = {}
    for (path, node), namespace in zip(PATHS.items(), itertools.cycle(["", f"{PRODUCT}:"]), strict=False):
        stack = "l4-qat" if path.startswith(("cloudRun.", "image.")) else "tpu-v6e1"
        try:
            deployment_from(Question(stack=stack, set=pairs_of(path, node, "" if ":" in path else namespace)))
        except SettingsError as error:
            refused[path] = str(error)
    gateway = {path for path in PATHS if path.startswith("gateway.")}
    assert set(refused) == gateway, {path: refused[path] for path in refused.keys() - gateway}
    assert all("gateway is not used with target tpu" in refused[path] for path in gateway)
    assert len(PATHS) > 150


OF_A_STACK = {
    "tpu.acceleratorType": "--accelerator",
    "cloudRun.gpu": "--accelerator",
    "image.version": "--vllm",
}
"""Keys for which a question without a stack has an option."""


def test_set_takes_every_path_of_a_server_without_a_stack():
    blocks = ("vllm.", "tpu.", "cloudRun.", "alerts.", "metrics.", "workload.", "image.")
    refused: dict[str, str] = {}
    for path, node in PATHS.items():
        if path.startswith(blocks) and not path.startswith("tpu.existingNetwork"):
            asked = Question(model="google/gemma-4-E4B-it", accelerator="L4", set=pairs_of(path, node, ""))
            try:
                deployment_from(asked)
            except PlanningError as error:
                refused[path] = str(error)
    assert set(refused) == set(OF_A_STACK), {path: refused[path] for path in refused.keys() - OF_A_STACK.keys()}
    assert all(f"Use the option {OF_A_STACK[path]}" in said for path, said in refused.items())
