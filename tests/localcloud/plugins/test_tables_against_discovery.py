"""The tables against Google's discovery documents: every body field that an entry can send exists in the API that it is sent to."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import googleapiclient
import pytest

from localcloud.plugins.schema import PropertySpecs, ValueKind
from localcloud.plugins.table import TABLE
from localcloud.plugins.table.nat import _FIELDS as NAT_FIELDS

DOCUMENTS = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"

SCHEMAS = {
    "gcp:secretmanager/secret:Secret": ("secretmanager.v1", "Secret"),
    "gcp:storage/bucket:Bucket": ("storage.v1", "Bucket"),
    "gcp:artifactregistry/repository:Repository": ("artifactregistry.v1", "Repository"),
    "gcp:compute/network:Network": ("compute.beta", "Network"),
    "gcp:compute/subnetwork:Subnetwork": ("compute.beta", "Subnetwork"),
    "gcp:compute/firewall:Firewall": ("compute.beta", "Firewall"),
    "gcp:compute/router:Router": ("compute.beta", "Router"),
    "gcp:compute/routerNat:RouterNat": ("compute.beta", "RouterNat"),
    "gcp:cloudrunv2/service:Service": ("run.v2", "GoogleCloudRunV2Service"),
    "gcp:monitoring/notificationChannel:NotificationChannel": ("monitoring.v3", "NotificationChannel"),
    "gcp:monitoring/alertPolicy:AlertPolicy": ("monitoring.v3", "AlertPolicy"),
    "gcp:logging/metric:Metric": ("logging.v2", "LogMetric"),
}
# What the state derives and Google does not answer.
DERIVED = {
    "gcp:storage/bucket:Bucket": {"url", "effectiveLabels", "pulumiLabels"},
    "gcp:artifactregistry/repository:Repository": {"effectiveLabels", "pulumiLabels"},
    "gcp:secretmanager/secret:Secret": {"effectiveLabels", "pulumiLabels", "effectiveAnnotations"},
    "gcp:cloudrunv2/service:Service": {"effectiveLabels", "pulumiLabels", "effectiveAnnotations"},
}
# Sent by the real provider in the recordings, and not in the public documents.
UNDOCUMENTED = {
    "gcp:compute/network:Network": ["deleteBgpAlwaysCompareMed (routingConfig.deleteBgpAlwaysCompareMed)"],
    "gcp:compute/routerNat:RouterNat": ["initialNatIps (initialNatIps)"],
}


@cache
def schemas(document: str) -> dict[str, Any]:
    path = DOCUMENTS / f"{document}.json"
    if not path.is_file():
        path = DOCUMENTS / f"{document.replace('.beta', '.v1')}.json"
    return json.loads(path.read_text(encoding="utf-8"))["schemas"]


def step_into(document: str, schema: dict[str, Any]) -> dict[str, Any]:
    while True:
        if "$ref" in schema:
            schema = schemas(document)[schema["$ref"]]
        elif schema.get("type") == "array":
            schema = schema["items"]
        elif "additionalProperties" in schema and "properties" not in schema:
            schema = schema["additionalProperties"]
        else:
            return schema


def unknown(document: str, schema: dict[str, Any], fields: PropertySpecs, skip: set[str], at: str = "") -> list[str]:
    missing = []
    for name, each in fields.items():
        if each.local or name in skip:
            continue
        found: dict[str, Any] | None = step_into(document, schema)
        for step in (each.api or name).split("."):
            found = step_into(document, found).get("properties", {}).get(step) if found is not None else None
        if found is None:
            missing.append(f"{at}{name} ({each.api or name})")
            continue
        inner = each if each.kind is ValueKind.BLOCK else each.item
        if inner is not None and inner.kind is ValueKind.BLOCK:
            missing += unknown(document, found, inner.fields, set(), f"{at}{name}.")
    return missing


@pytest.mark.parametrize("type_name", sorted(SCHEMAS))
def test_every_field_that_is_sent_or_read_is_in_googles_document(type_name):
    document, schema = SCHEMAS[type_name]
    fields = NAT_FIELDS if type_name.endswith("RouterNat") else TABLE[type_name].fields
    assert unknown(document, schemas(document)[schema], fields, DERIVED.get(type_name, set())) == UNDOCUMENTED.get(
        type_name, []
    )
