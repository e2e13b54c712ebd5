"""The Google APIs that a stack uses."""

from collections.abc import Sequence

from stacks.settings import Settings

COMMON_APIS = ("cloudresourcemanager", "iam", "artifactregistry", "secretmanager", "storage")
"""APIs that every stack uses, by the first part of their service's name."""


def apis_of(settings: Settings) -> Sequence[str]:
    """Return the APIs that a stack uses, those of every stack first."""
    if settings.cloud_run is None:
        return (*COMMON_APIS, "tpu", "compute", "iap")
    return (*COMMON_APIS, "run", "compute") if settings.cloud_run.direct_vpc else (*COMMON_APIS, "run")
