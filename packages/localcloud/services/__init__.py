"""Service models, one or more modules per API, imported when the API is first used."""

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from localcloud.rest.call import Handler
from localcloud.world.cloud import Cloud

MODULES: Final = {
    "artifactregistry": ("artifactregistry",),
    "cloudbilling": ("price_catalog",),
    "cloudkms": ("kms",),
    "cloudresourcemanager": ("projects", "orgpolicies"),
    "compute": ("compute", "compute_instances"),
    "iam": ("iam", "iam_roles"),
    "logging": ("logs",),
    "monitoring": ("monitoring",),
    "oslogin": ("oslogin",),
    "run": ("run",),
    "secretmanager": ("secretmanager",),
    "serviceusage": ("serviceusage", "quotas"),
    "storage": ("storage",),
    "tpu": ("tpu",),
}
"""API -> the modules with its methods."""
_LIVING: Final = {
    "run": ("run", ("run.services",)),
    "tpu": ("tpu", ("tpu.queuedResources", "tpu.nodes")),
    "compute": ("compute_instances", ("compute.instances",)),
}
"""API whose resources change with time -> the module that advances them, and the kinds of these resources."""


def handlers(cloud: Cloud, apis: Iterable[str] = tuple(MODULES)) -> dict[str, Handler]:
    """Return the modeled methods of APIs by discovery method id. This imports their modules."""
    modules = (_module(name) for api in apis for name in MODULES[api])
    return {method: handler for module in modules for method, handler in module.handlers(cloud).items()}


async def resume(cloud: Cloud, api: str) -> None:
    """Start to advance an API's resources. After a restart, start what ran."""
    if api in _LIVING:
        await _module(_LIVING[api][0]).resume(cloud)


def in_use(cloud: Cloud) -> list[str]:
    """Return the APIs with stored resources that change with time."""
    return [api for api, (_, kinds) in _LIVING.items() if any(cloud.store.under(kind) for kind in kinds)]


def _module(name: str):  # noqa: ANN202 - a module
    return import_module(f"localcloud.services.{name}")
