"""The tables of docs/provider-gcp-tpu.md, from the same table as the schema: `python -m gcp_tpu_provider.reference` prints them."""

from gcp_tpu_provider.properties import INPUTS, OUTPUTS, TYPES, Property, Schema

MEANING = {"replace": "replaces", "live": "in place", "policy": "guides waiting", "zones": "see text"}


def reference() -> str:
    """Return the tables as Markdown."""
    parts = [
        "### Inputs",
        "",
        "| property | type | default | a change | description |",
        "| --- | --- | --- | --- | --- |",
    ]
    parts += [
        f"| `{item.name}` | {_type(item.schema)} | {_default(item)} | {MEANING[item.change or 'live']} | {_text(item)} |"
        for item in INPUTS
    ]
    parts += ["", "### Outputs, beside all inputs", "", "| property | type | description |", "| --- | --- | --- |"]
    parts += [f"| `{item.name}` | {_type(item.schema)} | {item.description} |" for item in OUTPUTS]
    for name, fields in TYPES.items():
        parts += ["", f"### {name}", "", "| field | type | default | description |", "| --- | --- | --- | --- |"]
        for item in fields:
            default = "required" if item.required else _code(item.default)
            parts.append(f"| `{item.name}` | {_type(item.schema)} | {default} | {item.description} |")
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
    return "required" if item.required else _code(item.default)


def _code(value: object) -> str:
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _text(item: Property) -> str:
    return item.description + (
        f" One of {', '.join(f'`{choice}`' for choice in item.choices)}." if item.choices else ""
    )


if __name__ == "__main__":
    print(reference(), end="")
