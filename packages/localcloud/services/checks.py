"""Checks shared by several services: labels, regions, update masks."""

import re
from collections.abc import Iterable
from typing import TypeAlias

from localcloud.json_values import JsonObject
from localcloud.rest.call import Caller
from localcloud.rest.errors import CloudError
from localcloud.services.capacity_words import unknown_location
from localcloud.world.cloud import REGIONS, Cloud, project_policy

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MAX_LABELS = 64


Rules: TypeAlias = Iterable[tuple[bool, str, str]]
"""Rows of a request: whether it obeys a rule, the path of the field, and the sentence of the violation."""


def obey(rules: Rules) -> None:
    """Raise 400 for the first rule that a request breaks."""
    for obeyed, path, sentence in rules:
        if not obeyed:
            raise CloudError.field(path, sentence)


def required_mask(mask: str | None) -> str:
    """Return the update mask. Raise 400 if it is missing or empty."""
    if not mask:
        raise CloudError.field("update_mask", "The update mask is required and must not be empty.")
    return mask


def check_labels(labels: object, path: str) -> None:
    """Reject labels that break Google's rules: at most 64, lowercase keys of 63 characters, values of 63 characters."""
    if not isinstance(labels, dict):
        return
    pairs: dict[str, str] = labels  # pyright: ignore[reportUnknownVariableType] - checked against the discovery document before
    obey(_of_labels(pairs, path))


def _of_labels(labels: dict[str, str], path: str) -> Rules:
    many = f"Too many labels at '{path}': {len(labels)}; at most {_MAX_LABELS} are allowed."
    yield len(labels) <= _MAX_LABELS, path, many
    for key, value in labels.items():
        rule = "it must start with a lowercase letter and contain only lowercase letters, digits, _ and -."
        yield _LABEL_KEY.fullmatch(key) is not None, path, f"Invalid label key '{key}' at '{path}': {rule}"
        rule = "at most 63 lowercase letters, digits, _ and - are allowed."
        valid = _LABEL_VALUE.fullmatch(value or "") is not None
        yield valid, path, f"Invalid label value '{value}' at '{path}[{key}]': {rule}"


def region_documents(project: str, regions: Iterable[str]) -> list[tuple[str, JsonObject]]:
    """Return name and document of each region, as `projects.locations.list` of an API shows it (google.cloud.location.Location)."""
    return [
        (region, {"name": f"projects/{project}/locations/{region}", "locationId": region}) for region in sorted(regions)
    ]


def may_act_as(cloud: Cloud, email: str, account: str, project: str) -> bool:
    """Return whether a caller can act as a service account of a project: `iam.serviceAccounts.actAs` on the account or its own project."""
    found = cloud.store.get("iam.serviceAccounts", account)
    policies = [project_policy(project)]
    if found is not None:
        policies = [f"//iam.googleapis.com/{found['name']}", project_policy(str(found["projectId"]))]
    return cloud.policies.allows(email, "iam.serviceAccounts.actAs", policies)


def require_act_as(cloud: Cloud, caller: Caller, account: str, project: str) -> None:
    """Raise 403 if the caller cannot act as a service account of a project. The operator can."""
    if not caller.operator and not may_act_as(cloud, caller.email, account, project):
        raise CloudError.denied(
            f"Permission 'iam.serviceAccounts.actAs' denied on service account {account} (or it may not exist)."
        )


def check_region(name: str) -> str:
    """Return the location of `projects/P/locations/L...`. Raise 403, as Google does, if the region does not exist."""
    location = name.split("/")[3]
    if location not in REGIONS:
        raise CloudError.denied(unknown_location(location))
    return location
