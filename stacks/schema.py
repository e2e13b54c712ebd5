"""JSON schema of `Pulumi.<stack>.yaml`, for editors, the settings page and messages."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeAlias, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import DataclassSchema, DictSchema, LiteralSchema

from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.planning.settings.fields import SettingField, own_fields
from gemma_serving.planning.settings.secrets import KINDS, set_command
from gemma_serving.planning.settings.stack import NAMESPACES, NOT_IN_FILE, Settings
from gemma_serving.planning.settings.vllm_args import OPTIONS, Unit, VllmOptions
from gemma_serving.planning.settings.vllm_blocks import IN_BLOCKS, VllmInFile

Schema: TypeAlias = dict[str, Any]
_REFERENCE: Final = "#/$defs/"


class _Generator(GenerateJsonSchema):
    """pydantic's schema with our descriptions, with each default as a file has it, and without titles."""

    def field_title_should_be_set(self, schema: object) -> bool:
        del schema
        return False

    def function_after_schema(self, schema: Any) -> Schema:  # noqa: ANN401 - of three kinds
        """Return the schema of the type with what the check adds."""
        check: object = schema["function"]["function"]
        return getattr(check, "in_schema", dict)(self.generate_inner(schema["schema"]))

    function_before_schema = function_wrap_schema = function_after_schema

    def literal_schema(self, schema: LiteralSchema) -> Schema:
        return {"type": "string", "enum": schema["expected"]}

    def dict_schema(self, schema: DictSchema) -> Schema:
        made = super().dict_schema(schema)
        if "patternProperties" in made:
            made.pop("propertyNames", None)
            made["additionalProperties"] = False
        return made

    def dataclass_schema(self, schema: DataclassSchema) -> Schema:
        made, block = super().dataclass_schema(schema), schema["cls"]
        made.pop("title")
        texts = dict(texts_below_fields(block))
        for field in own_fields(block):
            value: Schema = made["properties"][field.file_key]
            value.pop("default", None)
            if field.default is not MISSING and field.block is None and field.default not in ((), {}):
                value["default"] = field.in_file(field.default)
            text = texts.get(field.path) or (inspect.getdoc(field.block) if field.block else None)
            if text:
                value["description"] = _described(text, field)
        return {"required": [], **made, "description": inspect.getdoc(block)}


def block_schema(block: type) -> Schema:
    """Return the schema of a block and of the blocks in it."""
    return TypeAdapter(block).json_schema(by_alias=True, schema_generator=_Generator)


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
    options = schema["$defs"][VllmOptions.__name__] = schema["$defs"].pop(VllmInFile.__name__)
    options["description"] = inspect.getdoc(VllmOptions)
    for key in IN_BLOCKS:
        options["properties"].pop(key)
    return schema


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


def _described(text: str, field: SettingField) -> str:
    """Return the text below a field with one line for each paragraph. An option of vLLM has its unit and flag after the first."""
    about, *details = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    option = OPTIONS.get(field.key)
    if option is not None and option.field == field:
        unit = field.annotation(Unit)
        notes = [f"in {unit.name}"] if unit else []
        notes += [f"`{option.flag}`"] if option.flag else []
        about += f" ({', '.join(notes)})" if notes else ""
    return "\n\n".join([about, *details])
