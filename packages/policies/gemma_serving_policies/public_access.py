"""Rule `no-public-access`: no grant to everyone, and no Cloud Run service without a check of its callers."""

import json
import re
from collections.abc import Iterator
from typing import Final, cast

from gemma_serving_policies.rule import Answer, Config, Rule, Violation, is_true, is_unknown, not_known, violation
from gemma_serving_policies.values import Found, Resource, Value, found_at

_EVERYONE: Final = ("allusers", "allauthenticatedusers")
_GRANT: Final = re.compile(r"iam(member|binding|policy)$", re.IGNORECASE)
"""Types with members: `BucketIAMMember`, `ServiceIamBinding`, `IAMPolicy` and all others of Google's providers."""
GRANTED: Final = (("member",), ("members",), ("bindings", "members"))
"""Inputs of these types with members. `policyData` has them as JSON."""
ACCESS_LISTS: Final = {
    "gcp:storage/bucketAccessControl:BucketAccessControl": ("entity",),
    "gcp:storage/defaultObjectAccessControl:DefaultObjectAccessControl": ("entity",),
    "gcp:storage/objectAccessControl:ObjectAccessControl": ("entity",),
    "gcp:storage/bucketACL:BucketACL": ("roleEntities",),
    "gcp:storage/defaultObjectACL:DefaultObjectACL": ("roleEntities",),
    "gcp:storage/objectACL:ObjectACL": ("roleEntities",),
}
"""Inputs of older access lists of Cloud Storage: `allUsers`, or `READER:allUsers`."""
PREDEFINED: Final = {
    "gcp:storage/bucketACL:BucketACL": "predefinedAcl",
    "gcp:storage/objectACL:ObjectACL": "predefinedAcl",
}
PUBLIC_PREDEFINED: Final = ("publicRead", "publicReadWrite", "authenticatedRead")
CALLERS: Final = {
    "gcp:cloudrunv2/service:Service": ("invokerIamDisabled",),
    "gcp:cloudrun/service:Service": ("metadata", "annotations", "run.googleapis.com/invoker-iam-disabled"),
}
"""Inputs that switch off Cloud Run's check of the caller's permission."""
_NOBODY: Final = "a grant to everyone is not allowed"
_NAME_MEMBERS: Final = (
    "name the members, such as serviceAccount:NAME@PROJECT.iam.gserviceaccount.com or group:NAME@DOMAIN"
)


def _check(resource: Resource, config: Config) -> Iterator[Answer]:
    del config
    if not resource.is_google:
        return
    for found in _members(resource):
        if is_unknown(found):
            yield not_known(resource, found)
        elif _is_everyone(found.value):
            yield violation(resource, found, _NOBODY, _NAME_MEMBERS)
    if _GRANT.search(resource.kind):
        yield from _policy(resource)
    if resource.type in PREDEFINED:
        yield from _predefined(resource)
    if resource.type in CALLERS:
        yield from _callers(resource)


def _is_everyone(value: Value) -> bool:
    """Return whether a member, or an entry of an access list such as `READER:allUsers`, is everyone."""
    return isinstance(value, str) and value.rpartition(":")[2].lower() in _EVERYONE


def _members(resource: Resource) -> Iterator[Found]:
    if _GRANT.search(resource.kind):
        for keys in GRANTED:
            yield from found_at(resource.inputs, *keys)
    if resource.type in ACCESS_LISTS:
        yield from found_at(resource.inputs, *ACCESS_LISTS[resource.type])


def _policy(resource: Resource) -> Iterator[Answer]:
    for found in found_at(resource.inputs, "policyData"):
        if is_unknown(found):
            yield not_known(resource, found)
            continue
        try:
            policy = cast("Value", json.loads(str(found.value)))
        except ValueError:
            yield Violation(
                f"{resource.name}: `policyData` is not JSON, so its members cannot be checked; "
                "use the policyData of the function gcp.organizations.getIAMPolicy."
            )
            continue
        for member in found_at(policy, "bindings", "members"):
            if _is_everyone(member.value):
                yield violation(resource, Found(f"policyData.{member.path}", member.value), _NOBODY, _NAME_MEMBERS)


def _predefined(resource: Resource) -> Iterator[Answer]:
    for found in found_at(resource.inputs, PREDEFINED[resource.type]):
        if is_unknown(found):
            yield not_known(resource, found)
        elif found.value in PUBLIC_PREDEFINED:
            yield violation(resource, found, _NOBODY, 'set it to "private"')


def _callers(resource: Resource) -> Iterator[Answer]:
    for found in found_at(resource.inputs, *CALLERS[resource.type]):
        if is_unknown(found):
            yield not_known(resource, found)
        elif is_true(found):
            fix = "remove it and grant roles/run.invoker to the callers"
            yield violation(resource, found, "Cloud Run must check the permission of each caller", fix)


RULE: Final = Rule(
    name="no-public-access",
    description="No grant to allUsers or allAuthenticatedUsers, and no Cloud Run service without a check of its callers.",
    check=_check,
    own_settings={},
)
