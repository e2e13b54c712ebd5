"""JSON schema of `Pulumi.<stack>.yaml`, for editors, the settings page and messages."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeAlias, cast

from gemma_serving.contracts.fields import camel_case, documented
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.outputs import SmokeThresholds
from gemma_serving.planning.settings import vllm_blocks as vllm
from gemma_serving.planning.settings.fields import own_fields, setting_key
from gemma_serving.planning.settings.reading import schema_of
from gemma_serving.planning.settings.secrets import KINDS, set_command
from gemma_serving.planning.settings.stack import NAMESPACES, NOT_IN_FILE, Settings, SmokeSettings
from gemma_serving.planning.settings.vllm_args import OPTIONS, VllmOption, VllmOptions
from gemma_serving.planning.settings.workload import Workload

Schema: TypeAlias = dict[str, Any]
_REFERENCE: Final = "#/$defs/"


@cache
def settings_schema() -> Schema:
    """Return the schema of all keys below `gemma-serving:`. Callers must not change it."""
    schema = block_schema(Settings)
    keys: Schema = schema["properties"]
    schema["required"] = ["target", "model"]
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
    keys["vllm"]["$ref"] = _REFERENCE + VllmOptions.__name__
    definitions: dict[str, Schema] = schema.pop("$defs")
    options = definitions[VllmOptions.__name__] = definitions.pop(vllm.VllmInFile.__name__)
    options["description"] = inspect.getdoc(VllmOptions)
    for key in vllm.IN_BLOCKS:
        options["properties"].pop(key)
    blocks_by_name: Schema = {"Settings": schema, **definitions}
    for (block, key), text in _meanings():
        if key not in NOT_IN_FILE and block in blocks_by_name:
            blocks_by_name[block]["properties"][key]["description"] = _in_paragraphs(text)
    return schema | {"$defs": definitions}


def _blocks_in(block: type) -> Iterator[type]:
    """Yield the blocks in a block, and those in them."""
    for field in own_fields(block):
        for inner in (field, *field.parts):
            if inner is not None and inner.block_in_file is not None:
                yield inner.block_in_file
                yield from _blocks_in(inner.block_in_file)


def block_schema(block: type) -> Schema:
    """Return pydantic's schema of a block and of the blocks in it, with each default as a file has it."""
    schema = schema_of(block)
    for kind in (block, *_blocks_in(block)):
        found: Schema = schema if kind is block else schema["$defs"][kind.__name__]
        found.pop("title")
        found["description"] = inspect.getdoc(kind)
        found.setdefault("required", [])
        for field in own_fields(kind):
            value: Schema = found["properties"][field.file_key]
            value.pop("default", None)
            if field.default is not MISSING and field.block is None and field.default not in ((), {}):
                value["default"] = field.in_file(field.default)
    return schema


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
    for kind in (Settings, *_blocks_in(Settings)):
        name = VllmOptions.__name__ if kind is vllm.VllmInFile else kind.__name__
        keys = {field.path: field.file_key for field in own_fields(kind)}
        yield from (((name, keys[path]), text) for path, text in texts_below_fields(kind) if path in keys)


def texts_below_fields(owner: type) -> Iterator[tuple[str, str]]:
    """Yield the name and the text below each field of a class and its bases that has one."""
    for kind in (one for one in reversed(owner.__mro__) if one.__module__.startswith("gemma_serving.")):
        (found,) = ast.parse(inspect.getsource(kind)).body
        for field, text in pairwise(cast("ast.ClassDef", found).body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    yield name, meaning
                case _:
                    pass


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
