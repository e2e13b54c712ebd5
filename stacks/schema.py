"""JSON schema of `Pulumi.<stack>.yaml`, for editors, the settings page and messages."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeAlias, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from gemma_serving.contracts.fields import camel_case, documented
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.outputs import SmokeThresholds
from gemma_serving.planning.question.vllm_args import OPTIONS, VllmOption, VllmOptions
from gemma_serving.planning.question.workload import Workload
from gemma_serving.planning.settings import bucket, cloud_run, gateway, image, observability, tpu
from gemma_serving.planning.settings.fields import defaults_as_text, setting_key
from gemma_serving.stacks.secrets import KINDS, set_command
from gemma_serving.stacks.settings import NAMESPACES, NOT_IN_FILE, Settings, SmokeSettings, docker_hub, stack, vllm
from gemma_serving.stacks.settings import gateway as gateway_stack
from gemma_serving.stacks.settings.gateway import GatewayStack

Schema: TypeAlias = dict[str, Any]


class _WithoutTitles(GenerateJsonSchema):
    """A schema generator without titles, because a title only repeats the key."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False."""
        del schema
        return False


@cache
def settings_schema() -> Schema:
    """Return the schema of all keys below `gemma-serving:`. Callers must not change it."""
    schema: Schema = Settings.model_json_schema(schema_generator=_WithoutTitles)
    keys: Schema = schema["properties"]
    schema["required"].remove("project")
    for key in NOT_IN_FILE:
        keys.pop(key)
    for kind in KINDS:
        keys[kind.key] = {
            "type": "object",
            "description": f"{kind.what}, {kind.purpose}.\n\nSet it with `{set_command(kind.key, 'NAME')}`. The stack stores it in Secret Manager.",
            "properties": {"secure": {"type": "string"}},
            "required": ["secure"],
            "additionalProperties": False,
        }
    _add_blocks(schema)
    _add_gateway(schema)
    blocks_by_name: Schema = {"Settings": schema, **schema["$defs"]}
    for (block, key), text in _meanings():
        if key not in NOT_IN_FILE:
            blocks_by_name[block]["properties"][key]["description"] = _in_paragraphs(text)
    _spell_defaults(schema)
    schema["$defs"].pop(vllm.VllmBlocks.__name__)  # its keys are the options' keys
    return schema


def _add_blocks(schema: Schema) -> None:
    """Add the blocks of `vllm` to the options, and drop the options that only a block sets."""
    blocks: Schema = vllm.VllmBlocks.model_json_schema(schema_generator=_WithoutTitles)
    options: Schema = schema["$defs"][VllmOptions.__name__]["properties"]
    schema["$defs"] |= {**blocks["$defs"], vllm.VllmBlocks.__name__: {"properties": blocks["properties"]}}
    options |= blocks["properties"]
    for key in vllm.IN_BLOCKS:
        options.pop(key)


def _spell_defaults(schema: Schema) -> None:
    """Write the defaults of blocks as a file has them: a number with its unit, one word without brackets, and nothing for an empty list."""
    for module in (bucket, cloud_run, gateway, image, observability, tpu):
        for name, kind in vars(module).items():
            keys: Schema = schema["$defs"].get(name, {}).get("properties", {})
            for value in keys.values() if isinstance(kind, type) else ():
                default = value.get("default")
                if default == []:
                    value.pop("default")
                if isinstance(default, list) and len(cast("list[object]", default)) == 1 and "anyOf" in value:
                    value["default"] = default[0]
            if keys:
                for key, text in defaults_as_text(kind).items():
                    keys[key]["default"] = text


def _add_gateway(schema: Schema) -> None:
    """Add the target `gateway` and its block, which replaces the model and the server."""
    stack_of_gateway: Schema = GatewayStack.model_json_schema(schema_generator=_WithoutTitles)
    schema["$defs"] |= stack_of_gateway["$defs"]
    schema["properties"]["target"]["enum"].append("gateway")
    schema["properties"]["gateway"] = {
        "anyOf": [stack_of_gateway["properties"]["gateway"], {"type": "null"}],
        "default": None,
    }
    schema["required"].remove("model")


def _meanings() -> Iterator[tuple[tuple[str, str], str]]:
    """Yield block, key and description of each setting: from OPTIONS, the outputs' contract, or the text below the field."""
    for key, option in OPTIONS.items():
        if not option.is_in_block:
            yield (VllmOptions.__name__, key), _described(option)
    for key, meaning in documented(Workload):
        yield (Workload.__name__, key), meaning
    thresholds = dict(documented(SmokeThresholds))
    for name in (field.name for field in fields(SmokeSettings)):
        yield (SmokeSettings.__name__, setting_key(name)), thresholds[camel_case(name)]
    # pydantic can read these texts too, but at each import, which takes 25 ms.
    for module in (bucket, cloud_run, docker_hub, gateway, gateway_stack, image, observability, stack, tpu, vllm):
        for block in ast.parse(inspect.getsource(module)).body:
            if isinstance(block, ast.ClassDef) and block.name == GatewayStack.__name__:
                yield (Settings.__name__, "gateway"), dict(_texts_below_fields(block, module))["gateway"]
            elif isinstance(block, ast.ClassDef):
                subclasses: Sequence[type] = getattr(module, block.name).__subclasses__()
                for name in (block.name, *(subclass.__name__ for subclass in subclasses)):
                    yield from (((name, key), text) for key, text in _texts_below_fields(block, module))


def _texts_below_fields(block: ast.ClassDef, module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield key and description of each setting of a class that has a text below it."""
    for field, text in pairwise(block.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                kind: type = getattr(module, block.name)
                yield _key_of(kind, name), meaning
            case _:
                pass


def _key_of(kind: type, name: str) -> str:
    """Return the key of a field. Only the file's own models have one that does not follow from the name."""
    return kind.model_fields[name].alias or name if issubclass(kind, BaseModel) else setting_key(name)


def file_schema() -> Schema:
    """Return the schema of a whole `Pulumi.<stack>.yaml`. Keys of other namespaces are not checked."""
    known = settings_schema()
    text = {"type": "string"}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"Pulumi.<stack>.yaml of {PRODUCT}",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "properties": {
                    "gcp:project": {
                        **text,
                        "description": "Google Cloud project. Default: GOOGLE_CLOUD_PROJECT.",
                    },
                    **{f"{PRODUCT}:{key}": value for key, value in known["properties"].items()},
                },
                "patternProperties": {f"^({'|'.join(NAMESPACES[1:])}):.+$": {}},
                "required": [f"{PRODUCT}:{key}" for key in known["required"]],
                "anyOf": [{"required": [f"{PRODUCT}:{key}"]} for key in ("model", "gateway")],
                "additionalProperties": False,
            },
            "encryptionsalt": text,
            "encryptedkey": text,
            "secretsprovider": text,
            "environment": {"type": ["array", "object"]},
        },
        "required": ["config"],
        "additionalProperties": False,
        "$defs": known["$defs"],
    }


def blocks(path: str = PRODUCT, block: Schema | None = None) -> Iterator[tuple[str, Schema]]:
    """Yield each block with its path, such as `gemma-serving:cloudRun.mount`."""
    block = block or settings_schema()
    yield path, block
    for key, value in block["properties"].items():
        inner = block_of(settings_schema(), value)
        if inner:
            yield from blocks(f"{path}{'.' if ':' in path else ':'}{key}", inner)


def known_keys(path: str) -> list[str]:
    """Return the keys of the block at a path such as `gemma-serving:tpu`, sorted."""
    return sorted(next((block["properties"] for known, block in blocks() if known == path), ()))


def alternatives(value: Schema) -> list[Schema]:
    """Return the alternative schemas of a value, without the one for null."""
    return [option for option in value.get("anyOf", [value]) if option.get("type") != "null"]


def block_of(schema: Schema, value: Schema) -> Schema:
    """Return the block that a key takes, or an empty schema if it takes none."""
    references = [option["$ref"] for option in alternatives(value) if "$ref" in option]
    return schema["$defs"][references[0].rpartition("/")[2]] if references else {}


def _in_paragraphs(text: str) -> str:
    """Return a text with one line for each paragraph."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _described(option: VllmOption) -> str:
    """Return the help of an option, with its unit and flag after the first paragraph."""
    notes = [f"in {option.unit}"] if option.unit else []
    notes += [f"`{option.flag}`"] if option.flag else []
    about, *details = option.help.split("\n\n")
    return "\n\n".join([f"{about} ({', '.join(notes)})" if notes else about, *details])
