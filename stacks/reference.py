"""docs/reference/settings.md and docs/settings.schema.json, written by `python -m authors.docs`."""

import json
from collections.abc import Iterator
from typing import Final

from contracts.labels import PRODUCT
from planning.data.images import IMAGES
from stacks.schema import Schema, alternatives, blocks, file_schema

_WORDS: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "array": "list",
    "object": "map",
}

_INTRODUCTION: Final = f"""# Settings

Written by `python -m authors.docs`; a test fails when this page is out of date.

All keys are in `Pulumi.<stack>.yaml` under `{PRODUCT}:`.
`gcp:project` is the Google Cloud project. Default: `GOOGLE_CLOUD_PROJECT`.
Quantities have a unit (`4h`, `32Gi`).
Unknown keys, wrong units and contradictions are rejected before any resource is declared.
The first line of each file names [settings.schema.json](../settings.schema.json), so editors with a YAML language server complete and check keys.
"""


def page() -> str:
    """Return docs/reference/settings.md."""
    head = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
    sections = (
        f"\n## `{path}`\n\n{_in_one_line(block['description'])}\n\n{head}{''.join(_rows(block))}"
        for path, block in blocks()
    )
    return _INTRODUCTION + "".join(sections) + _images()


def schema_text() -> str:
    """Return docs/settings.schema.json."""
    return json.dumps(file_schema(), indent=2, ensure_ascii=False) + "\n"


def _images() -> str:
    rows = (
        f"| `{name}` | {image.repository} {image.version}{f', built by `{image.build_context}`' if image.build_context else ''} | "
        f"{image.platform}{f' {image.cuda_major}' if image.cuda_major else ''} | "
        f"{', '.join(image.parsers)} | {image.source}, {image.seen_on} |\n"
        for name, image in IMAGES.items()
    )
    head = "| name | image | platform | parsers | source of the digest |\n| --- | --- | --- | --- | --- |\n"
    return f"\n## Images\n\nNames accepted by `image` (`planning/data/images.json`).\n\n{head}{''.join(rows)}"


def _rows(block: Schema) -> Iterator[str]:
    for key, value in block["properties"].items():
        default = "required" if key in block.get("required", ()) else _default(value.get("default"))
        kinds = " or ".join(dict.fromkeys(_kind(option) for option in alternatives(value)))
        yield f"| `{key}` | {kinds} | {default} | {_in_one_line(value['description'])} |\n"


def _kind(option: Schema) -> str:
    if "$ref" in option:
        return "block"
    values = option.get("enum", [option["const"]] if "const" in option else [])
    if values:
        return ", ".join(f"`{value}`" for value in values)
    if "secure" in option.get("properties", {}):
        return "secret"
    if "examples" in option:
        return f"text such as {' or '.join(f'`{example}`' for example in option['examples'])}"
    return _WORDS[option["type"]]


def _default(value: object) -> str:
    return f"`{json.dumps(value).strip(chr(34))}`" if value not in (None, [], {}) else "none"


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
