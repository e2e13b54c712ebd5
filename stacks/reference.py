"""docs/reference/settings.md and docs/settings.schema.json, written by `python -m dev.authors.docs`."""

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.settings.text import DURATION, MEMORY
from gemma_serving.stacks.schema import Schema, alternatives, blocks, file_schema

_WORDS: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "array": "list",
    "object": "map",
}

_QUANTITIES: Final = {tuple(DURATION.examples): "duration", tuple(MEMORY.examples): "size"}
"""Types of numbers with a unit, by the examples in the schema."""
_NONE: Final = "none"
_INTRODUCTION: Final = f"""# Settings

Written by `python -m dev.authors.docs`; a test fails when this page is out of date.

All keys are in `Pulumi.<stack>.yaml` under `{PRODUCT}:`; `tpu.zones` is the key `zones` of the block `{PRODUCT}:tpu`.
`gcp:project` is the Google Cloud project. Default: `GOOGLE_CLOUD_PROJECT`.
A duration is a text such as `90s` or `4h`, a size `512Mi` or `32Gi`; both need the unit.
Unknown keys, wrong units and contradictions are rejected before any resource is declared.
The first line of each file names [settings.schema.json](../settings.schema.json), so editors with a YAML language server complete and check keys.
The list below a table has details of the keys marked with *.
"""
_DEFAULT: Final = re.compile(r" ?Default: (.+?)\.(?= |$)")
"""The default in a description of a key whose default is not a value."""
_PAGE: Final = re.compile(r"docs/([\w./-]+\.md)")


def page() -> str:
    """Return docs/reference/settings.md: a section for the top-level keys, then one for each block, with details below its table."""
    sections = dict(blocks())
    top = sections[PRODUCT]
    inner = [key for key in top["properties"] if f"{PRODUCT}:{key}" in sections]
    text = _INTRODUCTION + _section("Top-level keys", "", _rows(PRODUCT, "", {PRODUCT: top}))
    for key in inner:
        path = f"{PRODUCT}:{key}"
        details = top["properties"][key]["description"].split("\n\n")[1:]
        text += _section(f"`{key}`", " ".join(details), _rows(path, f"{key}.", sections))
    left_out = [path for path in sections if path != PRODUCT]
    if left_out:
        raise AssertionError(f"no key leads to {', '.join(left_out)}")
    return text + _images()


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
    return f"\n## Images\n\nNames accepted by `image` (`gemma_serving/planning/data/images.json`).\n\n{head}{''.join(rows)}"


def _section(title: str, about: str, rows: Iterator["_Row"]) -> str:
    """Return a heading, details of a block, the table of its keys, and the details of the keys that have some."""
    listed = list(rows)
    table = "".join(
        f"| `{row.key}`{'*' if row.details else ''} | {row.kinds} | {row.default} | {row.about} |\n" for row in listed
    )
    details = "".join(f"- `{row.key}`: {row.details}\n" for row in listed if row.details)
    head = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
    sentences = [_linked(about).replace(". ", ".\n") + "\n"] if about else []
    return "\n".join([f"\n## {title}\n", *sentences, head + table, *([details] if details else [])])


class _Row(NamedTuple):
    """A row of a table."""

    key: str
    kinds: str
    default: str
    about: str
    """The first paragraph of the description, without the default."""
    details: str
    """Its other paragraphs."""


def _rows(path: str, prefix: str, sections: dict[str, Schema]) -> Iterator[_Row]:
    """Yield the rows of a block and of the blocks in it, which are removed from `sections`."""
    block = sections[path] if path == PRODUCT else sections.pop(path)
    for key, value in block["properties"].items():
        inner = f"{path}.{key}" if prefix else f"{path}:{key}"
        about, *details = value["description"].split("\n\n")
        default = "required" if key in block.get("required", ()) else _default(value.get("default"))
        stated = _DEFAULT.search(about)
        if stated and default == _NONE:
            about, default = _DEFAULT.sub("", about), stated[1]
        kinds = " or ".join(dict.fromkeys(_kind(option) for option in alternatives(value)))
        if not prefix and "$ref" in json.dumps(value):
            kinds = kinds.replace("block", f"[block](#{key.lower()})")
            details = []  # they are in the block's section
        yield _Row(f"{prefix}{key}", kinds, default, _linked(about), _linked(" ".join(details)))
        if inner in sections:
            yield from _rows(inner, f"{prefix}{key}.", sections)


def _linked(text: str) -> str:
    """Return a description in one line, with links to the pages that it names."""
    return _PAGE.sub(
        lambda match: f"[{match[1].rpartition('/')[2]}]({f'../{match[1]}'.removeprefix('../reference/')})",
        " ".join(text.split()),
    )


def _kind(option: Schema) -> str:
    if "$ref" in option:
        return "block"
    values = option.get("enum", [])
    if values:
        return ", ".join(f"`{value}`" for value in values)
    if "secure" in option.get("properties", {}):
        return "secret"
    if "examples" in option:
        named = _QUANTITIES.get(tuple(option["examples"]))
        if named:
            return named
        return f"text such as {' or '.join(f'`{example}`' for example in option['examples'])}"
    return _WORDS[option["type"]]


def _default(value: object) -> str:
    return f"`{json.dumps(value).strip(chr(34))}`" if value not in (None, [], {}) else "none"
