"""Generator of the resource's Python classes from the package schema: one module that any Pulumi program can keep in its source.

`python -m gcp_tpu_provider.python_sdk > FILE` writes it. Inputs are keyword arguments; names are the schema's in snake_case.
Outputs that only repeat an optional input are left out: the program has set them itself.
"""

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from gcp_tpu_provider import TOKEN
from gcp_tpu_provider.schema import package_schema

WIDTH = 120
TYPES = {"string": "str", "integer": "int", "boolean": "bool"}
HEADER = '''"""Resource of the Pulumi provider `gcp-tpu`. Generated from the provider's schema by gcp_tpu_provider.python_sdk; do not edit."""

from collections.abc import Mapping, Sequence
from copy import copy
from inspect import get_annotations
from typing import TypeVar, cast, dataclass_transform

import pulumi

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, field_specifiers=(pulumi.property,))
def _input_type(cls: type[T]) -> type[T]:
    """Register the Pulumi constructor and declare it to type checkers."""
    return pulumi.input_type(cls)
'''
CONSTRUCTOR = """
    def __init__(
        self, resource_name: str, args: QueuedResourceArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        properties = copy(args)
        # Pulumi resolves the outputs named by the properties.
        vars(properties).update({**dict.fromkeys(get_annotations(QueuedResource)), **vars(args)})
        super().__init__("{token}", resource_name, cast("pulumi.Inputs", properties), opts)
"""


def python_module() -> str:
    """Return the module's source."""
    schema = json.loads(package_schema())
    resource, types = schema["resources"][TOKEN], schema["types"]
    inputs: Mapping[str, Any] = resource["inputProperties"]
    kept = {
        name: item
        for name, item in resource["properties"].items()
        if name not in inputs or name in resource["required"]
    }
    taken, given = ({name for item in each.values() for name in _references(item)} for each in (inputs, kept))
    parts = [HEADER]
    for token, kind in types.items():
        name = token.rpartition(":")[2]
        if name in taken:
            parts.append(_class(f"{name}Args", "_input_type", kind, inputs=True))
        if name in given:
            parts.append(_class(f"{name}(dict[str, object])", "pulumi.output_type", kind, inputs=False))
    arguments = {"description": f"Inputs of `{TOKEN}`.", "properties": inputs, "required": resource["requiredInputs"]}
    parts.append(_class("QueuedResourceArgs", "_input_type", arguments, inputs=True))
    outputs = {**resource, "properties": kept}
    fields = _class("QueuedResource(pulumi.CustomResource)", "", outputs, inputs=False, described=inputs)
    parts.append(fields + CONSTRUCTOR.replace("{token}", TOKEN))
    return "\n\n".join(parts)


def _references(schema: Mapping[str, Any]) -> list[str]:
    reference = schema.get("$ref") or schema.get("items", {}).get("$ref")
    return [reference.rpartition(":")[2]] if reference else []


def _class(
    head: str, decorator: str, kind: Mapping[str, Any], *, inputs: bool, described: Mapping[str, Any] | None = None
) -> str:
    """Return a class. A property that `described` has with the same text, the class of its inputs describes."""
    lines = [f"@{decorator}"] if decorator else []
    summary, _, details = kind["description"].partition(". ")
    description = f"{summary.rstrip('.')}.\n\n{details}" if details else summary
    lines += [f"class {head}:", *_docstring(description), ""]
    properties: Mapping[str, Mapping[str, Any]] = kind["properties"]
    required = set(kind["required"])
    for name, schema in sorted(properties.items(), key=lambda item: item[0] not in required):
        lines.append(_field(name, schema, inputs=inputs, required=name in required, resource=not decorator))
        if (described or {}).get(name, {}).get("description") != schema["description"]:
            lines += _docstring(schema["description"])
    return "\n".join(lines) + "\n"


def _field(name: str, schema: Mapping[str, Any], *, inputs: bool, required: bool, resource: bool) -> str:
    annotation = _type(schema, inputs=inputs) + ("" if required else " | None")
    if resource:
        annotation = f"pulumi.Output[{annotation}]"
    default = ", default=None" if inputs and not required else ""
    return f'    {_snake_case(name)}: {annotation} = pulumi.property("{name}"{default})'


def _type(schema: Mapping[str, Any], *, inputs: bool) -> str:
    if "$ref" in schema:
        inner = schema["$ref"].rpartition(":")[2] + ("Args" if inputs else "")
    elif schema["type"] == "array":
        inner = f"Sequence[{_type(schema['items'], inputs=inputs)}]"
    elif schema["type"] == "object":
        inner = f"Mapping[str, {_type(schema['additionalProperties'], inputs=inputs)}]"
    else:
        inner = TYPES[schema["type"]]
    return f"pulumi.Input[{inner}]" if inputs else inner


def _docstring(text: str) -> list[str]:
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, WIDTH - 7) or [""]]
    if len(lines) == 1:
        return [f'    """{text}"""']
    indented = [f"    {line}".rstrip() for line in lines]
    return [f'    """{lines[0]}', *indented[1:], '    """']


def _snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter.group().lower()}", name)


if __name__ == "__main__":
    print(python_module(), end="")
