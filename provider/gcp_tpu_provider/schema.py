"""The package schema, as `pulumi package get-schema` and SDK generators read it."""

import json
from functools import cache
from typing import Any

from gcp_tpu_provider import TOKEN, VERSION
from gcp_tpu_provider.properties import INPUTS, OUTPUTS, TYPES, Field, Property

PROJECT_CONFIG = {"type": "string", "description": "Project of resources that name none."}


@cache
def package_schema() -> str:
    """Return the schema as JSON."""
    outputs = {item.name: item for item in (*INPUTS, *OUTPUTS)}
    resource: dict[str, Any] = {
        "description": "A queued resource of the Cloud TPU API: capacity that is asked for in one zone after the other, and the node that runs on it. "
        "Labels, tags, metadata and description change on the running node; what replaces it is said in the preview and needs `allowReplaceActive`. "
        "Import by full name, projects/P/locations/Z/queuedResources/ID.",
        "inputProperties": {item.name: _property(item) for item in INPUTS},
        "requiredInputs": [item.name for item in INPUTS if item.required],
        "properties": {name: _property(item) for name, item in outputs.items()},
        "required": ["project", "zone", "name", "state", "queuedResourceId", "nodeId"],
    }
    return json.dumps(
        {
            "name": "gcp-tpu",
            "version": VERSION,
            "displayName": "Google Cloud TPU",
            "description": "Queued resources of the Cloud TPU API v2alpha1, flex-start included.",
            "license": "Apache-2.0",
            "config": {"variables": {"project": PROJECT_CONFIG}},
            "provider": {"inputProperties": {"project": PROJECT_CONFIG}},
            "types": {f"gcp-tpu:index:{name}": _type(fields) for name, fields in TYPES.items()},
            "resources": {TOKEN: resource},
        }
    )


def _property(item: Property) -> dict[str, Any]:
    described: dict[str, Any] = {**item.schema, "description": item.description}
    if item.choices:
        described["description"] += f" One of {', '.join(item.choices)}."
    if item.default is not None:
        described["default"] = item.default
    if item.change == "replace":
        described["replaceOnChanges"] = True
    return described


def _type(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {item.name: {**item.schema, "description": item.description} for item in fields},
        "required": [item.name for item in fields if item.required],
    }
