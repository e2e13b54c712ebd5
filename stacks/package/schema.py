"""Schema of the package, generated from the settings of a stack and the arguments of the components. docs/package.md has it as tables."""

import dataclasses
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import pulumi
import yaml

from gemma_serving import VERSION
from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import StoredSecret, StoredSecretArgs
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.contracts.fields import camel_case, documented
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.outputs import PlanSummary
from gemma_serving.planning.numbers import LARGEST
from gemma_serving.planning.settings.annotations import MAY_BE_OUTPUT
from gemma_serving.planning.settings.fields import own_fields
from gemma_serving.stacks.package.inputs import NOT_OFFERED, CloudRunServerInputs, TpuServerInputs
from gemma_serving.stacks.schema import Schema, alternatives, block_schema, settings_schema, texts_below_fields

_PACKAGE: Final = Path(__file__)
Types = dict[str, Any]
"""Named types of the package by their tokens."""
_LIMITS: Final = {
    "minimum": "Minimum: {:,}.",
    "exclusiveMinimum": "Above {:,}.",
    "maximum": "Maximum: {:,}.",
    "multipleOf": "A multiple of {}.",
}
"""Keywords of a JSON schema that Pulumi's language does not have, as sentences of the description."""


class Component(NamedTuple):
    """A component of the package."""

    inputs: type[Any]
    """Class of its own inputs."""
    outputs: type[pulumi.ComponentResource]
    """Class that it registers, with its outputs."""
    block: str = ""
    """Block of its target in a settings file, whose other settings are its inputs too. Empty: it has no settings."""


COMPONENTS: Final[Mapping[str, Component]] = {
    "CloudRunGpuService": Component(CloudRunServerInputs, CloudRunGpuService, "cloudRun"),
    "HuggingFaceToken": Component(StoredSecretArgs, StoredSecret),
    "ModelBucket": Component(ModelBucketArgs, ModelBucket),
    "TpuQueuedResource": Component(TpuServerInputs, TpuQueuedResource, "tpu"),
}


class PackageProperty(NamedTuple):
    """An input or an output of a component."""

    key: str
    schema: dict[str, Any]
    is_required: bool


def package_schema() -> dict[str, Any]:
    """Return the schema, from which the Pulumi CLI generates SDKs."""
    types: Types = {}
    texts = _examples()
    resources = {_token(name): _resource(one, texts[name], types) for name, one in COMPONENTS.items()}
    return {
        **json.loads(_PACKAGE.with_name("package.json").read_text(encoding="utf-8")),
        "version": VERSION,
        "types": {name: types[name] for name in sorted(types)},
        "resources": resources,
    }


def _examples() -> Mapping[str, str]:
    """Return an example of each component by its name, as resources of a program in YAML."""
    found = yaml.safe_load(_PACKAGE.with_name("examples.yaml").read_text(encoding="utf-8"))
    return {one["type"].partition(":")[2]: yaml.safe_dump({name: one}, sort_keys=False) for name, one in found.items()}


def _resource(component: Component, example: str, types: Types) -> dict[str, Any]:
    given, made = list(inputs_of(component, types)), list(outputs_of(component, types))
    # Not fenced: the generators of SDKs drop fenced code of other languages (pulumi pkg v3.256.0, codegen/docs.go, filterExamples).
    shown = textwrap.indent(example, "    ")
    return {
        "isComponent": True,
        "description": f"{inspect.getdoc(component.inputs)}\n\nAn example in YAML:\n\n{shown}",
        "inputProperties": {one.key: one.schema for one in given},
        "requiredInputs": [one.key for one in given if one.is_required],
        "properties": {one.key: one.schema for one in made},
        "required": [one.key for one in made if one.is_required],
    }


def inputs_of(component: Component, types: Types) -> Iterator[PackageProperty]:
    """Yield the inputs of a component, its own first. Named types are added to `types`."""
    texts = dict(texts_below_fields(component.inputs))
    secret = {one.name for one in dataclasses.fields(component.inputs) if not one.repr}
    own = block_schema(component.inputs)["properties"]
    for field in own_fields(component.inputs):
        if field.path != "ownership":  # the components of the package belong to the project and stack of the program
            stated = own[field.file_key]
            found = _type(stated, f"{component.inputs.__name__}{_title(field.path)}", field.file_key, types)
            part = field.parts[1]
            if part is not None and MAY_BE_OUTPUT in part.annotations:
                found["additionalProperties"].pop("plain")
            found |= {} if MAY_BE_OUTPUT in field.annotations else {"plain": True}
            found |= {"secret": True} if field.path in secret else {}
            found["description"] = _description(texts[field.path], stated)
            yield PackageProperty(field.file_key, found, field.default is dataclasses.MISSING)
    foreign = {one.block for one in COMPONENTS.values()} - {component.block}
    for key, value in settings_schema()["properties"].items() if component.block else ():
        if key not in {*NOT_OFFERED, *foreign}:
            yield PackageProperty(
                key, _setting(value, f"Server{_title(key)}", key, types), key in {"model", component.block}
            )


def _setting(value: Schema, name: str, path: str, types: Types) -> dict[str, Any]:
    """Return the property of a setting. All of a setting is plain, because the planner reads it."""
    return {**_type(value, name, path, types), "description": _description(value["description"], value), "plain": True}


def _type(value: Schema, name: str, path: str, types: Types) -> dict[str, Any]:
    """Return the type of a property, and its default. `name` is that of its enumeration, and `path` that of its key in a settings file."""
    options = alternatives(value)
    listed = next((one for one in options if one.get("type") == "array"), None)
    if listed is not None:
        return {"type": "array", "items": {**_type(listed["items"], name, path, types), "plain": True}}
    kinds = [_named(one, name, path, types) for one in options]
    if len(kinds) > 1 and not any("$ref" in one for one in options):
        return {"$ref": "pulumi.json#/Any"}
    if "enum" in options[0]:  # an SDK also takes the value itself
        kinds.insert(0, {"type": options[0]["type"]})
    found = kinds[0] if len(kinds) == 1 else {"oneOf": [{**one, "plain": True} for one in kinds]}
    return found if value.get("default") is None else {**found, "default": value["default"]}


def _named(option: Schema, name: str, path: str, types: Types) -> dict[str, Any]:
    """Return one alternative of a type, after adding its named type."""
    if "$ref" in option:
        return {"$ref": f"#/types/{_block(option['$ref'].rpartition('/')[2], path, types)}"}
    if "enum" in option:
        values = [{"name": _value_name(one), "value": one} for one in option["enum"]]
        types[_token(name)] = {"type": option["type"], "enum": values}
        return {"$ref": f"#/types/{_token(name)}"}
    if option["type"] != "object":
        return {"type": option["type"]}
    (of_each,) = option.get("patternProperties", {"": option.get("additionalProperties")}).values()
    return {"type": "object", "additionalProperties": {**_type(of_each, name, path, types), "plain": True}}


def _value_name(value: object) -> str:
    words = "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", str(value)))
    return words if words[:1].isalpha() else f"Value{words}"


def _block(name: str, path: str, types: Types) -> str:
    """Add the type of a block, without keys that are not offered, and return its token."""
    token, block = _token(name), settings_schema()["$defs"][name]
    kept = {key: one for key, one in block["properties"].items() if f"{path}.{key}" not in NOT_OFFERED}
    types[token] = {
        "type": "object",
        "description": block["description"],
        "properties": {key: _setting(one, f"{name}{_title(key)}", f"{path}.{key}", types) for key, one in kept.items()},
        "required": [key for key in block["required"] if key in kept],
    }
    return token


def outputs_of(component: Component, types: Types) -> Iterator[PackageProperty]:
    """Yield the outputs of a component, the plan last. All others are texts."""
    texts = dict(texts_below_fields(component.outputs))
    for name, kind in output_kinds(component).items():
        described = {"type": "string", "description": _description(texts.get(name, ""), {})}
        yield PackageProperty(camel_case(name), described, type(None) not in typing.get_args(kind))
    if component.block:
        about = "The plan: whether the model fits, the time of a start, the speed and the price."
        yield PackageProperty("plan", {**_contract(PlanSummary, types), "description": about}, is_required=True)


def output_kinds(component: Component) -> Mapping[str, object]:
    """Return the attributes of a component that are outputs, with their types."""
    hints = inspect.get_annotations(component.outputs, eval_str=True)
    return {name: typing.get_args(hint)[0] for name, hint in hints.items() if typing.get_origin(hint) is pulumi.Output}


def _contract(hint: object, types: Types) -> dict[str, Any]:
    """Return the type of a part of a stack's outputs."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        texts = dict(documented(hint))
        parts = {camel_case(one.path): _contract(one.hint, types) for one in own_fields(hint)}
        properties = {key: {**part, "description": texts[key]} for key, part in parts.items()}
        token = _token(hint.__name__)
        types[token] = {"type": "object", "description": inspect.getdoc(hint), "properties": properties}
        return {"$ref": f"#/types/{token}"}
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": "string" if typing.get_origin(hint) is Literal else names[cast("type", hint)]}


def _token(name: str) -> str:
    return f"{PRODUCT}:index:{name}"


def _title(name: str) -> str:
    word = camel_case(name)
    return word[:1].upper() + word[1:]


def _description(text: str, value: Schema) -> str:
    """Return a description with the limits of the value, the default of a list, and examples."""
    options = alternatives(value)
    stated = [(words, one[key]) for one in options for key, words in _LIMITS.items() if key in one]
    notes = [words.format(number) for words, number in stated if number != round(LARGEST)]
    if value.get("default") is not None and any(one.get("type") == "array" for one in options):
        notes.append(f"Default: `{value['default']}`.")
    notes += [f"For example `{example}`." for one in options for example in one.get("examples", [])[:1]]
    paragraphs = (" ".join(one.split()) for one in text.split("\n\n"))
    return " ".join(filter(None, ("\n\n".join(paragraphs), *dict.fromkeys(notes))))
