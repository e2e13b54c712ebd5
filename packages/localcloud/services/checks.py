"""Checks shared by several services: labels, annotations, regions, update masks."""

import re
from collections.abc import Iterable
from typing import TypeAlias

from localcloud.json_values import JsonObject
from localcloud.rest.call import Caller
from localcloud.rest.errors import CloudError
from localcloud.world.cloud import REGIONS, Cloud, project_policy

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MAX_LABELS = 64
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_PREFIX = 253
_MAX_ANNOTATION_BYTES = 256 * 1024
_SYSTEM_NAMESPACES = ("run.googleapis.com", "cloud.googleapis.com", "serving.knative.dev", "autoscaling.knative.dev")
"""Cloud Run's namespaces (discovery: run.v2, Service.annotations)."""


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


def check_annotations(annotations: object, path: str) -> None:
    """Reject annotations that break Kubernetes' rules, which Cloud Run follows, or that are in a system namespace.

    A key is `[prefix/]name`: the prefix a DNS subdomain of at most 253 characters, the name at most 63. All keys and values of an object
    together have at most 256 KiB (kubernetes.io, Annotations; k8s.io/apimachinery, validation.TotalAnnotationSizeLimitB).
    """
    if not isinstance(annotations, dict):
        return
    pairs: dict[str, str] = annotations  # pyright: ignore[reportUnknownVariableType] - checked against the discovery document before
    obey(_of_annotations(pairs, path))


def _of_annotations(annotations: dict[str, str], path: str) -> Rules:
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        system = f"Annotation '{key}' at '{path}' is not supported: {prefix} is a system namespace."
        yield prefix not in _SYSTEM_NAMESPACES, path, system
        domain = not slash or (len(prefix) <= _LONGEST_PREFIX and _DNS_SUBDOMAIN.fullmatch(prefix))
        rule = (
            "a key is [prefix/]name, the prefix a DNS subdomain of at most 253 characters, the name at most 63 letters, digits, -, _ and . "
            "that begins and ends with a letter or a digit."
        )
        valid = bool(domain and _ANNOTATION_NAME.fullmatch(name))
        yield valid, path, f"Invalid annotation key '{key}' at '{path}': {rule}"
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    long = f"Annotations at '{path}' have {size} bytes; at most {_MAX_ANNOTATION_BYTES} are allowed."
    yield size <= _MAX_ANNOTATION_BYTES, path, long


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
        raise CloudError.denied(f"Permission denied on 'locations/{location}' (or it may not exist).")
    return location
