"""Resources of others whose names and labels look like ours."""

import time
from collections.abc import Callable
from typing import Any, Final

from tests.kills.plan import GPU, STACKS, TPU
from tests.kills.world import PROJECT, World

_PARENT: Final = f"projects/{PROJECT}"
_ROLES: Final = (
    "roles/iap.tunnelResourceAccessor",
    "roles/logging.logWriter",
    "roles/monitoring.metricWriter",
    "roles/tpu.admin",
)
"""Roles on the project that our stacks grant too."""
_ELSEWHERE: Final = "asia-northeast1-b"
"""A zone that no stack's settings name."""
_READY_S: Final = 120.0
LABELS: Final = {"managed-by": "gemma-serving", "gemma-serving-project": "gemma-serving"}
"""Two of the three labels of our resources."""


def settle(world: World, *more: str) -> None:
    """Create them, for more stacks too, and wait for what becomes of them: from then on, they do not change by themselves."""
    for stack in (*STACKS, *more):
        _of_stack(world, f"gemma-{stack}")
    _queued(world, _ELSEWHERE, f"gemma-{TPU}", {})
    _queued(world, "us-east5-b", f"gemma-{TPU}-2", {**LABELS, "gemma-serving-stack": f"{TPU}-2"})
    service: dict[str, Any] = {
        "labels": {**LABELS, "gemma-serving-stack": f"{GPU}-2"},
        "template": {"containers": [{"image": "us-docker.pkg.dev/cloudrun/container/hello"}]},
    }
    world.request("POST", f"run/v2/{_PARENT}/locations/us-east4/services", service, serviceId=f"gemma-{GPU}-2")
    _members(world)
    _wait(world, f"run/v2/{_PARENT}/locations/us-east4/services/gemma-{GPU}-2", _is_decided)
    for zone, name in ((_ELSEWHERE, f"gemma-{TPU}"), ("us-east5-b", f"gemma-{TPU}-2")):
        _wait(world, f"tpu/v2alpha1/{_PARENT}/locations/{zone}/queuedResources/{name}", _is_active)


def _is_decided(service: dict[str, Any]) -> bool:
    """Tell if a deployment has ended. This one fails, as soon as its process has ended: that takes as long as the machine is busy."""
    return not service.get("reconciling")


def _is_active(queued: dict[str, Any]) -> bool:
    return queued["state"]["state"] == "ACTIVE"


def _wait(world: World, path: str, is_done: Callable[[dict[str, Any]], bool]) -> None:
    end = time.monotonic() + _READY_S
    while not is_done(found := world.request("GET", path)):
        assert time.monotonic() < end, f"after {_READY_S:.0f} s still: {found}"
        time.sleep(0.1)  # the local cloud is another process


def _of_stack(world: World, base: str) -> None:
    bucket = f"{PROJECT}-{base}-models-2"
    world.request("POST", "storage/storage/v1/b", {"name": bucket, "labels": LABELS}, project=PROJECT)
    path = f"storage/upload/storage/v1/b/{bucket}/o"
    world.request("POST", path, {"ours": False}, uploadType="media", name="model.safetensors")
    world.request("POST", f"secretmanager/v1/{_PARENT}/secrets", _secret(), secretId=f"{base}-hf-token-2")
    version = f"secretmanager/v1/{_PARENT}/secrets/{base}-hf-token-2:addVersion"
    world.request("POST", version, {"payload": {"data": "Zm9yZWlnbg=="}})
    account = {"accountId": f"{base}-2", "serviceAccount": {"description": "managed-by=gemma-serving"}}
    world.request("POST", f"iam/v1/{_PARENT}/serviceAccounts", account)
    network = {"name": f"{base}-2", "autoCreateSubnetworks": False, "description": "managed-by=gemma-serving"}
    world.request("POST", f"compute/compute/v1/{_PARENT}/global/networks", network)


def _secret() -> "dict[str, Any]":
    return {"replication": {"automatic": {}}, "labels": LABELS}


def _queued(world: World, zone: str, name: str, labels: "dict[str, str]") -> None:
    parent = f"{_PARENT}/locations/{zone}"
    node = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e", "labels": labels}
    body = {
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": f"{name}-other", "node": node}]},
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": "604800s"},
    }
    world.request("POST", f"tpu/v2alpha1/{parent}/queuedResources", body, queuedResourceId=name)


def _members(world: World) -> None:
    path = f"cloudresourcemanager/v1/{_PARENT}"
    policy = world.request("POST", f"{path}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}})
    members = ["user:mallory@example.com", f"serviceAccount:gemma-{TPU}-2@{PROJECT}.iam.gserviceaccount.com"]
    policy["bindings"] += [{"role": role, "members": members} for role in _ROLES]
    world.request("POST", f"{path}:setIamPolicy", {"policy": policy})
