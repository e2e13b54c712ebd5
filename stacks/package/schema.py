"""Schema of the package, generated from the settings of a stack and the arguments of the components. docs/components.md has it as tables."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple, cast

import pulumi

from gemma_serving import VERSION
from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import StoredSecret, StoredSecretArgs
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.contracts.fields import camel_case, documented
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.outputs import PlanSummary
from gemma_serving.planning.numbers import LARGEST
from gemma_serving.planning.settings.fields import MAY_BE_OUTPUT, SettingField, own_fields
from gemma_serving.stacks.package.inputs import NOT_OFFERED, CloudRunServerInputs, TpuServerInputs
from gemma_serving.stacks.schema import Schema, alternatives, settings_schema, texts_below_fields, value_schema

_ANY: Final = "pulumi.json#/Any"
OWNERSHIP: Final = "ownership"
"""Argument by import only. The package's components belong to the project and stack of the program."""


class Component(NamedTuple):
    """A component of the package."""

    about: str
    inputs: type[Any]
    """Class of its own inputs."""
    outputs: type[pulumi.ComponentResource]
    """Class that it registers, with its outputs."""
    settings: frozenset[str] = frozenset()
    """Settings of a stack that it has as inputs too."""


def _offered(block: str) -> frozenset[str]:
    """Return the top-level settings that a server of the target with this block has as inputs."""
    foreign = {"tpu", "cloudRun"} - {block}
    return frozenset(settings_schema()["properties"]) - foreign - {*NOT_OFFERED}


@cache
def components() -> Mapping[str, Component]:
    """Return the components by name."""
    return {
        "CloudRunServer": Component(
            inspect.getdoc(CloudRunServerInputs) or "", CloudRunServerInputs, CloudRunGpuService, _offered("cloudRun")
        ),
        "HuggingFaceToken": Component(
            "A Hugging Face token in Secret Manager, with one version and one grant per reader.",
            StoredSecretArgs,
            StoredSecret,
        ),
        "ModelBucket": Component(inspect.getdoc(ModelBucket) or "", ModelBucketArgs, ModelBucket),
        "TpuServer": Component(
            inspect.getdoc(TpuServerInputs) or "", TpuServerInputs, TpuQueuedResource, _offered("tpu")
        ),
    }


def package_schema() -> dict[str, Any]:
    """Return the schema, which the Pulumi CLI generates SDKs from."""
    types: dict[str, Any] = {}
    resources = {_token(name): _resource(component, types) for name, component in components().items()}
    respects = {"respectSchemaVersion": True}
    return {
        "name": PRODUCT,
        "version": VERSION,
        "displayName": "Gemma 4 behind vLLM",
        "description": "Gemma 4 behind vLLM on Google Cloud TPUs and Cloud Run GPUs.",
        "license": "Apache-2.0",
        "language": {
            "csharp": respects,
            "go": respects,
            "java": respects,
            "nodejs": respects,
            "python": {**respects, "pyproject": {"enabled": True}},
        },
        "types": {name: types[name] for name in sorted(types)},
        "resources": resources,
    }


def _token(name: str) -> str:
    return f"{PRODUCT}:index:{name}"


def _resource(component: Component, types: dict[str, Any]) -> dict[str, Any]:
    made = list(outputs(component, types))
    inputs = list(inputs_of(component, types))
    return {
        "isComponent": True,
        "description": component.about,
        "inputProperties": {one.key: one.schema for one in inputs},
        "requiredInputs": [one.key for one in inputs if one.is_required],
        "properties": {one.key: one.schema for one in made},
        "required": [one.key for one in made if one.is_required],
    }


class Property(NamedTuple):
    """An input or an output of a component."""

    key: str
    schema: dict[str, Any]
    is_required: bool


def inputs_of(component: Component, types: dict[str, Any]) -> Iterator[Property]:
    """Yield the inputs of a component, its own first. Named types are added to `types`."""
    texts = dict(texts_below_fields(component.inputs))
    secret = {one.name for one in dataclasses.fields(component.inputs) if not one.repr}
    for field in own_fields(component.inputs):
        if field.path != OWNERSHIP:
            stated = value_schema(field) | _default_of(field)
            part = field.parts[1]
            has_outputs = part is not None and MAY_BE_OUTPUT in part.annotations
            name = f"{component.inputs.__name__}{_title(field.path)}"
            found = _property(stated, name, types, has_outputs=has_outputs)
            found |= {} if MAY_BE_OUTPUT in field.annotations else {"plain": True}
            found |= {"secret": True} if field.path in secret else {}
            yield Property(
                field.file_key,
                _with_description(found, texts[field.path], stated),
                field.default is dataclasses.MISSING,
            )
    whole = settings_schema()["properties"]
    required = {"model", "tpu", "cloudRun"}
    for key in whole:
        if key in component.settings:
            found = _setting(whole[key], f"Server{_title(key)}", key, types)
            yield Property(key, found, key in required)


def _default_of(field: SettingField) -> Schema:
    default = field.default
    return {"default": default} if isinstance(default, str | int | float | bool) else {}


def _setting(value: Schema, name: str, path: str, types: dict[str, Any]) -> dict[str, Any]:
    """Return the property of a setting. All of a setting is plain, because the planner reads it."""
    found = _property(value, name, types, path)
    return _with_description(found, value["description"], value) | {"plain": True}


def _property(
    value: Schema, name: str, types: dict[str, Any], path: str = "", *, has_outputs: bool = False
) -> dict[str, Any]:
    """Return the type of a property.

    `name`: of its enumeration. `path`: of its key in a settings file, for those that are not offered. `has_outputs`: the values of a map may be
    outputs.
    """
    options = alternatives(value)
    listed = [one for one in options if one.get("type") == "array"]
    if listed:
        return {"type": "array", "items": {**_property(listed[0]["items"], name, types), "plain": True}}
    blocks = [_block(one["$ref"], path, types) for one in options if "$ref" in one]
    if blocks:
        reference = {"$ref": f"#/types/{blocks[0]}"}
        return (
            reference
            if len(options) == 1
            else {"oneOf": [{"type": "string", "plain": True}, {**reference, "plain": True}]}
        )
    if len(options) > 1:
        return {"$ref": _ANY}
    (option,) = options
    default = {"default": value["default"]} if value.get("default") is not None else {}
    if "enum" in option:
        types[_token(name)] = _enumeration(option)
        accepted = [{"type": option["type"], "plain": True}, {"$ref": f"#/types/{_token(name)}", "plain": True}]
        return {"oneOf": accepted} | default
    if option["type"] != "object":
        return {"type": option["type"]} | default
    values: Sequence[Any] = list(option.get("patternProperties", {}).values()) or [option.get("additionalProperties")]
    of_each = _property(values[0], name, types) | ({} if has_outputs else {"plain": True})
    return {"type": "object", "additionalProperties": of_each}


def _enumeration(option: Schema) -> dict[str, Any]:
    return {
        "type": option["type"],
        "enum": [{"name": _value_name(one), "value": one} for one in option["enum"]],
    }


def _value_name(value: object) -> str:
    words = "".join(part[:1].upper() + part[1:] for part in re.split(r"\W+", str(value).replace(".", "_")))
    return words if words[:1].isalpha() else f"Value{words}"


def _block(reference: str, path: str, types: dict[str, Any]) -> str:
    """Add the type of a block, without keys that are not offered, and return its token."""
    name = reference.rpartition("/")[2]
    token = _token(name)
    if token not in types:
        block = settings_schema()["$defs"][name]
        types[token] = {}
        kept = {key: one for key, one in block["properties"].items() if f"{path}.{key}" not in NOT_OFFERED}
        types[token] = {
            "type": "object",
            "description": block["description"],
            "properties": {
                key: _setting(one, f"{name}{_title(key)}", f"{path}.{key}", types) for key, one in kept.items()
            },
            "required": [key for key in block["required"] if key in kept],
        }
    return token


def _title(name: str) -> str:
    word = camel_case(name)
    return word[:1].upper() + word[1:]


def _with_description(found: dict[str, Any], text: str, stated: Schema | None = None) -> dict[str, Any]:
    paragraphs = "\n\n".join(" ".join(one.split()) for one in text.split("\n\n"))
    return {**found, "description": " ".join(filter(None, (paragraphs, limits(stated or {}))))}


def limits(value: Schema) -> str:
    """Return the limits of a value and the default of a list as sentences, because the schema language has no keywords for them."""
    found: list[str] = []
    for one in alternatives(value):
        for keyword, words in (
            ("minimum", "Minimum"),
            ("exclusiveMinimum", "Above"),
            ("maximum", "Maximum"),
            ("multipleOf", "A multiple of"),
        ):
            if keyword in one and one[keyword] != round(LARGEST):
                found.append(
                    f"{words}{' ' if keyword in {'exclusiveMinimum', 'multipleOf'} else ': '}{one[keyword]:,}."
                )
        if "examples" in one:
            found.append(f"For example {' or '.join(f'`{example}`' for example in one['examples'])}.")
    if value.get("default") is not None and any(one.get("type") == "array" for one in alternatives(value)):
        found.append(f"Default: `{value['default']}`.")
    return " ".join(dict.fromkeys(found))


def outputs(component: Component, types: dict[str, Any]) -> Iterator[Property]:
    """Yield the outputs of a component, the plan last. All others are texts."""
    texts = dict(texts_below_fields(component.outputs))
    for name in output_names(component):
        (kind,) = typing.get_args(inspect.get_annotations(component.outputs, eval_str=True)[name])
        found = _with_description({"type": "string"}, texts.get(name, ""))
        yield Property(camel_case(name), found, type(None) not in typing.get_args(kind))
    if component.settings:
        plan = {"$ref": f"#/types/{_contract(PlanSummary, types)}"}
        about = "The plan: whether the model fits, the time of a start, the speed and the price."
        yield Property("plan", _with_description(plan, about), is_required=True)


def output_names(component: Component) -> Iterator[str]:
    """Yield the attributes of a component that are outputs."""
    for name, hint in inspect.get_annotations(component.outputs, eval_str=True).items():
        if typing.get_origin(hint) is pulumi.Output:
            yield name


def _contract(kind: type, types: dict[str, Any]) -> str:
    """Add the type of a part of the stack's outputs, and return its token."""
    texts = dict(documented(kind))
    properties: dict[str, Any] = {}
    for field in own_fields(kind):
        key = camel_case(field.path)
        found = _contract_type(field.hint, types)
        properties[key] = {**found, "description": texts[key]}
    token = _token(kind.__name__)
    types[token] = {"type": "object", "description": inspect.getdoc(kind), "properties": properties}
    return token


def _contract_type(hint: object, types: dict[str, Any]) -> dict[str, Any]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {"$ref": f"#/types/{_contract(cast('type', hint), types)}"}
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": "string" if typing.get_origin(hint) is Literal else names[cast("type", hint)]}
