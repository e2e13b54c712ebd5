"""Base classes of the service models, and the common form of list responses."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from localcloud.json_values import JsonObject, part, strings
from localcloud.rest import filters
from localcloud.rest.call import Call, Handler, page
from localcloud.rest.errors import CloudError
from localcloud.world.cloud import Cloud
from localcloud.world.roles import grants

_MARK = "discovery_methods"
_Function = TypeVar("_Function", bound=Callable[..., object])


def method(*names: str) -> Callable[[_Function], _Function]:
    """Mark a function of an `ApiService` as the handler of discovery methods. Each name is the part of the method id after the service's `prefix`."""

    def mark(function: _Function) -> _Function:
        setattr(function, _MARK, names)
        return function

    return mark


class ApiService:
    """A group of methods of one API. A subclass sets `prefix` and marks its handlers with `@method`."""

    prefix: str

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def handlers(self) -> dict[str, Handler]:
        """Return the marked functions by discovery method id."""
        return {
            f"{self.prefix}.{name}": getattr(self, attribute)
            for attribute, names in _marked(type(self))
            for name in names
        }

    def stored(self, kind: str, name: str, missing: str) -> JsonObject:
        """Return a stored document. Raise 404 with the message `missing` if it does not exist."""
        document = self._store.get(kind, name)
        if document is None:
            raise CloudError.not_found(missing)
        return document

    def visible_under(self, kind: str, prefix: str) -> list[tuple[str, JsonObject]]:
        """Return name and visible document of each entry whose name starts with the prefix, sorted by name."""
        return [(name, visible(document)) for name, document in self._store.under(kind, prefix)]


@cache
def _marked(service: type[ApiService]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the handlers of a class: attribute and method names."""
    functions = inspect.getmembers(service, inspect.isfunction)
    return tuple((attribute, getattr(function, _MARK)) for attribute, function in functions if hasattr(function, _MARK))


class PolicyService(ApiService, ABC):
    """A service whose resources have an IAM policy."""

    @abstractmethod
    def find(self, call: Call) -> JsonObject:
        """Return the document that the call names. Raise 404 if it does not exist."""

    @method("get")
    def get(self, call: Call) -> JsonObject:
        """Return the resource."""
        return visible(self.find(call))

    def policy_name(self, call: Call) -> str:
        """Return the key of the stored policy. Raise 404 if the resource does not exist."""
        self.find(call)
        return f"//{call.document.api}.googleapis.com/{call.name}"

    @method("getIamPolicy")
    def get_iam_policy(self, call: Call) -> JsonObject:
        """Return the policy."""
        return self._cloud.policies.get(self.policy_name(call), version=requested_version(call))

    @method("setIamPolicy")
    def set_iam_policy(self, call: Call) -> JsonObject:
        """Replace the policy."""
        return self._cloud.policies.replace(
            self.policy_name(call), part(call.body, "policy"), mask=call.body.get("updateMask")
        )

    @method("testIamPermissions")
    def test_iam_permissions(self, call: Call) -> JsonObject:
        """Return the given permissions that the caller has."""
        return {"permissions": held_permissions(self._cloud, call, [self.policy_name(call)])}


class OperationsService(ApiService):
    """Long-running operations of one API."""

    def __init__(self, cloud: Cloud, api: str, prefix: str) -> None:
        super().__init__(cloud)
        self._api = api
        self.prefix = prefix

    @method("get")
    def get(self, call: Call) -> JsonObject:
        """Return an operation."""
        return self._cloud.operations.get(self._api, call.name)

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return the operations of a location."""
        operations = self._cloud.operations.under(self._api, call.name + "/operations/")
        return listing(call.query, "operations", [(str(operation["name"]), operation) for operation in operations])


def listing(
    query: Mapping[str, Any],
    key: str,
    items: list[tuple[str, JsonObject]],
    *,
    default: int = 100,
    maximum: int = 1000,
    total: bool = False,
) -> JsonObject:
    """Return a list response: the filtered page of the query, and the token of the next page.

    An empty list is omitted, as in protocol-buffer JSON. `total` adds the number of items that match the filter.
    """
    chosen = filters.chosen(items, query.get("filter"))
    shown, following = page(
        chosen, size=query.get("pageSize"), token=query.get("pageToken"), default=default, maximum=maximum
    )
    return {
        **({key: shown} if shown else {}),
        **({"nextPageToken": following} if following else {}),
        **({"totalSize": len(chosen)} if total else {}),
    }


def name_prefix(parent: str, collection: str) -> str:
    """Return the common prefix of names in a collection below a parent. A parent that ends in `-` means all parents of its kind."""
    return parent.removesuffix("-") if parent.endswith("/-") else f"{parent}/{collection}/"


def requested_version(call: Call) -> int:
    """Return the policy version that a `getIamPolicy` requests, or 0 if it requests none."""
    given = call.query.get("options.requestedPolicyVersion") or call.query.get("optionsRequestedPolicyVersion")
    return int(given or part(call.body, "options").get("requestedPolicyVersion") or 0)


def visible(document: JsonObject) -> JsonObject:
    """Return a stored document without the local cloud's internal fields."""
    return {key: value for key, value in document.items() if not key.startswith("_")}


def held_permissions(cloud: Cloud, call: Call, resources: list[str]) -> list[str]:
    """Return the given permissions that the caller has on the resources."""
    requested = strings(call.body, "permissions") or strings(call.query, "permissions")
    if any("*" in permission for permission in requested):
        raise CloudError.field("permissions", "Permissions with wildcards (such as * or storage.*) are not allowed.")
    if call.caller.operator:
        return [permission for permission in requested if grants("roles/owner", permission)]
    return [permission for permission in requested if cloud.policies.allows(call.caller.email, permission, resources)]
