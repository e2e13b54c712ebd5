"""Tables of docs/provider-gcp-tpu-properties.md. `python -m gcp_tpu_provider.reference` prints them."""

import json
import re
from collections.abc import Callable, Mapping

from gcp_tpu_provider.properties import Property, Schema, inputs, object_types, outputs

MEANING = {
    "replace": "replaces",
    "live": "in place",
    "policy": "only affects waiting",
    "words": "no change",
    "zones": "see text",
}


_CHOICES = re.compile(r" ?One of [^.]+\.$")
_STATED_DEFAULT = re.compile(r" ?Default: (.+?)\.(?= |$)")


def reference() -> str:
    """Return the tables as Markdown, each followed by details of its properties."""
    sections = [
        _section(
            "Inputs",
            "| property | type | default | change | description |",
            {f"`{item.name}`": item for item in inputs().values()},
            lambda item: f"{_kind(item)} | {_default(item)} | {MEANING[item.change]}",
        ),
        _section(
            "Outputs (in addition to all inputs)",
            "| property | type | description |",
            {f"`{item.name}`": item for item in outputs().values()},
            _kind,
        ),
        _section(
            "Fields of objects",
            "| field | type | default | description |",
            {f"`{name}.{item.name}`": item for name, (_, fields) in object_types().items() for item in fields.values()},
            lambda item: f"{_kind(item)} | {_default(item)}",
        ),
    ]
    return "\n".join(sections)


def _section(title: str, head: str, items: Mapping[str, Property], columns: Callable[[Property], str]) -> str:
    """Return a heading, a table with the first paragraph of each description, and a list with the other paragraphs."""
    has_default = "default" in head
    rows, details = "", ""
    for name, item in items.items():
        about, *more = _CHOICES.sub("", item.description).split("\n\n")
        rows += f"| {name} | {columns(item)} | {_STATED_DEFAULT.sub('', about) if has_default else about} |\n"
        details += f"- {name}: {' '.join(more)}\n" if more else ""
    rule = f"|{' --- |' * (head.count('|') - 1)}"
    return f"### {title}\n\n{head}\n{rule}\n{rows}" + (f"\n{details}" if details else "")


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
    stated = _STATED_DEFAULT.search(item.description.partition("\n\n")[0])
    return stated[1] if stated else "required" if item.required else ""


if __name__ == "__main__":
    print(reference(), end="")
