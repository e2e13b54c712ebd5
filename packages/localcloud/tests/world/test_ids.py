"""Numbers in answers fit into signed 64-bit integers, with the largest random numbers too."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from localcloud.tests.conftest import Client

_LIMIT = 2**63
_LONGER = {"uniqueId", "oauth2ClientId"}
"""Ids of service accounts are strings of 21 digits at Google too."""
COMPUTE = "/compute/compute/v1/projects/local-project"
ZONE = "projects/local-project/locations/us-east5-a"


def numbers(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item, key)
    elif key not in _LONGER and str(value).isdigit():
        yield key, int(value)


def answers(client: Client) -> Iterator[dict[str, Any]]:
    yield client.ok("POST", f"{COMPUTE}/global/networks", {"name": "ids", "autoCreateSubnetworks": False})
    network = "projects/local-project/global/networks/ids"
    subnetwork = {"name": "ids", "network": network, "ipCidrRange": "10.0.0.0/24"}
    yield client.ok("POST", f"{COMPUTE}/regions/us-east4/subnetworks", subnetwork)
    firewall = {"name": "ids", "network": network, "allowed": [{"IPProtocol": "tcp"}]}
    yield client.ok("POST", f"{COMPUTE}/global/firewalls", firewall)
    yield client.ok("POST", f"{COMPUTE}/regions/us-east4/routers", {"name": "ids", "network": network})
    for path in ("global/networks/ids", "global/firewalls/ids", "regions/us-east4/subnetworks/ids"):
        yield client.ok("GET", f"{COMPUTE}/{path}")
    yield client.ok("GET", f"{COMPUTE}/regions/us-east4/routers/ids")
    yield client.ok("POST", "/storage/storage/v1/b", {"name": "ids-bucket"}, project="local-project")
    yield client.ok("GET", "/storage/storage/v1/b/ids-bucket")
    account = {"accountId": "ids-account", "serviceAccount": {}}
    yield client.ok("POST", "/iam/v1/projects/local-project/serviceAccounts", account)
    yield client.ok("GET", "/cloudresourcemanager/v1/projects/local-project")
    channel = {"type": "email", "labels": {"email_address": "a@example.com"}}
    yield client.ok("POST", "/monitoring/v3/projects/local-project/notificationChannels", channel)
    node = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
    tpu = {"nodeSpec": [{"parent": ZONE, "nodeId": "ids", "node": node}]}
    yield client.ok("POST", f"/tpu/v2alpha1/{ZONE}/queuedResources", {"tpu": tpu}, queuedResourceId="ids")
    yield client.ok("GET", f"/tpu/v2alpha1/{ZONE}/nodes/ids")


def test_every_number_is_below_2_to_the_63(own_client: Client, monkeypatch: pytest.MonkeyPatch):
    """pulumi-gcp stops with "expected type 'int', got unconvertible type 'string'" at a larger one."""
    monkeypatch.setattr(secrets, "randbelow", lambda limit: limit - 1)
    found = [pair for answer in answers(own_client) for pair in numbers(answer)]
    assert {"id", "targetId", "projectNumber"} <= {key for key, _ in found}
    assert [pair for pair in found if pair[1] >= _LIMIT] == []
