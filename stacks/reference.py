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

All keys are in `Pulumi.<stack>.yaml` under `{PRODUCT}:`; `tpu.zones` is the key `zones` of the block `{PRODUCT}:tpu`.
`gcp:project` is the Google Cloud project. Default: `GOOGLE_CLOUD_PROJECT`.
Quantities have a unit (`4h`, `32Gi`).
Unknown keys, wrong units and contradictions are rejected before any resource is declared.
The first line of each file names [settings.schema.json](../settings.schema.json), so editors with a YAML language server complete and check keys.
"""


def page() -> str:
    """Return docs/reference/settings.md: one table, with the keys of each block after the block."""
    sections = dict(blocks())
    rows = "".join(_rows(PRODUCT, "", sections))
    left_out = [path for path in sections if path != PRODUCT]
    if left_out:
        raise AssertionError(f"no key leads to {', '.join(left_out)}")
    return f"{_INTRODUCTION}\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}{_images()}"


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


def _rows(path: str, prefix: str, sections: dict[str, Schema]) -> Iterator[str]:
    """Yield the rows of a block and of the blocks in it, which are removed from `sections`."""
    block = sections[path] if path == PRODUCT else sections.pop(path)
    for key, value in block["properties"].items():
        inner = f"{path}.{key}" if prefix else f"{path}:{key}"
        default = "required" if key in block.get("required", ()) else _default(value.get("default"))
        kinds = " or ".join(dict.fromkeys(_kind(option) for option in alternatives(value)))
        about = _in_one_line(value["description"])
        if inner in sections and (more := _in_one_line(sections[inner]["description"])) != about:
            about = f"{about} {more}"
        yield f"| `{prefix}{key}` | {kinds} | {default} | {about} |\n"
        if inner in sections:
            yield from _rows(inner, f"{prefix}{key}.", sections)


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
