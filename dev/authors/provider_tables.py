"""Tables of docs/provider-gcp-tpu-properties.md, from the provider's schema."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from dev.authors.tables import table
from gcp_tpu_provider.properties import Property, Schema, inputs, object_types, outputs

_MEANING: Final = {
    "replace": "replaces",
    "live": "in place",
    "policy": "only affects waiting",
    "words": "no change",
    "zones": "see text",
}
_CHOICES: Final = re.compile(r" ?One of [^.]+\.$")
_STATED_DEFAULT: Final = re.compile(r" ?Default: (.+?)\.(?= |$)")


def tables() -> Mapping[str, str]:
    """Return the tables by their marker in the page: inputs, outputs, and fields of objects."""
    fields = {f"{name}.{item.name}": item for name, (_, found) in object_types().items() for item in found.values()}
    about_fields = table("field | type | default | description", _rows(fields, has_default=True))
    about_inputs = table(
        "property | type | default | change | description", _rows(inputs(), has_default=True, has_change=True)
    )
    about_outputs = table("property | type | description", _rows(outputs()))
    sections = {
        "Inputs": about_inputs,
        "Outputs (in addition to all inputs)": about_outputs,
        "Fields of objects": about_fields,
    }
    return {"provider-properties": "\n".join(f"### {title}\n\n{text}" for title, text in sections.items())}


def _rows(
    items: Mapping[str, Property], *, has_default: bool = False, has_change: bool = False
) -> Iterator[tuple[str, ...]]:
    """Yield the name, the columns and the description of each property, without what a column states."""
    for name, item in items.items():
        about = _CHOICES.sub("", item.description)
        columns = [_kind(item)]
        if has_default:
            columns.append(_default(item))
            about = _STATED_DEFAULT.sub("", about)
        if has_change:
            columns.append(_MEANING[item.change])
        yield f"`{name}`", *columns, about


def _kind(item: Property) -> str:
    """Return the type of a property, or its choices."""
    if _CHOICES.search(item.description):
        return ", ".join(f"`{each}`" for each in item.choices)
    return _type(item.schema)


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition(":")[2]
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if schema["type"] == "object":
        return f"map of {_type(schema['additionalProperties'])}"
    return str(schema["type"])


def _default(item: Property) -> str:
    if item.default is not None:
        return f"`{json.dumps(item.default)}`"
    stated = _STATED_DEFAULT.search(item.description)
    return stated[1] if stated else "required" if item.required else ""
