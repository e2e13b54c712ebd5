"""Checks that several services share: labels, regions, update masks."""

import re
from collections.abc import Iterable

from localcloud.json_values import JsonObject
from localcloud.rest.call import Caller
from localcloud.rest.errors import CloudError
from localcloud.world.cloud import REGIONS, Cloud, project_policy

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MAX_LABELS = 64


def required_mask(mask: str | None) -> str:
    """Return the update mask. Raise 400 if it is absent or empty."""
    if not mask:
        raise CloudError.field("update_mask", "The update mask is required and must not be empty.")
    return mask


def check_labels(labels: object, path: str) -> None:
    """Refuse labels that break Google's rules: 64 at most, lower case keys of 63 characters, values of 63 characters."""
    if not isinstance(labels, dict):
        return
    pairs: dict[str, str] = labels  # pyright: ignore[reportUnknownVariableType] - checked against the discovery document before
    if len(pairs) > _MAX_LABELS:
        raise CloudError.field(path, f"Too many labels at '{path}': {len(pairs)}; at most {_MAX_LABELS} are allowed.")
    for key, value in pairs.items():
        if _LABEL_KEY.fullmatch(key) is None:
            raise CloudError.field(
                path,
                f"Invalid label key '{key}' at '{path}': it must start with a lower-case letter and hold lower-case letters, digits, _ and - only.",
            )
        if _LABEL_VALUE.fullmatch(value or "") is None:
            raise CloudError.field(
                path,
                f"Invalid label value '{value}' at '{path}[{key}]': at most 63 lower-case letters, digits, _ and - are allowed.",
            )


def region_documents(project: str, regions: Iterable[str]) -> list[tuple[str, JsonObject]]:
    """Return name and document of each region, as `projects.locations.list` of an API shows it (google.cloud.location.Location)."""
    return [
        (region, {"name": f"projects/{project}/locations/{region}", "locationId": region}) for region in sorted(regions)
    ]


def may_act_as(cloud: Cloud, email: str, account: str, project: str) -> bool:
    """Tell if a caller may run something of a project as a service account: `iam.serviceAccounts.actAs` on the account or its own project."""
    found = cloud.store.get("iam.serviceAccounts", account)
    policies = [project_policy(project)]
    if found is not None:
        policies = [f"//iam.googleapis.com/{found['name']}", project_policy(str(found["projectId"]))]
    return cloud.policies.allows(email, "iam.serviceAccounts.actAs", policies)


def require_act_as(cloud: Cloud, caller: Caller, account: str, project: str) -> None:
    """Raise 403 if the caller may not run something of a project as a service account. The operator may."""
    if not caller.operator and not may_act_as(cloud, caller.email, account, project):
        raise CloudError.denied(
            f"Permission 'iam.serviceAccounts.actAs' denied on service account {account} (or it may not exist)."
        )


def check_region(name: str) -> str:
    """Return the location of `projects/P/locations/L...`. Raise 403, as Google does, if there is no such region."""
    location = name.split("/")[3]
    if location not in REGIONS:
        raise CloudError.denied(f"Permission denied on 'locations/{location}' (or it may not exist).")
    return location
