"""What several services share: IAM methods of a resource, operations, label rules."""

import re
from collections.abc import Callable

from localcloud.json_values import JsonObject, part, strings
from localcloud.rest.call import Call, Handler, page
from localcloud.rest.errors import CloudError
from localcloud.world.cloud import REGIONS, Cloud
from localcloud.world.roles import grants

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MAX_LABELS = 64


def policy_handlers(cloud: Cloud, prefix: str, exists: Callable[[Call], None]) -> dict[str, Handler]:
    """getIamPolicy, setIamPolicy and testIamPermissions under a method prefix; `exists` raises 404 where the resource is missing."""

    def resource(call: Call) -> str:
        exists(call)
        return f"//{call.document.api}.googleapis.com/{call.name}"

    def read(call: Call) -> JsonObject:
        return cloud.policies.get(resource(call))

    def write(call: Call) -> JsonObject:
        return cloud.policies.replace(resource(call), part(call.body, "policy"), mask=call.body.get("updateMask"))

    def test(call: Call) -> JsonObject:
        name = resource(call)
        return {"permissions": held(cloud, call, [name])}

    return {f"{prefix}.getIamPolicy": read, f"{prefix}.setIamPolicy": write, f"{prefix}.testIamPermissions": test}


def held(cloud: Cloud, call: Call, resources: list[str]) -> list[str]:
    """Which of the permissions asked for the caller has."""
    asked: list[str] = strings(call.body, "permissions") or strings(call.query, "permissions")
    if call.caller.operator:
        return [permission for permission in asked if grants("roles/owner", permission)]
    return [permission for permission in asked if cloud.policies.allows(call.caller.email, permission, resources)]


def operation_handlers(cloud: Cloud, api: str, prefix: str) -> dict[str, Handler]:
    """Get, list and delete of long-running operations."""

    def read(call: Call) -> JsonObject:
        return cloud.operations.get(api, call.name)

    def listed(call: Call) -> JsonObject:
        found = [
            (operation["name"], operation) for operation in cloud.operations.under(api, call.name + "/operations/")
        ]
        operations, following = page(found, size=call.query.get("pageSize"), token=call.query.get("pageToken"))
        return with_token({"operations": operations}, following)

    def delete(call: Call) -> JsonObject:
        cloud.operations.delete(api, call.name)
        return {}

    return {f"{prefix}.get": read, f"{prefix}.list": listed, f"{prefix}.delete": delete}


def with_token(answer: JsonObject, following: str | None) -> JsonObject:
    """A list answer: empty lists are left out, the next page's token is added where there is one."""
    shown = {key: value for key, value in answer.items() if value != []}
    return {**shown, "nextPageToken": following} if following else shown


def check_labels(labels: object, path: str) -> None:
    """Google's rules for labels: 64 at most, lower case keys of 63 characters, values of 63 characters."""
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


def check_region(name: str) -> str:
    """The location of `projects/P/locations/L...`, refused as Google does where there is no such region."""
    location = name.split("/")[3]
    if location not in REGIONS:
        raise CloudError.denied(f"Permission denied on 'locations/{location}' (or it may not exist).")
    return location


def visible(document: JsonObject) -> JsonObject:
    """A stored document without the fields that the local cloud keeps for itself."""
    return {key: value for key, value in document.items() if not key.startswith("_")}
