"""The Google APIs that a stack uses."""

from collections.abc import Sequence

from stacks.settings import Settings

COMMON_APIS = ("cloudresourcemanager", "iam", "artifactregistry", "secretmanager", "storage")
"""APIs that every stack uses, by the first part of their service's name."""

LOG_APIS = ("logging",)
"""APIs that hold the server's lines. The stack does not enable them: a new project has them, and without them it serves all the same."""


def apis_of(settings: Settings) -> Sequence[str]:
    """Return the APIs that a stack uses, those of every stack first."""
    if settings.cloud_run is None:
        capacity = () if settings.tpu is not None and settings.tpu.api == "compute-engine" else ("tpu",)
        return (*COMMON_APIS, *capacity, "compute", "iap", "oslogin")
    network = ("compute",) if settings.cloud_run.direct_vpc else ()
    # What requests have cost is read from Cloud Monitoring.
    use = ("monitoring",) if settings.max_usd is not None else ()
    return (*COMMON_APIS, "run", *network, *use)
