"""Google resources for the components: generated, and far smaller than the SDK's modules (authors.gcp_resources)."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from components.gcp.provider import Provider

if TYPE_CHECKING:
    from components.gcp import (
        artifactregistry,
        cloudrunv2,
        compute,
        monitoring,
        projects,
        secretmanager,
        serviceaccount,
        storage,
    )

__all__ = [
    "Provider",
    "artifactregistry",
    "cloudrunv2",
    "compute",
    "monitoring",
    "projects",
    "secretmanager",
    "serviceaccount",
    "storage",
]


def __getattr__(name: str) -> ModuleType:
    """Load a module on first use, because a TPU stack needs no Cloud Run."""
    if name not in __all__:
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
