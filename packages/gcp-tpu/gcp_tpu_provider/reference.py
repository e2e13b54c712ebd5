"""Tables of docs/provider-gcp-tpu-properties.md. `python -m gcp_tpu_provider.reference` prints them."""

import json

from gcp_tpu_provider.properties import Property, Schema, inputs, object_types, outputs

MEANING = {
    "replace": "replaces",
    "live": "in place",
    "policy": "only affects waiting",
    "words": "no change",
    "zones": "see text",
}


def reference() -> str:
    """Return the tables as Markdown."""
    parts = [
        "### Inputs",
        "",
        "| property | type | default | change | description |",
        "| --- | --- | --- | --- | --- |",
    ]
    parts += [
        f"| `{item.name}` | {_type(item.schema)} | {_default(item)} | {MEANING[item.change]} | {item.description} |"
        for item in inputs().values()
    ]
    parts += [
        "",
        "### Outputs (in addition to all inputs)",
        "",
        "| property | type | description |",
        "| --- | --- | --- |",
    ]
    parts += [f"| `{item.name}` | {_type(item.schema)} | {item.description} |" for item in outputs().values()]
    parts += [
        "",
        "### Fields of objects",
        "",
        "| object | field | type | default | description |",
        "| --- | --- | --- | --- | --- |",
    ]
    parts += [
        f"| {name} | `{item.name}` | {_type(item.schema)} | {_default(item)} | {item.description} |"
        for name, (_, fields) in object_types().items()
        for item in fields.values()
    ]
    return "\n".join(parts) + "\n"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition(":")[2]
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if schema["type"] == "object":
        return f"map of {_type(schema['additionalProperties'])}"
    return str(schema["type"])


def _default(item: Property) -> str:
    if item.default is None:
        return "required" if item.required else ""
    return f"`{json.dumps(item.default)}`"


if __name__ == "__main__":
    print(reference(), end="")
