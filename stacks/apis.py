"""The Google APIs that a stack uses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemma_serving.planning.settings.stack import Settings

COMMON_APIS = ("cloudresourcemanager", "iam", "artifactregistry", "secretmanager", "storage")
"""APIs that every stack uses, by the first part of their service name."""


def apis_of(settings: "Settings") -> Sequence[str]:
    """Return the APIs that a stack uses, common APIs first."""
    if settings.service is None:
        capacity = () if settings.tpu is not None and settings.tpu.api == "compute-engine" else ("tpu",)
        return (*COMMON_APIS, *capacity, "compute", "iap", "oslogin", *_observability(settings))
    network = ("compute",) if settings.service.direct_vpc else ()
    # The cost of past requests is read from Cloud Monitoring.
    use = ("monitoring",) if settings.max_usd is not None else _observability(settings)
    return (*COMMON_APIS, "run", *network, *use)


def _observability(settings: "Settings") -> Sequence[str]:
    return ("monitoring",) if settings.alerts.enabled or settings.collects_metrics else ()
