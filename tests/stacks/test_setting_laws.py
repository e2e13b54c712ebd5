"""Laws of every setting, drawn from its declaration: a good value passes, and any other is refused with its key, its value and what is allowed.

The declarations are read from the schema that is made of them. tests/stacks/refusals.golden.txt has the messages word for word.
"""

import copy
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.planning.errors import PlanningError
from gemma_serving.scripts.plan.question import QuestionOptions, question_from
from gemma_serving.stacks.loading import SettingsError, from_values
from gemma_serving.stacks.schema import file_schema
from tests.stacks.test_refusals import with_parents

SCHEMA: dict[str, Any] = file_schema()
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
DIGEST = f"sha256:{'0' * 64}"
BESIDE: dict[str, tuple[str, ...]] = {
    "image": ("image.repository=vllm/vllm-openai", f"image.digest={DIGEST}"),
    "dockerHub": ("dockerHub={username: someone, tokenSecret: projects/p/secrets/s/versions/1}",),
    "vllm.enableAutoToolChoice": ("vllm.toolCallParser=gemma4",),
    "vllm.lora": ("vllm.lora.adapters={}",),
    "vllm.speculative": ("vllm.speculative={method: draft-model, drafter: google/gemma-4-E2B-it-assistant}",),
    "tpu.reservation": ("tpu.provisioning=reservation",),
    "tpu.existingNetwork": (
        "tpu.zones=[us-east5-a]",
        "tpu.existingNetwork={network: net, subnetwork: sub, privateGoogleAccess: true}",
    ),
    "cloudRun.startupProbe": (
        "cloudRun.startupProbe={initialDelay: 0s, period: 10s, failureThreshold: 3, timeout: 1s}",
    ),
    "cloudRun.mount.cacheSize": ("cloudRun.mount.mode=fuse-cached",),
    "bucket.region": ("bucket.existing=my-models",),
    "workload.ratePerS": ("workload.users=none",),
}
"""Other settings that a path, or each path of its block, needs."""
VALUES = {
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


def kinds(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of which a value fits one."""
    return [resolved(kind) for kind in resolved(node).get("anyOf", [node])]


def leaves(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    inner = {key: value for kind in kinds(node) for key, value in kind.get("properties", {}).items()}
    if not inner:
        yield path, resolved(node)
    for key, value in inner.items():
        yield from leaves(f"{path}.{key}" if path else key, value)


PATHS = {
    path.removeprefix(f"{PRODUCT}:"): node
    for path, node in leaves("", {"properties": SCHEMA["properties"]["config"]["properties"]})
}
BLOCKS = sorted({path.rpartition(".")[0] for path in PATHS})
SECRET = {"hfToken", "apiKey"}
"""Blocks of encrypted values. In plain text they have one message."""


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


def ends(node: dict[str, Any]) -> Iterator[Any]:
    """Yield the numbers that are just inside the limits."""
    yield from (node[key] for key in ("minimum", "maximum") if key in node)
    if "exclusiveMinimum" in node:
        yield node["exclusiveMinimum"] + (1 if node["type"] == "integer" else 0.001)


def beyond(node: dict[str, Any]) -> Iterator[Any]:
    """Yield the nearest values outside each limit of a number, a text without its form, and an empty list where one item is the least."""
    if "minimum" in node:
        yield node["minimum"] - 1
    if "exclusiveMinimum" in node:
        yield node["exclusiveMinimum"]
    if "maximum" in node:
        yield node["maximum"] + 1
    if "multipleOf" in node:
        yield node["multipleOf"] + 1
    if "pattern" in node:
        yield "\u0000 no such value"
    if "enum" in node:
        yield "no-such-word"
    if "minItems" in node:
        yield []


def allowed(node: dict[str, Any]) -> list[str]:
    """Return words of which a message about a wrong value has one."""
    words = [
        f"{one:,}" for key in ("minimum", "exclusiveMinimum", "maximum") for one in [node.get(key)] if one is not None
    ]
    words += map(str, (*node.get("enum", ()), *node.get("examples", ())))
    return words or ["expected "]


OF_TYPES: dict[str, list[Any]] = {
    "string": ["a b"],
    "integer": [3],
    "number": [0.5],
    "boolean": [True],
    "array": [["a b"]],
    "object": [{"a b": "a b"}],
}


def wrong(path: str) -> Iterator[tuple[Any, list[str]]]:
    """Yield values that a setting never takes, each with the words of which its message has one."""
    node = PATHS[path]
    known = kinds(node)
    types = {kind["type"] for kind in known if "type" in kind}
    types |= {"integer"} if "number" in types else set()
    words = [word for kind in known for word in allowed(kind)]
    if types & {"integer", "number"}:
        yield from ((value, words) for value in (math.nan, -math.inf))
    for name, values in OF_TYPES.items():
        if name not in types and not (name == "array" and "string" in types):
            yield from ((value, ["expected ", "needs "]) for value in values)
    if len([kind for kind in known if kind.get("type") != "null"]) == 1:
        yield from ((value, words) for kind in known for value in beyond(kind))


def refused(values: dict[str, Any]) -> list[str]:
    """Return the sentences of the rejection of a file's values; nothing if they are taken. The values stay as they are."""
    before = copy.deepcopy(values)
    try:
        from_values(values, project="my-project", origin="Pulumi.x.yaml")
    except SettingsError as error:
        return str(error).splitlines()
    finally:
        assert values == before
    return []


def stack_of(path: str) -> str:
    return "tpu-v6e4" if path.partition(".")[0] == "tpu" else "l4-qat"


def of_file(values: dict[str, Any]) -> dict[str, Any]:
    return {"config": {f"{PRODUCT}:{key}": value for key, value in values.items()}}


@pytest.mark.parametrize(
    "path", [path for path in PATHS if path.partition(".")[0] not in SECRET | {"gcp:project", "target"}]
)
def test_a_wrong_value_is_refused_with_its_key_and_what_is_allowed_and_the_schema_refuses_it_too(path):
    for value, words in wrong(path):
        values = with_parents(stack_of(path), path, value)
        said = refused(values)
        about = [line for line in said if line.startswith(f"Pulumi.x.yaml: {PRODUCT}:{path}")]
        assert about, (value, said)
        assert any(word in about[0] for word in words), (value, words, about)
        if isinstance(value, str | int | float):
            assert f"{PRODUCT}:{path} = {json.dumps(value)}: " in about[0], (value, about)
        is_json = not isinstance(value, float) or math.isfinite(value)
        assert not is_json or not VALIDATOR.is_valid(of_file(values)), value


@pytest.mark.parametrize("block", [block for block in BLOCKS if block not in SECRET])
def test_an_unknown_key_of_a_block_is_refused_and_the_schema_refuses_it_too(block):
    path = f"{block}.noSuchKey".removeprefix(".")
    values = with_parents(stack_of(path), path, 1)
    (about,) = (line for line in refused(values) if "noSuchKey" in line)
    assert about.startswith(f"Pulumi.x.yaml: {PRODUCT}:{path} is not a known setting")
    assert not VALIDATOR.is_valid(of_file(values))


@pytest.mark.parametrize("path", [path for path in PATHS if any("maximum" in kind for kind in kinds(PATHS[path]))])
def test_a_number_at_its_limit_is_allowed(path):
    for value in (value for kind in kinds(PATHS[path]) for value in ends(kind)):
        said = refused(with_parents(stack_of(path), path, value))
        assert not [line for line in said if f"{PRODUCT}:{path} = " in line], (value, said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(path=st.sampled_from([*PATHS, *filter(None, BLOCKS)]), value=JSON)
def test_no_value_makes_loading_crash(path, value):
    said = refused(with_parents(stack_of(path), path, value))
    assert all(line.startswith("Pulumi.x.yaml: ") for line in said)


def pairs_of(path: str, namespace: str) -> tuple[str, ...]:
    value = VALUES.get(path) or sample(PATHS[path])
    beside = next((pairs for block, pairs in BESIDE.items() if f"{path}.".startswith(f"{block}.")), ())
    return (*beside, f"{namespace}{path}={value if isinstance(value, str) else json.dumps(value)}")


def test_a_good_value_of_every_path_passes_with_and_without_its_namespace():
    rejections: dict[str, str] = {}
    for path, namespace in zip(PATHS, itertools.cycle(["", f"{PRODUCT}:"]), strict=False):
        stack = "l4-qat" if path.startswith(("cloudRun.", "image.")) else "tpu-v6e1"
        try:
            question_from(QuestionOptions(stack=stack, set=pairs_of(path, "" if ":" in path else namespace)))
        except SettingsError as error:
            rejections[path] = str(error)
    assert rejections == {}
    assert len(PATHS) > 150


OF_A_STACK = {
    "tpu.acceleratorType": "--accelerator",
    "cloudRun.gpu": "--accelerator",
    "image.version": "--vllm",
}
"""Keys for which a question without a stack has an option."""


def test_a_good_value_of_every_path_of_a_server_passes_without_a_stack():
    blocks = ("vllm.", "tpu.", "cloudRun.", "alerts.", "metrics.", "workload.", "image.")
    rejections: dict[str, str] = {}
    for path in PATHS:
        if path.startswith(blocks) and not path.startswith("tpu.existingNetwork"):
            asked = QuestionOptions(model="google/gemma-4-E4B-it", accelerator="L4", set=pairs_of(path, ""))
            try:
                question_from(asked)
            except PlanningError as error:
                rejections[path] = str(error)
    assert rejections.keys() == OF_A_STACK.keys(), rejections
    assert all(f"Use the option {OF_A_STACK[path]}" in said for path, said in rejections.items())
