"""Package schema for `pulumi package get-schema` and SDK generators.

`python -m gcp_tpu_provider.schema > schema.json` writes it.
"""

import json
from functools import cache
from typing import Any

from gcp_tpu_provider import TOKEN, VERSION, publication
from gcp_tpu_provider.properties import INPUTS, OUTPUTS, TYPES, ObjectType, Property

PROJECT_CONFIG = {"type": "string", "description": "Default project of resources."}


@cache
def package_schema() -> str:
    """Return the schema as JSON, the text of schema.json."""
    outputs = {item.name: item for item in (*INPUTS, *OUTPUTS)}
    resource: dict[str, Any] = {
        "description": "A queued resource of the Cloud TPU API, requested zone by zone, and the node that runs on it. "
        "Labels, tags, metadata and description change on the running node. A change that replaces ACTIVE capacity needs `allowReplaceActive`. "
        "Import by full name, projects/P/locations/Z/queuedResources/ID.",
        "inputProperties": {item.name: _property(item) for item in INPUTS},
        "requiredInputs": [item.name for item in INPUTS if item.required],
        "properties": {name: _property(item) for name, item in outputs.items()},
        "required": ["project", "zone", "name", "state", "queuedResourceId", "nodeId", "nodeName", "stateHistory"],
    }
    schema: dict[str, Any] = {
        "name": "gcp-tpu",
        "version": VERSION,
        "displayName": "Google Cloud TPU",
        "description": "Queued resources of the Cloud TPU API v2alpha1, flex-start included.",
        "keywords": list(publication.KEYWORDS),
        "homepage": publication.HOMEPAGE,
        "license": "Apache-2.0",
        "repository": publication.HOMEPAGE,
        "pluginDownloadURL": publication.PLUGIN_DOWNLOAD_URL,
        "publisher": publication.PUBLISHER,
        "meta": {"moduleFormat": "(.*)"},
        "language": publication.LANGUAGES,
        "config": {"variables": {"project": PROJECT_CONFIG}},
        "provider": {"inputProperties": {"project": PROJECT_CONFIG}},
        "types": {f"gcp-tpu:index:{name}": _object_type(item) for name, item in TYPES.items()},
        "resources": {TOKEN: resource},
    }
    return json.dumps(schema, indent=2) + "\n"


def _property(item: Property) -> dict[str, Any]:
    described: dict[str, Any] = {**item.schema, "description": described_choices(item)}
    if item.default is not None and not isinstance(item.default, list):
        described["default"] = item.default  # Pulumi's schema has defaults of plain types only
    if item.change == "replace":
        described["replaceOnChanges"] = True
    return described


def _object_type(kind: ObjectType) -> dict[str, Any]:
    return {
        "type": "object",
        "description": kind.description,
        "properties": {item.name: _property(item) for item in kind.fields},
        "required": [item.name for item in kind.fields if item.required],
    }


def described_choices(item: Property) -> str:
    """Return a property's description with its choices."""
    return item.description + (
        f" One of {', '.join(f'`{choice}`' for choice in item.choices)}." if item.choices else ""
    )


if __name__ == "__main__":
    print(package_schema(), end="")
